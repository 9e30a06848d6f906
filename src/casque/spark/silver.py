"""Finished jobs and their attempts as columns, from the archive's lines; jobs in the queue, from its state.

Runs on executors. Of payloads and results only the sizes are kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from casque.errors import CorruptQueueError
from casque.fields import gained_columns
from casque.scan.archive_columns import finished_jobs
from casque.scan.arrays import column, text_times
from casque.scan.arrow_types import INSTANT, arrow_type
from casque.scan.attempt_columns import claims, failed_attempts, has_last_attempt
from casque.scan.stored_fields import UNFIT
from casque.spark.parquet import PARTITION
from casque.spark.tables import TABLES
from casque.types import Attempt, JobRecord, JobState

CLASS_MAX = 120
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|\b[0-9a-fA-F]{16,}\b|\d+")


class _Earlier(msgspec.Struct, gc=False):
    """Earlier attempts in this life of a job: since its enqueue, or its revival."""

    tries: Sequence[Any]
    revived: bool


def finished(key: str, body: bytes) -> tuple[Any, Any]:
    """An object of the archive as rows of `silver/jobs` and of `silver/attempts`.

    Raises:
        CorruptQueueError: `body` is not an archive object.
    """
    try:
        lines = finished_jobs(body)
    except UNFIT as error:
        raise CorruptQueueError(key, f"this is no part of an archive ({error}). Restore it from a backup") from error
    earlier = {number: _earlier(line) for number, line in enumerate(lines) if line.tries}
    jobs = _jobs(lines, earlier)
    return jobs, _attempts(lines, earlier, jobs)


def error_class(error: str | None) -> str | None:
    """The kind of an error: the text before the first colon, without numbers and ids.

    >>> error_class("TimeoutError: no answer from 10.0.0.7")
    'TimeoutError'
    >>> error_class("order 4711 is gone")
    'order # is gone'
    """
    return None if error is None else _class(error.partition(":")[0])


@lru_cache(maxsize=4096)
def _class(start: str) -> str:
    return _NUMBERS.sub("#", start.strip())[:CLASS_MAX]


def _earlier(line: Any) -> _Earlier:
    """Leaves out attempts before a revival, which were counted when the job died."""
    tries = failed_attempts(line)
    return _Earlier(tries, len(line.tries) > len(tries))


def _jobs(lines: Sequence[Any], earlier: dict[int, _Earlier]) -> Any:
    created = text_times([line.created_at for line in lines])
    run_at = text_times([line.run_at for line in lines])
    due = text_times([line.due_at for line in lines])
    claimed = text_times([line.claimed_at for line in lines])
    ended = text_times([line.finished_at for line in lines])
    first_claimed = text_times([_first_claim(line, earlier.get(number)) for number, line in enumerate(lines)])
    revived = pa.array([number in earlier and earlier[number].revived for number in range(len(lines))], pa.bool_())
    again = pa.array([number in earlier and bool(earlier[number].tries) for number in range(len(lines))], pa.bool_())
    # When a revival with several attempts came due is not kept: it counts from its first claim on.
    second_life = pc.if_else(again, first_claimed, due)
    first_due = pc.if_else(revived, second_life, _later(created, run_at))
    wait = _between(first_due, first_claimed, unless=pc.and_(revived, again))
    run = pc.add(
        _tried_ms(earlier, len(lines)),
        pc.fill_null(_between(claimed, ended, unless=pa.array([line.waiting for line in lines], pa.bool_())), 0),
    )
    after = pc.fill_null(_between(first_claimed, ended), 0)
    columns = {
        "position": [line.position for line in lines],
        "id": [line.id for line in lines],
        "entrypoint": [line.entrypoint for line in lines],
        "zone": [line.zone for line in lines],
        "state": [line.state for line in lines],
        "priority": [line.priority for line in lines],
        "key": [line.key for line in lines],
        "payload_bytes": [len(line.payload) if line.blob_bytes is None else line.blob_bytes for line in lines],
        "sequence": [line.sequence for line in lines],
        "token": [line.token for line in lines],
        "attempts": [line.attempts for line in lines],
        "max_attempts": [line.max_attempts for line in lines],
        "worker": [line.worker for line in lines],
        "created_at": created,
        "run_at": run_at,
        "first_due_at": first_due,
        "first_claimed_at": first_claimed,
        "claimed_at": claimed,
        "due_at": due,
        "error": [line.error for line in lines],
        "error_class": [error_class(line.error) for line in lines],
        "revived": revived,
        "finished_at": ended,
        "scheduled_ms": _between(created, first_due, unless=revived),
        "wait_ms": wait,
        "run_ms": run,
        "pause_ms": pc.max_element_wise(pc.subtract(after, run), 0),
        "total_ms": _between(created, ended),
        "result_bytes": [None if line.result is None else len(line.result) for line in lines],
        **gained_columns(lines),
    }
    return _table("silver/jobs", columns, len(lines))


def _attempts(lines: Sequence[Any], earlier: dict[int, _Earlier], jobs: Any) -> Any:
    """Failed attempts, and for each job the one that ended it, if there is one."""
    ended_by_one = [number for number, line in enumerate(lines) if has_last_attempt(line)]
    numbers = pa.array([claims(lines[number]) for number in ended_by_one], pa.int32())
    every = len(ended_by_one) == len(lines)
    last = _last_attempts(jobs if every else jobs.take(pa.array(ended_by_one, pa.int64())), numbers)
    if not earlier:
        return last
    owners = [number for number, this in earlier.items() for _ in this.tries]
    both = pa.concat_tables([_lost_attempts(lines, earlier), last])
    # Keep a job's attempts together and in order, the last one last.
    order = np.argsort(np.array(owners + ended_by_one, np.int64), kind="stable")
    return both.take(pa.array(order)).combine_chunks()


def _last_attempts(jobs: Any, numbers: Any) -> Any:
    """Nearly all attempts are the only one of their job, so the job's columns describe them completely."""
    fine = pc.equal(jobs.column("state"), "done")
    claimed, ended = jobs.column("claimed_at"), jobs.column("finished_at")
    nothing = pa.scalar(None, pa.string())
    same = {name: jobs.column(name) for name in ("position", "entrypoint", "zone", "token", "worker", "claimed_at")}
    columns = {
        **same,
        "job_id": jobs.column("id"),
        "attempt": pc.max_element_wise(numbers, pa.scalar(1, pa.int32())),
        "ended_at": ended,
        "run_ms": _between(claimed, ended),
        "outcome": jobs.column("state"),
        "error_class": pc.if_else(fine, nothing, jobs.column("error_class")),
        "error": pc.if_else(fine, nothing, jobs.column("error")),
        "last": pa.repeat(pa.scalar(True), jobs.num_rows),
    }
    return _table("silver/attempts", columns, jobs.num_rows)


def _lost_attempts(lines: Sequence[Any], earlier: dict[int, _Earlier]) -> Any:
    rows: list[tuple[Any, Any, int]] = []
    for number, this in earlier.items():
        line = lines[number]
        first = claims(line) - len(this.tries) + line.waiting
        rows += [(line, tried, first + place) for place, tried in enumerate(this.tries)]
    claimed = text_times([tried.claimed_at for _, tried, _ in rows])
    ended = text_times([tried.ended_at for _, tried, _ in rows])
    columns = {
        "position": [line.position for line, _, _ in rows],
        "job_id": [line.id for line, _, _ in rows],
        "entrypoint": [line.entrypoint for line, _, _ in rows],
        "zone": [line.zone for line, _, _ in rows],
        "attempt": [number for _, _, number in rows],
        "token": [tried.token for _, tried, _ in rows],
        "worker": [tried.worker for _, tried, _ in rows],
        "claimed_at": claimed,
        "ended_at": ended,
        "run_ms": _between(claimed, ended),
        "outcome": [tried.how for _, tried, _ in rows],
        "error_class": [error_class(tried.error) for _, tried, _ in rows],
        "error": [tried.error for _, tried, _ in rows],
        "last": [False] * len(rows),
    }
    return _table("silver/attempts", columns, len(rows))


def waiting(records: Sequence[JobRecord], as_of_ms: int) -> Any:
    """Jobs in the queue as rows of `silver/queue`."""
    lives = [_life(record) for record in records]
    columns = {
        "as_of": column([as_of_ms] * len(records), INSTANT),
        "id": [record.spec.id for record in records],
        "entrypoint": [record.spec.entrypoint for record in records],
        "zone": [record.spec.zone for record in records],
        "state": [record.state.value for record in records],
        "priority": [record.spec.priority for record in records],
        "key": [record.spec.key for record in records],
        "payload_bytes": [record.spec.blob_bytes or len(record.spec.payload) for record in records],
        "sequence": [record.sequence for record in records],
        "token": [record.token for record in records],
        "attempts": [record.attempts for record in records],
        "max_attempts": [record.spec.max_attempts for record in records],
        "worker": [record.worker for record in records],
        "created_at": column([record.created_ms for record in records], INSTANT),
        "run_at": column([record.spec.run_at_ms for record in records], INSTANT),
        "first_due_at": column([life.first_due_ms for life in lives], INSTANT),
        "first_claimed_at": column([life.first_claimed_ms for life in lives], INSTANT),
        "claimed_at": column([record.claimed_ms for record in records], INSTANT),
        "due_at": column([record.due_ms for record in records], INSTANT),
        "error": [record.error for record in records],
        "error_class": [error_class(record.error) for record in records],
        "revived": [life.revived for life in lives],
        "tried": [_tried(record, life) for record, life in zip(records, lives, strict=True)],
        **gained_columns([record.spec for record in records]),
    }
    return _table("silver/queue", columns, len(records))


class _Life(msgspec.Struct, gc=False):
    """A job since it was enqueued, or since it got new attempts."""

    first_due_ms: int
    first_claimed_ms: int | None
    revived: bool
    tries: Sequence[Attempt]


def _life(record: JobRecord) -> _Life:
    running = record.state is JobState.RUNNING
    lost = record.attempts + record.crashes - running
    revived = len(record.tries) > max(lost, 0)
    tries = record.tries[-lost:] if lost > 0 else ()
    first_claimed_ms = tries[0].claimed_ms if tries else record.claimed_ms if running else None
    if not revived:
        return _Life(max(record.created_ms, record.spec.run_at_ms or 0), first_claimed_ms, False, tries)
    return _Life(first_claimed_ms or record.due_ms if tries else record.due_ms, first_claimed_ms, True, tries)


def _tried(record: JobRecord, life: _Life) -> list[dict[str, Any]] | None:
    """None for a dead job: its attempts were counted when it ended."""
    if record.state is JobState.DEAD:
        return None
    return [
        {"claimed_ms": one.claimed_ms, "ended_ms": one.ended_ms, "worker": one.worker, "outcome": one.how.value}
        for one in life.tries
    ]


def _first_claim(line: Any, earlier: _Earlier | None) -> Any:
    if earlier is not None and earlier.tries:
        return earlier.tries[0].claimed_at
    # In lines of a release that kept no attempts, the first claim is known only if there was just one.
    return line.claimed_at if claims(line) <= 1 and not line.waiting else None


def _tried_ms(earlier: dict[int, _Earlier], lines: int) -> Any:
    """Total time of each line's failed attempts. All lines at once, because Arrow takes as long to start for one as for
    thousands."""
    owners = np.array([number for number, this in earlier.items() for _ in this.tries], np.int64)
    claimed = text_times([tried.claimed_at for this in earlier.values() for tried in this.tries])
    ended = text_times([tried.ended_at for this in earlier.values() for tried in this.tries])
    total = np.zeros(lines, np.int64)
    np.add.at(total, owners, pc.fill_null(_between(claimed, ended), 0).to_numpy(zero_copy_only=False))
    return pa.array(total)


def _later(created: Any, run_at: Any) -> Any:
    return pc.if_else(pc.fill_null(pc.greater(run_at, created), False), run_at, created)


def _between(start: Any, end: Any, *, unless: Any = None) -> Any:
    """Milliseconds, at least 0: the clocks of two writers may differ."""
    span = pc.divide(pc.subtract(end.cast(pa.int64()), start.cast(pa.int64())), 1000)
    # max_element_wise ignores nulls: it would turn them into 0.
    span = pc.if_else(pc.is_null(span), pa.scalar(None, pa.int64()), pc.max_element_wise(span, 0))
    return span if unless is None else pc.if_else(unless, pa.scalar(None, pa.int64()), span)


def _table(name: str, columns: dict[str, Any], rows: int) -> Any:
    """Columns in the table's order and types, with the shard; the partition is left out, it comes from the file
    name."""
    wanted = {column: arrow_type(kind.type) for column, kind in TABLES[name].columns.items() if column != PARTITION}
    columns["shard"] = pa.repeat(pa.scalar(0, pa.int32()), rows)
    arrays = [
        found if isinstance(found := columns[column], pa.Array | pa.ChunkedArray) else pa.array(found, kind)
        for column, kind in wanted.items()
    ]
    return pa.table(arrays, schema=pa.schema(list(wanted.items())))
