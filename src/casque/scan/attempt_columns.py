"""Finished jobs as their attempts: one row per failed attempt, and one for the attempt that ended the job.

A dead job that was retried is in the archive again when it finishes again, with its whole list of attempts. The earlier
line already covers the earlier ones, so each line yields only those of its own life: `attempts` and `crashes` say how
many. Attempts and crashes share one numbering here, because each was a claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from casque.codec.archive import no_archive
from casque.scan.archive_columns import chosen_jobs, constant, unfit
from casque.scan.arrays import column, each, times
from casque.scan.splits import ArchiveObject, ArchiveSplit
from casque.scan.tables import Table, arrow_schema

_READ = (
    "id", "entrypoint", "zone", "state", "attempts", "crashes", "claimed_at", "worker", "error", "token", "tries",
    "waiting",
)  # fmt: skip


def attempts_batch(split: ArchiveSplit, one: ArchiveObject, body: bytes, columns: Sequence[str]) -> Any:
    """The attempts of an object's jobs that a split asks for, as a `pyarrow.RecordBatch`.

    Raises:
        CorruptQueueError: it is not an archive object.
    """
    schema = arrow_schema(Table.ATTEMPTS, columns)
    try:
        attempts = _Attempts(chosen_jobs(split, one, body, _READ))
        arrays = [attempts.array(field.name, one.hour, field.type) for field in schema]
    except unfit(one) as error:
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


class _Attempts:
    """Attempts, those of a job in the order in which they were made."""

    def __init__(self, jobs: Sequence[Any]) -> None:
        self.jobs: list[Any] = []
        self.numbers: list[int] = []
        self.failed: list[Any] = []
        """The failed attempt; None for the one that ended the job."""
        for job in jobs:
            number = claims(job)
            if job.tries:
                failed = failed_attempts(job)
                first = number - (not job.waiting) - len(failed) + 1
                self.jobs += [job] * len(failed)
                self.numbers += range(first, first + len(failed))
                self.failed += failed
            if has_last_attempt(job):
                self.jobs.append(job)
                self.numbers.append(number)
                self.failed.append(None)

    def array(self, name: str, hour: str, wanted: Any) -> Any:
        both = zip(self.jobs, self.failed, strict=True)
        match name:
            case "shard" | "hour":
                return constant(name, hour, len(self.jobs))
            case "position" | "entrypoint" | "zone":
                return column(each(name, self.jobs), wanted)
            case "job_id":
                return column(each("id", self.jobs), wanted)
            case "attempt":
                return column(self.numbers, wanted)
            case "last":
                return column([failed is None for failed in self.failed], wanted)
            case "outcome":
                return column([job.state if failed is None else failed.how for job, failed in both], wanted)
            case "error":
                return column([_error(job) if failed is None else failed.error for job, failed in both], wanted)
            case "ended_at":
                return times([job.finished_at if failed is None else failed.ended_at for job, failed in both])
            case "claimed_at":
                return times([(failed or job).claimed_at for job, failed in both])
            case _:
                return column(each(name, [failed or job for job, failed in both]), wanted)


def _error(job: Any) -> Any:
    """A job that is done may carry the error of an earlier attempt."""
    return job.error if job.state == "dead" else None
