"""What went wrong in jqueue, measured there, does not go wrong here: one section per mistake."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from casque import (
    BrokerQueue,
    CASConflictError,
    DirectQueue,
    HeartbeatManager,
    InMemoryStorage,
    Job,
    JobState,
    JobStatus,
    LeaseLostError,
    LocalFileSystemStorage,
    Queue,
    S3Storage,
)
from casque.clock import Random, new_nonce, system_random
from casque.codec import document, stored
from casque.storage.memory import MemoryStore
from casque.testing.clock import ManualClock, settle
from casque.testing.lossy import Fault, LossyStore, by_chance
from tests.support.proxy import Fault as NetworkFault
from tests.support.proxy import Proxy
from tests.support.servers import Server

T = TypeVar("T")
Kind = type[BrokerQueue | DirectQueue]

s3 = pytest.mark.xdist_group("s3")
both_kinds = pytest.mark.parametrize("kind", [BrokerQueue, DirectQueue])


@asynccontextmanager
async def opened(kind: Kind, storage: Any, **more: Any) -> AsyncIterator[BrokerQueue | DirectQueue]:
    q = kind(storage, **more)
    if isinstance(q, BrokerQueue):
        async with q:
            yield q
    else:
        yield q


async def passing(clock: ManualClock, call: Coroutine[Any, Any, T]) -> T:
    """Let time pass until the call is done."""
    task = asyncio.create_task(call)
    while not task.done():
        await clock.advance(0.05)
    return task.result()


class GatedStorage(InMemoryStorage):
    """A storage whose writes take until the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.writing = asyncio.Event()
        self.written = asyncio.Event()

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        self.writing.set()
        await self.gate.wait()
        etag = await super().write(content, if_match)
        self.written.set()
        return etag

    def hold(self) -> None:
        self.gate.clear()
        self.writing.clear()
        self.written.clear()


@pytest.fixture
def s3_storage(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[..., S3Storage]:
    """Each call is another client of the same new object."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.options["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.options["secret_access_key"])
    key = f"queues/{new_nonce(system_random())}.json"

    def make(endpoint: str | None = None) -> S3Storage:
        return S3Storage(s3_server.bucket, key, endpoint_url=endpoint or s3_server.endpoint, region_name="us-east-1")

    return make


# --- The first write was unconditional: two creators, one job lost ---


@s3
@both_kinds
async def test_many_that_create_a_queue_on_s3_at_once_lose_no_job(
    kind: Kind, s3_storage: Callable[..., S3Storage]
) -> None:
    together = asyncio.Barrier(6)

    async def create(n: int) -> str:
        async with opened(kind, s3_storage(), conflict_retries=50) as q:
            assert (await q.read_state()).jobs == ()
            await together.wait()  # all have seen that there is nothing
            return (await q.enqueue("task", b"%d" % n)).id

    created = await asyncio.gather(*(create(n) for n in range(6)))

    stored = await DirectQueue(s3_storage()).read_state()
    assert sorted(job.id for job in stored.jobs) == sorted(created)
    assert stored.version == 6


async def test_many_that_create_a_queue_in_a_file_at_once_lose_no_job(tmp_path: Path) -> None:
    together = asyncio.Barrier(6)

    async def create(n: int) -> str:
        async with BrokerQueue(LocalFileSystemStorage(tmp_path / "queue.json"), conflict_retries=50) as q:
            await together.wait()
            return (await q.enqueue("task", b"%d" % n)).id

    created = await asyncio.gather(*(create(n) for n in range(6)))

    stored = await DirectQueue(LocalFileSystemStorage(tmp_path / "queue.json")).read_state()
    assert sorted(job.id for job in stored.jobs) == sorted(created)


# --- A lost reply stored a job twice, orphaned a claim, or made a successful ack raise ---


@s3
@both_kinds
@pytest.mark.parametrize("fault", [NetworkFault.DROP_AFTER, NetworkFault.DROP_BEFORE, NetworkFault.UNAVAILABLE])
async def test_on_s3_no_lost_reply_does_anything_twice(
    kind: Kind, fault: NetworkFault, s3_server: Server, s3_storage: Callable[..., S3Storage]
) -> None:
    async with Proxy(s3_server.endpoint) as proxy:

        def break_next_write() -> None:
            proxy.calm()
            proxy.inject(fault, methods={"PUT"}, times=1)

        async with opened(kind, s3_storage(proxy.endpoint), storage_backoff=timedelta(milliseconds=1)) as q:
            break_next_write()
            added = await q.enqueue("task", b"created with the queue")
            break_next_write()
            second = await q.enqueue("task", b"added to it")
            assert [job.id for job in (await q.read_state()).jobs] == [added.id, second.id]

            break_next_write()
            [claimed] = await q.dequeue("task")
            assert (claimed.id, claimed.attempts) == (added.id, 1)
            break_next_write()
            await claimed.heartbeat()
            break_next_write()
            await claimed.ack()

            [other] = await q.dequeue("task")
            break_next_write()
            await other.nack(delay=3600)
            [left] = (await q.read_state()).jobs
            assert (left.id, left.status, left.attempts) == (second.id, JobStatus.QUEUED, 1)
        assert proxy.faults[fault] == 6


@both_kinds
@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER])
async def test_a_lost_reply_is_settled_though_somebody_else_wrote_in_between(kind: Kind, fault: Fault) -> None:
    clock, store = ManualClock(), MemoryStore()
    await DirectQueue(store).enqueue("task", b"first")
    faults: list[Fault] = []
    mine = LossyStore(store, lambda: faults.pop() if faults else Fault.NONE)

    async with opened(kind, mine, clock=clock) as q:
        assert await q.dequeue("other") == []  # it is open now
        faults.append(fault)
        call = asyncio.create_task(q.dequeue("task"))
        await settle()
        rival = DirectQueue(store)
        await rival.enqueue("task", b"second")
        claims = await rival.dequeue("task")
        [claimed] = await passing(clock, _result(call))

        assert mine.faults == 1
        assert claimed.id != claims[0].id
        await passing(clock, q.ack(claimed.id, claimed.token))
        await rival.ack(claims[0].id, claims[0].token)
        assert (await rival.read_state()).jobs == ()


async def _result(task: asyncio.Task[T]) -> T:
    return await task


@both_kinds
@pytest.mark.parametrize("seed", range(5))
async def test_with_every_fifth_request_lost_each_job_is_done_once(kind: Kind, seed: int) -> None:
    clock, store = ManualClock(), MemoryStore()
    chance, quiet = by_chance(Random(seed), before=0.1, after=0.1), True
    lossy = LossyStore(store, lambda: Fault.NONE if quiet else chance())
    done: Counter[str] = Counter()

    async with opened(kind, lossy, clock=clock, rng=Random(seed)) as q:
        quiet = False
        added = [(await passing(clock, q.enqueue("task", b"%d" % n))).id for n in range(20)]
        while len(done) < 20:
            for job in await passing(clock, q.dequeue("task", batch_size=3)):
                await passing(clock, job.ack())
                done[job.id] += 1
        quiet = True  # closing archives, and nobody moves the clock meanwhile

    assert lossy.faults > 5
    assert done == Counter(added)
    assert (await DirectQueue(store).read_state()).jobs == ()


# --- No ownership on ack, nack and heartbeat ---


@pytest.mark.parametrize("verb", ["ack", "nack", "heartbeat"])
async def test_a_worker_that_lost_its_lease_can_do_nothing_to_the_job(verb: str) -> None:
    clock = ManualClock()

    async with BrokerQueue(InMemoryStorage(), clock=clock, stale_timeout=timedelta(seconds=60)) as q:
        await q.enqueue("task", b"data")
        [mine] = await q.dequeue("task")
        await clock.advance(61)
        [theirs] = await q.dequeue("task")
        before = await q.read_state()

        with pytest.raises(LeaseLostError) as caught:
            await getattr(mine, verb)()
        with pytest.raises(LeaseLostError):
            await getattr(q, verb)(mine.id, mine.token)

        after = await q.read_state()
        assert (caught.value.job_id, caught.value.token) == (mine.id, mine.token)
        assert theirs.token > mine.token
        assert (after.version, after.jobs) == (before.version, before.jobs)
        await theirs.ack()


# --- HeartbeatManager gave up for good after one storage hiccup ---


async def test_heartbeats_go_on_after_the_storage_was_away_for_a_while() -> None:
    clock, away = ManualClock(), False
    store = LossyStore(MemoryStore(), lambda: Fault.BEFORE if away else Fault.NONE)

    async with BrokerQueue(
        store, clock=clock, stale_timeout=timedelta(seconds=60), storage_patience=timedelta(seconds=1)
    ) as q:
        await q.enqueue("task", b"data")
        [job] = await q.dequeue("task")
        async with HeartbeatManager(q, job, timedelta(seconds=10), clock=clock) as heartbeat:
            away = True
            await clock.advance(40)
            assert store.faults > 0
            away = False
            await clock.advance(300)

            [running] = (await q.read_state()).in_progress_jobs()
            assert not heartbeat.lost
            assert running.token == job.token
            assert running.heartbeat_at is not None
            assert running.heartbeat_at > job.created_at + timedelta(seconds=300)
        await job.ack()


async def test_a_lease_that_is_really_lost_is_reported() -> None:
    clock = ManualClock()

    async with BrokerQueue(InMemoryStorage(), clock=clock) as q:
        await q.enqueue("task", b"data")
        [job] = await q.dequeue("task")
        async with HeartbeatManager(q, job, timedelta(seconds=10), clock=clock) as heartbeat:
            watching = asyncio.create_task(heartbeat.wait_lost())
            await q.nack(job.id)
            await clock.advance(11)

            assert heartbeat.lost
            await watching


async def test_a_handler_is_stopped_when_somebody_else_has_its_job() -> None:
    clock = ManualClock()
    away = False
    store = MemoryStore()
    mine = LossyStore(store, lambda: Fault.BEFORE if away else Fault.NONE)
    short: dict[str, Any] = {
        "stale_timeout": timedelta(seconds=60),
        "storage_patience": timedelta(seconds=1),
        "clock": clock,
    }
    stopped = asyncio.Event()

    async with BrokerQueue(mine, **short) as q, BrokerQueue(store, **short) as other:
        await q.enqueue("task", b"data")
        [job] = await q.dequeue("task")

        async def handle() -> None:
            async with HeartbeatManager(q, job, timedelta(seconds=10), cancel_on_lost=True, clock=clock):
                try:
                    await asyncio.Event().wait()
                finally:
                    stopped.set()

        handling = asyncio.create_task(handle())
        assert await other.dequeue("task") == []  # from now on it watches the lease
        away = True
        await clock.advance(120)
        [theirs] = await other.dequeue("task")
        assert not stopped.is_set()
        away = False
        await clock.advance(20)

        assert stopped.is_set()
        with pytest.raises(LeaseLostError) as caught:
            await handling
        assert caught.value.job_id == job.id
        assert theirs.id == job.id


# --- 100 empty polls made 100 writes ---


@s3
@both_kinds
async def test_a_hundred_empty_polls_on_s3_write_nothing(
    kind: Kind, s3_server: Server, s3_storage: Callable[..., S3Storage]
) -> None:
    async with Proxy(s3_server.endpoint) as proxy, opened(kind, s3_storage(proxy.endpoint)) as q:
        for _ in range(50):
            assert await q.dequeue("task") == []
        assert proxy.requests["PUT"] == 0

        await q.enqueue("other", b"data")
        for _ in range(50):
            assert await q.dequeue("task") == []
        assert proxy.requests["PUT"] == 1


async def test_a_dequeue_that_waits_for_an_hour_writes_nothing() -> None:
    clock = ManualClock()
    storage = InMemoryStorage()

    async with Queue.open(storage, clock=clock) as q:
        assert await passing(clock, _an_hour(clock, q.dequeue("task", wait=3600))) == []

    assert await storage.read() == (b"", None)


async def _an_hour(clock: ManualClock, call: Awaitable[T]) -> T:
    task = asyncio.ensure_future(call)
    await clock.advance(3600)
    return await task


# --- A failed local write left an empty file ---

_CHILD = """
import asyncio, os, resource, sys
from datetime import timedelta
from casque import CasqueError, DirectQueue, LocalFileSystemStorage

async def main(path):
    limit = os.path.getsize(path) if os.path.exists(path) else 10
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))  # as good as a full disk
    q = DirectQueue(LocalFileSystemStorage(path), storage_patience=timedelta(milliseconds=1))
    try:
        await q.enqueue("task", bytes(100_000))
    except CasqueError as error:
        print(type(error).__name__)

asyncio.run(main(sys.argv[1]))
"""


def _enqueue_on_a_full_disk(path: Path) -> str:
    ran = subprocess.run([sys.executable, "-c", _CHILD, path], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_a_first_write_that_fails_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "queue.json"

    assert _enqueue_on_a_full_disk(path)

    assert [entry.name for entry in tmp_path.iterdir() if not entry.name.startswith(".")] == []


def test_a_later_write_that_fails_leaves_the_queue_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "queue.json"
    job = asyncio.run(DirectQueue(LocalFileSystemStorage(path)).enqueue("task", b"data"))
    before = path.read_bytes()

    assert _enqueue_on_a_full_disk(path)

    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir() if not entry.name.startswith(".")] == ["queue.json"]
    [claimed] = asyncio.run(DirectQueue(LocalFileSystemStorage(path)).dequeue("task"))
    assert claimed.id == job.id


def test_a_full_disk_is_a_failure_and_not_an_unknown_outcome(tmp_path: Path) -> None:
    assert _enqueue_on_a_full_disk(tmp_path / "queue.json") == "StorageError"


@both_kinds
async def test_an_empty_file_that_jqueue_left_is_an_empty_queue(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / "queue.json"
    path.touch()

    async with opened(kind, LocalFileSystemStorage(path)) as q:
        assert (await q.read_state()).jobs == ()
        job = await q.enqueue("task", b"data")

    [stored] = json.loads(path.read_bytes())["jobs"]
    assert stored["id"] == job.id


# --- A nacked job returned to the head for ever ---


@both_kinds
async def test_a_nacked_job_comes_back_later_and_not_at_the_head(kind: Kind) -> None:
    clock = ManualClock()

    async with opened(kind, InMemoryStorage(), clock=clock) as q:
        await q.enqueue("task", b"bad")
        await q.enqueue("task", b"good")
        [bad] = await q.dequeue("task")
        await q.nack(bad.id)

        assert [job.payload for job in await q.dequeue("task", batch_size=2)] == [b"good"]
        assert await q.dequeue("task") == []
        await clock.advance(1)
        [again] = await q.dequeue("task")
        assert (again.payload, again.attempts) == (b"bad", 2)


async def test_a_job_that_always_fails_does_not_hold_up_the_others_and_ends_as_dead() -> None:
    clock = ManualClock()
    handled: list[bytes] = []

    async with Queue.open(InMemoryStorage(), clock=clock, max_attempts=5) as q:
        await q.enqueue("task", b"poison")
        await q.enqueue_many([("task", b"%d" % n) for n in range(10)])
        while await q.jobs(states=[JobState.READY, JobState.DELAYED]):
            for job in await q.dequeue("task"):
                handled.append(job.payload)
                if job.payload == b"poison":
                    await job.nack(error="always")
                else:
                    await job.ack()
            if not (await q.stats()).totals.ready:
                await clock.advance(600)

        [dead] = await q.jobs(states=[JobState.DEAD])
        assert handled == [b"poison", *(b"%d" % n for n in range(10)), *[b"poison"] * 4]
        assert (dead.payload, dead.attempts, dead.last_error) == (b"poison", 5, "always")


# --- A timed-out dequeue kept its job claimed ---


async def _cancelled_while_it_writes(storage: GatedStorage, call: Coroutine[Any, Any, Any]) -> None:
    storage.hold()
    task = asyncio.create_task(call)
    await storage.writing.wait()
    task.cancel()
    await settle()
    storage.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await settle()


async def _can_be_claimed_as_if_for_the_first_time(q: BrokerQueue | DirectQueue | Queue[bytes]) -> None:
    jobs: list[Job[bytes]] = await q.dequeue("task")
    assert [(job.payload, job.attempts) for job in jobs] == [(b"data", 1)]


async def test_a_dequeue_that_is_cancelled_while_it_is_written_gives_its_claim_back() -> None:
    storage = GatedStorage()

    async with BrokerQueue(storage) as q:
        await q.enqueue("task", b"data")
        await _cancelled_while_it_writes(storage, q.dequeue("task"))
        assert storage.written.is_set()

        await _can_be_claimed_as_if_for_the_first_time(q)


async def test_a_direct_dequeue_that_is_cancelled_while_it_is_written_gives_its_claim_back() -> None:
    """The write goes on although its caller left, as one in another thread or on the network does."""

    class Unstoppable(GatedStorage):
        async def write(self, content: bytes, if_match: str | None = None) -> str:
            return await asyncio.shield(asyncio.create_task(super().write(content, if_match)))

    storage = Unstoppable()
    q = DirectQueue(storage)
    await q.enqueue("task", b"data")
    await _cancelled_while_it_writes(storage, q.dequeue("task"))
    assert storage.written.is_set()

    await _can_be_claimed_as_if_for_the_first_time(q)


async def test_a_waiting_dequeue_that_is_cancelled_claims_nothing() -> None:
    clock = ManualClock()

    async with Queue.open(InMemoryStorage(), clock=clock) as q:
        waiting = asyncio.create_task(q.dequeue("task", wait=60))
        await settle()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await q.enqueue("task", b"data")

        await _can_be_claimed_as_if_for_the_first_time(q)


async def test_a_waiting_dequeue_that_times_out_claims_nothing() -> None:
    clock = ManualClock()

    async with Queue.open(InMemoryStorage(), clock=clock) as q:
        waiting = asyncio.create_task(q.dequeue("task", wait=60))
        await clock.advance(61)
        assert await waiting == []
        await q.enqueue("task", b"data")

        await _can_be_claimed_as_if_for_the_first_time(q)


async def test_a_queue_that_is_closed_meanwhile_still_gives_the_claim_back() -> None:
    storage = GatedStorage()

    async with BrokerQueue(storage) as q:
        await q.enqueue("task", b"data")
        storage.hold()
        task = asyncio.create_task(q.dequeue("task"))
        await storage.writing.wait()
        task.cancel()
        storage.gate.set()

    await _can_be_claimed_as_if_for_the_first_time(DirectQueue(storage))


# --- The cost of an operation grew with the depth of the queue ---


class Work:
    """How many jobs were turned into bytes or back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.encoded = 0
        self.decoded = 0
        to_stored, to_record = stored._stored, stored.record_of

        def count_encoded(*arguments: Any) -> Any:
            self.encoded += 1
            return to_stored(*arguments)

        def count_decoded(*arguments: Any) -> Any:
            self.decoded += 1
            return to_record(*arguments)

        monkeypatch.setattr(stored, "_stored", count_encoded)
        monkeypatch.setattr(document, "record_of", count_decoded)

    def of(self) -> tuple[int, int]:
        done = self.encoded, self.decoded
        self.encoded = self.decoded = 0
        return done


@pytest.mark.parametrize("depth", [0, 10, 5000])
async def test_a_commit_encodes_what_it_changed_however_deep_the_queue_is(
    depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(monkeypatch)
    storage = InMemoryStorage()
    async with Queue.open(storage) as q:
        if depth:
            await q.enqueue_many([("deep", b"%d" % n) for n in range(depth)])
        assert work.of() == (depth, 0)

        job = await q.enqueue("task", b"data")
        assert work.of() == (1, 0)
        [claimed] = await q.dequeue("task")
        assert work.of() == (1, 0)
        await claimed.heartbeat()
        assert work.of() == (1, 0)
        await claimed.nack(delay=0)
        assert work.of() == (1, 0)
        await q.ack(job.id)
        assert work.of() == (0, 0)
        await asyncio.gather(*(q.enqueue("task", b"%d" % n) for n in range(20)))
        assert work.of() == (20, 0)

    async with Queue.open(storage) as q:
        assert work.of() == (0, depth + 20)
        await q.enqueue("task", b"data")
        assert work.of() == (1, 0)


@pytest.mark.parametrize("depth", [0, 5000])
async def test_a_writer_that_is_alone_reads_nothing_however_deep_the_queue_is(depth: int) -> None:
    class Counting(InMemoryStorage):
        reads = 0

        async def read(self) -> tuple[bytes, str | None]:
            self.reads += 1
            return await super().read()

    storage = Counting()
    async with Queue.open(storage) as q:
        await q.enqueue_many([("deep", b"%d" % n) for n in range(depth + 1)])
        before = storage.reads
        for n in range(10):
            await q.enqueue("task", b"%d" % n)
            [job] = await q.dequeue("task")
            await job.ack()

        assert storage.reads == before


async def test_a_batch_that_lost_its_race_is_decided_again_without_encoding_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = Work(monkeypatch)
    clock = ManualClock()

    class Contended(InMemoryStorage):
        conflicts = 0

        async def write(self, content: bytes, if_match: str | None = None) -> str:
            if self.conflicts:
                self.conflicts -= 1
                raise CASConflictError("another writer was first")
            return await super().write(content, if_match)

    storage = Contended()
    async with Queue.open(storage, clock=clock) as q:
        await q.enqueue_many([("deep", b"%d" % n) for n in range(1000)])
        work.of()
        storage.conflicts = 3
        await passing(clock, q.enqueue("task", b"data"))

        encoded, _ = work.of()
        assert encoded == 4
