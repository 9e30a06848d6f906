"""What callers of brokers are told when these point at each other for too long."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest

from casque.client.connecting import AddressFinder
from casque.client.queue import DEFAULTS
from casque.client.remote import RemoteQueue, RemoteService
from casque.clock import Random, SystemClock
from casque.environment import Environment
from casque.errors import NoLeaderError, QueueLedError, UnknownOutcomeError
from casque.worker.patience import Patience


class Deposed:
    """A broker that does not lead, and names the other one."""

    def __init__(self, address: str, first: Exception | None = None) -> None:
        self.address = address
        self._first = [first] if first is not None else []

    async def call(self, _request: Any) -> Any:
        raise self._refusal()

    async def events(self, *, follow: bool, **_kwargs: Any) -> Any:
        if follow:
            raise self._refusal()
        yield None

    def _refusal(self) -> Exception:
        return self._first.pop() if self._first else QueueLedError("b:1" if self.address == "a:1" else "a:1")

    async def close(self) -> None: ...


def asked(first: Exception | None = None) -> RemoteQueue:
    brokers = {"a:1": Deposed("a:1", first), "b:1": Deposed("b:1", first)}
    return RemoteQueue(
        AddressFinder(sorted(brokers)),
        lambda address: cast(RemoteService, brokers[address]),
        Environment(replace(DEFAULTS, storage_patience=timedelta(milliseconds=50)), SystemClock(), Random("disagree")),
    )


async def test_that_no_broker_leads_is_said_and_not_that_the_queue_should_be_opened_otherwise() -> None:
    with pytest.raises(NoLeaderError, match=r"says that [ab]:1 does") as told:
        await asked().stats()
    assert not Patience.is_hopeless(told.value)  # a worker asks again, where QueueLedError would end it


async def test_an_attempt_without_an_answer_stays_unknown() -> None:
    with pytest.raises(UnknownOutcomeError, match="no answer"):
        await asked(UnknownOutcomeError("no answer")).stats()


async def test_a_feed_says_so_too() -> None:
    with pytest.raises(NoLeaderError):
        async for _ in asked().events(from_position=1):
            pass
