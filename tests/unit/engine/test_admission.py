"""Staged jobs, named by one commit: all of them at once, once, and readable wherever the log is read."""

from __future__ import annotations

import asyncio
import json
import zlib
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from casque import (
    CorruptQueueError,
    EventKind,
    InMemoryStorage,
    InvalidInputError,
    JobState,
    Queue,
    ReadOnlyError,
    StorageError,
    SyncQueue,
    UnknownOutcomeError,
)
from casque.cli.main import app
from casque.client.staging import StagedJobs, Stager
from casque.clock import Random, yield_once
from casque.codec.staged import checked
from casque.engine.staging import Staging
from casque.environment import Environment
from casque.journal import sweeper
from casque.journal.convert import Converter
from casque.journal.log import contention, pace
from casque.journal.verify import Verdict, Verifier
from casque.service.requests import Enqueue
from casque.state import Admit, Limits, State
from casque.state.events import Admitted
from casque.storage.memory import MemoryStore
from casque.storage.port import Store, Stored
from casque.testing.clock import ManualClock
from casque.testing.lossy import LossyStore, by_chance
from casque.types import Admission, JobSpec, StagedPart

SEEDS = count(1)
BOTH = pytest.mark.parametrize("layout", ["log", "document"])
HOUR_S = 3600


def opened(store: Any, layout: str = "log", clock: ManualClock | None = None, **settings: Any) -> Queue[bytes]:
    return Queue.open(store, layout=layout, clock=clock or ManualClock(), rng=Random(next(SEEDS)), **settings)


async def staged(store: Store, jobs: StagedJobs, clock: ManualClock | None = None) -> StagedPart:
    staging = Staging(store, Environment(clock=clock or ManualClock(), rng=Random(next(SEEDS))))
    return await staging.put(checked(jobs), "t")


async def keys(store: Store, prefix: str = "staged/") -> list[str]:
    return [key async for key in store.list(prefix)]


async def body(store: Store, key: str) -> bytes:
    read = await store.get(key)
    assert isinstance(read, Stored)
    return read.body


async def verified(store: Store) -> Verdict:
    return await Verifier(store, Environment(clock=ManualClock(), rng=Random(1))).verify()


def jobs(*ids: str, **more: Any) -> StagedJobs:
    return StagedJobs(list(ids), "task", [name.encode() for name in ids], **more)


def admitting(source: str, batch: int, parts: tuple[StagedPart, ...], specs: list[JobSpec]) -> Admit:
    return Admit(source, batch, parts, specs, {spec.id for spec in specs}, any(spec.key for spec in specs))


# --- One commit ---


async def test_a_segment_names_the_parts_and_holds_none_of_their_jobs() -> None:
    store = MemoryStore()
    part = await staged(store, jobs(*map(str, range(1000))))
    async with opened(store) as q:
        await q.admit("s", 1, [part])
    segment = await body(store, "log/00000000000000000001")
    assert len(segment) < 600
    assert json.loads(segment)["events"] == [["admitted", "s", 1, [[*msgspec.structs.astuple(part)]], 1000, 1, []]]


async def test_a_document_holds_the_jobs_and_does_not_need_the_parts() -> None:
    store = MemoryStore()
    part = await staged(store, jobs("a", "b"))
    async with opened(store, "document") as q:
        await q.admit("s", 1, [part])
        await store.delete(part.key)
        [first, second] = await q.dequeue(batch_size=5)
        assert (first.id, second.payload) == ("a", b"b")
    document = json.loads(await body(store, "queue.json"))
    assert document["admissions"] == {"s": [1, 1, 2, 0]}


@BOTH
async def test_whoever_opens_the_queue_finds_the_jobs_and_the_batch(layout: str) -> None:
    store = MemoryStore()
    part = await staged(store, jobs("a", "b", keys=["k", None], run_at_ms=[None, 1_700_000_060_000]))
    async with opened(store, layout) as q:
        assert await q.admit("s", 5, [part]) == Admission(2, position=1)
    async with opened(store, layout) as q:
        assert [(job.id, job.state) for job in await q.jobs()] == [("a", JobState.READY), ("b", JobState.DELAYED)]
        assert await q.admit("s", 5, [part]) == Admission(2, repeated=True, position=1)
        assert await q.admit("s", 4, [part]) == Admission(0, repeated=True, position=1)
        assert (await q.enqueue("task", b"", key="k")).id == "a"
        assert (await q.stats()).position == 1


@BOTH
async def test_other_calls_of_the_same_commit_see_the_jobs_or_come_before_them(layout: str) -> None:
    store = MemoryStore()
    one, two = await staged(store, jobs("a", "b")), await staged(store, jobs("c", "a"))
    async with opened(store, layout) as q:
        await q.enqueue("other", b"")
        answers = await asyncio.gather(
            q.admit("s", 1, [one]),
            q.enqueue("task", b"first"),
            q.admit("t", 1, [two], skip_known=True),
            q.dequeue("task", batch_size=9),
            q.admit("s", 1, [one]),
        )
        assert [answers[0].jobs, answers[2].jobs, answers[2].skipped, answers[4].repeated] == [2, 1, 1, True]
        assert (await q.stats()).totals.enqueued == 5
        assert sorted(job.payload for job in await q.jobs()) == [b"", b"a", b"b", b"c", b"first"]
    async with opened(store, layout) as q:
        assert (await q.stats()).totals.enqueued == 5


def test_several_admissions_may_share_a_commit() -> None:
    part = StagedPart("staged/x", "", 2, 1)
    state = State()
    for source in ("s", "t"):
        specs = [JobSpec(f"{source}-{n}", "task", b"") for n in (1, 2)]
        state.execute(admitting(source, 1, (part,), specs), 1_000)
    assert [event.added for event in state.stored_events() if isinstance(event, Admitted)] == [2, 2]
    assert len(state.stored_events()) == 2, "the jobs are in the parts"
    state.commit(writer="w", batch=1, at_ms=1_000)
    assert sorted(state.jobs) == ["s-1", "s-2", "t-1", "t-2"]


@BOTH
async def test_a_refused_admission_changes_nothing(layout: str) -> None:
    store = MemoryStore()
    async with opened(store, layout) as q:
        known = await q.enqueue("task", b"")
        part = await staged(store, jobs("a", known.id))
        twice = await staged(store, jobs("a", "b"))
        before = await q.stats()
        with pytest.raises(InvalidInputError, match="already in the queue"):
            await q.admit("s", 1, [part])
        with pytest.raises(InvalidInputError, match="two jobs of one admission have the id 'a'"):
            await q.admit("s", 1, [twice, await staged(store, jobs("c", "a"))])
        with pytest.raises(InvalidInputError, match="the same object"):
            await q.admit("s", 1, [twice, twice])
        assert await q.stats() == before
        assert (await q.admit("s", 1, [twice])).jobs == 2


@pytest.mark.parametrize(
    ("source", "batch", "message"),
    [("", 1, "source must be 1 to 256"), ("s", -1, "batch must be a whole number"), ("s", True, "batch must be")],
)
async def test_what_names_a_batch_is_checked(source: str, batch: int, message: str) -> None:
    async with opened(MemoryStore()) as q:
        with pytest.raises(InvalidInputError, match=message):
            await q.admit(source, batch, [])
        with pytest.raises(InvalidInputError, match="1 to 10,000 staged parts, not 0"):
            await q.admit("s", 1, [])


async def test_parts_that_wait_too_long_are_refused_with_the_reason() -> None:
    store, clock = MemoryStore(), ManualClock()
    part = await staged(store, jobs("a"), clock)
    clock.jump_wall(13 * HOUR_S)
    async with opened(store, clock=clock) as q:
        with pytest.raises(InvalidInputError, match="more than 12 hours ago"):
            await q.admit("s", 1, [part])


async def test_a_batch_that_was_admitted_long_ago_is_repeated_without_its_parts() -> None:
    store, clock = MemoryStore(), ManualClock()
    part = await staged(store, jobs("a"), clock)
    async with opened(store, clock=clock) as q:
        await q.admit("s", 1, [part])
        clock.jump_wall(72 * HOUR_S)
        assert (await q.admit("s", 1, [part])).repeated


async def test_jobs_that_nobody_checked_are_refused() -> None:
    store = MemoryStore()
    staging = Staging(store, Environment(clock=ManualClock(), rng=Random(1)))
    part = await staging.put(StagedJobs(["a", ""], "task", b""), "t")
    async with opened(store) as q:
        with pytest.raises(InvalidInputError, match="row 1: id must be 1 to 256") as refused:
            await q.admit("s", 1, [part])
        assert part.key in str(refused.value)


async def test_a_storage_of_one_object_has_no_room_for_parts() -> None:
    part = await staged(MemoryStore(), jobs("a"))
    async with Queue.open(InMemoryStorage()) as q:
        with pytest.raises(InvalidInputError, match="storage of one object"):
            await q.admit("s", 1, [part])


async def test_the_past_admits_nobody() -> None:
    store = MemoryStore()
    part = await staged(store, jobs("a"))
    async with opened(store) as q:
        await q.enqueue("task", b"")
    async with opened(store, as_of=1) as q:
        with pytest.raises(ReadOnlyError):
            await q.admit("s", 1, [part])


def test_only_so_many_sources_are_remembered() -> None:
    state = State(Limits(sources_max=3))
    for number, source in enumerate(["a", "b", "c", "a", "d"], 1):
        command = admitting(source, number, (), [JobSpec(str(number), "task", b"")])
        state.execute(command, now_ms=number)
        state.commit(writer="w", batch=number, at_ms=number)
    assert list(state.admissions) == ["c", "a", "d"]


def test_a_batch_that_is_taken_back_leaves_no_trace() -> None:
    state = State()
    parts = (StagedPart("staged/x", "", 2, 10),)
    for early in (False, True):
        state.execute(admitting("s", 1, parts, [JobSpec("a", "task", b"", key="k"), JobSpec("b", "task", b"")]), 5)
        if early:  # somebody else of the same batch needs them
            state.execute(Enqueue((JobSpec("c", "task", b""),)), 5)
            assert len(state.jobs) == 3
        state.rollback()
        assert (state.jobs, state.keys, state.admissions, state.staged, state.waiting) == ({}, {}, {}, [], 0)
        assert state.totals(5).enqueued == 0
    assert state.execute(Enqueue((JobSpec("a", "task", b"", key="k"),)), 6)[0].sequence == 1


# --- Wherever the log is read ---


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot every few commits."""
    monkeypatch.setattr(pace, "SNAPSHOT_SEGMENTS", 3)


async def history(store: MemoryStore, **settings: Any) -> list[StagedPart]:
    """Enough for snapshots between admissions."""
    parts = [await staged(store, jobs(*(f"{batch}-{n}" for n in range(4)), zones="z")) for batch in range(5)]
    async with opened(store, **settings) as q:
        for batch, part in enumerate(parts):
            await q.admit("s", batch, [part])
            for job in await q.dequeue("task", batch_size=2):
                await job.ack()
            await yield_once()
    return parts


@pytest.mark.usefixtures("often")
async def test_snapshots_know_admissions_and_what_is_still_needed() -> None:
    store = MemoryStore()
    parts = await history(store)
    assert await keys(store, "snapshots/")
    verdict = await verified(store)
    assert verdict.replayed >= 1
    async with opened(store) as q:
        assert (await q.admit("s", 4, parts[4:])).repeated
        assert (await q.stats()).totals.enqueued == 20
    newest = (await keys(store, "snapshots/"))[-1]
    snapshot = json.loads(await body(store, newest))
    assert list(snapshot["admissions"]) == ["s"]
    assert snapshot["staged"][0][1] == parts[0].key


async def test_the_past_of_a_queue_has_its_admissions() -> None:
    store = MemoryStore()
    await history(store)
    async with opened(store, as_of=1) as q:
        assert [job.id for job in await q.jobs()] == ["0-0", "0-1", "0-2", "0-3"]
    async with opened(store, as_of=datetime(2030, 1, 1, tzinfo=UTC), clock=ManualClock(1_900_000_000_000)) as q:
        assert (await q.stats()).totals.enqueued == 20


async def test_the_feed_tells_each_job_with_its_place() -> None:
    store = MemoryStore()
    part = await staged(store, jobs("a", "b", "c", keys=["k", "k", None], run_at_ms=[None, None, 1_800_000_000_000]))
    async with opened(store) as q:
        await q.admit("s", 1, [part])
        events = [event async for event in q.events(from_position=0, follow=False)]
    assert [(e.index, e.kind, e.job_id) for e in events] == [
        (0, EventKind.ADMITTED, None),
        (1, EventKind.ADDED, "a"),
        (2, EventKind.ADDED, "c"),
    ]
    assert (events[0].fields["added"], events[0].fields["skipped"]) == (2, [[1, 1]])
    assert [(e.fields["sequence"], e.fields["delayed"]) for e in events[1:]] == [(1, False), (2, True)]


async def test_a_queue_with_admissions_is_converted_there_and_back() -> None:
    store = MemoryStore()
    parts = await history(store)
    before = (await verified(store)).digest
    for layout in ("document", "log"):
        converter = Converter(store, Environment(clock=ManualClock(), rng=Random(3)), say=lambda _text: None)
        assert (await converter.convert(layout)).digest == before
        assert (await verified(store)).digest == before
        for part in parts:
            await store.delete(part.key)  # what is left of the log does not need them
        async with opened(store, layout) as q:
            assert (await q.admit("s", 4, parts[4:])).repeated
            assert (await q.stats()).totals.enqueued == 20


def test_tail_shows_an_admission_and_then_its_jobs(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/queue"
    with Stager(url) as stager:
        part = stager.stage(jobs("first-job", "second-job"))
    with SyncQueue.open(url) as q:
        q.admit("nightly", 3, [part])
    shown = CliRunner().invoke(app, ["tail", url, "--from", "start", "--no-follow"])
    assert shown.exit_code == 0, shown.output
    lines = shown.output.splitlines()
    assert [line.split()[3] for line in lines] == ["admitted", "added", "added"]
    assert "source=nightly batch=3 parts=1 added=2 first=1" in lines[0]
    assert "first-job" in lines[1]


# --- Damage ---


@pytest.mark.parametrize("damage", ["missing", "changed"])
async def test_a_damaged_part_is_named_wherever_its_commit_is_read(damage: str) -> None:
    store = MemoryStore()
    part = await staged(store, jobs("a", "b"))
    async with opened(store) as q:
        await q.admit("s", 1, [part])
    good = await body(store, part.key)
    await store.delete(part.key)
    if damage == "changed":
        await store.create(part.key, good.replace(b"task", b"tusk"))

    async def opening() -> None:
        async with opened(store):
            pass

    async def looking_back() -> None:
        async with opened(store, as_of=1):
            pass

    async def following() -> None:
        async for _ in opened(store).events(from_position=0, follow=False):
            pass

    for reading in (opening, looking_back, following, lambda: verified(store)):
        with pytest.raises(CorruptQueueError, match="Restore the object") as damaged:
            await reading()
        assert damaged.value.key == part.key
    await store.delete(part.key)
    await store.create(part.key, good)
    assert (await verified(store)).jobs == 2


async def test_a_part_that_holds_other_jobs_than_were_admitted_is_noticed() -> None:
    store = MemoryStore()
    part = await staged(store, jobs("a", "b"))
    async with opened(store) as q:
        await q.admit("s", 1, [part])
    segment = await body(store, "log/00000000000000000001")
    forged = segment.replace(b"],2,1,", b"],3,1,")[: -len(b',"crc":"00000000"}\n')]
    await store.delete("log/00000000000000000001")
    await store.create("log/00000000000000000001", b'%b,"crc":"%08x"}\n' % (forged, zlib.crc32(forged)))
    with pytest.raises(CorruptQueueError, match="are not those it admitted"):
        await verified(store)


# --- How long parts live ---


async def grow_old(q: Queue[bytes], clock: ManualClock, hours: float) -> None:
    """Let the time pass, with a commit now and then: whoever commits also sweeps."""
    for _ in range(int(hours)):
        await clock.advance(HOUR_S)
        await q.enqueue("beat", b"")
        for job in await q.dequeue("beat"):
            await job.ack()
        for _ in range(30):
            await yield_once()


@BOTH
@pytest.mark.parametrize("archive", [True, False])
async def test_parts_that_nobody_admits_are_swept_after_a_day(layout: str, archive: bool) -> None:
    store, clock = MemoryStore(), ManualClock()
    part = await staged(store, jobs("a"), clock)
    async with opened(store, layout, clock, archive=archive) as q:
        await grow_old(q, clock, 30)
        assert await keys(store) == [part.key]
        await grow_old(q, clock, 20)
        assert await keys(store) == []


@pytest.mark.usefixtures("often")
async def test_named_parts_stay_until_their_commit_is_collected() -> None:
    store, clock = MemoryStore(), ManualClock()
    part = await staged(store, jobs("a"), clock)
    async with opened(store, "log", clock) as q:
        await q.admit("s", 1, [part])
        await clock.advance(1)
    clock.jump_wall(48 * HOUR_S)
    sweeping = sweeper.Sweeper(store, clock)
    for replayable in (True, False):
        async with opened(store, "log", clock) as q:
            assert q._group is not None
            state = q._group._committer.state
            assert [one.key for one in state.staged] == ([part.key] if replayable else [])
            for _ in range(2):
                await clock.advance(14 * HOUR_S)
                sweeping._look_at_ms = 0
                await sweeping.apply(state)
            assert await keys(store) == ([part.key] if replayable else [])
            await verified(store)
            await grow_old(q, clock, 4)
    async with opened(store, "log", clock) as q:
        assert (await q.find("a")) is not None


# --- Faults ---


@BOTH
@pytest.mark.parametrize("seed", range(8))
async def test_on_a_store_that_loses_replies_every_batch_is_there_once(layout: str, seed: int) -> None:
    solid = MemoryStore()
    parts = [await staged(solid, jobs(*(f"{batch}-{n}" for n in range(3)))) for batch in range(6)]
    clock = ManualClock()
    ticking = asyncio.create_task(_tick(clock))
    try:
        for name in ("one", "two"):
            lossy = LossyStore(solid, by_chance(Random(seed * 7 + len(name)), before=0.15, after=0.2))
            async with opened(lossy, layout, clock) as q:
                for batch, part in enumerate(parts):
                    admission = await _insist(q, batch, part)
                    assert admission.repeated or admission.jobs == 3
    finally:
        ticking.cancel()
    async with opened(solid, layout) as q:
        assert sorted(job.id for job in await q.jobs()) == sorted(f"{b}-{n}" for b in range(6) for n in range(3))
    await verified(solid)


async def _insist(q: Queue[bytes], batch: int, part: StagedPart) -> Admission:
    for _ in range(50):
        try:
            return await q.admit("s", batch, [part])
        except (UnknownOutcomeError, StorageError):
            continue
    raise AssertionError("never admitted")


async def _tick(clock: ManualClock) -> None:
    while True:
        await clock.advance(0.05)
        await yield_once()


@BOTH
async def test_two_processes_that_admit_the_same_batch_add_it_once(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contention, "ALONE_COMMITS", 10**9)
    store, clock = MemoryStore(), ManualClock()
    parts = [await staged(store, jobs(*(f"{batch}-{n}" for n in range(5)))) for batch in range(8)]
    ticking = asyncio.create_task(_tick(clock))
    try:
        async with opened(store, layout, clock) as one, opened(store, layout, clock) as two:

            async def admit_all(q: Queue[bytes]) -> list[Admission]:
                found = []
                for batch, part in enumerate(parts):
                    found.append(await q.admit("s", batch, [part]))
                    await q.enqueue("noise", b"")
                return found

            answers = await asyncio.gather(admit_all(one), admit_all(two))
    finally:
        ticking.cancel()
    assert sum(a.jobs for each in answers for a in each if not a.repeated) == 40
    async with opened(store, layout) as q:
        assert (await q.stats()).totals.enqueued == 56
    await verified(store)


async def test_one_value_for_all_rows_counts_as_often_as_there_are_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("casque.engine.staging.ADMITTED_BYTES_MAX", 1_000)
    store = MemoryStore()
    async with opened(store) as queue:
        small = await staged(store, StagedJobs(["a", "b"], "task", b"x" * 499))
        large = await staged(store, StagedJobs(["c", "d", "e"], "task", b"x" * 250, headers={"k": "v" * 200}))
        with pytest.raises(InvalidInputError, match="each row counted by itself"):
            await queue.admit("s", 1, [large])
        assert (await queue.stats()).position == 0
        await queue.admit("s", 1, [small])
        assert (await queue.stats()).totals.enqueued == 2
