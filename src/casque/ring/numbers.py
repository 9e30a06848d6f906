"""Enqueue numbers and lease tokens that are unique in a whole ring, and contain their shard.

A shard counts its jobs and its claims from 1, like any queue. Outside the ring, the lowest digits are the shard
instead: so a token alone identifies the shard of its lease, in any process, and numbers of one shard still rise.
"""

from __future__ import annotations

import msgspec

from casque.codec.ring import SHARDS_MAX
from casque.errors import CasqueError, LeaseLostError
from casque.service import ArchivedJob
from casque.types import Attempt, JobRecord, ZoneLease


def outer(number: int, shard: int) -> int:
    """The ring's form of a shard's number; 0, which means none, stays 0.

    >>> outer(5, 3), outer(0, 3)
    (20483, 0)
    """
    return number * SHARDS_MAX + shard if number else 0


def inner(number: int) -> tuple[int, int]:
    """The shard's own number, and the shard.

    >>> inner(20483)
    (5, 3)
    """
    return divmod(number, SHARDS_MAX)


def record_of(job: JobRecord, shard: int) -> JobRecord:
    """A shard's job with the ring's numbers."""
    # Field by field: naming only the changes takes three times as long.
    return JobRecord(
        job.spec,
        outer(job.sequence, shard),
        job.created_ms,
        job.state,
        job.due_ms,
        outer(job.token, shard),
        job.attempts,
        job.worker,
        job.lease_ms,
        job.claimed_ms,
        job.beat_ms,
        job.error,
        tuple([_attempt(one, shard) for one in job.tries]) if job.tries else (),
        job.crashes,
        job.progress,
        job.declined,
    )


def archived_of(job: ArchivedJob, shard: int) -> ArchivedJob:
    return msgspec.structs.replace(
        job,
        sequence=outer(job.sequence, shard),
        token=outer(job.token, shard),
        position=outer(job.position, shard),
        tries=tuple([msgspec.structs.replace(one, token=outer(one.token, shard)) for one in job.tries]),
    )


def error_of(error: CasqueError, shard: int) -> CasqueError:
    """The same error, with the token that the caller knows."""
    if isinstance(error, LeaseLostError) and error.token is not None:
        return LeaseLostError(error.job_id, outer(error.token, shard))
    return error


def lease_of(lease: ZoneLease, shard: int) -> ZoneLease:
    """A zone lease with the ring's token."""
    return msgspec.structs.replace(lease, token=outer(lease.token, shard))


def after_of(after: int, shard: int) -> int:
    """The shard's number to continue after, for a number of the ring."""
    return max((after - shard) // SHARDS_MAX, 0)


def _attempt(one: Attempt, shard: int) -> Attempt:
    return msgspec.structs.replace(one, token=outer(one.token, shard))
