"""Finished jobs as their attempts: one row per failed attempt, and one for the attempt that ended the job.

A dead job that was retried is in the archive again when it finishes again, with its whole list of attempts. The earlier
line already covers the earlier ones, so each line yields only those of its own life: `attempts` and `crashes` say how
many. Attempts and crashes share one numbering here, because each was a claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from casque.scan.archive_columns import Lines
from casque.scan.splits import ArchiveObject, ArchiveSplit
from casque.scan.tables import Table, arrow_schema

_OF_JOB = {"job_id": "id", "entrypoint": "entrypoint", "zone": "zone"}
_OF_TRY = ("token", "worker", "claimed_at", "ended_at", "error")
_LAST = {"token": "token", "worker": "worker", "claimed_at": "claimed_at", "ended_at": "finished_at"}
_READ = (
    "id", "entrypoint", "zone", "state", "attempts", "crashes", "claimed_at", "worker", "error", "token", "tries",
    "waiting",
)  # fmt: skip


def attempts_batch(split: ArchiveSplit, one: ArchiveObject, body: bytes, columns: Sequence[str]) -> Any:
    """The attempts of an object's jobs that a split asks for, as a `pyarrow.RecordBatch`."""
    lines = Lines(one, body, _READ)
    mask = lines.chosen(split)
    chosen = np.ones(lines.rows, bool) if mask is None else mask.to_numpy(zero_copy_only=False)
    schema = arrow_schema(Table.ATTEMPTS, columns)
    last, tries = _Last(lines, chosen), _Tries(lines, chosen)
    # For each job, in the order in which they were made.
    order = np.argsort(np.concatenate([tries.jobs, last.jobs]), kind="stable")
    arrays = [
        pa.concat_arrays([tries.column(field.name), last.column(field.name)]).cast(field.type).take(pa.array(order))
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Last:
    """The final attempts of jobs."""

    def __init__(self, lines: Lines, chosen: Any) -> None:
        self._lines = lines
        claimed = lines.column("claimed_at").is_valid().to_numpy(zero_copy_only=False)
        self.jobs = np.flatnonzero(chosen & claimed & ~_waiting(lines))
        self._take = pa.array(self.jobs)

    def column(self, name: str) -> Any:
        lines = self._lines
        if name == "attempt":
            return pa.array(_claims(lines), pa.int32()).take(self._take)
        if name == "outcome":
            return lines.column("state").take(self._take)
        if name == "last":
            return pa.repeat(pa.scalar(True), len(self.jobs))
        if name == "error":
            # A job that is done may carry the error of an earlier attempt.
            dead = pc.equal(lines.column("state"), "dead")
            return pc.if_else(dead, lines.column("error"), pa.scalar(None, pa.string())).take(self._take)
        return lines.column(_LAST.get(name) or _OF_JOB.get(name, name)).take(self._take)


class _Tries:
    """The failed attempts."""

    def __init__(self, lines: Lines, chosen: Any) -> None:
        self._lines = lines
        tries = lines.column("tries")
        lengths = pc.fill_null(pc.list_value_length(tries), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        rows = np.repeat(np.arange(lines.rows), lengths)
        places = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        numbered = _claims(lines) - ~_waiting(lines)
        numbers = numbered[rows] - (lengths[rows] - 1 - places)
        keep = np.flatnonzero(chosen[rows] & (numbers >= 1))
        self.jobs = rows[keep]
        self._numbers = numbers[keep]
        self._values = tries.flatten().take(pa.array(keep))
        self._take = pa.array(self.jobs)

    def column(self, name: str) -> Any:
        if name == "attempt":
            return pa.array(self._numbers, pa.int32())
        if name == "outcome":
            return self._values.field("how")
        if name == "last":
            return pa.repeat(pa.scalar(False), len(self.jobs))
        if name == "token":
            return pc.fill_null(self._values.field("token"), 0)
        if name in _OF_TRY:
            return self._values.field(name)
        return self._lines.column(_OF_JOB.get(name, name)).take(self._take)


def _claims(lines: Lines) -> Any:
    """The number of claims of each job in this life."""
    return pc.add(lines.column("attempts"), lines.column("crashes")).to_numpy(zero_copy_only=False).astype(np.int64)


def _waiting(lines: Lines) -> Any:
    """Mask of the jobs that ended while no worker held them."""
    return pc.fill_null(lines.column("waiting"), False).to_numpy(zero_copy_only=False)
