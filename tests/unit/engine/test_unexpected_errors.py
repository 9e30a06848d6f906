"""A bug that one call runs into costs that call alone: the batch goes on without it, and the queue lives."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest

from casque import DirectQueue, InMemoryStorage, Queue, UnknownOutcomeError
from casque.clock import Random
from casque.engine.reaper import Reaper
from casque.service.requests import Ack, Dequeue, Enqueue
from casque.state import Expire, State, Tick, adding, leases
from casque.state.job_table import JobTable
from casque.state.schedules import ScheduleFacet
from casque.storage.memory import MemoryStore
from casque.testing.clock import ManualClock, settle
from casque.testing.gated import GatedStore
from casque.types import JobSpec
from simulation.world.claimable import allowed, claimable

SEEDS = count(900)
LAYOUT = "log"


@pytest.fixture(autouse=True, params=["document", "log"])
def _layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "LAYOUT", request.param)


@asynccontextmanager
async def opened(store: Any, **options: Any) -> AsyncIterator[Queue[bytes]]:
    async with Queue.open(store, layout=LAYOUT, rng=Random(next(SEEDS)), **options) as q:
        yield q


def broken_after_the_first_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enqueueing a job named `bug` fails in the middle: something of it has happened by then."""
    add = adding.add

    def fails(state: State, spec: JobSpec, now_ms: int) -> Any:
        record = add(state, spec, now_ms)
        if spec.entrypoint == "bug":
            state.table.waiting += 7  # it got half way, and the count is wrong as well
            raise KeyError("a bug")
        return record

    monkeypatch.setattr(adding, "add", fails)


async def test_a_bug_costs_its_own_caller_and_the_batch_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    broken_after_the_first_job(monkeypatch)
    store = GatedStore(MemoryStore())
    async with opened(store) as q:
        store.shut()
        first = asyncio.create_task(q.enqueue("a", b"0"))
        await store.arrived.wait()
        batch = [asyncio.create_task(q.enqueue(name, b"")) for name in ("a", "bug", "a")]
        waiting = asyncio.create_task(q.dequeue("b", wait=30))
        await settle()
        store.open()
        await first
        one, bug, other = await asyncio.gather(*batch, return_exceptions=True)
        assert isinstance(bug, KeyError)
        assert not isinstance(one, BaseException)
        assert not isinstance(other, BaseException)
        assert (await q.stats()).totals.ready == 3
        assert [job.entrypoint for job in await q.dequeue(batch_size=9)] == ["a", "a", "a"]
        await q.enqueue("b", b"")
        assert len(await waiting) == 1, "whoever waited goes on waiting"
    async with opened(store) as q:
        assert (await q.stats()).totals.enqueued == 4


async def test_a_claim_that_breaks_half_way_leaves_its_job_claimable(monkeypatch: pytest.MonkeyPatch) -> None:
    claim, broken = JobTable.claim, [True]

    def fails(self: JobTable, *rest: Any) -> Any:
        if broken.pop() if broken else False:
            raise KeyError("the job has left its lane, and nothing says that it was claimed")
        return claim(self, *rest)

    async with opened(MemoryStore()) as q:
        await q.enqueue("a", b"")
        await q.enqueue("a", b"", zone="acme")
        monkeypatch.setattr(JobTable, "claim", fails)
        with pytest.raises(KeyError):
            await q.dequeue("a")
        assert len(await q.dequeue("a", batch_size=5)) == 2


async def test_a_failure_after_the_write_is_unknown_and_the_queue_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened(MemoryStore()) as q:
        await q.enqueue("a", b"")
        observe = Reaper.observe

        def fails(self: Reaper, *rest: Any) -> None:
            monkeypatch.setattr(Reaper, "observe", observe)
            raise ZeroDivisionError

        monkeypatch.setattr(Reaper, "observe", fails)
        with pytest.raises(UnknownOutcomeError, match="ZeroDivisionError"):
            await q.enqueue("a", b"landed")
        assert (await q.stats()).totals.ready == 2
        assert len(await q.dequeue("a", batch_size=5)) == 2


async def test_an_expiry_that_breaks_does_not_keep_the_loop_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, tries = ManualClock(), 0

    def fails(state: State, c: Expire, now_ms: int) -> int:
        nonlocal tries
        tries += 1
        raise ZeroDivisionError

    monkeypatch.setattr(leases, "expire", fails)
    async with opened(MemoryStore(), clock=clock) as q:
        await q.enqueue("a", b"")
        await q.dequeue("a", lease=5)
        for _ in range(60):
            await clock.advance(0.5)
        assert 1 <= tries < 100
        assert (await q.stats()).totals.running == 1


async def test_a_tick_that_breaks_leaves_the_queue_and_other_schedules_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    tick = ScheduleFacet.tick

    def fails(self: ScheduleFacet, state: State, c: Tick, now_ms: int) -> bool:
        if c.name == "bad":
            state.counters.enqueued += 1
            raise ZeroDivisionError
        return tick(self, state, c, now_ms)

    monkeypatch.setattr(ScheduleFacet, "tick", fails)
    async with opened(MemoryStore(), clock=clock) as q:
        await q.set_schedule("bad", "* * * * *", ("bad", b""))
        await q.set_schedule("good", "* * * * *", ("good", b""))
        for _ in range(140):
            await clock.advance(1.0)
        assert {job.entrypoint for job in await q.dequeue(batch_size=9)} == {"good"}


async def test_the_small_api_survives_a_bug_too(monkeypatch: pytest.MonkeyPatch) -> None:
    broken_after_the_first_job(monkeypatch)
    q = DirectQueue(InMemoryStorage())
    await q.enqueue("a", b"")
    with pytest.raises(KeyError):
        await q.enqueue("bug", b"")
    await q.enqueue("a", b"")
    assert len((await q.read_state()).jobs) == 2


def test_the_indexes_are_rebuilt_as_they_were() -> None:
    state = State()
    specs = [JobSpec(f"{n}", "a", b"", n % 3, key=f"k{n}", zone=(None, "x", "y")[n % 3]) for n in range(30)]
    state.execute(Enqueue(tuple(specs)), 1_000)
    state.execute(Dequeue(None, 4, 60_000), 1_000)
    state.execute(Ack("0"), 1_000)
    state.commit(writer="w", batch=1, at_ms=1_000)
    keys, totals = dict(state.keys), state.totals(1_000)
    state.reindex()
    assert (state.keys, state.totals(1_000)) == (keys, totals)
    assert claimable(state, 1_000) == allowed(state, 1_000)
