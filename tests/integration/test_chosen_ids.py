"""A producer may choose the id of a job: the same rule in this process, over gRPC and over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from casque import InvalidInputError, NewJob, Queue, SyncQueue
from tests.integration.test_broker_metrics import a_broker


@pytest.fixture(params=["embedded", "grpc", "http"])
async def queue(request: pytest.FixtureRequest) -> AsyncIterator[Queue[bytes]]:
    if request.param == "embedded":
        async with Queue.open("memory://") as opened:
            yield opened
        return
    async with a_broker() as server:
        address = server.address if request.param == "grpc" else f"127.0.0.1:{server.http_port}"
        async with Queue.open(f"{request.param}://{address}") as opened:
            yield opened


async def test_a_job_has_the_id_that_was_chosen(queue: Queue[bytes]) -> None:
    one = await queue.enqueue("send", b"1", id="mail/17 größe")
    many = await queue.enqueue_many([("send", b"2"), NewJob("send", b"3", id="x" * 256), NewJob("send", b"4")])

    assert (one.id, many[1].id) == ("mail/17 größe", "x" * 256)
    assert len({one.id, *(job.id for job in many)}) == 4
    found = await queue.find("mail/17 größe")
    assert found is not None
    assert found.payload == b"1"
    jobs = await queue.dequeue("send", batch_size=4)
    assert [(job.id, job.payload) for job in jobs][:3:2] == [("mail/17 größe", b"1"), ("x" * 256, b"3")]


async def test_an_id_that_is_in_the_queue_is_refused_and_nothing_is_added(queue: Queue[bytes]) -> None:
    there = await queue.enqueue("send", b"1", id="mail-17")
    before = await queue.stats()

    with pytest.raises(InvalidInputError, match="a job with the id 'mail-17' is already in the queue"):
        await queue.enqueue("other", b"2", id="mail-17")
    with pytest.raises(InvalidInputError, match="a job with the id 'mail-17' is already in the queue"):
        await queue.enqueue_many([NewJob("send", b"2"), NewJob("send", b"3", id="mail-17")])
    with pytest.raises(InvalidInputError, match="two jobs of one enqueue have the same id"):
        await queue.enqueue_many([NewJob("send", b"2", id="twice"), NewJob("send", b"3", id="twice")])

    assert await queue.stats() == before
    assert [job.id for job in await queue.jobs()] == [there.id]


async def test_with_a_request_id_the_same_call_may_be_repeated(queue: Queue[bytes]) -> None:
    one = await queue.enqueue("send", b"1", id="mail-17", request_id="mail-17")
    again = await queue.enqueue("send", b"1", id="mail-17", request_id="mail-17")

    assert one.id == again.id == "mail-17"
    assert (await queue.stats()).totals.enqueued == 1


@pytest.mark.parametrize("wrong", ["", "x" * 257, "two\nlines", "\ud800", 17, b"mail-17"])
async def test_an_id_that_cannot_be_one_is_refused_with_the_rule(queue: Queue[bytes], wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match="id must be"):
        await queue.enqueue("send", b"1", id=wrong)
    with pytest.raises(InvalidInputError, match="id must be"):
        await queue.enqueue_many([NewJob("send", b"1"), NewJob("send", b"1", id=wrong)])
    assert (await queue.stats()).totals.enqueued == 0


async def test_the_job_of_a_schedule_has_no_id(queue: Queue[bytes]) -> None:
    with pytest.raises(InvalidInputError, match="each tick makes one"):
        await queue.set_schedule("nightly", "0 3 * * *", NewJob("report", b"", id="mine"))
    assert await queue.schedules() == []


def test_a_blocking_queue_takes_an_id_too() -> None:
    with SyncQueue.open("memory://") as queue:
        assert queue.enqueue("send", b"1", id="mail-17").id == "mail-17"
        with pytest.raises(InvalidInputError, match="already in the queue"):
            queue.enqueue("send", b"1", id="mail-17")
