"""The document: a whole queue as one JSON object, one job per line.

Its first seven fields per job and `version` are jqueue's, so each reads what the other wrote; everything else is
extra there and ignored. Each job's line is kept and only made again when the job changes, so a commit encodes what it
changed and copies the rest.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache

import msgspec

from casque.errors import CorruptQueueError
from casque.state import Counters, Limits, State
from casque.state.machine import Answered
from casque.types import JobRecord, JobSpec, JobState

FORMAT = 1
LAYOUT = "document"
BLOCK_LINES = 256

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class StoredStatus(StrEnum):
    """jqueue's three states. What it cannot tell apart is in `state`."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    DEAD = "dead"


class StoredJob(msgspec.Struct, omit_defaults=True):
    """One job's line."""

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


class _ForeignJob(msgspec.Struct):
    """A job as jqueue may have written it: with defaults, and with a payload that need not be strict base64."""

    id: str
    entrypoint: str
    payload: str
    status: StoredStatus = StoredStatus.QUEUED
    priority: int = 0
    created_at: datetime = _EPOCH
    heartbeat_at: datetime | None = None

    def stored(self) -> StoredJob:
        payload = base64.b64decode(self.payload)
        return StoredJob(
            self.id, self.entrypoint, payload, self.status, self.priority, self.created_at, self.heartbeat_at
        )


class _Request(msgspec.Struct, array_like=True):
    request_id: str
    verb: str
    at_ms: int
    jobs: tuple[tuple[str, int], ...] = ()
    count: int = 0


class Head(msgspec.Struct):
    """What every `queue.json` says first, whatever its layout."""

    format: int = 0
    layout: str = LAYOUT
    queue_id: str | None = None


class _Document(Head):
    version: int = 0
    counters: Counters | None = None
    writers: dict[str, int] = {}
    requests: list[_Request] = []
    jobs: list[msgspec.Raw] = []


_encode = msgspec.json.Encoder().encode
_head_decoder = msgspec.json.Decoder(Head)
_document_decoder = msgspec.json.Decoder(_Document)
_job_decoder = msgspec.json.Decoder(StoredJob)
_foreign_decoder = msgspec.json.Decoder(_ForeignJob)


class DocumentCodec:
    """Turns the state of one queue into documents, remembering the line of each job."""

    def __init__(self, key: str, queue_id: str) -> None:
        self.key = key
        self.queue_id = queue_id
        self._lines = _Lines()
        self._changed: dict[str, None] = {}  # in the order the jobs changed, so that new lines keep it

    def touch(self, job_ids: Iterable[str]) -> None:
        """These jobs changed, or changed back."""
        self._changed.update(dict.fromkeys(job_ids))

    def encode(self, state: State, *, version: int, writers: dict[str, int]) -> bytes:
        lines, jobs = self._lines, state.jobs
        for job_id in self._changed:
            job = jobs.get(job_id)
            if job is None:
                lines.drop(job_id)
            else:
                lines.put(job_id, _encode(_stored(job)))
        self._changed.clear()
        requests = [_Request(i, a.verb, a.at_ms, a.jobs, a.count) for i, a in state.requests.items()]
        head = (
            b'{"format": %d, "layout": "document", "queue_id": %b,\n"version": %d,\n"counters": %b,\n'
            b'"writers": %b,\n"requests": %b,\n"jobs": [\n'
            % (FORMAT, _encode(self.queue_id), version, _encode(state.counters), _encode(writers), _encode(requests))
        )
        return b"".join((head, lines.joined(), b"\n]}\n"))

    def decode(self, body: bytes, limits: Limits) -> State:
        """A state as a document tells it. Unchanged lines are kept as they are.

        Raises:
            CorruptQueueError: it is not a document, or not this queue's.
        """
        read_layout(self.key, body)
        try:
            document = _document_decoder.decode(body)
            own = document.queue_id is not None
            if own:
                stored = [_job_decoder.decode(raw) for raw in document.jobs]
            else:
                stored = [_foreign_decoder.decode(raw).stored() for raw in document.jobs]
        except (msgspec.DecodeError, UnicodeDecodeError, binascii.Error) as error:
            raise _not_a_document(self.key, error) from error
        if own:
            assert document.queue_id is not None
            self.queue_id = document.queue_id
            self._lines = _Lines()
            for job, raw in zip(stored, document.jobs, strict=True):
                self._lines.put(job.id, bytes(raw))
            self._changed.clear()
        else:
            self._lines = _Lines()
            self._changed = {job.id: None for job in stored}
        if len({job.id for job in stored}) != len(stored):
            raise CorruptQueueError(self.key, "two jobs have the same id; remove one of them by hand")
        return _state(document, stored, limits, self.key)


class _Block:
    """Some lines, and what they look like joined."""

    __slots__ = ("joined", "lines")

    def __init__(self) -> None:
        self.lines: dict[str, bytes] = {}
        self.joined: bytes | None = None


class _Lines:
    """The jobs' lines in order, in blocks: a commit joins anew only the blocks it changed."""

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}
        self._homes: dict[str, int] = {}
        self._last = 0

    def put(self, job_id: str, line: bytes) -> None:
        number = self._homes.get(job_id)
        if number is None:
            number = self._homes[job_id] = self._with_room()
        block = self._blocks[number]
        block.lines[job_id] = line
        block.joined = None

    def drop(self, job_id: str) -> None:
        number = self._homes.pop(job_id, None)
        if number is None:
            return
        block = self._blocks[number]
        del block.lines[job_id]
        block.joined = None
        if not block.lines:
            del self._blocks[number]

    def joined(self) -> bytes:
        parts: list[bytes] = []
        for block in self._blocks.values():
            if block.joined is None:
                block.joined = b",\n".join(block.lines.values())
            parts.append(block.joined)
        return b",\n".join(parts)

    def _with_room(self) -> int:
        last = self._blocks.get(self._last)
        if last is None or len(last.lines) >= BLOCK_LINES:
            self._last += 1
            self._blocks[self._last] = _Block()
        return self._last


def read_layout(key: str, body: bytes) -> Head:
    """What kind of queue this is, before anything else is believed.

    Raises:
        CorruptQueueError: it is none that this release knows.
    """
    try:
        head = _head_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _not_a_document(key, error) from error
    if head.format > FORMAT:
        raise CorruptQueueError(
            key, f"written in format {head.format} by a newer casque; this one reads up to {FORMAT}. Upgrade casque"
        )
    return head


def _not_a_document(key: str, error: Exception) -> CorruptQueueError:
    return CorruptQueueError(
        key,
        f"this is not a queue that casque or jqueue wrote ({error}). Nothing was changed: restore the object from a "
        "backup or an older version, or open the queue under another prefix",
    )


def _state(document: _Document, stored: list[StoredJob], limits: Limits, key: str) -> State:
    records = [_record(job, index) for index, job in enumerate(stored, 1)]
    counters = document.counters
    if counters is None:
        # jqueue keeps no counters: what is there is all there ever was. Tokens given out before it rewrote the
        # document are forgotten, but there were fewer of them than milliseconds since 1970.
        moments = [document.version, *(r.created_ms for r in records), *(r.beat_ms or 0 for r in records)]
        counters = Counters(enqueued=len(records), sequence=len(records), tokens=max(moments))
    state = State(limits)
    state.restore(records, counters, document.version)
    if (problem := state.violation()) is not None:
        raise CorruptQueueError(
            key,
            f"its counters do not match its jobs ({problem}): it was edited by hand or cut. Restore an older version",
        )
    state.writers = dict(document.writers)
    state.requests = {r.request_id: Answered(r.at_ms, r.verb, r.jobs, r.count) for r in document.requests}
    return state


def _stored(job: JobRecord) -> StoredJob:
    spec = job.spec
    if job.state is JobState.RUNNING:
        status = StoredStatus.IN_PROGRESS
    elif job.state is JobState.DEAD:
        status = StoredStatus.DEAD
    else:
        status = StoredStatus.QUEUED
    return StoredJob(
        spec.id,
        spec.entrypoint,
        spec.payload,
        status,
        spec.priority,
        from_ms(job.created_ms),
        None if job.beat_ms is None else from_ms(job.beat_ms),
        job.sequence,
        None if job.due_ms == job.created_ms else job.due_ms,
        job.state is JobState.DELAYED,
        job.token,
        job.attempts,
        job.worker,
        job.lease_ms,
        job.claimed_ms,
        job.error,
        spec.run_at_ms,
        spec.attempts_max,
        spec.key,
        spec.headers,
        spec.zone,
    )


def _record(job: StoredJob, index: int) -> JobRecord:
    if job.status is StoredStatus.IN_PROGRESS:
        state = JobState.RUNNING
    elif job.status is StoredStatus.DEAD:
        state = JobState.DEAD
    else:
        state = JobState.DELAYED if job.delayed else JobState.READY
    created_ms = to_ms(job.created_at)
    spec = JobSpec(
        job.id,
        job.entrypoint,
        job.payload,
        job.priority,
        job.run_at_ms,
        job.max_attempts,
        job.key,
        job.headers,
        job.zone,
    )
    return JobRecord(
        spec,
        job.sequence or index,
        created_ms,
        state,
        created_ms if job.due_ms is None else job.due_ms,
        job.token,
        job.attempts,
        job.worker,
        job.lease_ms,
        job.claimed_ms,
        None if job.heartbeat_at is None else to_ms(job.heartbeat_at),
        job.error,
    )


@lru_cache(maxsize=1024)  # jobs of one commit share their times
def from_ms(ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=ms)


def to_ms(moment: datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)
