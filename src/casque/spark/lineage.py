"""Reports runs of the pipeline as OpenLineage events: START, then COMPLETE, FAIL or ABORT, each a JSON document.

Events go to a file, one a line, or by POST to a server such as Marquez or DataHub. A run never fails because an event
could not be delivered: that is a warning.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from enum import StrEnum
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

import msgspec

from casque import __version__
from casque.clock import Clock, SystemClock, new_id, system_random
from casque.errors import InvalidInputError
from casque.spark.models import Model
from casque.telemetry import logger
from casque.types import from_ms

log = logger("spark")

NAMESPACE = "casque"
"""The namespace of jobs."""
ENDPOINT = "/api/v1/lineage"
"""Where servers take events, unless the URL says it."""
API_KEY = "OPENLINEAGE_API_KEY"
"""The variable of OpenLineage's own clients."""
TIMEOUT_SECONDS = 5.0
PRODUCER = f"https://pypi.org/project/casque/{__version__}"
_SPEC = "https://openlineage.io/spec"
_EVENT = f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent"


class State(StrEnum):
    """What became of a run."""

    START = "START"
    COMPLETE = "COMPLETE"
    FAIL = "FAIL"
    ABORT = "ABORT"


class Written(msgspec.Struct, frozen=True):
    """What a run wrote to a table."""

    rows: int = 0
    bytes: int = 0

    def __add__(self, other: Written) -> Written:
        return Written(self.rows + other.rows, self.bytes + other.bytes)


class Lineage:
    """Where events go: an http(s) URL, or a file.

    >>> Lineage("https://lineage.internal").target
    'https://lineage.internal/api/v1/lineage'

    Raises:
        InvalidInputError: it is neither.
    """

    def __init__(self, target: str, *, warn: Callable[[str], object] = log.warning, clock: Clock | None = None) -> None:
        parts = urlsplit(target)
        self._file: Path | None = None
        if "@" in parts.netloc:
            raise InvalidInputError(f"the URL for lineage has a user in it; give a token as {API_KEY} instead")
        if parts.scheme in ("http", "https") and parts.netloc:
            target = urlunsplit(parts._replace(path=ENDPOINT)) if parts.path in ("", "/") else target
        elif parts.scheme == "file" and not parts.netloc:
            self._file = Path(unquote(parts.path))
        elif "://" in target or not target:
            raise InvalidInputError(f"lineage goes to an http:// or https:// URL, or to a file, not to {target!r}")
        else:
            self._file = Path(target)
        self.target = target
        self._warn = warn
        self._clock = clock or SystemClock()

    def start(self, queue: str, warehouse: str) -> LineageRun:
        """Report that a run begins."""
        run = LineageRun(self, queue, warehouse)
        run.report(State.START)
        return run

    def send(self, event: Mapping[str, Any]) -> None:
        """Deliver an event, or warn."""
        body = msgspec.json.encode(event)
        try:
            if self._file is None:
                self._post(body)
            else:
                with self._file.open("ab") as file:
                    file.write(body + b"\n")
        except (OSError, HTTPException, ValueError) as error:  # URLError is an OSError
            reason = error.reason if isinstance(error, URLError) else error
            shown = self.target.partition("?")[0]  # the rest may be secret
            self._warn(f"the lineage event {event['eventType']} did not reach {shown}: {reason}")

    def now(self) -> str:
        return from_ms(self._clock.wall_ms()).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def _post(self, body: bytes) -> None:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(API_KEY):
            headers["Authorization"] = f"Bearer {key}"
        request = Request(self.target, data=body, headers=headers, method="POST")  # noqa: S310  http or https
        with urlopen(request, timeout=TIMEOUT_SECONDS):  # noqa: S310
            pass


class LineageRun:
    """One run, and the events about it."""

    def __init__(self, lineage: Lineage, queue: str, warehouse: str) -> None:
        self._lineage = lineage
        self._queue = queue
        self._warehouse = warehouse
        self._id = new_id(system_random())

    def complete(
        self,
        position: int,
        models: Mapping[str, Model],
        written: Mapping[str, Written],
        versions: Mapping[str, int],
    ) -> None:
        """Report the end: the position that was reached, and the tables that were written."""
        outputs = [self._table(models[name], one, versions.get(name)) for name, one in written.items()]
        self.report(State.COMPLETE, position=position, outputs=outputs)

    def fail(self, error: BaseException) -> None:
        """Report that the run failed or, unless the error is an ordinary one, was interrupted."""
        message = _facet("facets/1-0-0", "ErrorMessageRunFacet", message=str(error), programmingLanguage="PYTHON")
        state = State.FAIL if isinstance(error, Exception) else State.ABORT
        self.report(state, facets={"errorMessage": message} if state is State.FAIL else {})

    def report(
        self,
        state: State,
        *,
        position: int | None = None,
        outputs: list[dict[str, Any]] | None = None,
        facets: Mapping[str, Any] | None = None,
    ) -> None:
        kind = _facet(
            "facets/2-0-3", "JobTypeJobFacet", processingType="BATCH", integration="CASQUE", jobType="PIPELINE"
        )
        queue = dataset(self._queue)
        if position is not None:
            queue["facets"] = {"version": _version(position)}
        self._lineage.send(
            {
                "eventType": state.value,
                "eventTime": self._lineage.now(),
                "run": {"runId": self._id, "facets": facets or {}},
                "job": {
                    "namespace": NAMESPACE,
                    "name": _job(self._queue, self._warehouse),
                    "facets": {"jobType": kind},
                },
                "inputs": [queue],
                "outputs": outputs or [],
                "producer": PRODUCER,
                "schemaURL": _EVENT,
            }
        )

    def _table(self, model: Model, written: Written, version: int | None) -> dict[str, Any]:
        fields = [
            {"name": name, "type": column.type, "description": column.meaning} for name, column in model.columns.items()
        ]
        facets = {"schema": _facet("facets/1-0-0", "SchemaDatasetFacet", fields=fields)}
        if version is not None:
            facets["version"] = _version(version)
        counts = _facet("facets/1-0-2", "OutputStatisticsOutputDatasetFacet", rowCount=written.rows, size=written.bytes)
        table = dataset(f"{self._warehouse.partition('?')[0].rstrip('/')}/{model.name}")
        return {**table, "facets": facets, "outputFacets": {"outputStatistics": counts}}


def dataset(url: str) -> dict[str, Any]:
    """A place in a store as OpenLineage names it.

    >>> dataset("s3://bucket/warehouse/gold/hours")
    {'namespace': 's3://bucket', 'name': 'warehouse/gold/hours'}
    >>> dataset("file:///var/lib/orders")
    {'namespace': 'file', 'name': '/var/lib/orders'}
    """
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.scheme == "file":
        return {"namespace": "file", "name": path.rstrip("/") or "/"}
    return {"namespace": f"{parts.scheme}://{parts.netloc}", "name": path.strip("/") or "/"}


def _job(queue: str, warehouse: str) -> str:
    return f"pipeline {queue.partition('?')[0]} {warehouse.partition('?')[0]}"


def _version(number: int) -> dict[str, Any]:
    return _facet("facets/1-0-1", "DatasetVersionDatasetFacet", datasetVersion=str(number))


def _facet(version: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"_producer": PRODUCER, "_schemaURL": f"{_SPEC}/{version}/{name}.json#/$defs/{name}", **fields}
