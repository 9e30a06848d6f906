"""How a fresh reader gets a queue's state out of a bucket: all that depends on the layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache, partial
from importlib import import_module
from types import ModuleType
from typing import Any

import msgspec

from casque.codec.admission import expanded
from casque.codec.document import DocumentCodec
from casque.codec.head import KEY, Owner, read_layout
from casque.codec.log import START, Mode, Segment, decode_head, decode_segment, digest, replay, segment_key
from casque.codec.snapshot import decode_snapshot
from casque.errors import CorruptQueueError
from casque.settings import ArchiveFormat
from casque.state import State
from casque.storage.port import Stored
from casque.types import Backoff
from simulation.world import calendar, stalled
from simulation.world.converting import ConvertedOnlooker
from simulation.world.erasers import in_the_way
from simulation.world.history import History
from simulation.world.limits import (
    DECLINES_MAX,
    FORGETFUL,
    KEPT_MS,
    LIMITS,
    REQUESTS_MAX,
    WRITERS_MAX,
    forgetful,
    scaled,
)
from simulation.world.onlooker import DocumentOnlooker, LogOnlooker, Onlooker, staged_among

TRIES_MAX = 3
SETTLED_MS = 4_000
"""Stands in the place of the quarter of an hour for which request ids are remembered."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to keep a queue in a bucket."""

    name: str
    recover: Callable[[Mapping[str, Stored]], State]
    """The state that a process finds which knows nothing but the bucket."""
    onlooker: Callable[[History], Onlooker]
    """Knows what such a bucket may look like, and what may be done to it."""
    leader: Callable[[bytes], tuple[int, Owner | None]]
    """The epoch, and who leads, as the head has it."""
    collected: Callable[[Mapping[str, Stored]], int]
    """Up to which position commits can no longer be read one by one."""
    parts: Mapping[str, Any] = field(default_factory=dict)
    """What `Parts` has to be told to make queues of this layout."""
    led: bool = False
    """Whether brokers lead the queue, and callers ask them."""
    served: bool = False
    """Whether callers and brokers speak gRPC, over simulated streams."""
    followed: bool = True
    """Whether there is a log to follow."""
    ring: bool = False
    """Whether the queue is a ring of shards, which somebody resizes."""
    skew_max_s: float = 3600.0
    """Wall clocks are never farther apart, whatever the weather."""
    forgetful: bool = False
    """Whether few requests are remembered, and for a short time."""
    fleet: bool = False
    """Whether there are workers of two versions, workers that are stopped with a job in their hands, and operators who
    take back what looks stale."""
    copied: bool = False
    """Whether the bucket is copied and backed up in the middle of everything."""
    leisure: float = 1.0
    """How much more time people take than elsewhere."""
    converted: bool = False
    """Whether somebody converts the queue while it is in use."""
    hurried: Mapping[str, Any] = field(default_factory=dict)
    """What happens sooner or later here than in other worlds."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the queue that differ from those of the weather."""
    read: bool = False
    """Whether there are readers of the events, of the jobs and of the archive."""
    stalled: bool = False
    """Whether some of the readers stop reading."""
    guarded: bool = False
    """Whether brokers want tokens, and tenants have some that are limited."""
    foreign: bool = False
    """Whether there are programs of other languages, and many who use the small API beside brokers."""
    moved: bool = False
    """Whether operators reschedule jobs."""
    large: float = 0.0
    """The least share of jobs whose payload lies beside the queue, in any weather."""
    gone: float = 0.0
    """The share of such payloads that are deleted by mistake."""
    formats: tuple[ArchiveFormat, ...] = ()
    """The forms of the archive that writers choose from, each for itself; none: they take the setting."""
    erased: bool = False
    """Whether operators erase finished jobs from the archive."""
    duration_s: float = 8.0
    """How long the faults go on, if nobody says otherwise."""

    @property
    def follows(self) -> bool:
        """Whether a segment after a known state is all there is to read. Lists go back to whole states."""
        return self.recover is _recover_log and not self.read


def _recover_document(objects: Mapping[str, Stored]) -> State:
    if KEY not in objects:
        return State(LIMITS)
    return DocumentCodec(KEY, "").decode(objects[KEY].body, LIMITS)


def _recover_log(objects: Mapping[str, Stored]) -> State:
    """The snapshot that the head names, if it names one, and every segment after it."""
    if KEY not in objects:
        return State(LIMITS)
    head = decode_head(KEY, objects[KEY].body)
    assert head.queue_id is not None
    if head.snapshot is None:
        state, chain = State(LIMITS), START
    else:
        snapshot = objects.get(head.snapshot.key)
        if snapshot is None:
            raise CorruptQueueError(head.snapshot.key, "the head names this snapshot, and it is missing")
        state, tip = decode_snapshot(
            head.snapshot,
            snapshot.body,
            queue_id=head.queue_id,
            limits=LIMITS,
            read=lambda key: _part(objects, key),
        )
        chain = tip.chain
    while (stored := objects.get(segment_key(state.position + 1))) is not None:
        segment = _decoded(stored.body, head.queue_id, state.position + 1, chain)
        replay(state, expanded(segment, staged_among(objects, stored.body)))
        chain = digest(stored.body)
    state.shed(head.archived_to)
    state.unname(head.floor)
    return state


@lru_cache(maxsize=1024)
def _decoded(body: bytes, queue_id: str, position: int, prev: str) -> Segment:
    """A segment is immutable and says the same to everybody; it is read again with every commit after it."""
    return decode_segment(body, queue_id=queue_id, position=position, prev=prev)


def _part(objects: Mapping[str, Stored], key: str) -> bytes:
    if key not in objects:
        raise CorruptQueueError(key, "the snapshot names this part, and it is missing")
    return objects[key].body


class _DocumentLeader(msgspec.Struct, rename="camel"):
    """What a document says of its leader: all else in it is not worth decoding after every write."""

    epoch: int = 0
    broker: str | None = None
    broker_id: str | None = None
    broker_nonce: str = ""
    broker_place: str | None = None


def _document_leader(body: bytes) -> tuple[int, Owner | None]:
    leader = msgspec.json.decode(body, type=_DocumentLeader)
    if leader.broker_id is None:
        return leader.epoch, None
    return leader.epoch, Owner(leader.broker_id, leader.broker_nonce, leader.broker, leader.broker_place)


def _log_leader(body: bytes) -> tuple[int, Owner | None]:
    head = decode_head(KEY, body)
    return head.epoch, head.owner if head.mode is Mode.LED else None


def _document_collected(objects: Mapping[str, Stored]) -> int:
    """All but the last few: those of the writers that a document remembers."""
    return max(_recover_document(objects).position - 2 * WRITERS_MAX, 0)


def _log_collected(objects: Mapping[str, Stored]) -> int:
    return decode_head(KEY, objects[KEY].body).floor if KEY in objects else 0


def _ring_collected(objects: Mapping[str, Stored]) -> int:  # noqa: ARG001
    return 0  # every shard has its own log: whoever sleeps does so for long


DOCUMENT = Layout(
    "document",
    _recover_document,
    DocumentOnlooker,
    _document_leader,
    _document_collected,
    {"layout": "document"},
    followed=False,
    forgetful=True,
)
LOG = Layout("log", _recover_log, LogOnlooker, _log_leader, _log_collected, {"layout": "log"}, forgetful=True)
LED = Layout(
    "led", _recover_log, LogOnlooker, _log_leader, _log_collected, {"layout": "log"}, led=True, duration_s=16.0
)
LED_DOCUMENT = Layout(
    "led-document",
    _recover_document,
    DocumentOnlooker,
    _document_leader,
    _document_collected,
    {"layout": "document"},
    led=True,
    followed=False,
    duration_s=16.0,
)
SERVED = Layout(
    "served",
    _recover_log,
    LogOnlooker,
    _log_leader,
    _log_collected,
    {"layout": "log"},
    led=True,
    served=True,
    duration_s=14.0,
)
"""The whole program: real sessions and clients, and brokers that are stopped cleanly again and again."""
RING = Layout(
    "ring",
    _recover_log,
    LogOnlooker,
    _log_leader,
    _ring_collected,
    {"layout": "log"},
    followed=False,
    ring=True,
    hurried={
        "casque.ring.forgetting.SETTLED_MS": SETTLED_MS,
        "casque.ring.shards.LOOK_MS": 500,
        "casque.journal.log.contention.ALONE_COMMITS": 12,
        "casque.journal.log.pace.SNAPSHOT_SEGMENTS": 20,
    },
    duration_s=14.0,
)
"""Requests are remembered, and older sizes kept, for seconds here: to a quarter of an hour such clocks are minutes
apart. What befalls single logs is seen to elsewhere: shards are not taken over and tidied up all the time."""
LED_RING = Layout(
    "led-ring",
    _recover_log,
    LogOnlooker,
    _log_leader,
    _ring_collected,
    {"layout": "log"},
    led=True,
    served=True,
    followed=False,
    ring=True,
    hurried={**RING.hurried, "casque.client.remote_shard.AWAY_MS": 150},
    duration_s=14.0,
)
"""Brokers share the shards of a ring, and pass requests on to each other."""


def _fleet(layout: Layout, name: str) -> Layout:
    patient = {
        "casque.state.settling.DECLINES_MAX": DECLINES_MAX,
        "casque.state.settling.DECLINED_BACKOFF": Backoff(100, 1_000),
    }
    return replace(layout, name=name, fleet=True, hurried={**layout.hurried, **patient})


FLEET = _fleet(LOG, "fleet")
FLEET_DOCUMENT = _fleet(DOCUMENT, "fleet-document")
FLEET_SERVED = _fleet(SERVED, "fleet-served")
FLEET_RING = _fleet(LED_RING, "fleet-ring")
"""A deployment is under way all day, and somebody looks after it by hand."""


def _copied(layout: Layout, name: str) -> Layout:
    read = {
        "casque.journal.copying.LIMITS": LIMITS,
        "casque.journal.walk.LIMITS": LIMITS,
        "casque.journal.verify.LIMITS": LIMITS,
        "casque.journal.verify.Limits": scaled,
    }
    return replace(layout, name=name, copied=True, served=True, hurried={**layout.hurried, **read})


COPIED = _copied(LED, "copied")
COPIED_DOCUMENT = _copied(LED_DOCUMENT, "copied-document")
COPIED_RING = _copied(LED_RING, "copied-ring")
"""The bucket is copied, backed up and restored while brokers lead the queue."""


WATCHED = replace(
    SERVED,
    name="watched",
    read=True,
    settings={"retention": timedelta(seconds=8)},
    hurried={"simulation.world.history.KEPT_STATES": 400},
)
"""Many read what brokers serve. The log is kept for long enough to be followed through a failover."""
WATCHED_RING = replace(
    LED_RING,
    name="watched-ring",
    read=True,
    hurried={**LED_RING.hurried, "simulation.world.history.KEPT_STATES": 400},
)
"""A ring cannot be followed through brokers: its jobs are listed, and its archive is read."""

STALLED = replace(
    WATCHED,
    name="stalled",
    stalled=True,
    hurried={
        **WATCHED.hurried,
        "casque.engine.history.HeldCommits": stalled.WatchedCommits,
        "casque.engine.history.READERS_AT_ONCE": 2,
        "simulation.world.server.LIMITS": stalled.LIMITS,
        "casque.transport.grpc.streams.AHEAD_BYTES": 1_200,
    },
)
"""Brokers have little room for what their readers do not take."""
FOREIGN = replace(SERVED, name="foreign", foreign=True)
"""Clients of osqueue and clients made from the proto file, which call brokers without a session; and others who open
the store beside the brokers."""

MOVED = replace(SERVED, name="moved", moved=True)
MOVED_DOCUMENT = replace(DOCUMENT, name="moved-document", moved=True)
MOVED_RING = replace(LED_RING, name="moved-ring", moved=True)
"""Jobs that wait are rescheduled all the time."""

GUARDED = replace(SERVED, name="guarded", guarded=True, settings={"retention": timedelta(seconds=4)})
"""Tenants come through the door of a broker, with tokens that are limited, revoked, or none."""


def _mixed(layout: Layout, name: str) -> Layout:
    formats: tuple[ArchiveFormat, ...] = ("jsonl", "parquet", "both")
    return replace(
        layout, name=name, formats=formats, hurried={**layout.hurried, "casque.journal.archive.aside": _at_once}
    )


async def _at_once(work: Callable[[], Any]) -> Any:
    """Where others have a thread, whose end no seed decides."""
    return work()


MIXED = _mixed(LOG, "mixed")
MIXED_DOCUMENT = _mixed(DOCUMENT, "mixed-document")
MIXED_WATCHED = _mixed(WATCHED, "mixed-watched")
"""Some writers archive lines, some Parquet, some both, and what one begins another completes."""


def _erased(layout: Layout, name: str) -> Layout:
    return replace(
        layout, name=name, erased=True, hurried={**layout.hurried, "casque.journal.archive._in_the_way": in_the_way}
    )


ERASED = _erased(MIXED, "erased")
ERASED_DOCUMENT = _erased(MIXED_DOCUMENT, "erased-document")
ERASED_WATCHED = _erased(MIXED_WATCHED, "erased-watched")
"""Finished jobs are erased from the archive while others write and read it."""

_WINDOW = {"commit_interval": timedelta(milliseconds=250)}
PACED = replace(LOG, name="paced", settings=_WINDOW)
PACED_DOCUMENT = replace(LED_DOCUMENT, name="paced-document", settings=_WINDOW)
PACED_SERVED = replace(SERVED, name="paced-served", settings=_WINDOW)
"""Processes leave time between two commits; a leader shows that it lives all the same."""

_BUDGET = {"requests_per_minute": 120}
BUDGETED = replace(LOG, name="budgeted", settings=_BUDGET)
BUDGETED_SERVED = replace(SERVED, name="budgeted-served", settings=_BUDGET)
"""Processes have a budget of requests, which is used up within seconds."""

DAMAGED = replace(LOG, name="damaged", large=0.6, gone=0.3)
DAMAGED_DOCUMENT = replace(DOCUMENT, name="damaged-document", large=0.6, gone=0.3)
"""Most payloads lie beside the queue, and some of them are gone."""


def _recover_either(objects: Mapping[str, Stored]) -> State:
    return _recover_document(objects) if _is_document(objects) else _recover_log(objects)


def _either_collected(objects: Mapping[str, Stored]) -> int:
    return _document_collected(objects) if _is_document(objects) else _log_collected(objects)


def _is_document(objects: Mapping[str, Stored]) -> bool:
    return KEY in objects and read_layout(KEY, objects[KEY].body).layout == DOCUMENT.name


CONVERTING = replace(
    LOG,
    name="converting",
    recover=_recover_either,
    onlooker=partial(ConvertedOnlooker, _recover_log),
    collected=_either_collected,
    followed=False,
    converted=True,
    leisure=12.0,
    hurried={
        "casque.journal.convert.LIMITS": FORGETFUL,
        "casque.journal.convert.Limits": forgetful,
        "casque.journal.log.pace.SNAPSHOT_SEGMENTS": 10,
    },
    duration_s=40.0,
)
"""A log becomes a document and a document a log, again and again, while processes use it; not so much that nobody
finds a moment for it."""
HURRIED: dict[str, Any] = {
    "casque.journal.document.Limits": scaled,
    "casque.journal.log.replica.Limits": scaled,
    "casque.journal.archive.ARCHIVE_JOBS": 8,
    "casque.journal.document.ARCHIVE_JOBS": 8,
    "casque.journal.log.archiver.RANGE_JOBS": 5,
    "casque.codec.archive.PIECE_JOBS": 2,
    "casque.journal.log.pace.SNAPSHOT_SEGMENTS": 5,
    "casque.journal.log.snapshots.PART_BYTES": 2_000,
    "casque.journal.log.snapshots.BLOCK_JOBS": 8,
    "casque.codec.snapshot.PIECE_JOBS": 3,
    "casque.journal.log.contention.ALONE_COMMITS": 3,
    "casque.journal.log.contention.REST_MIN_MS": 200,
    "casque.journal.log.contention.REST_MAX_MS": 2_000,
    "casque.state.job_life.TRIES_MAX": TRIES_MAX,
    "simulation.world.stories.TRIES_MAX": TRIES_MAX,
    "casque.state.zone_lines.LEVELS_MAX": 2,
    "casque.engine.embedded.HELD_MAX": 2,
    "casque.ring.enqueuer.POINTERS_MAX": 2,
    "casque.ring.admitter.ASKED_MAX": 2,
    "casque.transport.grpc.exchange.PACKET_CALLS": 3,
    "casque.engine.ticker.LATE_MS": 3_000,
    "casque.engine.ticker.TICKS_AT_ONCE": 3,
    "casque.engine.ticker.parse": calendar.parse,
}
"""What takes hundreds of commits or minutes elsewhere happens all the time here, and what is limited to thousands
reaches its limit."""
FORGETFUL_TOO: dict[str, Any] = {
    "casque.journal.document.Limits": forgetful,
    "casque.journal.document.REQUESTS_MAX": REQUESTS_MAX,
    "casque.journal.log.replica.Limits": forgetful,
    "casque.engine.request_watch.KEPT_MS": KEPT_MS,
    "simulation.world.layout.LIMITS": FORGETFUL,
    "simulation.world.onlooker.LIMITS": FORGETFUL,
}
"""Where only those requests have an id that somebody repeats. Behind brokers all have one, and they are repeated
for as long as it takes."""
LAYOUTS = {
    layout.name: layout
    for layout in (
        DOCUMENT,
        LOG,
        LED,
        LED_DOCUMENT,
        RING,
        SERVED,
        LED_RING,
        FLEET,
        FLEET_DOCUMENT,
        FLEET_SERVED,
        FLEET_RING,
        COPIED,
        COPIED_DOCUMENT,
        COPIED_RING,
        CONVERTING,
        WATCHED,
        WATCHED_RING,
        STALLED,
        FOREIGN,
        GUARDED,
        MOVED,
        MOVED_DOCUMENT,
        MOVED_RING,
        DAMAGED,
        DAMAGED_DOCUMENT,
        MIXED,
        MIXED_DOCUMENT,
        MIXED_WATCHED,
        ERASED,
        ERASED_DOCUMENT,
        ERASED_WATCHED,
        PACED,
        PACED_DOCUMENT,
        PACED_SERVED,
        BUDGETED,
        BUDGETED_SERVED,
    )
}


@contextmanager
def hurried(layout: Layout) -> Iterator[None]:
    """Snapshots, collection and changes of who may write, every few commits."""
    before: list[tuple[ModuleType, str, Any]] = []
    for path, value in {**HURRIED, **layout.hurried, **(FORGETFUL_TOO if layout.forgetful else {})}.items():
        module_name, _, name = path.rpartition(".")
        module = import_module(module_name)
        before.append((module, name, getattr(module, name)))
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
