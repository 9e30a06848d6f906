"""The client and the server together are as good as the queue itself."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from casque import Queue
from casque.clock import yield_once
from casque.errors import (
    BrokerUnreachableError,
    CasqueError,
    InvalidInputError,
    JobNotFoundError,
    LeaseLostError,
    NoLeaderError,
    QueueLedError,
    UnknownOutcomeError,
)
from casque.service import Lease, QueueService, Role, Standing, Stats
from casque.storage.memory import MemoryStore
from casque.testing.gated import GatedStore
from casque.testing.hosting import Instead
from casque.transport.http.client import HttpService
from casque.transport.http.verbs import Verbs
from casque.types import Backoff, JobRecord, JobSpec, JobState
from tests.integration.over_http.hosts import Leading, Refusing, embedded, over_http, pretending, serving


@pytest.fixture
async def queue() -> AsyncIterator[QueueService]:
    async with embedded() as service:
        yield service


@pytest.fixture
async def remote(queue: QueueService) -> AsyncIterator[HttpService]:
    async with over_http(queue) as client:
        yield client


EVERYTHING = JobSpec(
    "job/1 ä?#%.",
    "send",
    bytes(range(256)),
    priority=-(2**63),
    run_at_ms=1_700_000_000_123,
    max_attempts=3,
    key="k" * 1024,
    headers={"trace": "ünique", "": ""},
    zone="tenant 7",
)


async def test_every_field_of_a_job_survives_the_way(queue: QueueService, remote: HttpService) -> None:
    [added] = await remote.enqueue([EVERYTHING])

    assert added.spec == EVERYTHING
    assert await queue.find(EVERYTHING.id) == added
    assert await remote.find(EVERYTHING.id) == added
    [claimed] = await remote.dequeue(entrypoints=("send",), limit=1, lease_ms=1234, worker="w 1")
    assert claimed == await queue.find(EVERYTHING.id)
    assert (claimed.worker, claimed.lease_ms, claimed.attempts) == ("w 1", 1234, 1)


@pytest.mark.parametrize("job_id", ["a/b", "..", ".", "%2F", "a b", "ü", "?", "#", "claim", "+", "a\nb", "\\"])
async def test_an_id_may_have_any_character(remote: HttpService, queue: QueueService, job_id: str) -> None:
    await queue.enqueue([JobSpec(job_id, "send", b"")])

    [job] = await remote.dequeue(entrypoints=None, limit=1)
    assert (await remote.heartbeat(job_id, token=job.token)).id == job_id
    await remote.ack(job_id, token=job.token)

    assert await remote.find(job_id) is None


async def test_the_way_of_a_job_that_fails_dies_and_is_revived(queue: QueueService, remote: HttpService) -> None:
    await remote.enqueue([JobSpec("a", "send", b"", max_attempts=1)])
    [job] = await remote.dequeue(entrypoints=None, limit=1)
    dead = await remote.nack("a", token=job.token, error="it broke")
    assert dead is not None
    assert (dead.state, dead.error) == (JobState.DEAD, "it broke")

    revived = await remote.retry("a")

    assert revived is not None
    assert revived.state is JobState.READY
    await remote.cancel("a")
    assert (await remote.stats()).totals.cancelled == 1
    assert await remote.stats() == await queue.stats()


async def test_what_the_caller_leaves_out_of_a_nack_is_not_filled_in(remote: HttpService) -> None:
    await remote.enqueue([JobSpec("a", "send", b""), JobSpec("b", "send", b"")])
    a, b = await remote.dequeue(entrypoints=None, limit=2)

    at_once = await remote.nack("a", token=a.token)
    later = await remote.nack("b", token=b.token, backoff=Backoff(60_000, 600_000, 0.25))

    assert at_once is not None
    assert later is not None
    assert at_once.state is JobState.READY
    assert later.state is JobState.DELAYED


async def test_a_claim_that_is_given_back_does_not_count(remote: HttpService) -> None:
    await remote.enqueue([JobSpec("a", "send", b"")])
    [job] = await remote.dequeue(entrypoints=None, limit=1)

    await remote.give_back("a", token=job.token)

    found = await remote.find("a")
    assert found is not None
    assert (found.state, found.attempts) == (JobState.READY, 0)


async def test_one_lost_lease_of_many_does_not_harm_the_others(remote: HttpService) -> None:
    await remote.enqueue([JobSpec("a", "send", b"")])
    [job] = await remote.dequeue(entrypoints=None, limit=1)

    renewed, lost, unknown = await remote.heartbeats([Lease("a", job.token), Lease("a", 99), Lease("b", 1)])

    assert isinstance(renewed, JobRecord)
    assert isinstance(lost, LeaseLostError)
    assert (lost.job_id, lost.token) == ("a", 99)
    assert isinstance(unknown, JobNotFoundError)


async def test_a_repeated_request_acts_once(remote: HttpService) -> None:
    first = await remote.enqueue([JobSpec("a", "send", b"")], request_id="once, ünd only")
    again = await remote.enqueue([JobSpec("b", "send", b"")], request_id="once, ünd only")
    claimed = await remote.dequeue(entrypoints=None, limit=5, request_id="claim")
    repeated = await remote.dequeue(entrypoints=None, limit=5, request_id="claim")

    assert [job.id for job in again] == [job.id for job in first] == ["a"]
    assert [(job.id, job.token) for job in repeated] == [(job.id, job.token) for job in claimed]


async def test_jobs_are_listed_over_as_many_pages_as_it_takes(queue: QueueService, remote: HttpService) -> None:
    await queue.enqueue([JobSpec(f"job {number}", "send" if number % 2 else "bill", b"") for number in range(2500)])

    assert await remote.jobs() == await queue.jobs()
    assert await remote.jobs(limit=1500, after=7) == await queue.jobs(limit=1500, after=7)
    assert await remote.jobs(entrypoint="bill", limit=3) == await queue.jobs(entrypoint="bill", limit=3)
    assert await remote.jobs(states=frozenset({JobState.DEAD})) == []
    assert await remote.jobs(states=frozenset()) == []


async def test_a_waiting_dequeue_gets_the_job_that_comes(queue: QueueService, remote: HttpService) -> None:
    waiting = asyncio.create_task(remote.dequeue(entrypoints=("send",), limit=1, wait_s=30))
    await queue.enqueue([JobSpec("a", "send", b"")])

    assert [job.id for job in await waiting] == ["a"]


async def test_a_server_that_waits_less_than_asked_is_asked_again(queue: QueueService) -> None:
    asked_again = asyncio.Event()

    class Asked(Leading):
        times = 0

        def service(self) -> QueueService:
            self.times += 1
            if self.times == 2:
                asked_again.set()
            return super().service()

    async with (
        serving(Asked(queue), wait_max=timedelta(milliseconds=1)) as server,
        HttpService(f"127.0.0.1:{server.port}") as remote,
    ):
        waiting = asyncio.create_task(remote.dequeue(entrypoints=None, limit=1, wait_s=30))
        await asked_again.wait()
        await queue.enqueue([JobSpec("a", "send", b"")])

        assert [job.id for job in await waiting] == ["a"]


async def test_a_thousand_callers_at_once_are_served(remote: HttpService) -> None:
    await asyncio.gather(*(remote.enqueue([JobSpec(f"{number}", "send", b"")]) for number in range(1000)))

    assert (await remote.stats()).totals.ready == 1000


async def test_the_feed_is_the_same_on_both_sides(queue: QueueService, remote: HttpService) -> None:
    await remote.enqueue([JobSpec("a", "send", b"\xff\x00", headers={"a": "b"})], request_id="r")
    [job] = await remote.dequeue(entrypoints=None, limit=1)
    await remote.ack("a", token=job.token, result=b"\xfe")

    seen = [event async for event in remote.events(from_position=0, follow=False)]

    assert seen == [event async for event in queue.events(from_position=0, follow=False)]
    assert seen[0].fields["payload"] == b"\xff\x00"


@pytest.mark.parametrize(
    "error", [QueueLedError("10.0.0.7:7071"), QueueLedError(), NoLeaderError("the storage is away")], ids=repr
)
async def test_a_broker_that_does_not_lead_says_so(error: CasqueError) -> None:
    async with (
        serving(Refusing(error, Standing(Role.STANDBY))) as server,
        HttpService(f"127.0.0.1:{server.port}") as remote,
    ):
        with pytest.raises(type(error)) as caught:
            await remote.stats()
        assert caught.value.args == error.args
        with pytest.raises(type(error)):
            async for _ in remote.events():
                pass


async def test_an_address_where_nobody_listens_is_unreachable_and_nothing_was_sent() -> None:
    async with serving(Refusing(NoLeaderError())) as server:
        port = server.port

    async with HttpService(f"127.0.0.1:{port}") as remote:
        with pytest.raises(BrokerUnreachableError, match=f"127.0.0.1:{port}"):
            await remote.ack("a")


async def test_a_connection_that_breaks_leaves_the_outcome_unknown() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async with pretending(hang_up) as port, HttpService(f"127.0.0.1:{port}") as remote:
        with pytest.raises(UnknownOutcomeError, match="request_id"):
            await remote.ack("a")


async def test_an_answer_that_does_not_come_leaves_the_outcome_unknown() -> None:
    asked = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await reader.read()  # until the client has had enough

    async with pretending(say_nothing) as port, HttpService(f"127.0.0.1:{port}", margin_s=0.05) as remote:
        with pytest.raises(UnknownOutcomeError, match="in time"):
            await remote.ack("a")
    assert asked.is_set()


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 4\r\n\r\noops", UnknownOutcomeError),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\noops", BrokerUnreachableError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\noops", UnknownOutcomeError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\noops", UnknownOutcomeError),
        (b"SSH-2.0-OpenSSH_9.9\r\n", UnknownOutcomeError),
    ],
)
async def test_something_that_is_no_broker_is_noticed(reply: bytes, expected: type[CasqueError]) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)

    async with pretending(answer) as port, HttpService(f"127.0.0.1:{port}") as remote:
        with pytest.raises(expected):
            await remote.stats()


@pytest.mark.parametrize("address", ["ftp://a", "http://", "http://a:99999", "http://a?b", "http://a#b"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InvalidInputError, match="address"):
        HttpService(address)


async def test_calls_of_a_server_that_stops_have_an_answer(queue: QueueService) -> None:
    async with serving(Leading(queue)) as server, HttpService(f"127.0.0.1:{server.port}") as remote:
        waiting = asyncio.create_task(remote.dequeue(entrypoints=None, limit=1, wait_s=60))
        feed = remote.events(from_position=0)
        await queue.enqueue([JobSpec("a", "other", b"", run_at_ms=2**50)])
        assert (await anext(feed)).job_id == "a"

        await server.stop(grace_s=5)

        with pytest.raises(NoLeaderError, match="stopping"):
            await anext(feed)
        with pytest.raises(BrokerUnreachableError):  # it was told that there is none, and asked again
            await waiting


async def claimed_while_stopping(wait_s: float) -> list[str]:
    """Ids in the answer to a claim of job "a" that is being written when the server stops, and lands."""
    store = GatedStore(MemoryStore())
    async with Queue.open(store) as queue, serving(Leading(queue._service)) as server:
        await queue._service.enqueue([JobSpec("a", "send", b"")])
        async with HttpService(f"127.0.0.1:{server.port}") as remote:
            store.shut()
            claiming = asyncio.create_task(remote.dequeue(entrypoints=None, limit=1, wait_s=wait_s, request_id="r1"))
            await store.arrived.wait()
            stopping = asyncio.create_task(server.stop(grace_s=20))
            while not server._leaving.is_set():
                await yield_once()
            for _ in range(20):
                await yield_once()
            store.open()
            answer = [job.id for job in await claiming]
            await stopping
            found = await queue.find("a")
            assert found is not None
            assert found.state is JobState.RUNNING
            return answer


@pytest.mark.parametrize("wait_s", [0, 5])
async def test_a_claim_that_is_being_written_when_the_server_stops_is_not_answered_with_nothing(wait_s: float) -> None:
    assert await claimed_while_stopping(wait_s) == ["a"]


async def test_a_stopping_server_that_answers_a_claim_with_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    until_leaving = Verbs._until_leaving

    async def hasty(self: Verbs, claiming: asyncio.Future[list[JobRecord]]) -> list[JobRecord]:
        return await until_leaving(self, claiming) or []

    monkeypatch.setattr(Verbs, "_until_leaving", hasty)

    assert await claimed_while_stopping(wait_s=0) == []


async def test_a_server_is_stopped_twice_at_once(queue: QueueService) -> None:
    async with serving(Leading(queue)) as server:
        await asyncio.gather(server.stop(grace_s=1), server.stop(grace_s=1))


class Slow(Instead):
    """A queue that takes its time."""

    def __init__(self, service: QueueService) -> None:
        super().__init__(service)
        self.asked = asyncio.Event()
        self.released = asyncio.Event()

    async def stats(self) -> Stats:
        self.asked.set()
        await self.released.wait()
        return await self._service.stats()


async def test_a_call_that_was_taken_is_finished_within_the_grace(queue: QueueService) -> None:
    slow = Slow(queue)
    async with (
        serving(Leading(slow)) as server,
        HttpService(f"127.0.0.1:{server.port}") as remote,
    ):
        call = asyncio.create_task(remote.stats())
        await slow.asked.wait()
        stopping = asyncio.create_task(server.stop(grace_s=30))
        slow.released.set()

        assert await call == await queue.stats()
        await stopping


async def test_a_call_that_outlasts_the_grace_is_cut_off(queue: QueueService) -> None:
    slow = Slow(queue)
    async with (
        serving(Leading(slow)) as server,
        HttpService(f"127.0.0.1:{server.port}") as remote,
    ):
        call = asyncio.create_task(remote.stats())
        await slow.asked.wait()

        await server.stop(grace_s=0)

        with pytest.raises(UnknownOutcomeError):
            await call


async def test_signals_are_left_to_the_program(queue: QueueService) -> None:
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    async with serving(Leading(queue)):
        assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before
