"""Finished jobs as their attempts: one row per failed attempt, and one for the attempt that ended the job.

A dead job that was retried is in the archive again when it finishes again, with its whole list of attempts. The earlier
line already covers the earlier ones, so each line yields only those of its own life: `attempts` and `crashes` say how
many. Attempts and crashes share one numbering here, because each was a claim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from casque.scan.archive_columns import chosen_jobs, constant, no_archive
from casque.scan.arrays import text_times
from casque.scan.splits import ArchiveObject, ArchiveSplit
from casque.scan.stored_fields import UNFIT
from casque.scan.tables import Table, arrow_schema

_READ = (
    "id", "entrypoint", "zone", "state", "attempts", "crashes", "claimed_at", "worker", "error", "token", "tries",
    "waiting",
)  # fmt: skip


class _Attempt(NamedTuple):
    job: Any
    number: int
    failed: Any
    """The failed attempt; None for the one that ended the job."""


def attempts_batch(split: ArchiveSplit, one: ArchiveObject, body: bytes, columns: Sequence[str]) -> Any:
    """The attempts of an object's jobs that a split asks for, as a `pyarrow.RecordBatch`.

    Raises:
        CorruptQueueError: it is not an archive object.
    """
    schema = arrow_schema(Table.ATTEMPTS, columns)
    try:
        attempts = [attempt for job in chosen_jobs(split, one, body, _READ) for attempt in _attempts(job)]
        arrays = [_array(field.name, attempts, one.hour, field.type) for field in schema]
    except UNFIT as error:
        raise no_archive(one.key, error) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def claims(job: Any) -> int:
    """Claims in this life of a finished job: its attempts, and the crashes, which do not count as attempts."""
    return int(job.attempts + job.crashes)


def failed_attempts(job: Any) -> Sequence[Any]:
    """The failed attempts in this life of a finished job, as far as they are kept."""
    failed = claims(job) - (not job.waiting)
    return job.tries[-failed:] if failed > 0 else ()


def has_last_attempt(job: Any) -> bool:
    """False if no worker held the job when it ended."""
    return job.claimed_at is not None and not job.waiting


def _attempts(job: Any) -> Iterator[_Attempt]:
    """In the order in which they were made."""
    if job.tries:
        failed = failed_attempts(job)
        first = claims(job) - (not job.waiting) - len(failed) + 1
        for number, one in enumerate(failed, first):
            yield _Attempt(job, number, one)
    if has_last_attempt(job):
        yield _Attempt(job, claims(job), None)


def _array(name: str, attempts: Sequence[_Attempt], hour: str, wanted: Any) -> Any:
    match name:
        case "shard" | "hour":
            return constant(name, hour, len(attempts))
        case "position" | "entrypoint" | "zone":
            return pa.array([getattr(one.job, name) for one in attempts], wanted)
        case "job_id":
            return pa.array([one.job.id for one in attempts], wanted)
        case "attempt":
            return pa.array([one.number for one in attempts], wanted)
        case "last":
            return pa.array([one.failed is None for one in attempts], wanted)
        case "outcome":
            return pa.array([one.job.state if one.failed is None else one.failed.how for one in attempts], wanted)
        case "ended_at":
            return text_times([one.job.finished_at if one.failed is None else one.failed.ended_at for one in attempts])
        case "claimed_at":
            return text_times([(one.failed or one.job).claimed_at for one in attempts])
        case "error":
            return pa.array([_error(one) for one in attempts], wanted)
        case _:
            return pa.array([getattr(one.failed or one.job, name) for one in attempts], wanted)


def _error(attempt: _Attempt) -> str | None:
    if attempt.failed is not None:
        return str(attempt.failed.error) if attempt.failed.error is not None else None
    # A job that is done may carry the error of an earlier attempt.
    return attempt.job.error if attempt.job.state == "dead" else None
