"""The small API, where jobs are named by their ids: such calls mean the lease that the queue itself claimed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from casque import BrokerQueue, DirectQueue
from casque.client import small
from casque.errors import LeaseLostError
from casque.storage.memory import MemoryStore
from casque.testing import ManualClock
from casque.types import JobState

LAYOUTS = pytest.mark.parametrize("layout", ["log", "document"])
VERBS = pytest.mark.parametrize("verb", ["ack", "nack", "heartbeat"])


async def two_claims(layout: str) -> tuple[MemoryStore, DirectQueue, DirectQueue, str]:
    """A job that a worker claimed, lost to its lease, and that another worker claimed."""
    store, clock = MemoryStore(), ManualClock()
    slow, other = (DirectQueue(store, layout=layout, clock=clock) for _ in range(2))
    job = await slow.enqueue("send", b"")
    assert [one.id for one in await slow.dequeue("send")] == [job.id]
    [record] = await store_jobs(other)
    assert record.state is JobState.RUNNING
    await slow.nack(job.id, delay=0)
    assert [one.id for one in await other.dequeue("send")] == [job.id]
    return store, slow, other, job.id


async def store_jobs(queue: DirectQueue) -> list[Any]:
    return list((await queue.read_state()).jobs)


@VERBS
@LAYOUTS
async def test_a_call_by_id_alone_does_not_touch_the_lease_of_the_next_worker(layout: str, verb: str) -> None:
    _, slow, other, job_id = await two_claims(layout)
    before = await other.read_state()
    call: Callable[[str], Awaitable[None]] = getattr(slow, verb)
    with pytest.raises(LeaseLostError):
        await call(job_id)
    assert await other.read_state() == before
    await other.ack(job_id)
    assert await store_jobs(other) == []


@LAYOUTS
async def test_a_queue_that_claims_a_job_again_means_its_new_lease(layout: str) -> None:
    queue = DirectQueue(MemoryStore(), layout=layout)
    job = await queue.enqueue("send", b"")
    for _ in range(2):
        await queue.dequeue("send")
        await queue.nack(job.id, delay=0)
    await queue.dequeue("send")
    await queue.heartbeat(job.id)
    await queue.ack(job.id)
    assert await store_jobs(queue) == []


@LAYOUTS
async def test_a_job_that_was_claimed_elsewhere_is_settled_by_its_id(layout: str) -> None:
    store = MemoryStore()
    claims, settles = (DirectQueue(store, layout=layout) for _ in range(2))
    job = await claims.enqueue("send", b"")
    await claims.dequeue("send")
    await settles.ack(job.id)
    assert await store_jobs(settles) == []


async def test_an_ack_by_id_can_be_repeated_under_its_request_id() -> None:
    async with BrokerQueue(MemoryStore()) as queue:
        job = await queue.enqueue("send", b"")
        await queue.dequeue("send")
        for _ in range(2):
            await queue.ack(job.id, request_id="once")


async def test_tokens_of_the_newest_claims_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "CLAIMS_MAX", 2)
    async with BrokerQueue(MemoryStore()) as queue:
        jobs = [await queue.enqueue("send", b"") for _ in range(4)]
        await queue.dequeue("send", batch_size=2)
        await queue.nack(jobs[0].id, delay=0)
        await queue.dequeue("send", batch_size=1)
        await queue.dequeue("send", batch_size=1)
        assert len(queue._claimed) == 2
        for job in jobs[:2]:
            await queue.ack(job.id)
