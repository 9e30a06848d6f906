"""A log written by casque 0.1 (format 1) still means what it meant, and today's code writes the same bytes."""

from __future__ import annotations

import importlib.util
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from casque import CorruptQueueError, EventKind, JobState, Queue
from casque.clock import Random
from casque.codec.digest import state_digest
from casque.codec.log import (
    Mode,
    View,
    decode_head,
    decode_segment,
    digest,
    encode_head,
    encode_segment,
    replay,
    segment_key,
)
from casque.codec.snapshot import decode_snapshot
from casque.environment import Environment
from casque.journal.verify import Verifier
from casque.state import Acked, Added, Claimed, Died, Event, Limits, State
from casque.state.job_life import LEASE_RAN_OUT
from casque.storage.memory import MemoryStore
from casque.testing.clock import ManualClock
from casque.types import Attempt, Ending, JobSpec

HERE = Path(__file__).parent
DIRECTORY = HERE / "casque-0.1-log"
OBJECTS = sorted(
    str(path.relative_to(DIRECTORY))
    for path in DIRECTORY.rglob("*")
    if path.is_file() and path.suffix != ".state" and path.parent.name != "heads"
)
TOLD = HERE / "casque-0.1-log-tries"
RETOLD = sorted(str(path.relative_to(TOLD)) for path in TOLD.rglob("*") if path.is_file())
DEATHS = HERE / "casque-0.1-log-deaths"
SEGMENTS = [key for key in OBJECTS if key.startswith("log/")]


def _side() -> Any:
    """The tests are collected without packages, so that its neighbour has to be loaded by hand."""
    spec = importlib.util.spec_from_file_location("casque_log_side", HERE / "casque_log_side.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


side = _side()


def kept(key: str) -> bytes:
    return (DIRECTORY / key).read_bytes()


def retold(key: str) -> bytes:
    """The same, as it is written since jobs keep their tries."""
    return (TOLD / key).read_bytes() if key in RETOLD else kept(key)


def said(key: str) -> bytes:
    """The same, as it is written since deaths say how the last attempt ended."""
    return (DEATHS / key).read_bytes() if (DEATHS / key).exists() else retold(key)


def without_tries(state: State) -> State:
    state.jobs.update({job_id: replace(job, tries=()) for job_id, job in state.jobs.items()})
    return state


async def store_of(**changed: bytes) -> MemoryStore:
    store = MemoryStore()
    for key in OBJECTS:
        await store.create(key, changed.get(key, kept(key)))
    return store


def opened(store: MemoryStore, **more: Any) -> Queue[bytes]:
    return Queue.open(store, clock=ManualClock(side.START_MS + 60_000), rng=Random(1), **more)


def replayed(state: State, chain: str, read: Callable[[str], bytes] = kept) -> State:
    for position in range(state.position + 1, len(SEGMENTS) + 1):
        body = read(segment_key(position))
        replay(state, decode_segment(body, queue_id=side.QUEUE_ID, position=position, prev=chain))
        chain = digest(body)
    return state


def assert_holds(expected: Any, actual: Any, where: str = "state") -> None:
    """Everything that was there is there; fields that later releases added may be there too."""
    if isinstance(expected, dict):
        for name, value in expected.items():
            assert name in actual, f"{where}.{name} is gone"
            assert_holds(value, actual[name], f"{where}.{name}")
    elif isinstance(expected, list):
        assert len(actual) == len(expected), where
        for index, value in enumerate(expected):
            assert_holds(value, actual[index], f"{where}[{index}]")
    else:
        assert actual == expected, where


LATER = {
    EventKind.RESCHEDULED,  # see test_casque_gates.py
    EventKind.ADMITTED,  # see test_casque_admissions.py
    EventKind.ADVANCED,
    EventKind.SNOOZED,  # see test_casque_gates.py
    EventKind.CRASHED,
    EventKind.QUARANTINED,
    EventKind.WITHDRAWN,
    EventKind.LAPSED,
    EventKind.SCHEDULED,  # see test_casque_schedules.py
    EventKind.UNSCHEDULED,
    EventKind.TICKED,
    EventKind.GATED,
    EventKind.ZONED,  # see test_casque_zones.py
    EventKind.ZONE_LEASED,
    EventKind.ZONE_BEATEN,
    EventKind.ZONE_RELEASED,
    EventKind.ZONE_EXPIRED,
    EventKind.DECLINED,  # see test_casque_vigils.py
    EventKind.WATCHED,  # see test_casque_vigils.py
    EventKind.RINGED,  # see test_casque_ring.py
}
"""Kinds that came after this log was kept."""


# --- Read ---


def test_every_kind_of_event_is_kept() -> None:
    kinds = {event[0] for key in SEGMENTS for event in json.loads(kept(key))["events"]}
    assert kinds == {kind.value for kind in EventKind} - LATER
    assert [key for key in SEGMENTS if not json.loads(kept(key))["events"]] == [segment_key(7), segment_key(13)]


def test_the_kept_log_replays_to_the_state_that_was_written() -> None:
    expected = json.loads(kept("expected.state"))
    assert_holds(expected, side.plain(replayed(State(Limits()), "")))


@pytest.mark.parametrize("which", [0, 1])
def test_every_kept_snapshot_and_its_tail_are_the_full_replay(which: int) -> None:
    head = decode_head("queue.json", kept("queue.json"))
    assert head.snapshot is not None
    ref = [*head.kept, head.snapshot][which]
    state, tip = decode_snapshot(ref, kept(ref.key), queue_id=side.QUEUE_ID, limits=Limits(), read=kept)
    full = replayed(State(Limits()), "")
    assert state_digest(without_tries(replayed(state, tip.chain))) == state_digest(without_tries(full))


@pytest.mark.parametrize("which", [0, 1])
def test_every_kept_snapshot_with_tries_and_its_tail_are_the_full_replay(which: int) -> None:
    head = decode_head("queue.json", retold("queue.json"))
    assert head.snapshot is not None
    ref = [*head.kept, head.snapshot][which]
    state, tip = decode_snapshot(ref, retold(ref.key), queue_id=side.QUEUE_ID, limits=Limits(), read=retold)
    full = replayed(State(Limits()), "")
    assert [job.tries for job in full.jobs.values() if job.tries] == [
        (Attempt(side.START_MS + 4000, side.START_MS + 6000, Ending.FAILED, "w-1", 3, "no such user"),),
        (Attempt(side.START_MS + 14_000, side.START_MS + 14_000, Ending.FAILED, "w-2", 8),),
        (Attempt(side.START_MS + 4000, side.START_MS + 8000, Ending.EXPIRED, "w-1", 5, LEASE_RAN_OUT),),
    ]
    assert state_digest(replayed(state, tip.chain)) == state_digest(full)


def test_the_kept_heads_say_what_they_said() -> None:
    head = decode_head("queue.json", kept("queue.json"))
    assert (head.mode, head.epoch, head.version, head.floor, head.archived) == (Mode.EXCLUSIVE, 2, 5, 0, None)
    assert head.owner is not None
    assert (head.owner.id, head.owner.nonce, head.owner.address) == (side.WORKER, "5eed5eed5eed5eed", None)
    assert head.snapshot is not None
    assert (head.snapshot.position, [ref.position for ref in head.kept]) == (14, [6])
    new = decode_head("queue.json", kept("heads/open.json"))
    assert (new.mode, new.owner, new.snapshot, new.kept) == (Mode.OPEN, None, None, ())
    led = decode_head("queue.json", kept("heads/led.json"))
    assert (led.mode, led.epoch, led.floor, led.archived) == (Mode.LED, 9, 6, 12)
    assert led.owner is not None
    assert led.owner.address == "10.0.0.7:7700"


async def test_the_kept_log_opens_and_every_job_can_be_worked_on() -> None:
    async with opened(await store_of()) as q:
        jobs = {job.id: job for job in await q.jobs()}
        assert list(jobs) == ["ready", "größe", "job-3", "job-5", "job-6", "job-7", "job-10", "last"]
        assert {name for name, job in jobs.items() if job.state is JobState.RUNNING} == {"job-3", "job-7"}
        assert jobs["größe"].payload == bytes(range(256))
        assert jobs["größe"].headers == {"trace": "00-ab", "Sprache": "Deutsch"}
        assert (jobs["größe"].zone, jobs["größe"].key, jobs["größe"].max_attempts) == ("acme", "order-17", 3)
        assert (jobs["job-7"].token, jobs["job-7"].worker, jobs["job-7"].attempts) == (9, "w-2", 2)
        assert jobs["job-5"].last_error == "no such user"

        assert (await q.enqueue("größe", b"", key="order-17")).id == "größe"
        assert (await q.enqueue("größe", b"", request_id="enqueue-1")).id == "größe"
        [same] = await q.dequeue("many", request_id="dequeue-1")
        assert (same.id, same.token) == ("job-3", 1)
        assert await q.purge(request_id="purge-1") == 1

        ready = await q.dequeue(batch_size=100)
        assert [job.id for job in ready] == ["job-10", "job-6", "last", "job-5", "ready"]
        assert ready[0].token == 10
        for job in ready:
            await job.ack()
        for name in ("job-3", "job-7"):
            await q.ack(name, jobs[name].token)
        await q.cancel("größe")
        totals = (await q.stats()).totals
        assert (totals.enqueued, totals.done, totals.cancelled, totals.purged) == (11, 8, 2, 1)


async def test_the_kept_log_can_be_followed_looked_back_on_and_verified() -> None:
    store = await store_of()
    events = [event async for event in opened(store).events(from_position=0, follow=False)]
    assert len(events) == sum(len(events) for *_, events in side.HISTORY)
    assert {event.kind for event in events} == set(EventKind) - LATER
    async with opened(store, as_of=4) as q:
        assert len(await q.jobs(states=[JobState.RUNNING])) == 6
    await verified(store)


async def verified(store: MemoryStore) -> None:
    verifier = Verifier(store, Environment(clock=ManualClock(), rng=Random(2)))
    verdict = await verifier.verify()
    assert (verdict.position, verdict.segments, verdict.replayed, verdict.fences) == (16, 16, 2, 2)


async def test_snapshots_from_before_there_were_tries_and_from_since_are_both_what_the_segments_add_up_to() -> None:
    await verified(await store_of(**{key: retold(key) for key in RETOLD}))

    head = decode_head("queue.json", kept("queue.json"))
    now = decode_head("queue.json", retold("queue.json"))
    mixed = encode_head(replace(head, snapshot=now.snapshot))
    newer = {key: retold(key) for key in RETOLD if key.startswith("snapshots/00000000000000000014")}
    await verified(await store_of(**newer, **{"queue.json": mixed}))


def test_an_ack_from_before_there_were_results_is_read() -> None:
    old = msgspec.json.encode(["acked", "job-4", 2])
    assert msgspec.json.decode(old, type=Event) == Acked("job-4", 2)
    assert msgspec.json.encode(Acked("job-4", 2, b"fine")) == b'["acked","job-4",2,"ZmluZQ=="]'


def test_a_death_from_before_it_said_how_is_told_by_its_error() -> None:
    for error, how in (("boom", Ending.FAILED), (None, Ending.FAILED), (LEASE_RAN_OUT, Ending.EXPIRED)):
        old = msgspec.json.decode(msgspec.json.encode(["died", "job", 1, error]), type=Event)
        assert old == Died("job", 1, error)
        assert ended(old) is how


DIED: dict[bytes, Died] = {
    b'["died","job",1,"no such user","failed"]': Died("job", 1, "no such user", Ending.FAILED),
    b'["died","job",1,null,"failed"]': Died("job", 1, None, Ending.FAILED),
    b'["died","job",1,"the lease ran out: its worker stopped sending heartbeats","expired"]': Died(
        "job", 1, "the lease ran out: its worker stopped sending heartbeats", Ending.EXPIRED
    ),
    b'["died","job",1,"the lease ran out: its worker stopped sending heartbeats","failed"]': Died(
        "job", 1, "the lease ran out: its worker stopped sending heartbeats", Ending.FAILED
    ),
}


@pytest.mark.parametrize("stored", DIED)
def test_a_death_that_says_how_is_read_and_written_as_it_was_and_its_error_decides_nothing(stored: bytes) -> None:
    event = msgspec.json.decode(stored, type=Event)
    assert event == DIED[stored]
    assert msgspec.json.encode(event) == stored
    assert ended(event) is DIED[stored].how


def ended(event: Event) -> Ending:
    """How the job's last attempt ended, by this event."""
    state = State(Limits())
    before: list[Event] = [Added(JobSpec("job", "send", b""), 1, 1), Claimed("job", 1, 1000, "w")]
    state.replay([*before, event], writer="w", batch=1, at_ms=1)
    [tried] = state.jobs["job"].tries
    return tried.how


def test_the_log_is_the_same_queue_whether_its_deaths_say_how_or_not() -> None:
    assert state_digest(replayed(State(Limits()), "", said)) == state_digest(replayed(State(Limits()), ""))
    head = decode_head("queue.json", said("queue.json"))
    assert head.snapshot is not None
    for ref in (*head.kept, head.snapshot):
        state, tip = decode_snapshot(ref, said(ref.key), queue_id=side.QUEUE_ID, limits=Limits(), read=said)
        assert state_digest(replayed(state, tip.chain, said)) == state_digest(replayed(State(Limits()), ""))


async def test_the_log_whose_deaths_say_how_can_be_verified() -> None:
    await verified(await store_of(**{key: said(key) for key in OBJECTS}))


# --- Written ---


@pytest.mark.parametrize("key", OBJECTS)
def test_the_same_input_makes_the_same_bytes(key: str) -> None:
    assert side.objects()[key] == said(key)
    assert side.objects(deaths=False)[key] == retold(key)
    assert side.objects(deaths=False, tries=False)[key] == kept(key)


def test_the_same_heads_make_the_same_bytes() -> None:
    assert side.heads() == {name: kept(f"heads/{name}") for name in ("open.json", "led.json")}


def test_what_was_read_is_written_as_it_was() -> None:
    chain = ""
    for position, key in enumerate(SEGMENTS, 1):
        segment = decode_segment(kept(key), queue_id=side.QUEUE_ID, position=position, prev=chain)
        fields = {name: getattr(segment, name) for name in segment.__struct_fields__ if name not in ("format", "at")}
        fields["events"] = [side.as_it_was(event) for event in segment.events]
        assert encode_segment(**fields, at_ms=segment.at) == kept(key)
        chain = digest(kept(key))
    head = decode_head("queue.json", kept("queue.json"))
    assert encode_head(head) == kept("queue.json")
    assert head.snapshot is not None
    for ref in (*head.kept, head.snapshot):
        state, tip = decode_snapshot(ref, kept(ref.key), queue_id=side.QUEUE_ID, limits=Limits(), read=kept)
        for key, body in side.snapshot(View.of(state, tip), in_parts=ref.position == side.IN_PARTS).items():
            assert body == kept(key)


# --- Later releases ---


async def test_a_log_of_a_later_format_is_refused_and_left_alone() -> None:
    body = kept("queue.json").replace(b'"format": 1', b'"format": 2')
    assert body != kept("queue.json")
    store = await store_of(**{"queue.json": body})
    with pytest.raises(CorruptQueueError, match="newer casque") as caught:
        async with opened(store):
            pass
    assert caught.value.key == "queue.json"
    assert [key async for key in store.list()] == OBJECTS


async def test_an_event_that_this_release_does_not_know_is_refused_by_its_name() -> None:
    last = kept(SEGMENTS[-1]).rpartition(b',"crc"')[0].replace(b'["added",', b'["painted",')
    store = await store_of(**{SEGMENTS[-1]: last + b',"crc":"%08x"}\n' % zlib.crc32(last)})
    with pytest.raises(CorruptQueueError, match="an event 'painted', which a newer casque wrote") as caught:
        async with opened(store):
            pass
    assert caught.value.key == SEGMENTS[-1]


async def test_fields_that_a_later_release_adds_are_passed_over() -> None:
    """To the head, to a job and to the end of an event, as this release does not know them."""
    head = json.loads(kept("queue.json")) | {"colour": "blue"}
    event = msgspec.json.decode(kept(SEGMENTS[-1]))["events"][0]
    event[1]["colour"] = "blue"
    last = kept(SEGMENTS[-1]).rpartition(b',"crc"')[0]
    old = msgspec.json.encode(msgspec.json.decode(kept(SEGMENTS[-1]))["events"])
    changed = last.replace(old, msgspec.json.encode([[*event, "later"]]))
    assert changed != last
    changed += b',"crc":"%08x"}\n' % zlib.crc32(changed)
    store = await store_of(**{"queue.json": json.dumps(head).encode(), SEGMENTS[-1]: changed})
    async with opened(store) as q:
        job = await q.find("last")
        assert job is not None
        assert job.entrypoint == "send"
