"""Queues behind brokers, as programs use them: found through the bucket, followed through failovers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from casque import (
    BrokerUnreachableError,
    InvalidInputError,
    JobState,
    NoLeaderError,
    Queue,
    QueueEvent,
    QueueLedError,
    SyncQueue,
)
from casque.app import BrokerServer, ServeOptions
from casque.service import Role
from casque.settings import BrokerSettings
from casque.transport.listening import Address

FAST = BrokerSettings(
    heartbeat=timedelta(milliseconds=200), lease=timedelta(seconds=1), poll=timedelta(milliseconds=100)
)
SHORT: dict[str, Any] = {"storage_patience": timedelta(milliseconds=300)}


@asynccontextmanager
async def brokers(url: str, count: int = 2, **options: Any) -> AsyncIterator[list[BrokerServer]]:
    async with AsyncExitStack() as stack:
        servers = []
        for _ in range(count):
            server = BrokerServer(ServeOptions(url=url, listen=Address.parse("127.0.0.1:0"), broker=FAST, **options))
            await server.start()
            stack.push_async_callback(server.stop)
            servers.append(server)
        yield servers


@pytest.fixture(params=["log", "document"])
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/queue"


async def test_the_leader_is_found_through_the_bucket(url: str, layout: str) -> None:
    async with brokers(url, layout=layout) as (first, second), Queue.open(url, via="broker") as q:
        assert (first.standing().role, second.standing().role) == (Role.LEADER, Role.STANDBY)
        await q.enqueue("send", b"hello")
        [job] = await q.dequeue("send", wait=5)
        await job.heartbeat()
        await job.ack()
        assert (await q.stats()).totals.done == 1


async def test_a_broker_that_stands_by_sends_callers_to_the_leader(url: str) -> None:
    async with brokers(url) as (first, second), Queue.open(f"grpc://{second.address}") as q:
        await q.enqueue("send", b"hello")
        assert (await first.service().stats()).totals.ready == 1


async def test_callers_are_carried_over_a_clean_stop(url: str, layout: str) -> None:
    async with brokers(url, layout=layout) as (first, second), Queue.open(url, via="broker") as q:
        waiting = asyncio.create_task(q.dequeue("send", wait=30))
        await q.enqueue("other", b"")
        await first.stop()
        await q.enqueue("send", b"hello")
        [job] = await waiting
        await job.ack()
        assert second.standing().role is Role.LEADER
        assert {job.entrypoint for job in await q.jobs()} == {"other"}


async def test_calls_in_flight_when_brokers_change_are_carried_out_once(url: str) -> None:
    async with brokers(url, 3) as servers, Queue.open(url, via="broker") as q:
        calls = [asyncio.create_task(q.enqueue("send", b"%d" % n)) for n in range(100)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        leader = next(server for server in servers if server.standing().role is Role.LEADER)
        stopping = asyncio.create_task(leader.stop())
        calls += [asyncio.create_task(q.enqueue("send", b"%d" % n)) for n in range(100, 200)]
        enqueued = await asyncio.gather(*calls)
        await stopping
        there = await q.jobs(states=[JobState.READY])
        assert sorted(job.id for job in there) == sorted(job.id for job in enqueued)
        assert sorted(int(job.payload) for job in there) == list(range(200))


async def test_a_feed_goes_on_where_it_was_after_a_failover(url: str) -> None:
    async with brokers(url) as (first, _), Queue.open(url, via="broker") as q:
        seen: list[QueueEvent] = []
        three, six = asyncio.Event(), asyncio.Event()

        async def follow() -> None:
            async for event in q.events(from_position=0):
                if event.kind.value == "added":
                    seen.append(event)
                    (three if len(seen) < 6 else six).set() if len(seen) in (3, 6) else None

        following = asyncio.create_task(follow())
        for n in range(3):
            await q.enqueue("send", b"%d" % n)
        await asyncio.wait_for(three.wait(), 20)
        await first.stop()
        for n in range(3, 6):
            await q.enqueue("send", b"%d" % n)
        await asyncio.wait_for(six.wait(), 20)
        following.cancel()
        assert [event.fields["payload"] for event in seen] == [b"%d" % n for n in range(6)]


async def test_a_caller_who_leaves_a_waiting_dequeue_leaves_no_claim(url: str) -> None:
    async with brokers(url, 1), Queue.open(url, via="broker") as q:
        waiting = asyncio.create_task(q.dequeue("send", wait=60))
        await q.stats()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await q.enqueue("send", b"")
        [job] = await q.dequeue("send", wait=10)
        assert job.attempts == 1


async def test_embedded_writers_are_told_how_to_reach_the_leader(url: str) -> None:
    async with brokers(url, 1) as (server,), Queue.open(url) as q:
        with pytest.raises(QueueLedError, match="via='broker'") as led:
            await q.enqueue("send", b"")
        assert led.value.address == server.address


async def test_without_a_leader_the_error_says_what_to_start(url: str) -> None:
    async with Queue.open(url, via="broker", **SHORT) as q:
        with pytest.raises(NoLeaderError, match="casque serve"):
            await q.enqueue("send", b"")


async def test_without_a_broker_the_error_names_the_address() -> None:
    async with Queue.open("grpc://127.0.0.1:9", **SHORT) as q:
        with pytest.raises(BrokerUnreachableError, match=r"127\.0\.0\.1:9"):
            await q.enqueue("send", b"")


async def test_of_several_addresses_those_that_do_not_answer_are_passed_over(url: str) -> None:
    async with brokers(url, 1) as (server,), Queue.open(f"grpc://127.0.0.1:9,{server.address}") as q:
        await q.enqueue("send", b"")
        assert (await q.stats()).totals.ready == 1


async def test_typed_payloads_go_through_brokers(url: str) -> None:
    async with brokers(url, 1), Queue.open(url, via="broker", type=dict[str, int]) as q:
        await q.enqueue("send", {"a": 1})
        [job] = await q.dequeue("send")
        assert job.payload == {"a": 1}


async def test_code_without_asyncio_reaches_brokers_too(url: str) -> None:
    def work() -> int:
        with SyncQueue.open(url, via="broker") as q:
            q.enqueue("send", b"")
            [job] = q.dequeue("send", wait=5.0)
            job.ack()
            return q.stats().totals.done

    async with brokers(url, 1):
        assert await asyncio.to_thread(work) == 1


@pytest.mark.parametrize(
    ("url", "options", "problem"),
    [
        ("grpc://", {}, "host:port"),
        ("grpc://a:1/path", {}, "host:port"),
        ("grpc://a:1", {"layout": "log"}, "without a broker"),
        ("grpc://a:1", {"as_of": 3}, "without a broker"),
        ("memory://x", {"via": "bucket"}, "via must be"),
        ("memory://x", {"token": "t"}, "for brokers"),
    ],
)
def test_what_makes_no_sense_is_refused(url: str, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        Queue.open(url, **options)
