"""A client that waits longer than a broker lets it asks again, and so does one that heard no answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from casque import Outcome, Queue
from casque.client.connecting import AddressFinder
from casque.client.remote import RemoteQueue
from casque.clock import Random
from casque.environment import Environment
from casque.errors import (
    CasqueError,
    InvalidInputError,
    JobNotFoundError,
    JobStateError,
    LeaseLostError,
    NotAllowedError,
    QueueClosedError,
    QueueDrainingError,
    UnknownOutcomeError,
)
from casque.service import QueueService
from casque.service.requests import Ack, Cancel, Dequeue, Enqueue, Find, Request, Retry, Settle
from casque.testing.clock import ManualClock
from casque.transport.limits import Limits
from casque.types import JobRecord, JobSpec


class Empty:
    """A broker without a job, which keeps those who wait for as long as they ask to wait."""

    address = "127.0.0.1:7700"

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.waits: list[float] = []

    async def call(self, request: Dequeue) -> list[JobRecord]:
        self.waits.append(request.wait_s)
        await self._clock.sleep(request.wait_s)
        return []

    async def close(self) -> None: ...


async def test_a_wait_that_is_longer_than_a_broker_allows_is_several_calls() -> None:
    clock = ManualClock()
    broker = Empty(clock)
    queue = RemoteQueue(
        AddressFinder([broker.address]),
        lambda _address: broker,  # type: ignore[arg-type, return-value]
        Environment(clock=clock, rng=Random(1)),
    )
    begun_ms = clock.monotonic_ms()
    waiting = asyncio.create_task(queue.dequeue(entrypoints=None, limit=1, wait_s=600))
    while not waiting.done():
        await clock.advance(1)

    assert await waiting == []
    assert max(broker.waits) <= Limits().wait_s
    assert 599_000 <= clock.monotonic_ms() - begun_ms <= 602_000
    await queue.close()


class Mute:
    """A broker that carries out what it is asked, and whose first answer nobody hears."""

    address = "127.0.0.1:7700"

    def __init__(self, service: QueueService) -> None:
        self._service = service
        self.asked: list[str | None] = []

    async def call(self, request: Settle) -> list[CasqueError | None]:
        self.asked.append(request.request_id)
        answers = await self._service.call(request)
        if len(self.asked) == 1:
            raise UnknownOutcomeError("the connection broke")
        return answers

    async def close(self) -> None: ...


async def test_outcomes_whose_answer_was_lost_are_told_again_and_happen_once() -> None:
    clock = ManualClock()
    async with Queue.open("memory://mute", clock=clock) as behind:
        await behind.enqueue_many([("send", b"1"), ("send", b"2")])
        first, second = await behind.dequeue("send", batch_size=2)
        broker = Mute(behind._service)
        queue = RemoteQueue(
            AddressFinder([broker.address]),
            lambda _address: broker,  # type: ignore[arg-type, return-value]
            Environment(clock=clock, rng=Random(1)),
        )
        telling = asyncio.create_task(
            queue.settle([Outcome(first.id, first.token), Outcome(second.id, second.token + 7)])
        )
        while not telling.done():
            await clock.advance(0.1)

        done, lost = await telling
        assert done is None
        assert isinstance(lost, LeaseLostError)
        assert len(broker.asked) == 2
        assert broker.asked[0] == broker.asked[1] is not None
        assert (await behind.stats()).totals.done == 1
        await queue.close()


class Nowhere:
    """Looks for a leader, and does not find one."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def find(self) -> str:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError("nobody ends this wait")

    async def close(self) -> None: ...


async def test_closing_a_queue_ends_the_calls_of_its_callers_and_cancels_none_of_them() -> None:
    finder, clock = Nowhere(), ManualClock()
    queue = RemoteQueue(
        finder,
        lambda _address: Empty(clock),  # type: ignore[arg-type, return-value]
        Environment(clock=clock, rng=Random(1)),
    )
    calls = [asyncio.create_task(queue.stats()) for _ in range(3)]
    left = asyncio.create_task(queue.stats())
    await finder.asked.wait()
    left.cancel()
    await queue.close()
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(end) for end in ends] == [QueueClosedError] * 3
    with pytest.raises(asyncio.CancelledError):
        await left


class Late:
    """A broker that does not answer the first attempt, which is still on its way, and refuses the second."""

    address = "127.0.0.1:7700"

    def __init__(self, refusal: CasqueError) -> None:
        self._answers: list[CasqueError] = [refusal, UnknownOutcomeError("the connection broke")]

    async def call(self, _request: Any) -> Any:
        raise self._answers.pop()

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    ("asked", "refusal", "told"),
    [
        (Enqueue((JobSpec("a", "send", b""),)), QueueDrainingError(None), UnknownOutcomeError),
        (
            Enqueue((JobSpec("a", "send", b""),)),
            InvalidInputError("the id is known"),
            UnknownOutcomeError,
        ),
        (Cancel("a"), JobNotFoundError("a"), UnknownOutcomeError),
        (Retry("a"), JobStateError("a", "ready", "dead"), UnknownOutcomeError),
        (Ack("a", 7), JobNotFoundError("a"), JobNotFoundError),
        (Ack("a", 7), LeaseLostError("a", 7), LeaseLostError),
        (Find("a"), NotAllowedError("read", "find"), NotAllowedError),
    ],
)
async def test_a_refusal_does_not_take_back_an_attempt_that_may_still_arrive(
    asked: Request[Any], refusal: CasqueError, told: type[CasqueError]
) -> None:
    clock, broker = ManualClock(), Late(refusal)
    queue = RemoteQueue(
        AddressFinder([broker.address]),
        lambda _address: broker,  # type: ignore[arg-type, return-value]
        Environment(clock=clock, rng=Random(1)),
    )
    asking = asyncio.ensure_future(queue.call(asked))
    while not asking.done():
        await clock.advance(0.1)
    with pytest.raises(told) as raised:
        await asking
    assert type(raised.value) is told
    await queue.close()
