"""Claims jobs from shard after shard.

Every call begins one shard further than the one before it, from a random first one: so no shard is left out, and
processes that were started together soon spread. A call that its first shard does not satisfy asks all others at once
whether they have anything; one that may wait waits at all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from casque.clock import Clock, Random
from casque.errors import CasqueError
from casque.ring.numbers import record_of
from casque.ring.shards import LOOK_MS, Shard, Shards
from casque.telemetry import logger
from casque.types import JobRecord

log = logger("ring")


class Asked(msgspec.Struct, frozen=True):
    """What a dequeue wants."""

    entrypoints: tuple[str, ...] | None
    limit: int
    lease_ms: int | None = None
    worker: str | None = None
    request_id: str | None = None
    zones: tuple[str, ...] | None = None


class Walker:
    """Goes round the ring."""

    def __init__(self, shards: Shards, *, clock: Clock, rng: Random) -> None:
        self._shards = shards
        self._clock = clock
        self._turn = rng.getrandbits(32)
        self._returning: set[asyncio.Future[None]] = set()

    async def dequeue(self, asked: Asked, *, wait_s: float) -> list[JobRecord]:
        ends_ms = self._clock.monotonic_ms() + int(wait_s * 1000)
        if asked.request_id is not None:
            again = await self._claimed_before(asked, asked.request_id)
            if again is not None:
                return again
        while True:
            changed = self._shards.changed
            shards = await self._from_next(asked.zones)
            claimed = await self._claim(shards, asked)
            left_ms = ends_ms - self._clock.monotonic_ms()
            if claimed or left_ms <= 0:
                return claimed
            claimed = await self._wait(shards, asked, left_ms / 1000, changed)
            if claimed or self._clock.monotonic_ms() >= ends_ms:
                return claimed

    async def close(self) -> None:
        """What nobody will work on goes back first."""
        await asyncio.gather(*self._returning, return_exceptions=True)

    async def _from_next(self, zones: tuple[str, ...] | None) -> list[Shard]:
        if zones is None:
            shards = await self._shards.walked()
        else:
            head = self._shards.recent()
            shards = await self._shards.several(sorted({token for zone in zones for token in head.homes(zone)}))
        self._turn += 1
        first = self._turn % len(shards)
        return shards[first:] + shards[:first]

    async def _claimed_before(self, asked: Asked, request_id: str) -> list[JobRecord] | None:
        """A request that is repeated gets what it was given, wherever that was: what it still has of it, which may be
        nothing. None: no shard has given it anything."""
        shards = await self._shards.walked()
        known = await asyncio.gather(*(shard.answered(request_id) for shard in shards))
        there = [shard for shard, knows in zip(shards, known, strict=True) if knows]
        if not there:
            return None
        answers = await asyncio.gather(*(self._at(shard, asked, asked.limit) for shard in there))
        return [job for some in answers for job in some]

    # --- At once ---

    async def _claim(self, shards: Sequence[Shard], asked: Asked) -> list[JobRecord]:
        """From the first shard; if that is not enough, from the others that have something."""
        claimed: list[JobRecord] = []
        try:
            claimed += await self._at(shards[0], asked, asked.limit)
            if len(claimed) < asked.limit and len(shards) > 1:
                for shard in await self._with_work(shards[1:], asked):
                    claimed += await self._at(shard, asked, asked.limit - len(claimed))
                    if len(claimed) >= asked.limit:
                        break
        except CasqueError as error:
            # Whoever got something should have it; the next call says what is wrong, if it still is.
            if not claimed:
                raise
            log.warning("a shard could not be asked for jobs: %s", error)
        except BaseException:
            self._give_back(claimed, asked)
            raise
        return claimed

    async def _with_work(self, shards: Sequence[Shard], asked: Asked) -> list[Shard]:
        due = await self._shards.ask(
            shards, lambda state, now_ms: state.has_due(asked.entrypoints, now_ms, asked.zones)
        )
        return [shard for shard, has in zip(shards, due, strict=True) if has]

    async def _at(self, shard: Shard, asked: Asked, limit: int, wait_s: float = 0.0) -> list[JobRecord]:
        claimed = await shard.service.dequeue(
            entrypoints=asked.entrypoints,
            limit=limit,
            lease_ms=asked.lease_ms,
            worker=asked.worker,
            wait_s=wait_s,
            request_id=asked.request_id,
            zones=asked.zones,
        )
        return [record_of(job, shard.token) for job in claimed]

    # --- Waiting ---

    async def _wait(
        self, shards: Sequence[Shard], asked: Asked, wait_s: float, changed: asyncio.Event
    ) -> list[JobRecord]:
        """At all shards at once, until one of them has something, or the ring changes."""
        waiting = {asyncio.create_task(self._at(shard, asked, asked.limit, wait_s)): shard for shard in shards}
        watching = asyncio.create_task(self._watch(changed))
        over: set[asyncio.Task[list[JobRecord]]] = set()
        try:
            while len(over) < len(waiting) and not any(_has_something(one) for one in over) and not watching.done():
                left = waiting.keys() - over
                done, _ = await asyncio.wait({*left, watching}, return_when=asyncio.FIRST_COMPLETED)
                over |= left & done
        except BaseException:
            self._give_back(await _ended(waiting, watching), asked)
            raise
        claimed = await _ended(waiting, watching)
        if asked.request_id is not None:
            # Those who were called off may have been given jobs at the last moment, which only they know.
            claimed = await self._claimed_before(asked, asked.request_id) or []
        failed = [one.exception() for one in waiting if not one.cancelled() and one.exception() is not None]
        if failed and not claimed:
            assert failed[0] is not None
            raise failed[0]
        self._give_back(claimed[asked.limit :], asked, returned=True)
        return claimed[: asked.limit]

    async def _watch(self, changed: asyncio.Event) -> None:
        """Ends when the ring is another one."""
        while not changed.is_set():
            await self._clock.sleep(LOOK_MS / 1000)
            with suppress(CasqueError):
                await self._shards.refresh()

    def _give_back(self, jobs: Sequence[JobRecord], asked: Asked, *, returned: bool = False) -> None:
        """Claims that nobody will hear of. Those of a request stay: whoever repeats it gets them."""
        if jobs and (returned or asked.request_id is None):
            giving = asyncio.ensure_future(self._shards.give_back(jobs))
            self._returning.add(giving)
            giving.add_done_callback(self._returning.discard)


async def _ended(waiting: dict[asyncio.Task[list[JobRecord]], Shard], watching: asyncio.Task[None]) -> list[JobRecord]:
    """Call everybody back; what they have got by then."""
    for task in (*waiting, watching):
        task.cancel()
    await asyncio.gather(*waiting, watching, return_exceptions=True)
    return [job for task in waiting if _has_something(task) for job in task.result()]


def _has_something(task: asyncio.Task[list[JobRecord]]) -> bool:
    return not task.cancelled() and (task.exception() is None and bool(task.result()))
