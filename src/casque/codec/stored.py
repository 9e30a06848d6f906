"""Parts of a stored state that are the same in every layout: jobs, one per line of JSON, and remembered answers.

The first seven fields of a job are jqueue's; other fields are left out if they have their default.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any

import msgspec

from casque.codec.converter import converter
from casque.errors import CorruptQueueError
from casque.fields import RECORD, SPEC
from casque.state import Counters, Limits, State
from casque.state.request_memory import Answered
from casque.types import Attempt, Finished, GainedFields, JobRecord, JobSpec, JobState, Progress, from_ms, to_ms

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class StoredStatus(StrEnum):
    """jqueue's three states. `state` keeps the distinctions that jqueue lacks."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    DEAD = "dead"


class StoredJob(GainedFields, frozen=True, omit_defaults=True, gc=False):
    """One job's line. Opening a queue makes millions: with the garbage collector they would take most of the time."""

    id: str
    entrypoint: str
    payload: bytes
    status: StoredStatus
    priority: int
    created_at: datetime
    heartbeat_at: datetime | None
    sequence: int = 0
    due_ms: int | None = None
    delayed: bool = False
    token: int = 0
    attempts: int = 0
    worker: str | None = None
    lease_ms: int = 0
    claimed_ms: int | None = None
    error: str | None = None
    run_at_ms: int | None = None
    max_attempts: int | None = None
    key: str | None = None
    headers: dict[str, str] | None = None
    zone: str | None = None
    blob: str | None = None
    blob_bytes: int = 0
    tries: tuple[Attempt, ...] = ()
    crashes: int = 0
    max_crashes: int | None = None
    progress: Progress | None = None
    fifo: bool = False
    declined: int = 0


class StoredFinished(msgspec.Struct, omit_defaults=True, gc=False):
    """A finished job that is not archived yet: how it ended, and the job as it stood before."""

    position: int
    at_ms: int
    state: JobState
    job: StoredJob
    error: str | None = None
    result: bytes | None = None


class StoredRequest(msgspec.Struct, array_like=True, gc=False):
    """A remembered answer."""

    request_id: str
    verb: str
    at_ms: int
    jobs: tuple[tuple[str, int], ...] = ()
    count: int = 0


_encoder = msgspec.json.Encoder()
_encode = _encoder.encode
_decode = msgspec.json.Decoder(StoredJob).decode
_decode_finished = msgspec.json.Decoder(StoredFinished).decode


def encode_job(job: JobRecord) -> bytes:
    return _encode(_stored(job))


def encode_several(jobs: Iterable[JobRecord]) -> bytes:
    """A line for each job, with commas between them, in half the time of encoding one by one. No line contains a line
    break, because JSON escapes it."""
    return _encoder.encode_lines([_stored(job) for job in jobs])[:-1].replace(b"\n", b",\n")


def decode_job(line: bytes | msgspec.Raw) -> StoredJob:
    return _decode(line)


def encode_finished(one: Finished) -> bytes:
    return _encode(StoredFinished(one.position, one.at_ms, one.state, _stored(one.job), one.error, one.result))


def decode_finished(line: bytes | msgspec.Raw) -> Finished:
    stored = _decode_finished(line)
    job = record_of(stored.job, 0)
    return Finished(stored.position, stored.at_ms, job, stored.state, stored.error, stored.result)


def stored_requests(requests: dict[str, Answered]) -> list[StoredRequest]:
    return [StoredRequest(i, a.verb, a.at_ms, a.jobs, a.count) for i, a in requests.items()]


def encode_facets(stored: dict[str, Any]) -> bytes:
    """A line for each of them."""
    return b"".join([b'"%b": %b,\n' % (name.encode(), _encode(data)) for name, data in stored.items()])


def restored(
    key: str,
    records: Iterable[JobRecord],
    counters: Counters,
    position: int,
    writers: dict[str, int],
    requests: Iterable[StoredRequest],
    limits: Limits,
) -> State:
    """Build the jobs, writers and answers of a state from their stored parts; its other facets are restored after them.

    Raises:
        CorruptQueueError: the parts do not fit together.
    """
    state = State(limits)
    state.restore(records, counters, position)
    state.writers.update(writers)
    state.answers.restore(state, ((r.request_id, Answered(r.at_ms, r.verb, r.jobs, r.count)) for r in requests))
    if (problem := state.violation()) is not None:
        raise CorruptQueueError(
            key,
            f"its counters do not match its jobs ({problem}): it was edited by hand or cut. Restore an older version",
        )
    return state


def end_alike(tries: Sequence[object], others: Sequence[object]) -> bool:
    """Whether one list is the end of the other. Releases before this one did not keep failed attempts, so one of two
    records of a job may reach further back."""
    shorter = min(len(tries), len(others))
    return tries[len(tries) - shorter :] == others[len(others) - shorter :]


def _stored(job: JobRecord) -> StoredJob:
    if job.state is JobState.RUNNING:
        status = StoredStatus.IN_PROGRESS
    elif job.state is JobState.DEAD:
        status = StoredStatus.DEAD
    else:
        status = StoredStatus.QUEUED
    return _to_stored(job, job.spec, status)


def record_of(job: StoredJob, index: int) -> JobRecord:
    if job.status is StoredStatus.IN_PROGRESS:
        state = JobState.RUNNING
    elif job.status is StoredStatus.DEAD:
        state = JobState.DEAD
    else:
        state = JobState.DELAYED if job.delayed else JobState.READY
    return _to_record(job, _to_spec(job), index, state, to_ms(job.created_at))


_to_stored = converter(
    StoredJob,
    "job, spec, status",
    {
        **{field.stored: f"spec.{field.spec}" for field in SPEC},
        **{field.stored: f"job.{field.record}" for field in RECORD},
        "status": "status",
        "created_at": "from_ms(job.created_ms)",
        "heartbeat_at": "None if job.beat_ms is None else from_ms(job.beat_ms)",
        "due_ms": "None if job.due_ms == job.created_ms else job.due_ms",
        "delayed": "job.state is delayed",
    },
    from_ms=from_ms,
    delayed=JobState.DELAYED,
)


@lru_cache(maxsize=1024)
def _shared(name: str) -> str:
    """One object for all jobs of an entrypoint, which a queue has many of."""
    return name


_to_spec = converter(
    JobSpec,
    "job",
    {**{field.spec or "": f"job.{field.stored}" for field in SPEC}, "entrypoint": "shared(job.entrypoint)"},
    shared=_shared,
)
_to_record = converter(
    JobRecord,
    "job, spec, index, state, created_ms",
    {
        **{field.record or "": f"job.{field.stored}" for field in RECORD},
        "spec": "spec",
        "sequence": "job.sequence or index",
        "created_ms": "created_ms",
        "state": "state",
        "due_ms": "created_ms if job.due_ms is None else job.due_ms",
        "beat_ms": "None if job.heartbeat_at is None else to_ms(job.heartbeat_at)",
    },
    to_ms=to_ms,
)
