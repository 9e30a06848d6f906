"""The engine through the embedded API: batching, isolation, cancellation, waiting, leases and closing."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from casque import (
    CASConflictError,
    CorruptQueueError,
    InvalidInputError,
    JobNotFoundError,
    JobState,
    LeaseLostError,
    Queue,
    QueueClosedError,
    StorageError,
    UnknownOutcomeError,
)
from casque.clock import Random
from casque.service.requests import Retry
from casque.storage.memory import MemoryStore
from casque.storage.port import Outcome, Read, Store, Stored, Unknown
from casque.testing.clock import ManualClock, settle
from casque.testing.gated import GatedStore
from casque.testing.lossy import Fault, LossyStore, by_chance, scripted

SEEDS = count(7)
"""Every queue gets chance of its own: two with the same would take each other for themselves."""


LAYOUT = "document"


@pytest.fixture(autouse=True, params=["document", "log"])
def _layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs on both layouts, unless it names one."""
    monkeypatch.setattr(sys.modules[__name__], "LAYOUT", request.param)


document_only = pytest.mark.parametrize("_layout", ["document"], indirect=True)


def first_write() -> int:
    """What a new queue writes besides its first commit: in the log layout, a head."""
    return int(LAYOUT == "log")


@asynccontextmanager
async def opened(store: Store, clock: ManualClock | None = None, **settings: Any) -> AsyncIterator[Queue[bytes]]:
    stack = AsyncExitStack()
    try:
        yield await stack.enter_async_context(
            Queue.open(store, layout=LAYOUT, clock=clock, rng=Random(next(SEEDS)), **settings)
        )
    finally:
        closing = asyncio.ensure_future(stack.aclose())
        if clock is not None:
            await drive(clock, closing)  # a queue that closes may have to wait for its turn
        await closing


async def drive(clock: ManualClock, work: asyncio.Future[Any], seconds: float = 120.0) -> None:
    """Let time pass until the work is done."""
    for _ in range(int(seconds * 10)):
        if work.done():
            return
        await clock.advance(0.1)
    raise AssertionError("still not done")


# --- Batching ---


async def test_what_arrives_during_a_write_forms_the_next_batch() -> None:
    store = GatedStore(MemoryStore())
    async with opened(store) as q:
        store.shut()
        first = asyncio.create_task(q.enqueue("a", b"first"))
        await store.arrived.wait()
        others = [asyncio.create_task(q.enqueue("a", b"%d" % n)) for n in range(20)]
        await settle()
        assert store.writes == 1
        store.open()
        await asyncio.gather(first, *others)
        assert store.writes == 2 + first_write()


async def test_a_refused_call_is_refused_alone() -> None:
    store = GatedStore(MemoryStore())
    async with opened(store) as q:
        results = await asyncio.gather(
            q.enqueue("a", b"1"), q.nack("no-such-job"), q.enqueue("a", b"2"), return_exceptions=True
        )
        assert isinstance(results[1], JobNotFoundError)
        assert results[1].job_id == "no-such-job"
        assert (await q.stats()).totals.ready == 2
        assert store.writes == 1 + first_write()


async def test_a_bulk_enqueue_is_all_or_nothing() -> None:
    async with opened(MemoryStore()) as q:
        with pytest.raises(InvalidInputError):
            await q.enqueue_many([("a", b"1"), ("", b"2")])
        assert (await q.stats()).totals.enqueued == 0
        assert len(await q.enqueue_many([("a", b"1"), ("a", b"2")])) == 2
        assert await q.enqueue_many([]) == []


async def test_nothing_to_change_means_nothing_written() -> None:
    store = GatedStore(MemoryStore())
    async with opened(store) as q:
        await q.enqueue("a", b"1")
        before = store.writes
        for _ in range(100):
            assert await q.dequeue("other") == []
        with pytest.raises(JobNotFoundError):
            await q.ack("nobody")
        await q.stats()
        assert store.writes == before


async def test_the_buffer_is_bounded_and_callers_wait_for_room() -> None:
    store = GatedStore(MemoryStore())
    async with opened(store, buffer_max=5, batch_max=5) as q:
        store.shut()
        calls = [asyncio.create_task(q.enqueue("a", b"%d" % n)) for n in range(40)]
        await store.arrived.wait()
        await settle()
        assert q._group is not None
        assert len(q._group._pending) <= 5
        store.open()
        await asyncio.gather(*calls)
        assert (await q.stats()).totals.ready == 40


# --- Several writers ---


async def test_two_queues_on_one_store_lose_nothing_and_claim_nothing_twice() -> None:
    store, clock = MemoryStore(), ManualClock()
    async with opened(store, clock) as a, opened(store, clock) as b:
        work = asyncio.gather(*(q.enqueue("x", b"%d" % n) for n in range(30) for q in (a, b)))
        await drive(clock, work)
        claims = asyncio.gather(*(q.dequeue("x", batch_size=4) for _ in range(10) for q in (a, b)))
        await drive(clock, claims)
        ids = [job.id for claimed in claims.result() for job in claimed]
        assert len(ids) == len(set(ids)) == 60


async def test_a_race_that_is_always_lost_ends_in_a_conflict_and_changes_nothing() -> None:
    class Losing(GatedStore):
        async def create(self, key: str, body: bytes) -> Outcome:
            await rival.enqueue("a", b"first again")
            return await super().create(key, body)

        async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
            return await super().replace(key, body, expected="somebody else's")

    store, clock = MemoryStore(), ManualClock()
    async with opened(store, clock) as rival:
        await drive(clock, asyncio.ensure_future(rival.enqueue("a", b"1")))
        async with opened(Losing(store), clock, conflict_retries=3) as q:
            call = asyncio.ensure_future(q.enqueue("a", b"2"))
            await drive(clock, call)
            with pytest.raises(CASConflictError, match="16 times"):
                call.result()
            assert b"2" not in [job.payload for job in await q.jobs()]


async def test_a_newcomer_gets_a_word_in_beside_a_writer_that_never_rests() -> None:
    class Far(GatedStore):
        """Half of a round trip there, half of it back."""

        async def get(self, key: str, *, unless: str | None = None) -> Read:
            await clock.sleep(0.025)
            read = await super().get(key, unless=unless)
            await clock.sleep(0.025)
            return read

        async def create(self, key: str, body: bytes) -> Outcome:
            await clock.sleep(0.025)
            outcome = await super().create(key, body)
            await clock.sleep(0.025)
            return outcome

        async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
            await clock.sleep(0.025)
            outcome = await super().replace(key, body, expected=expected)
            await clock.sleep(0.025)
            return outcome

    store, clock = MemoryStore(), ManualClock()
    entering = asyncio.ensure_future(Queue.open(Far(store), layout=LAYOUT, clock=clock, rng=Random(1)).__aenter__())
    await drive(clock, entering)
    busy = entering.result()
    rests = False

    async def never_rests() -> None:
        while not rests:
            await busy.enqueue("a", b"1")

    work = [asyncio.create_task(never_rests()) for _ in range(3)]
    await clock.advance(5)
    entering = asyncio.ensure_future(Queue.open(Far(store), layout=LAYOUT, clock=clock, rng=Random(2)).__aenter__())
    await drive(clock, entering)
    newcomer = entering.result()
    await drive(clock, asyncio.ensure_future(newcomer.enqueue("b", b"first")), seconds=20)
    await drive(clock, asyncio.ensure_future(newcomer.enqueue("b", b"second")), seconds=2)
    rests = True
    for ending in (asyncio.gather(*work), newcomer.__aexit__(None, None, None), busy.__aexit__(None, None, None)):
        await drive(clock, asyncio.ensure_future(ending))


# --- Callers that leave ---


async def test_a_call_cancelled_before_it_was_sent_is_dropped() -> None:
    store = GatedStore(MemoryStore())
    async with opened(store) as q:
        store.shut()
        first = asyncio.create_task(q.enqueue("a", b"kept"))
        await store.arrived.wait()
        dropped = asyncio.create_task(q.enqueue("a", b"dropped"))
        await settle()
        dropped.cancel()
        await settle()
        store.open()
        await first
        assert [job.payload for job in await q.jobs()] == [b"kept"]


async def test_a_claim_whose_caller_has_gone_is_given_back_unharmed() -> None:
    store = GatedStore(MemoryStore())
    async with opened(store) as q:
        await q.enqueue("a", b"1")
        store.shut()
        claim = asyncio.create_task(q.dequeue("a"))
        await store.arrived.wait()
        claim.cancel()
        await settle()
        store.open()
        [job] = await q.dequeue("a", wait=5)
        assert job.attempts == 1, "the abandoned claim does not count"


# --- Waiting for jobs ---


async def test_a_waiting_caller_gets_its_job_in_the_commit_that_adds_it() -> None:
    store = GatedStore(MemoryStore())
    async with opened(store) as q:
        waiting = asyncio.create_task(q.dequeue("a", wait=60))
        await settle()
        await q.enqueue("a", b"1")
        [job] = await waiting
        assert job.payload == b"1"
        assert store.writes == 1 + first_write()


async def test_a_waiting_caller_sees_jobs_of_other_processes() -> None:
    store, clock = MemoryStore(), ManualClock()
    async with opened(store, clock) as here, opened(store, clock) as there:
        waiting = asyncio.ensure_future(here.dequeue("a", wait=60))
        await clock.advance(5)
        await there.enqueue("a", b"1")
        await drive(clock, waiting, seconds=2)
        assert [job.payload for job in waiting.result()] == [b"1"]


async def test_a_waiting_caller_gets_a_delayed_job_when_it_is_due() -> None:
    clock = ManualClock()
    async with opened(MemoryStore(), clock, poll_max=timedelta(hours=1)) as q:
        await q.enqueue("a", b"later", delay=30)
        waiting = asyncio.ensure_future(q.dequeue("a", wait=60))
        await clock.advance(29)
        assert not waiting.done()
        await clock.advance(1.1)
        assert [job.payload for job in waiting.result()] == [b"later"]


async def test_waiting_in_vain_ends_with_an_empty_list() -> None:
    store, clock = GatedStore(MemoryStore()), ManualClock()
    async with opened(store, clock) as q:
        waiting = asyncio.ensure_future(q.dequeue("a", wait=10))
        await clock.advance(9.9)
        assert not waiting.done()
        await clock.advance(0.2)
        assert waiting.result() == []
        assert store.writes == 0
        assert store.requests["get"] < 30, "polling backs off"


async def test_an_idle_queue_asks_the_store_nothing() -> None:
    store, clock = GatedStore(MemoryStore()), ManualClock()
    async with opened(store, clock) as q:
        await q.enqueue("a", b"1")
        before = store.requests.total()
        await clock.advance(3600)
        assert store.requests.total() == before


# --- Leases ---


async def test_a_lease_that_ran_out_goes_to_the_next_worker_even_if_nobody_calls() -> None:
    clock = ManualClock()
    async with opened(MemoryStore(), clock, stale_timeout=timedelta(seconds=30)) as q:
        await q.enqueue("a", b"1")
        [lost] = await q.dequeue("a")
        await clock.advance(29)
        assert (await q.find(lost.id) or lost).state is JobState.RUNNING
        await clock.advance(2)
        [job] = await q.jobs(states=[JobState.READY])
        assert job.last_error is not None
        [again] = await q.dequeue("a")
        assert again.token > lost.token
        with pytest.raises(LeaseLostError):
            await lost.ack()
        with pytest.raises(LeaseLostError):
            await lost.nack()
        with pytest.raises(LeaseLostError):
            await lost.heartbeat()
        await again.ack()


async def test_heartbeats_through_another_process_keep_a_lease() -> None:
    store, clock = MemoryStore(), ManualClock()
    lease = timedelta(seconds=30)
    async with opened(store, clock, stale_timeout=lease) as worker, opened(store, clock, stale_timeout=lease) as other:
        await worker.enqueue("a", b"1")
        [job] = await worker.dequeue("a")
        await other.stats()  # sees the lease
        for _ in range(10):
            await clock.advance(20)
            await job.heartbeat()
        assert (await other.stats()).totals.running == 1
        await job.ack()


async def test_a_wall_clock_that_jumps_takes_no_lease_away() -> None:
    clock = ManualClock()
    async with opened(MemoryStore(), clock, stale_timeout=timedelta(seconds=30)) as q:
        await q.enqueue("a", b"1")
        [job] = await q.dequeue("a")
        clock.jump_wall(365 * 24 * 3600)
        await clock.advance(25)
        await job.heartbeat()
        clock.jump_wall(-2 * 365 * 24 * 3600)
        await clock.advance(25)
        await job.ack()


async def test_a_process_that_opens_the_queue_gives_running_leases_their_full_length() -> None:
    store, clock = MemoryStore(), ManualClock()
    lease = timedelta(seconds=30)
    async with opened(store, clock, stale_timeout=lease) as gone:
        await gone.enqueue("a", b"1")
        await gone.dequeue("a")
    await clock.advance(3600)
    async with opened(store, clock, stale_timeout=lease) as q:
        await clock.advance(29)
        assert (await q.stats()).totals.running == 1
        await clock.advance(5)
        assert (await q.stats()).totals.ready == 1


async def test_the_last_attempt_that_expires_or_fails_leaves_the_job_dead_with_its_error() -> None:
    clock = ManualClock()
    async with opened(MemoryStore(), clock, stale_timeout=timedelta(seconds=30)) as q:
        await q.enqueue("expires", b"", max_attempts=1)
        await q.enqueue("fails", b"", max_attempts=1)
        await q.dequeue("expires")
        [failing] = await q.dequeue("fails")
        await failing.nack(error=ValueError("no such address"))
        await clock.advance(31)
        dead = {job.entrypoint: job.last_error for job in await q.jobs(states=[JobState.DEAD])}
        assert dead["fails"] == "ValueError: no such address"
        assert "lease ran out" in (dead["expires"] or "")
        assert await q.purge("expires") == 1
        await q.retry(failing.id)
        [again] = await q.dequeue("fails")
        assert again.attempts == 1


async def test_failed_jobs_wait_longer_each_time() -> None:
    clock = ManualClock()
    async with opened(MemoryStore(), clock, backoff_base=timedelta(seconds=10)) as q:
        await q.enqueue("a", b"1")
        waits = []
        for _ in range(4):
            [job] = await q.dequeue("a")
            await job.nack(error="again")
            found = await q.find(job.id)
            assert found is not None
            waits.append((found.due_at.timestamp() * 1000 - clock.wall_ms()) / 1000)
            await clock.advance(waits[-1] + 1)
        assert all(base / 2 <= wait <= base for wait, base in zip(waits, (10, 20, 40, 80), strict=True))


# --- Storage that fails ---


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER])
async def test_a_lost_reply_neither_doubles_orphans_nor_raises(fault: Fault) -> None:
    clock, memory = ManualClock(), MemoryStore()
    script: list[Fault] = []
    store = LossyStore(memory, lambda: script.pop(0) if script else Fault.NONE)
    async with opened(store, clock) as q:

        async def with_a_lost_reply(verb: Coroutine[Any, Any, Any]) -> Any:
            script.append(fault)
            call = asyncio.ensure_future(verb)
            await drive(clock, call)
            return call.result()

        await with_a_lost_reply(q.enqueue("a", b"1"))
        [job] = await with_a_lost_reply(q.dequeue("a"))
        await with_a_lost_reply(job.ack())
        assert store.faults == 3
        totals = (await q.stats()).totals
        assert (totals.enqueued, totals.done) == (1, 1)


async def test_many_lost_replies_among_many_writers_lose_and_double_nothing() -> None:
    clock, memory, faulty = ManualClock(), MemoryStore(), False

    def decide(seed: int) -> Callable[[], Fault]:
        chance = by_chance(Random(seed), before=0.15, after=0.15)
        return lambda: chance() if faulty else Fault.NONE

    stores = [LossyStore(memory, decide(seed)) for seed in range(3)]
    async with opened(stores[0], clock) as a, opened(stores[1], clock) as b, opened(stores[2], clock) as c:
        queues = [a, b, c]
        faulty = True

        async def producer(n: int) -> None:
            await queues[n % 3].enqueue("x", b"%d" % n)

        work = asyncio.gather(*(producer(n) for n in range(60)))
        await drive(clock, work)
        done: list[bytes] = []

        async def consumer(q: Queue[bytes]) -> None:
            while jobs := await q.dequeue("x", batch_size=3):
                for job in jobs:
                    done.append(job.payload)
                    await job.ack()

        await drive(clock, asyncio.gather(*(consumer(q) for q in queues)), seconds=600)
        faulty = False
        assert sorted(done) == sorted(b"%d" % n for n in range(60))


@document_only
async def test_a_write_that_lands_long_after_it_was_given_up_stays_single() -> None:
    class Late(GatedStore):
        """Keeps the first write and applies it just before the next one."""

        late: tuple[bytes, str] | None = None
        armed = False

        async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
            if self.armed:
                self.armed, self.late = False, (body, expected)
                return Unknown(TimeoutError("no answer"))
            if self.late is not None:
                late, self.late = self.late, None
                await super().replace(key, late[0], expected=late[1])
            return await super().replace(key, body, expected=expected)

    clock, store = ManualClock(), Late(MemoryStore())
    async with opened(store, clock) as q:
        await q.enqueue("a", b"0")
        store.armed = True
        call = asyncio.ensure_future(q.enqueue("a", b"1"))
        await drive(clock, call)
        assert [job.payload for job in await q.jobs()] == [b"0", b"1"]


async def test_a_retry_inside_a_client_library_does_not_turn_a_success_into_a_second_one() -> None:
    class AsksTwice(GatedStore):
        """As many clients do: the first answer is lost, the second attempt meets the first one's result."""

        async def create(self, key: str, body: bytes) -> Outcome:
            await super().create(key, body)
            return await super().create(key, body)

        async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
            await super().replace(key, body, expected=expected)
            return await super().replace(key, body, expected=expected)

    async with opened(AsksTwice(MemoryStore())) as q:
        await q.enqueue("a", b"1")
        [job] = await q.dequeue("a")
        await job.ack()
        totals = (await q.stats()).totals
        assert (totals.enqueued, totals.done, job.token) == (1, 1, 1)


async def test_a_short_outage_is_waited_out() -> None:
    clock = ManualClock()
    store = LossyStore(MemoryStore(), scripted(*[Fault.NONE] * 3 + [Fault.BEFORE] * 6))
    async with opened(store, clock) as q:
        call = asyncio.ensure_future(q.enqueue("a", b"1"))
        await drive(clock, call)
        assert (await q.stats()).totals.enqueued == 1


async def test_a_long_outage_is_reported_as_unknown_and_the_queue_goes_on_afterwards() -> None:
    clock, memory = ManualClock(), MemoryStore()
    down = False
    store = LossyStore(memory, lambda: Fault.BEFORE if down else Fault.NONE)
    async with opened(store, clock, storage_patience=timedelta(seconds=10)) as q:
        await q.enqueue("a", b"before")
        down = True
        call = asyncio.ensure_future(q.enqueue("a", b"during"))
        await drive(clock, call)
        with pytest.raises(UnknownOutcomeError):
            call.result()
        down = False
        await q.enqueue("a", b"after")
        assert [job.payload for job in await q.jobs()] == [b"before", b"after"]


async def test_a_claim_that_could_not_be_given_back_stays_with_its_holder() -> None:
    class Refusing(GatedStore):
        full = False

        async def create(self, key: str, body: bytes) -> Outcome:
            if self.full:
                raise StorageError("the disk is full")
            return await super().create(key, body)

        async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
            if self.full:
                raise StorageError("the disk is full")
            return await super().replace(key, body, expected=expected)

    clock, store = ManualClock(), Refusing(MemoryStore())
    async with opened(store, clock, storage_patience=timedelta(seconds=1)) as q:
        await q.enqueue("a", b"1")
        [job] = await q.dequeue("a")
        store.full = True
        call = asyncio.ensure_future(q.give_back([job]))
        await drive(clock, call)
        [refused] = call.result()
        assert isinstance(refused, StorageError)
        assert not isinstance(refused, UnknownOutcomeError)
        store.full = False
        await clock.advance(10)
        await q.enqueue("a", b"2")
        await job.heartbeat()


async def test_a_repeated_request_id_answers_again_and_acts_once() -> None:
    async with opened(MemoryStore()) as q:
        first = await q.enqueue("a", b"1", request_id="r1")
        assert (await q.enqueue("a", b"1", request_id="r1")).id == first.id
        [claimed] = await q.dequeue("a", request_id="r2")
        [again] = await q.dequeue("a", request_id="r2")
        assert (again.id, again.token) == (claimed.id, claimed.token)
        await q.ack(claimed.id, claimed.token, request_id="r3")
        await q.ack(claimed.id, claimed.token, request_id="r3")
        assert (await q.enqueue("a", b"1", request_id="r1")).id == first.id
        assert (await q.stats()).totals.enqueued == 1


async def test_a_unique_key_gives_the_unfinished_job_and_is_free_again_afterwards() -> None:
    async with opened(MemoryStore()) as q:
        first = await q.enqueue("a", b"1", key="daily")
        assert (await q.enqueue("a", b"2", key="daily")).id == first.id
        [job] = await q.dequeue("a")
        assert (await q.enqueue("a", b"3", key="daily")).id == first.id
        await job.ack()
        assert (await q.enqueue("a", b"4", key="daily")).id != first.id


# --- Damage ---


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not a queue"),
        (b"{", "not a queue"),
        (b'"text"', "not a queue"),
        (b'{"version": 1, "jobs": [{"id": 5}]}', "not a queue"),
        (b'{"format": 99, "layout": "document", "queue_id": "q", "version": 1, "jobs": []}', "newer casque"),
        (b'{"format": 99, "version": 1, "jobs": []}', "is not a queue"),
        (b'{"format": 1, "layout": "scroll", "queue_id": "q"}', "layout"),
        (
            b'{"format": 1, "layout": "document", "queue_id": "q", "version": 3, "counters": {"enqueued": 4}}',
            "counters",
        ),
    ],
)
@document_only
async def test_a_document_that_is_none_is_refused_and_left_alone(body: bytes, says: str) -> None:
    store = MemoryStore()
    await store.create("queue.json", body)
    with pytest.raises(CorruptQueueError, match=says) as caught:
        async with opened(store):
            pass
    assert caught.value.key == "queue.json"
    read = await store.get("queue.json")
    assert isinstance(read, Stored)
    assert read.body == body


async def test_a_queue_json_that_was_deleted_is_noticed() -> None:
    store = MemoryStore()
    async with opened(store) as q:
        await q.enqueue("a", b"1")
        await store.delete("queue.json")
        with pytest.raises(CorruptQueueError, match="deleted"):
            await q.jobs()


# --- Life ---


async def test_closing_finishes_what_was_asked() -> None:
    store = GatedStore(MemoryStore())
    async with opened(store) as q:
        store.shut()
        calls = [asyncio.create_task(q.enqueue("a", b"%d" % n)) for n in range(10)]
        waiting = asyncio.create_task(q.dequeue("never", wait=3600))
        await store.arrived.wait()
        asyncio.get_running_loop().call_soon(store.open)
    assert all(job.id for job in await asyncio.gather(*calls))
    assert await waiting == []
    with pytest.raises(QueueClosedError):
        await q.enqueue("a", b"late")


async def test_closing_on_a_dead_store_ends_at_the_drain_limit_and_settles_everybody() -> None:
    store, clock = GatedStore(MemoryStore()), ManualClock()
    queue = Queue.open(store, clock=clock)
    await queue.__aenter__()
    store.shut()
    sent = asyncio.ensure_future(queue.enqueue("a", b"sent"))
    await store.arrived.wait()
    unsent = asyncio.ensure_future(queue.enqueue("a", b"unsent"))
    await settle()
    closing = asyncio.ensure_future(queue.__aexit__(None, None, None))
    await clock.advance(31)
    await closing
    with pytest.raises(UnknownOutcomeError):
        await sent
    with pytest.raises(QueueClosedError):
        await unsent


async def test_a_queue_that_was_never_entered_says_so() -> None:
    q = Queue.open(MemoryStore())
    with pytest.raises(QueueClosedError, match="async with"):
        await q.enqueue("a", b"1")


async def test_a_store_that_cannot_be_read_fails_at_opening() -> None:
    clock = ManualClock()
    store = LossyStore(MemoryStore(), lambda: Fault.BEFORE)
    entering = asyncio.ensure_future(Queue.open(store, clock=clock).__aenter__())
    await drive(clock, entering)
    with pytest.raises(StorageError):
        entering.result()


async def test_a_request_to_a_closed_queue_is_refused_when_it_is_awaited() -> None:
    async with Queue.open("memory://closed-request") as queue:
        service = queue._service
    asked = service.call(Retry("a"))
    with pytest.raises(QueueClosedError):
        await asked
