"""The drop-in for jqueue where its own tests say nothing: fencing, errors, order and arguments by position."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

import casque
from casque.compat import jqueue
from casque.compat.jqueue import BrokerQueue, DirectQueue, HeartbeatManager, InMemoryStorage, JobStatus
from casque.compat.jqueue.core import codec
from casque.compat.jqueue.domain import errors
from casque.compat.jqueue.domain.models import QueueState
from casque.testing.clock import settle


async def taken_over(storage: InMemoryStorage, zombie: DirectQueue | BrokerQueue) -> tuple[str, DirectQueue]:
    """A job that `zombie` claimed and another worker has now, with that worker's queue."""
    other = DirectQueue(storage)
    await other.enqueue("task", b"data")
    [job] = await zombie.dequeue("task")
    assert await other.requeue_stale(timedelta(0)) == 1
    [again] = await other.dequeue("task")
    assert again.id == job.id
    return job.id, other


@pytest.mark.parametrize("verb", ["ack", "nack", "heartbeat"])
@pytest.mark.parametrize("kind", [BrokerQueue, DirectQueue])
async def test_a_call_for_a_job_that_another_worker_has_now_is_refused(kind: Any, verb: str) -> None:
    storage = InMemoryStorage()
    zombie = kind(storage)
    if kind is BrokerQueue:
        await zombie.start()
    job_id, other = await taken_over(storage, zombie)
    before = await other.read_state()

    with pytest.raises(jqueue.JobNotFoundError) as refused:
        await getattr(zombie, verb)(job_id)
    assert isinstance(refused.value, casque.LeaseLostError)
    assert refused.value.job_id == job_id
    with pytest.raises(jqueue.JobNotFoundError):  # and once more, not only the first time
        await getattr(zombie, verb)(job_id)

    assert (await other.read_state()).jobs == before.jobs
    await other.ack(job_id)
    if kind is BrokerQueue:
        await zombie.stop()


async def test_a_job_that_was_not_claimed_here_is_named_by_its_id_alone() -> None:
    storage = InMemoryStorage()
    worker, operator = DirectQueue(storage), DirectQueue(storage)
    job = await worker.enqueue("task", b"data")
    await worker.dequeue("task")

    await operator.heartbeat(job.id)
    await operator.ack(job.id)

    assert (await worker.read_state()).jobs == ()


async def test_a_worker_that_gave_its_job_back_cannot_settle_the_next_claim() -> None:
    storage = InMemoryStorage()
    first, second = DirectQueue(storage), DirectQueue(storage)
    await first.enqueue("task", b"data")
    [job] = await first.dequeue("task")
    await first.nack(job.id)
    await second.dequeue("task")

    with pytest.raises(jqueue.JobNotFoundError):
        await first.ack(job.id)

    assert len((await second.read_state()).in_progress_jobs()) == 1


async def test_a_nacked_job_is_there_at_once_and_waits_behind_its_equals() -> None:
    q = DirectQueue(InMemoryStorage())
    for n in range(3):
        await q.enqueue("task", b"%d" % n)
    [failed] = await q.dequeue("task")
    await q.nack(failed.id)

    shown = (await q.read_state()).queued_jobs()

    handed_out = await q.dequeue("task", batch_size=3)
    assert {job.payload for job in handed_out} == {b"0", b"1", b"2"}
    assert [job.id for job in shown] == [job.id for job in handed_out]


async def test_queued_jobs_are_in_the_order_of_dequeue_with_delayed_ones_last() -> None:
    storage = InMemoryStorage()
    async with casque.Queue.open(storage) as producer:
        await producer.enqueue("task", b"later", priority=-9, delay=3600)
    q = DirectQueue(storage)
    await q.enqueue("task", b"low", priority=5)
    await q.enqueue("task", b"high", priority=1)

    state = await q.read_state()

    assert [job.payload for job in state.queued_jobs("task")] == [b"high", b"low", b"later"]
    assert [job.payload for job in state.jobs] == [b"later", b"low", b"high"]
    assert [job.payload for job in await q.dequeue(batch_size=10)] == [b"high", b"low"]


async def test_a_state_that_was_read_is_a_value_that_goes_through_json() -> None:
    q = DirectQueue(InMemoryStorage())
    job = await q.enqueue("task", b"\x00\xff", 3)
    state = await q.read_state()

    again = codec.decode(codec.encode(state))

    assert again == state
    assert hash(again) == hash(state)
    assert again.find(job.id) == job
    assert state != QueueState()


async def test_what_the_drop_in_stores_is_what_jqueue_would_decode() -> None:
    storage = InMemoryStorage()
    q = DirectQueue(storage)
    await q.enqueue("task", b"data", priority=2)
    [job] = await q.dequeue("task")

    stored, etag = await storage.read()

    assert codec.decode(stored).jobs == (job,)
    assert etag == "2"


async def test_content_given_at_the_start_has_the_etag_0() -> None:
    storage = InMemoryStorage(initial_content=b'{"version":0,"jobs":[]}')
    assert await storage.read() == (b'{"version":0,"jobs":[]}', "0")

    async with BrokerQueue(storage) as q:
        await q.enqueue("task", b"data")

    assert (await storage.read())[1] == "1"


async def test_requeue_stale_of_zero_takes_back_what_was_claimed_in_this_very_millisecond() -> None:
    q = DirectQueue(InMemoryStorage())
    for _ in range(20):
        await q.enqueue("task", b"data")
        await q.dequeue("task")
        assert await q.requeue_stale(timedelta(0)) == 1
        [job] = await q.dequeue("task")
        await q.ack(job.id)


async def test_requeue_stale_leaves_what_had_a_heartbeat_since() -> None:
    q = DirectQueue(InMemoryStorage())
    await q.enqueue("task", b"data")
    await q.dequeue("task")

    assert await q.requeue_stale(timeout=timedelta(minutes=5)) == 0
    assert len((await q.read_state()).in_progress_jobs()) == 1


async def test_stale_timeout_and_max_retries_may_be_given_by_position() -> None:
    assert BrokerQueue(InMemoryStorage(), timedelta(seconds=7)).stale_timeout == timedelta(seconds=7)
    assert DirectQueue(InMemoryStorage(), 3).max_retries == 3
    manager = HeartbeatManager(DirectQueue(InMemoryStorage()), "id", timedelta(seconds=9))
    assert (manager.job_id, manager.interval) == ("id", timedelta(seconds=9))


async def test_a_claim_lasts_for_the_stale_timeout() -> None:
    async with BrokerQueue(InMemoryStorage(), timedelta(milliseconds=30)) as q:
        await q.enqueue("task", b"data")
        [job] = await q.dequeue("task")
        async with asyncio.timeout(30):
            while not (again := await q.dequeue("task")):
                await settle()

        assert [one.id for one in again] == [job.id]


async def test_a_stale_timeout_of_zero_takes_a_claim_back_with_the_next_call() -> None:
    async with BrokerQueue(InMemoryStorage(), timedelta(0)) as q:
        await q.enqueue("task", b"data")
        [job] = await q.dequeue("task")
        await q.enqueue("task", b"trigger")

        assert [one.status for one in (await q.read_state()).jobs] == [JobStatus.QUEUED, JobStatus.QUEUED]
        with pytest.raises(jqueue.JobNotFoundError):
            await q.heartbeat(job.id)


async def test_a_batch_size_of_zero_gives_nothing_and_claims_nothing() -> None:
    q = DirectQueue(InMemoryStorage())
    await q.enqueue("task", b"data")

    assert await q.dequeue("task", batch_size=0) == []
    assert len((await q.read_state()).queued_jobs()) == 1


async def test_a_queue_that_was_not_started_or_was_stopped_refuses_calls() -> None:
    q = BrokerQueue(InMemoryStorage())
    with pytest.raises(jqueue.JQueueError, match="async with"):
        await q.enqueue("task", b"data")
    async with q:
        await q.enqueue("task", b"data")
    with pytest.raises(jqueue.JQueueError):
        await q.enqueue("task", b"data")
    with pytest.raises(RuntimeError, match="make a new one"):
        await q.start()


class Beating:
    """A stand-in for a queue, whose heartbeats end as they are told to."""

    def __init__(self, *ends: Exception | None) -> None:
        self.ends = list(ends)
        self.calls = 0
        self.done = asyncio.Event()

    async def heartbeat(self, job_id: str) -> None:
        self.calls += 1
        end = self.ends.pop(0)
        if not self.ends:
            self.done.set()
        if end is not None:
            raise end


SOON = timedelta(milliseconds=1)


async def test_heartbeats_go_on_after_a_storage_failure_and_stop_when_the_job_is_gone() -> None:
    queue = Beating(
        jqueue.StorageError("no", OSError()),
        None,
        jqueue.CASConflictError("busy"),
        casque.UnknownOutcomeError("it may have landed"),
        casque.NoLeaderError(),
        jqueue.JobNotFoundError("id"),
    )

    async with HeartbeatManager(queue, "id", SOON) as manager:
        await queue.done.wait()
        await settle()
        assert manager._task is not None
        await asyncio.wait([manager._task])

    assert queue.calls == 6


async def test_a_foreign_error_of_a_heartbeat_is_raised_at_the_end_of_the_block() -> None:
    queue = Beating(OSError("line cut"))
    reached: list[bool] = []

    async def work() -> None:
        async with HeartbeatManager(queue, "id", SOON):
            await queue.done.wait()
            await settle()
            reached.append(True)

    with pytest.raises(OSError, match="line cut"):
        await work()
    assert reached == [True]


async def test_an_error_of_the_block_itself_is_raised_as_it_is() -> None:
    with pytest.raises(ValueError, match="handler"):
        async with HeartbeatManager(Beating(None), "id"):
            raise ValueError("handler")


class Broken:
    """A storage whose calls fail."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def read(self) -> tuple[bytes, str | None]:
        raise self.error

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        raise self.error


async def test_errors_of_casque_are_raised_as_those_that_a_program_for_jqueue_catches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    q = DirectQueue(Broken(casque.StoreAccessError("no bucket 'jobs'")))
    with pytest.raises(jqueue.StorageError, match="no bucket 'jobs'") as refused:
        await q.read_state()
    assert isinstance(refused.value, casque.StoreAccessError)


def test_translation_keeps_what_an_error_carries() -> None:
    cause = OSError("disk full")

    def raised(error: Exception) -> Exception:
        with pytest.raises(casque.CasqueError) as caught, errors.translated():
            raise error
        return caught.value

    lost = raised(casque.LeaseLostError("j1", 7))
    assert isinstance(lost, errors.LeaseLostError)
    assert (lost.job_id, lost.token) == ("j1", 7)
    stored = raised(casque.StorageError("could not write", cause))
    assert isinstance(stored, jqueue.StorageError)
    assert (stored.cause, str(stored)) == (cause, "could not write: disk full")
    unknown = casque.UnknownOutcomeError("may have landed")
    translated = raised(unknown)
    assert isinstance(translated, jqueue.StorageError)
    assert isinstance(translated, casque.UnknownOutcomeError)
    assert translated.__cause__ is unknown
    assert raised(translated) is translated
    other = casque.QueueDrainingError()
    assert raised(other) is other


def test_errors_survive_pickling() -> None:
    lost = pickle.loads(pickle.dumps(errors.LeaseLostError("j1", 7)))
    stored = pickle.loads(pickle.dumps(jqueue.StorageError("could not write", OSError("disk full"))))

    assert (type(lost), lost.job_id, lost.token) == (errors.LeaseLostError, "j1", 7)
    assert (type(stored), str(stored)) == (jqueue.StorageError, "could not write: disk full")


def test_without_pydantic_the_package_says_how_to_get_it() -> None:
    program = "import sys; sys.modules['pydantic'] = None; import casque.compat.files; import casque.compat.jqueue"

    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert ran.returncode == 1
    assert 'NotInstalledError: casque.compat.jqueue needs pydantic: install it with `pip install "casque[jqueue]"`' in (
        ran.stderr
    )


@pytest.mark.parametrize("payload", [123, None, "not base64!"])
async def test_a_payload_that_is_not_bytes_is_refused_and_nothing_is_stored(payload: Any) -> None:
    storage = InMemoryStorage()
    with pytest.raises(ValueError, match="payload"):
        await DirectQueue(storage).enqueue("task", payload)
    assert await storage.read() == (b"", None)
