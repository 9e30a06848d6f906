"""A broker that opens a copy of a queue, before it knows that this is one."""

from __future__ import annotations

import asyncio

import pytest

from casque import NoLeaderError
from casque.broker.broker import Broker
from casque.client.opening import Parts
from casque.clock import Random
from casque.settings import BrokerSettings, QueueSettings
from casque.storage.memory import MemoryStore
from casque.storage.port import Stored
from casque.testing.clock import ManualClock, settle


class Place:
    """What the store says about where it is, once it is asked to."""

    def __init__(self, name: str, *, known: bool) -> None:
        self._name = name
        self.known = asyncio.Event()
        if known:
            self.known.set()

    async def find(self) -> str:
        await self.known.wait()
        return self._name


def broker(store: MemoryStore, address: str, place: Place, layout: str) -> Broker:
    clock, rng = ManualClock(), Random(address)
    parts = Parts(store, QueueSettings(), layout=layout, clock=clock, rng=rng)
    return Broker(parts.committer(), parts, address=address, settings=BrokerSettings(), place=place.find)


@pytest.mark.parametrize("layout", ["log", "document"])
async def test_callers_of_a_broker_that_opens_a_copy_are_never_sent_to_the_original(layout: str) -> None:
    store, copy = MemoryStore(), MemoryStore()
    original = broker(store, "original:7700", Place("here", known=True), layout)
    leading = asyncio.create_task(original.run())
    await original.settled()
    async for key in store.list():
        read = await store.get(key)
        assert isinstance(read, Stored)
        await copy.create(key, read.body)

    place = Place("elsewhere", known=False)
    opened = broker(copy, "copy:7700", place, layout)
    opening = asyncio.create_task(opened.open())
    await settle()
    assert not opening.done()
    with pytest.raises(NoLeaderError):
        opened.service()
    assert opened.standing().leader is None
    place.known.set()
    await opening
    with pytest.raises(NoLeaderError):
        opened.service()
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)
