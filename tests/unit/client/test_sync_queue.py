"""The queue without asyncio: blocking calls from any number of threads."""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from casque import (
    DirectQueue,
    InMemoryStorage,
    InvalidInputError,
    JobNotFoundError,
    JobState,
    LeaseLostError,
    LocalFileSystemStorage,
    NewJob,
    Outcome,
    Queue,
    QueueClosedError,
    StorageError,
    SyncJob,
    SyncQueue,
)
from casque.client.loop_thread import LoopThread


def test_a_job_goes_in_and_out() -> None:
    with SyncQueue.open(InMemoryStorage()) as q:
        added = q.enqueue("send", b"hello", priority=5, headers={"trace": "1"}, key="k", zone="acme", max_attempts=3)
        [job] = q.dequeue("send")

        assert isinstance(job, SyncJob)
        assert (job.id, job.entrypoint, job.payload, job.attempts) == (added.id, "send", b"hello", 1)
        assert (added.state, job.state) == (JobState.READY, JobState.RUNNING)
        assert (job.job.priority, job.job.key, job.job.zone, job.job.max_attempts) == (5, "k", "acme", 3)
        job.heartbeat()
        job.ack()
        assert q.jobs() == []
        assert q.stats().totals.done == 1


def test_many_are_kept_alive_settled_and_given_back_at_once() -> None:
    with SyncQueue.open(InMemoryStorage(), worker="w") as q:
        q.enqueue_many([("send", b"%d" % n) for n in range(4)])
        first, second, third, fourth = claimed = q.dequeue("send", batch_size=4)

        assert q.heartbeats(claimed) == [None] * 4
        assert q.give_back([fourth]) == [None]
        failed = Outcome(third.id, third.token, error="no such user", delay_ms=0)
        *settled, lost = q.settle([first, Outcome(second.id, second.token, result=b"fine"), failed, fourth])

        assert settled == [None] * 3
        assert isinstance(lost, LeaseLostError)
        assert q.stats().totals.done == 2
        again = q.dequeue("send", batch_size=2, wait=5)
        tries = {job.id: [tried.error for tried in job.tries] for job in again}
        assert tries.get(third.id, ["no such user"]) == ["no such user"]
        assert tries.get(fourth.id, []) == []


def test_every_verb_blocks_until_it_is_durable(tmp_path: Path) -> None:
    path = tmp_path / "queue.json"

    with SyncQueue.open(LocalFileSystemStorage(path)) as q:
        for verb in (
            lambda: q.enqueue("send", b"hello"),
            lambda: q.dequeue("send"),
            lambda: q.heartbeat(q.jobs()[0].id),
            lambda: q.nack(q.jobs()[0].id, delay=0),
            lambda: q.ack(q.jobs()[0].id),
        ):
            before = path.read_bytes() if path.exists() else b""
            verb()
            assert path.read_bytes() != before


def test_many_jobs_in_one_commit() -> None:
    with SyncQueue.open(InMemoryStorage()) as q:
        jobs = q.enqueue_many([("a", b"1"), NewJob("b", b"2", priority=-1)])

        assert [job.payload for job in jobs] == [b"1", b"2"]
        assert q.stats().position == 1
        assert [job.payload for job in q.dequeue(["a", "b"], batch_size=2)] == [b"2", b"1"]


def test_failing_dying_reviving_and_purging() -> None:
    with SyncQueue.open(InMemoryStorage(), max_attempts=1) as q:
        q.enqueue("send", b"hello")
        [job] = q.dequeue("send")
        job.nack(error=ValueError("bad address"))

        [dead] = q.jobs(states=[JobState.DEAD])
        assert dead.job.last_error == "ValueError: bad address"
        q.retry(dead.id)
        [again] = q.dequeue("send", lease=timedelta(seconds=5))
        again.nack(error="still bad")
        assert q.purge("other") == 0
        assert q.purge("send") == 1
        assert q.find(dead.id) is None


def test_cancelling_and_finding() -> None:
    with SyncQueue.open(InMemoryStorage()) as q:
        later = q.enqueue("send", b"later", run_at=datetime(2100, 1, 1, tzinfo=UTC))
        found = q.find(later.id)

        assert found is not None
        assert found.state is JobState.DELAYED
        q.cancel(later.id)
        assert q.find(later.id) is None
        assert q.jobs(entrypoint="send", limit=5) == []


def test_errors_come_through_as_they_are() -> None:
    with SyncQueue.open(InMemoryStorage()) as q:
        with pytest.raises(JobNotFoundError) as caught:
            q.ack("missing")
        assert caught.value.job_id == "missing"
        with pytest.raises(InvalidInputError, match="priority"):
            q.enqueue("send", b"hello", priority="high")  # type: ignore[arg-type]

        q.enqueue("send", b"hello")
        [mine] = q.dequeue("send")
        q.nack(mine.id, delay=0)
        [theirs] = q.dequeue("send")
        with pytest.raises(LeaseLostError):
            mine.ack()
        theirs.ack()


def test_a_waiting_dequeue_gets_what_another_thread_enqueues() -> None:
    with SyncQueue.open(InMemoryStorage()) as q, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lambda: q.dequeue("send", wait=60))
        q.enqueue("send", b"hello")

        [job] = waiting.result(timeout=60)
        assert job.payload == b"hello"


def test_a_dequeue_that_does_not_wait_answers_at_once() -> None:
    with SyncQueue.open(InMemoryStorage()) as q:
        assert q.dequeue("send") == []


def test_many_threads_share_commits_and_get_each_job_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begin, begun, all_there = LoopThread.begin, threading.Semaphore(0), threading.Event()

    def counted(self: LoopThread, call: Any) -> Any:
        future = begin(self, call)
        begun.release()
        return future

    async def busy() -> None:
        all_there.wait()  # the loop carries nothing out until every thread has asked

    with SyncQueue.open(InMemoryStorage()) as q, ThreadPoolExecutor(16) as threads:
        assert q._loop is not None
        q._loop.begin(busy())
        monkeypatch.setattr(LoopThread, "begin", counted)
        adding = [threads.submit(q.enqueue, "send", b"%d" % n) for n in range(16)]
        for _ in adding:
            begun.acquire()
        all_there.set()
        added = [one.result().id for one in adding]
        assert q.stats().position < 16

        def consume(_: int) -> str:
            [job] = q.dequeue("send")
            job.ack()
            return job.id

        assert sorted(threads.map(consume, range(16))) == sorted(added)
        assert q.stats().totals.done == 16


def test_outside_of_its_block_it_says_how_to_use_it() -> None:
    q = SyncQueue.open(InMemoryStorage())

    with pytest.raises(QueueClosedError, match="with SyncQueue"):
        q.enqueue("send", b"hello")
    with q:
        q.enqueue("send", b"hello")
    with pytest.raises(QueueClosedError, match="with SyncQueue"):
        q.stats()


def test_it_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())

    with SyncQueue.open(InMemoryStorage()) as q:
        q.enqueue("send", b"hello")
        assert len(set(threading.enumerate()) - before) == 1

    assert set(threading.enumerate()) == before


def test_it_leaves_no_thread_behind_when_the_storage_cannot_be_read() -> None:
    class Broken:
        async def read(self) -> tuple[bytes, str | None]:
            raise OSError("broken")

        async def write(self, content: bytes, if_match: str | None = None) -> str:
            raise OSError("broken")

    before = set(threading.enumerate())

    with (
        pytest.raises(StorageError),
        SyncQueue.open(Broken(), storage_patience=timedelta(milliseconds=1)) as q,
    ):
        q.enqueue("send", b"hello")

    assert set(threading.enumerate()) == before


def test_an_error_in_the_block_still_closes_the_queue() -> None:
    before = set(threading.enumerate())
    storage = InMemoryStorage()

    def work() -> None:
        with SyncQueue.open(storage) as q:
            q.enqueue("send", b"hello")
            raise KeyError("the caller's own")

    with pytest.raises(KeyError):
        work()

    assert set(threading.enumerate()) == before
    assert len(asyncio.run(DirectQueue(storage).read_state()).jobs) == 1


async def test_it_can_be_used_beside_a_running_loop() -> None:
    def work() -> bytes:
        with SyncQueue.open(InMemoryStorage()) as q:
            q.enqueue("send", b"hello")
            [job] = q.dequeue("send")
            return job.payload

    assert await asyncio.to_thread(work) == b"hello"


def test_every_verb_of_the_queue_is_there_with_the_same_arguments() -> None:
    for name, verb in vars(Queue).items():
        if name.startswith("_") or not inspect.iscoroutinefunction(verb):
            continue
        blocking = getattr(SyncQueue, name, None)
        assert blocking is not None, name
        missing = set(inspect.signature(verb).parameters) - set(inspect.signature(blocking).parameters)
        assert not missing, f"{name} lacks {missing}"


def test_a_job_says_what_it_is() -> None:
    with SyncQueue.open(InMemoryStorage()) as q:
        job = q.enqueue("send", b"hello")

        assert repr(job) == f"SyncJob(id={job.id!r}, entrypoint='send', state='ready', token=0)"
