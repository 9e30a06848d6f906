"""The log: segments, snapshots and the head, all JSON that `cat` shows.

A segment holds one commit's events. It names the digest of the segment before it, so that a history cannot be cut,
swapped or mixed with another unnoticed, and ends with a checksum of its own bytes.
"""

from __future__ import annotations

import hashlib
import zlib
from enum import StrEnum
from typing import Any, get_args

import msgspec

from casque.codec.head import FORMAT, UNREADABLE, Head, Owner, check_format, check_layout, read_layout
from casque.errors import CorruptQueueError
from casque.state import Counters, Event, State
from casque.state.request_memory import Answered
from casque.types import (
    Finished,
    JobRecord,
)

LAYOUT = "log"
START = ""
"""The previous digest that the first segment names."""

_CRC_BYTES = len(b',"crc":"00000000"}\n')
REPAIR = "Restore the object from a backup or an older version of it; `casque queue verify` checks the whole queue"


class SnapshotRef(msgspec.Struct, frozen=True):
    """Where a snapshot is, and the digest of its bytes."""

    position: int
    key: str
    sha256: str
    bytes: int
    """Total size, parts included."""
    at: int = 0
    """When it was made, by its writer's clock: shown to people, and compared with how long the past is kept."""


class Mode(StrEnum):
    """The processes that may write."""

    OPEN = "open"
    """Any number of embedded writers."""
    EXCLUSIVE = "exclusive"
    """One embedded writer that found itself alone; any other writer first makes the queue open again."""
    LED = "led"
    """The leader among the brokers."""


class LogHead(Head, frozen=True, kw_only=True):
    """`queue.json` of a log queue: small, and the only object that ever changes."""

    layout: str = LAYOUT
    mode: Mode = Mode.OPEN
    version: int = 0
    writer: str = ""
    """The writer of this version, so that two writers never produce the same bytes."""
    epoch: int = 0
    """Rises whenever the right to write changes hands."""
    owner: Owner | None = None
    snapshot: SnapshotRef | None = None
    kept: tuple[SnapshotRef, ...] = ()
    """Older snapshots, oldest first: the past can be read from each of them on."""
    floor: int = 0
    """Segments up to here may be deleted; a reader below this position restarts from the snapshot."""
    archived: int | None = None
    """The archive is complete up to here; segments above must not be collected. None before there is an archive."""
    archiving: int | None = None
    """End of the range after `archived` that a writer has begun to archive; its successor continues that same range."""
    jobs: str = "in log/ and snapshots/"
    """Only for jqueue: it takes a head without jobs for an empty queue and overwrites it, but refuses this one."""

    @property
    def archived_to(self) -> int:
        """Nothing up to here is left to archive. Jobs older than the archive itself are never archived."""
        if self.archived is not None:
            return self.archived
        return self.snapshot.position if self.snapshot is not None else 0

    def next(self, writer: str, **changes: Any) -> LogHead:
        """The head that replaces this one."""
        return msgspec.structs.replace(self, version=self.version + 1, writer=writer, **changes)


class Segment(msgspec.Struct, frozen=True):
    """One commit."""

    format: int
    queue_id: str
    position: int
    epoch: int
    writer: str
    batch: int
    prev: str
    at: int
    events: list[Event]
    forgets: str | None = None
    """This commit forgets the request of this id and all that were remembered before it."""

    @property
    def is_fence(self) -> bool:
        """A segment without events only marks that a new leader took over."""
        return not self.events


class Tip(msgspec.Struct):
    """The end of a log, as the next writer needs it."""

    chain: str = START
    """Digest of the last segment."""
    epoch: int = 0
    """Epoch of the last segment."""
    fences: list[int] = []
    """Positions of all fences, also of those in collected segments: a fence never expires."""

    def advance(self, segment: Segment, chain: str) -> None:
        self.chain = chain
        self.epoch = segment.epoch
        if segment.is_fence:
            self.fences.append(segment.position)


class View(msgspec.Struct, frozen=True):
    """A state as of one position. Later changes do not reach it: records are frozen and everything else is copied."""

    position: int
    tip: Tip
    counters: Counters
    writers: dict[str, int]
    requests: dict[str, Answered]
    records: list[JobRecord]
    finished: list[Finished]
    facets: dict[str, Any]
    """What is stored of the other facets, by their names."""

    @classmethod
    def of(cls, state: State, tip: Tip) -> View:
        assert not state.events, "only a committed state is worth keeping"
        return cls(
            state.position,
            msgspec.structs.replace(tip, fences=tip.fences.copy()),
            msgspec.structs.replace(state.counters),
            dict(state.writers),
            dict(state.requests),
            list(state.jobs.values()),
            list(state.finished),
            state.facets.stored(state),
        )


class _Link(msgspec.Struct):
    prev: str = START


class _Kinds(msgspec.Struct):
    events: list[list[Any]] = []


_KINDS = frozenset(str(kind.__struct_config__.tag) for kind in get_args(Event))
_encode = msgspec.json.Encoder().encode
_kinds_decoder = msgspec.json.Decoder(_Kinds)
_link_decoder = msgspec.json.Decoder(_Link)
_segment_decoder = msgspec.json.Decoder(Segment)
_head_decoder = msgspec.json.Decoder(LogHead)


SEGMENTS = "log"
"""Folder of the commits."""


def segment_key(position: int) -> str:
    return f"{SEGMENTS}/{position:020d}"


def segment_position(key: str) -> int | None:
    """The position of the commit with this key; None for any other object."""
    _, _, number = key.rpartition("/")
    return int(number) if number.isascii() and number.isdigit() and segment_key(int(number)) == key else None


def snapshot_key(position: int, nonce: str) -> str:
    return f"snapshots/{position:020d}-{nonce}"


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def encode_segment(
    *,
    queue_id: str,
    position: int,
    epoch: int,
    writer: str,
    batch: int,
    prev: str,
    at_ms: int,
    events: list[Event],
    forgets: str | None = None,
) -> bytes:
    start = (
        b'{"format":%d,"queue_id":%b,"position":%d,"epoch":%d,"writer":%b,"batch":%d,"prev":%b,"at":%d,%b"events":'
        % (
            FORMAT,
            _encode(queue_id),
            position,
            epoch,
            _encode(writer),
            batch,
            _encode(prev),
            at_ms,
            b"" if forgets is None else b'"forgets":%b,' % _encode(forgets),
        )
    )
    happened = _encode(events)  # megabytes in a bulk: copied only once
    return b'%b%b,"crc":"%08x"}\n' % (start, happened, zlib.crc32(happened, zlib.crc32(start)))


def decode_segment(body: bytes, *, queue_id: str, position: int, prev: str) -> Segment:
    """Decode a segment and check that it belongs at this position.

    Raises:
        CorruptQueueError: it is cut, changed, another queue's, or does not follow its predecessor.
    """
    key = segment_key(position)
    if body[-_CRC_BYTES:] != b',"crc":"%08x"}\n' % zlib.crc32(memoryview(body)[:-_CRC_BYTES]):
        raise CorruptQueueError(key, f"its checksum does not match: it was cut short or changed. {REPAIR}")
    try:
        segment = _segment_decoder.decode(body)
    except UNREADABLE as error:
        if (kind := _unknown_kind(body)) is not None:
            raise CorruptQueueError(
                key,
                f"it holds an event {kind!r}, which a newer casque wrote and this one does not know. Upgrade casque",
            ) from error
        raise CorruptQueueError(key, f"it cannot be read ({error}). {REPAIR}") from error
    if segment.format > FORMAT:
        raise CorruptQueueError(key, f"written in format {segment.format} by a newer casque. Upgrade casque")
    if segment.queue_id != queue_id:
        raise CorruptQueueError(key, f"it belongs to another queue ({segment.queue_id}, not {queue_id}). {REPAIR}")
    if segment.position != position:
        raise CorruptQueueError(key, f"it says it is commit {segment.position}: it was renamed. {REPAIR}")
    if segment.prev != prev:
        before = segment_key(position - 1)
        raise CorruptQueueError(key, f"it does not follow {before} as that is now: one of them was swapped. {REPAIR}")
    return segment


def _unknown_kind(body: bytes) -> str | None:
    """The first event of a kind that this release does not know; None if all are known."""
    try:
        events = _kinds_decoder.decode(body).events
    except UNREADABLE:
        return None
    names = [event[0] for event in events if event and isinstance(event[0], str)]
    return next((name for name in names if name not in _KINDS), None)


def previous(body: bytes) -> str:
    """The digest that a segment names for its predecessor, for readers that start in the middle. Does not check that
    `body` is a segment."""
    try:
        return _link_decoder.decode(body).prev
    except UNREADABLE:
        return START


def replay(state: State, segment: Segment) -> None:
    """Apply a commit, or pass a fence.

    Raises:
        CorruptQueueError: the events do not fit the state.
    """
    if segment.is_fence:
        state.fence()
        return
    try:
        state.replay(
            segment.events, writer=segment.writer, batch=segment.batch, at_ms=segment.at, forgets=segment.forgets
        )
    except (KeyError, AssertionError) as error:
        raise CorruptQueueError(
            segment_key(segment.position), f"its events do not fit the queue as it was before it ({error!r}). {REPAIR}"
        ) from error


def encode_head(head: LogHead) -> bytes:
    fields = msgspec.structs.asdict(head)
    if head.archiving is None:
        del fields["archiving"]
    if head.owner is not None and head.owner.place is None:
        fields["owner"] = {name: value for name, value in msgspec.structs.asdict(head.owner).items() if name != "place"}
    return msgspec.json.format(_encode(fields), indent=2) + b"\n"


def decode_head(key: str, body: bytes) -> LogHead:
    """
    Raises:
        CorruptQueueError: `body` is not a head, or this release cannot read it.
    """
    try:
        head = _head_decoder.decode(body)
    except UNREADABLE as error:
        check_layout(read_layout(key, body), LAYOUT)
        raise CorruptQueueError(key, f"the head of the log cannot be read ({error}). {REPAIR}") from error
    if head.format < 1:
        check_layout(read_layout(key, body), LAYOUT)
    check_format(key, head)
    check_layout(head, LAYOUT)
    if head.queue_id is None:
        raise CorruptQueueError(key, f"the head of the log names no queue. {REPAIR}")
    return head
