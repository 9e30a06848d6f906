"""The document: a whole queue as one JSON object, one job per line.

Its first seven fields per job and `version` are jqueue's, so casque and jqueue read each other's documents; jqueue
ignores all other fields. The line of each job is kept and encoded again only when the job changes, so a commit encodes
its changes and copies the rest.
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from collections.abc import Iterable
from datetime import datetime

import msgspec

from casque.codec.head import FORMAT, UNREADABLE, Head, Owner, not_a_queue, read_layout
from casque.codec.stored import (
    EPOCH,
    StoredJob,
    StoredRequest,
    StoredStatus,
    decode_finished,
    decode_job,
    encode_facets,
    encode_finished,
    encode_job,
    record_of,
    restored,
    stored_requests,
)
from casque.errors import CorruptQueueError
from casque.state import Counters, Limits, State
from casque.state.request_memory import Answered
from casque.types import (
    ALL_OPEN,
    Finished,
    Gates,
    LastBatch,
    Schedule,
    Vigil,
    ZoneLease,
    ZoneRules,
)

LAYOUT = "document"
BLOCK_LINES = 256


class _ForeignJob(msgspec.Struct):
    """A job as jqueue may have written it: with defaults, and with a payload that need not be strict base64."""

    id: str
    entrypoint: str
    payload: str
    status: StoredStatus = StoredStatus.QUEUED
    priority: int = 0
    created_at: datetime = EPOCH
    heartbeat_at: datetime | None = None

    def stored(self) -> StoredJob:
        payload = base64.b64decode(self.payload)
        return StoredJob(
            self.id, self.entrypoint, payload, self.status, self.priority, self.created_at, self.heartbeat_at
        )


class Leadership(msgspec.Struct, frozen=True):
    """The leader according to a document. There is none in epoch 0, nor after the leader of an epoch resigned."""

    epoch: int = 0
    owner: Owner | None = None
    heartbeat_ms: int = 0
    """When the leader last wrote, by its own clock: shown to people, never compared with another clock."""


NO_LEADER = Leadership()


class _Document(Head, frozen=True):
    version: int = 0
    epoch: int = 0
    broker: str | None = None
    """Address of the leader."""
    broker_heartbeat: int = msgspec.field(default=0, name="brokerHeartbeat")
    broker_id: str | None = msgspec.field(default=None, name="brokerId")
    broker_nonce: str = msgspec.field(default="", name="brokerNonce")
    broker_place: str | None = msgspec.field(default=None, name="brokerPlace")
    archived: int | None = None
    archiving: int | None = None
    finished: list[msgspec.Raw] = msgspec.field(default_factory=list)
    counters: Counters | None = None
    writers: dict[str, int] = msgspec.field(default_factory=dict)
    writers_forgotten: int | None = None
    requests: list[StoredRequest] = msgspec.field(default_factory=list)
    admissions: dict[str, LastBatch] = msgspec.field(default_factory=dict)
    schedules: list[Schedule] = msgspec.field(default_factory=list)
    gates: Gates = ALL_OPEN
    zones: dict[str, ZoneRules] = msgspec.field(default_factory=dict)
    zone_leases: list[ZoneLease] = msgspec.field(default_factory=list)
    vigils: list[Vigil] = msgspec.field(default_factory=list)
    jobs: list[msgspec.Raw] = msgspec.field(default_factory=list)


FACETS = frozenset(_Document.__struct_fields__) - {"writers_forgotten"}
"""Those that a document stores as they are. What its writers forgot, it may know better than the state."""

_encode = msgspec.json.Encoder().encode
_document_decoder = msgspec.json.Decoder(_Document)
_foreign_decoder = msgspec.json.Decoder(_ForeignJob)


class DocumentCodec:
    """Encodes the state of one queue as documents and caches the line of each job."""

    def __init__(self, key: str, queue_id: str) -> None:
        self.key = key
        self.queue_id = queue_id
        self.leadership = NO_LEADER
        """As in the document last read, or as the next one shall say."""
        self.dropped = 0
        """Version of the document last read if jqueue wrote it, which drops the table of writers; else 0."""
        self._lines = _Lines()
        self._changed: dict[str, None] = {}  # in the order the jobs changed, so that new lines keep it
        self._finished = _FinishedLines()

    def touch(self, job_ids: Iterable[str]) -> None:
        """Mark jobs that changed, or changed back."""
        self._changed.update(dict.fromkeys(job_ids))

    def encode(
        self,
        state: State,
        *,
        version: int,
        writers: dict[str, int],
        writers_forgotten: int | None = None,
        requests: dict[str, Answered] | None = None,
        archived: int | None = None,
        archiving: int | None = None,
    ) -> bytes:
        """`writers_forgotten`, `requests`, `archived` and `archiving` replace the values of the state if given."""
        lines, jobs = self._lines, state.jobs
        for job_id in self._changed:
            job = jobs.get(job_id)
            if job is None:
                lines.drop(job_id)
            else:
                lines.put(job_id, encode_job(job))
        self._changed.clear()
        forgotten = state.writers_forgotten if writers_forgotten is None else writers_forgotten
        kept = state.facets.writers.kept_forgotten(max(forgotten, self.dropped), writers)
        facets = {name: data for name, data in state.facets.stored(state).items() if name in FACETS}
        head = (
            b'{"format": %d, "layout": "document", "queue_id": %b,\n"version": %d,\n%b"counters": %b,\n'
            b'"writers": %b,\n%b"requests": %b,\n%b%b"jobs": [\n'
            % (
                FORMAT,
                _encode(self.queue_id),
                version,
                _led(self.leadership),
                _encode(state.counters),
                _encode(writers),
                b"" if kept is None else b'"writers_forgotten": %d,\n' % kept,
                _encode(stored_requests(state.requests if requests is None else requests)),
                encode_facets(facets),
                self._pending(state.finished, state.archived if archived is None else archived, archiving),
            )
        )
        return b"".join((head, lines.joined(), b"\n]}\n"))

    def _pending(self, finished: list[Finished], archived: int, archiving: int | None) -> bytes:
        """Finished jobs that are not archived yet; empty if there are none."""
        lines = self._finished.lines_of(finished)
        first = bisect_right(finished, archived, key=lambda one: one.position)
        if first == len(lines) and archiving is None:
            return b""
        marks = b'"archived": %d, "archiving": %b,\n' % (archived, _encode(archiving))
        return b'%b"finished": [\n%b\n],\n' % (marks, b",\n".join(lines[first:] if first else lines))

    def decode(self, body: bytes, limits: Limits) -> State:
        """The state that a document holds. Caches the lines of its jobs.

        Raises:
            CorruptQueueError: `body` is not a document, or belongs to another queue.
        """
        read_layout(self.key, body)
        try:
            document = _document_decoder.decode(body)
            own = document.queue_id is not None
            if own:
                stored = [decode_job(raw) for raw in document.jobs]
            else:
                stored = [_foreign_decoder.decode(raw).stored() for raw in document.jobs]
            finished = [decode_finished(raw) for raw in document.finished] if limits.finished else []
        except (*UNREADABLE, binascii.Error) as error:
            raise not_a_queue(self.key, error) from error
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
        self.dropped = 0 if own else document.version
        self.leadership = _leadership(document)
        if len({job.id for job in stored}) != len(stored):
            raise CorruptQueueError(self.key, "two jobs have the same id; remove one of them by hand")
        state = _state(document, stored, limits, self.key)
        self._finished = _FinishedLines(finished, [bytes(raw) for raw in document.finished[: len(finished)]])
        state.facets.restore(state, document)
        pending = state.facets.finished
        pending.restore(state, finished)
        # Without the field, nothing waits to be archived.
        pending.archived = document.version if document.archived is None else document.archived
        pending.archiving = document.archiving
        return state


def _led(leadership: Leadership) -> bytes:
    """The lines about brokers. A document that never had a broker has none."""
    if not leadership.epoch:
        return b""
    owner = leadership.owner
    if owner is None:
        return b'"epoch": %d,\n' % leadership.epoch
    place = b"" if owner.place is None else b', "brokerPlace": %b' % _encode(owner.place)
    return b'"epoch": %d, "broker": %b, "brokerHeartbeat": %d, "brokerId": %b, "brokerNonce": %b%b,\n' % (
        leadership.epoch,
        _encode(owner.address),
        leadership.heartbeat_ms,
        _encode(owner.id),
        _encode(owner.nonce),
        place,
    )


def _leadership(document: _Document) -> Leadership:
    if document.broker_id is None:
        return Leadership(document.epoch)
    owner = Owner(document.broker_id, document.broker_nonce, document.broker, document.broker_place)
    return Leadership(document.epoch, owner, document.broker_heartbeat)


class _Block:
    """Some lines, and their cached join."""

    __slots__ = ("joined", "lines")

    def __init__(self) -> None:
        self.lines: dict[str, bytes] = {}
        self.joined: bytes | None = None


class _Lines:
    """The jobs' lines in order, in blocks: a commit joins again only the blocks that it changed."""

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


class _FinishedLines:
    """The lines of finished jobs. They change at the ends only: archived jobs leave at the front, jobs whose commit did
    not land at the back."""

    def __init__(self, finished: Iterable[Finished] = (), lines: Iterable[bytes] = ()) -> None:
        self._finished = list(finished)
        self._lines = list(lines)

    def lines_of(self, finished: list[Finished]) -> list[bytes]:
        known, lines = self._finished, self._lines
        first = finished[0] if finished else None
        gone = next((n for n, one in enumerate(known) if one is first), len(known))
        del known[:gone], lines[:gone]
        while known and (len(known) > len(finished) or known[-1] is not finished[len(known) - 1]):
            known.pop()
            lines.pop()
        for one in finished[len(known) :]:
            known.append(one)
            lines.append(encode_finished(one))
        return lines


def _state(document: _Document, stored: list[StoredJob], limits: Limits, key: str) -> State:
    records = [record_of(job, index) for index, job in enumerate(stored, 1)]
    counters = document.counters
    if counters is None:
        # jqueue keeps no counters: count the jobs that are there. Tokens given out before jqueue rewrote the document
        # are forgotten, but there were fewer of them than milliseconds since 1970.
        moments = [document.version, *(r.created_ms for r in records), *(r.beat_ms or 0 for r in records)]
        counters = Counters(enqueued=len(records), sequence=len(records), tokens=max(moments))
    return restored(key, records, counters, document.version, document.writers, document.requests, limits)
