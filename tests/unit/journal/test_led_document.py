"""A document that is led: whoever reads back what it wrote may find a successor there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from casque import LeadershipLostError
from casque.client.opening import Parts
from casque.client.queue import DEFAULTS
from casque.clock import Random
from casque.codec.head import Owner
from casque.engine.committer import Committer
from casque.service.requests import Enqueue
from casque.state import State
from casque.storage.memory import MemoryStore
from casque.storage.port import Outcome, Read, Store, Unknown
from casque.testing.clock import ManualClock
from casque.types import JobSpec


class Overtaken:
    """A store whose next replacement lands and is not answered before something else has happened."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
        outcome = await self._store.replace(key, body, expected=expected)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is None:
            return outcome
        await meanwhile()
        return Unknown(TimeoutError())

    async def create(self, key: str, body: bytes) -> Outcome:
        return await self._store.create(key, body)

    async def get(self, key: str, *, unless: str | None = None) -> Read:
        return await self._store.get(key, unless=unless)

    async def delete(self, key: str) -> None:
        await self._store.delete(key)

    def list(self, prefix: str = "", *, after: str | None = None) -> AsyncIterator[str]:
        return self._store.list(prefix, after=after)

    async def close(self) -> None:
        await self._store.close()


def committer(store: Store, clock: ManualClock, seed: int) -> Committer:
    return Parts(store, DEFAULTS, layout="document", clock=clock, rng=Random(seed)).committer()


def adding(name: str) -> Callable[[State, int], None]:
    def decide(state: State, now_ms: int) -> None:
        state.execute(Enqueue((JobSpec(name, "send", b""),)), now_ms)

    return decide


async def test_a_leader_that_finds_its_commit_under_a_successors_stops_leading() -> None:
    memory, clock = MemoryStore(), ManualClock()
    store = Overtaken(memory)
    old, new = committer(store, clock, 1), committer(memory, clock, 2)
    assert await old.lead(Owner("old", "1", "old:1"), lease_ms=1000, seen=None)
    await old.commit(adding("before"))

    async def take_over() -> None:
        assert await new.lead(Owner("new", "2", "new:1"), lease_ms=1000, seen=None)

    store.meanwhile = take_over
    during = asyncio.ensure_future(old.commit(adding("during")))
    await clock.advance(60)
    with pytest.raises(LeadershipLostError):
        await during
    assert not old.leads

    await new.commit(adding("after"))
    assert list(new.state.jobs) == ["before", "during", "after"]
    assert (new.sighting().epoch, new.leads) == (2, True)
