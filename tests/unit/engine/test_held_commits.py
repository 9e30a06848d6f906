"""What readers of the feed hold between them: bounded, taken from those that do not read, and read again by them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from casque import HistoryGoneError, QueueEvent
from casque.clock import Random
from casque.codec.head import KEY
from casque.codec.log import decode_head, encode_head
from casque.engine import feed
from casque.engine.held_commits import LOOK_S, HeldCommits
from casque.environment import Environment
from casque.storage.memory import MemoryStore
from casque.storage.port import Stored, Won
from casque.testing.clock import ManualClock
from casque.testing.hosting import leading
from casque.types import JobSpec

JOBS = 5
COMMITS = 6
LARGE = bytes(200_000)
ROOM = 3_000_000
"""For two of the commits."""
EVERY = [f"{n}-{m}" for n in range(COMMITS) for m in range(JOBS)]


async def a_log_of_large_commits() -> MemoryStore:
    store = MemoryStore()
    async with leading(store, layout="log") as host:
        for n in range(COMMITS):
            await host.queue.enqueue([JobSpec(f"{n}-{m}", "a", LARGE) for m in range(JOBS)])
    return store


class Reader:
    """Follows the feed to its end, as far as a test lets it."""

    def __init__(self, store: MemoryStore, held: HeldCommits, clock: ManualClock) -> None:
        self._clock = clock
        self._events: AsyncGenerator[QueueEvent] = feed.follow(
            store, 0, Environment(clock=clock, rng=Random(1)), for_ever=False, held=held
        )
        self.added: list[str] = []

    async def read(self, count: int) -> None:
        """So many jobs, while the clock goes on."""
        while len(self.added) < count:
            reading = asyncio.ensure_future(anext(self._events))
            while not reading.done():
                await self._clock.advance(LOOK_S)
            event = reading.result()
            if event.kind.value == "added":
                self.added.append(str(event.job_id))

    async def close(self) -> None:
        await self._events.aclose()


async def test_readers_that_stop_hold_no_more_than_all_may_and_go_on_where_they_were() -> None:
    store, clock = await a_log_of_large_commits(), ManualClock()
    held = HeldCommits(clock, bytes_max=ROOM)
    readers = [Reader(store, held, clock) for _ in range(10)]

    for so_far in (3, 7, 11, len(EVERY)):
        for reader in readers:
            await reader.read(so_far)
            assert 0 < held.bytes <= ROOM

    assert all(reader.added == EVERY for reader in readers)
    for reader in readers:
        await reader.close()
    assert held.bytes == 0


async def test_readers_that_all_go_on_take_turns_and_miss_nothing() -> None:
    store, clock = await a_log_of_large_commits(), ManualClock()
    held = HeldCommits(clock, bytes_max=ROOM)
    readers = [Reader(store, held, clock) for _ in range(6)]

    await asyncio.gather(*(reader.read(len(EVERY)) for reader in readers))

    assert all(reader.added == EVERY for reader in readers)


async def test_a_commit_that_is_larger_than_the_room_is_held_alone() -> None:
    store, clock = await a_log_of_large_commits(), ManualClock()
    held = HeldCommits(clock, bytes_max=1_000)
    one, other = (Reader(store, held, clock) for _ in range(2))

    await one.read(1)
    alone = held.bytes
    await other.read(1)

    assert held.bytes == alone
    await one.read(len(EVERY))
    assert one.added == EVERY


async def test_a_reader_whose_commit_was_taken_away_and_collected_hears_that_it_is_gone() -> None:
    store, clock = await a_log_of_large_commits(), ManualClock()
    held = HeldCommits(clock, bytes_max=1_000)
    one, other = (Reader(store, held, clock) for _ in range(2))
    await one.read(1)
    await other.read(JOBS + 1)
    head = await store.get(KEY)
    assert isinstance(head, Stored)
    collected = decode_head(KEY, head.body).next("collector", floor=COMMITS)
    assert isinstance(await store.replace(KEY, encode_head(collected), expected=head.etag), Won)

    with pytest.raises(HistoryGoneError):
        await one.read(JOBS + 1)
