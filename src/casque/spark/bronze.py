"""The change feed as columns, from the commits of a log. Runs on executors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from casque.scan.arrow_types import arrow_schema
from casque.scan.event_columns import Commit, EventColumns
from casque.spark.parquet import PARTITION
from casque.spark.tables import TABLES

_SCHEMA = arrow_schema(
    {name: column.type for name, column in TABLES["bronze/events"].columns.items() if name != PARTITION}
)
_OPERATIONS = "operations"
_OF_ADDED = ("entrypoint", "zone", "priority")
"""Null for other events, though some of them are about an entrypoint, a zone or a priority."""


def happened(commits: Sequence[Commit], *, payloads: bool) -> Any:
    """Rows of `bronze/events`; payloads and results only if `payloads` is set."""
    events = EventColumns([name for name in _SCHEMA.names if name != _OPERATIONS])
    for commit in commits:
        events.add(commit)
    if not events.rows:
        return _SCHEMA.empty_table()
    columns = dict(zip(events.columns, events.batch().columns, strict=True))
    added = pc.equal(columns["kind"], "added")
    for name in _OF_ADDED:
        columns[name] = _only(added, columns[name])
    columns["count"] = _only(pc.not_equal(columns["kind"], "admitted"), columns["count"])
    # A payload that is stored elsewhere is empty here, as in the event.
    columns["payload"] = _only(pc.and_(added, payloads), pc.fill_null(columns["payload"], b""))
    columns["result"] = _only(pa.scalar(payloads), columns["result"])
    columns[_OPERATIONS] = _operations(columns["position"], columns["job_id"])
    return pa.table([columns[field.name].cast(field.type) for field in _SCHEMA], schema=_SCHEMA)


def _only(mask: Any, column: Any) -> Any:
    return pc.if_else(mask, column, pa.scalar(None, column.type))


def _operations(positions: Any, job_ids: Any) -> Any:
    """How many events of a commit are about jobs."""
    _, commit = np.unique(positions.to_numpy(), return_inverse=True)
    about_jobs = job_ids.is_valid().to_numpy(zero_copy_only=False)
    return pa.array(np.bincount(commit, about_jobs)[commit].astype(np.int32))
