"""Snapshots: a whole state as JSON that `cat` shows.

A small one is one object. The jobs of a larger one are in parts beside it, each small enough to be encoded, written and
read without a long pause; the object that the head names then lists their digests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from casque.codec.head import FORMAT, UNREADABLE
from casque.codec.log import REPAIR, SnapshotRef, Tip, View, digest
from casque.codec.stored import (
    StoredRequest,
    decode_finished,
    decode_job,
    encode_facets,
    encode_finished,
    encode_several,
    record_of,
    restored,
    stored_requests,
)
from casque.errors import CorruptQueueError
from casque.state import Counters, Limits, RingView, State
from casque.state.staged import Named
from casque.types import (
    ALL_OPEN,
    Finished,
    Gates,
    JobRecord,
    LastBatch,
    Schedule,
    Vigil,
    ZoneLease,
    ZoneRules,
)

PIECE_JOBS = 100
PIECE_BYTES = 128 * 1024


class Part(msgspec.Struct, frozen=True):
    """Some of a snapshot's jobs, in an object of their own."""

    key: str
    sha256: str
    bytes: int


class _Snapshot(msgspec.Struct):
    format: int
    queue_id: str
    position: int
    tip: Tip
    counters: Counters
    writers: dict[str, int]
    requests: list[StoredRequest]
    jobs: list[msgspec.Raw]
    parts: list[Part] = []
    finished: list[msgspec.Raw] = []
    """Jobs that were finished and not archived yet."""
    admissions: dict[str, LastBatch] = {}
    staged: list[Named] = []
    """Staged objects named by commits that could still be replayed."""
    schedules: list[Schedule] = []
    gates: Gates = ALL_OPEN
    zones: dict[str, ZoneRules] = {}
    """Rules by zone, of the zones that have any."""
    ring: RingView | None = None
    zone_leases: list[ZoneLease] = []
    writers_forgotten: int | None = None
    """None if the table of writers had room, or in snapshots of releases that did not count."""
    vigils: list[Vigil] = []
    """Observations of leases by processes that came and went."""


class _PartBody(msgspec.Struct):
    format: int
    queue_id: str
    position: int
    jobs: list[msgspec.Raw]


_encode = msgspec.json.Encoder().encode
_snapshot_decoder = msgspec.json.Decoder(_Snapshot)
_part_decoder = msgspec.json.Decoder(_PartBody)
_PART_END = b"\n]}\n"


def part_key(key: str, number: int) -> str:
    return f"{key}.{number:05d}"


def snapshot_of(key: str) -> str:
    """The snapshot that an object below `snapshots/` belongs to: itself, or the one whose part it is."""
    return key.partition(".")[0]


def encode_jobs(jobs: Iterable[JobRecord]) -> Iterator[bytes]:
    """Yield their lines in pieces, so that the caller can do something else in between."""
    some: list[JobRecord] = []
    size = 0
    for job in jobs:
        some.append(job)
        size += len(job.spec.payload)
        if job.tries:
            size += job.tries_bytes
        if len(some) == PIECE_JOBS or size >= PIECE_BYTES:
            yield encode_several(some)
            some.clear()
            size = 0
    if some:
        yield encode_several(some)


def encode_snapshot(queue_id: str, view: View, jobs: Sequence[bytes], parts: Sequence[Part] = ()) -> bytes:
    """`jobs` are pieces of lines, of the jobs that are in no part."""
    listed = b'"parts": %b,\n' % _encode(parts) if parts else b""
    if view.finished:
        listed += b'"finished": [\n%b\n],\n' % b",\n".join(map(encode_finished, view.finished))
    listed += encode_facets(view.facets)
    head = (
        b'{"format": %d, "queue_id": %b,\n"position": %d, "tip": %b,\n"counters": %b,\n"writers": %b,\n'
        b'"requests": %b,\n%b"jobs": [\n'
        % (
            FORMAT,
            _encode(queue_id),
            view.position,
            _encode(view.tip),
            _encode(view.counters),
            _encode(view.writers),
            _encode(stored_requests(view.requests)),
            listed,
        )
    )
    return b"%b%b\n]}\n" % (head, b",\n".join(jobs))


def encode_part(queue_id: str, position: int, jobs: Sequence[bytes]) -> bytes:
    return b"%b%b%b" % (_part_head(queue_id, position), b",\n".join(jobs), _PART_END)


def _part_head(queue_id: str, position: int) -> bytes:
    return b'{"format": %d, "queue_id": %b,\n"position": %d,\n"jobs": [\n' % (FORMAT, _encode(queue_id), position)


class Restoring:
    """Restores a state from a snapshot, part by part, in any order.

    Raises:
        CorruptQueueError: the bytes are not those that the head names.
    """

    def __init__(self, ref: SnapshotRef, body: bytes, *, queue_id: str) -> None:
        _check_digest(ref.key, body, ref.sha256, "the snapshot that the head names")
        try:
            self._snapshot = _snapshot_decoder.decode(body)
        except UNREADABLE as error:
            raise _unreadable(ref.key, error) from error
        self._ref = ref
        self._queue_id = queue_id
        _check_belongs(ref, ref.key, self._snapshot, queue_id)
        self._records = _records(ref.key, self._snapshot.jobs)
        self._snapshot.jobs.clear()

    @property
    def parts(self) -> list[Part]:
        return self._snapshot.parts

    @property
    def tip(self) -> Tip:
        """The end of the log that the snapshot stands for."""
        return self._snapshot.tip

    @property
    def records(self) -> list[JobRecord]:
        """The jobs read so far."""
        return self._records

    def add(self, part: Part, body: bytes) -> None:
        self._records += _records(part.key, part_lines(self._ref, part, body, queue_id=self._queue_id))

    def finished(self, limits: Limits) -> tuple[State, Tip]:
        """The state, and the end of the log that the snapshot stands for."""
        s = self._snapshot
        state = restored(self._ref.key, self._records, s.counters, s.position, s.writers, s.requests, limits)
        state.facets.restore(state, s)
        if limits.finished:
            state.facets.finished.restore(state, _finished(self._ref.key, s.finished))
        return state, s.tip


def part_lines(ref: SnapshotRef, part: Part, body: bytes, *, queue_id: str) -> list[msgspec.Raw]:
    """The jobs of one part of a snapshot, each as stored JSON.

    Raises:
        CorruptQueueError: the bytes are not those that the snapshot names.
    """
    _check_digest(part.key, body, part.sha256, f"the part that {ref.key} names")
    try:
        decoded = _part_decoder.decode(body)
    except UNREADABLE as error:
        raise _unreadable(part.key, error) from error
    _check_belongs(ref, part.key, decoded, queue_id)
    return decoded.jobs


def decode_snapshot(
    ref: SnapshotRef, body: bytes, *, queue_id: str, limits: Limits, read: Callable[[str], bytes] | None = None
) -> tuple[State, Tip]:
    """Restore in one step, for callers that have all bytes at hand; `read` returns the bytes of a part."""
    restoring = Restoring(ref, body, queue_id=queue_id)
    for part in restoring.parts:
        assert read is not None, "it has parts"
        restoring.add(part, read(part.key))
    return restoring.finished(limits)


def _records(key: str, jobs: list[msgspec.Raw]) -> list[JobRecord]:
    try:
        return [record_of(decode_job(raw), 0) for raw in jobs]
    except UNREADABLE as error:
        raise _unreadable(key, error) from error


def _finished(key: str, lines: list[msgspec.Raw]) -> list[Finished]:
    try:
        return [decode_finished(raw) for raw in lines]
    except UNREADABLE as error:
        raise _unreadable(key, error) from error


def _check_belongs(ref: SnapshotRef, key: str, body: _Snapshot | _PartBody, queue_id: str) -> None:
    if body.queue_id != queue_id or body.position != ref.position:
        raise CorruptQueueError(key, f"it belongs to another queue or position. {REPAIR}")


def _check_digest(key: str, body: bytes, expected: str, what: str) -> None:
    if digest(body) != expected:
        raise CorruptQueueError(key, f"it is not {what}: cut, changed or swapped. {REPAIR}")


def _unreadable(key: str, error: Exception) -> CorruptQueueError:
    return CorruptQueueError(key, f"it cannot be read ({error}). {REPAIR}")
