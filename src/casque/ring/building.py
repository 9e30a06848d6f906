"""Makes a ring, and changes its size. Nothing that is in a shard moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TypeAlias, TypeVar

import msgspec

from casque.clock import Clock, Random, new_id, new_nonce
from casque.codec.head import FORMAT, KEY
from casque.codec.ring import SHARDS_MAX, RingHead, shard_prefix
from casque.errors import CorruptQueueError, InvalidInputError, QueueLedError
from casque.ring.root import Root
from casque.ring.shards import OwnShard, Shard
from casque.state import AdoptRing, RingView, State
from casque.storage.port import Stored
from casque.types import PLAIN_RULES, Gates, ZoneRules

R = TypeVar("R")
Rules: TypeAlias = tuple[Gates, dict[str, ZoneRules]]
"""What is paused or being drained, and what was set for zones."""
Reader: TypeAlias = Callable[[int], Awaitable[State]]
"""Reads a shard as it is stored, beside whoever leads it."""

SETTLED_MS = 15 * 60 * 1000
"""So long after a resize an older size is kept at least: a request that is repeated may have been answered by it."""
AT_ONCE = 32
"""Shards that are made or asked at the same time."""


def checked_shards(shards: int) -> int:
    if not 1 <= shards <= SHARDS_MAX:
        raise InvalidInputError(f"a ring has from 1 to {SHARDS_MAX} shards, not {shards}")
    return shards


class Builder:
    """Works beside whatever else goes on. Shards that brokers lead are written through `led`."""

    def __init__(
        self,
        root: Root,
        opener: Callable[[int], OwnShard],
        reader: Reader,
        *,
        led: Callable[[int], Shard] | None = None,
        clock: Clock,
        rng: Random,
    ) -> None:
        self._root = root
        self._opener = opener
        self._read = reader
        self._led = led
        self._clock = clock
        self._rng = rng

    async def create(self, shards: int) -> bool:
        """Make a ring where nothing is; whether this call made it. One that begins and does not end leaves shards that
        nobody sees, and the next one goes on with them.

        Raises:
            InvalidInputError: a ring cannot have so many shards.
        """
        found = await self._found(range(checked_shards(shards)))
        if any(found):
            # Somebody was faster, or the root was deleted; then its shards know more than a new one would.
            if isinstance(await self._root.store.get(KEY), Stored):
                return False
            raise CorruptQueueError(
                KEY, "is missing although there are shards of a ring: it was deleted. Restore it from a backup"
            )
        head = RingHead(
            format=FORMAT,
            queue_id=new_id(self._rng),
            version=1,
            writer=new_nonce(self._rng),
            sizes=(shards,),
            shards=shards,
            resized_at=self._clock.wall_ms(),
        )
        return await self._root.create(head)

    async def resize(self, shards: int) -> RingHead:
        """Have new zones spread over so many shards. Returns the ring as it is then.

        Raises:
            InvalidInputError: a ring cannot have so many shards, or there is none.
            CASConflictError: somebody else changed it all the time.
        """
        checked_shards(shards)
        head = await self._root.read()
        made = range(head.shards, max(head.shards, shards))
        await self._found(made)
        # Gates and the rules of zones hold in the new shards as well. Before the change for those who come at once,
        # after it for what was set meanwhile: whoever sets something looks afterwards whether the ring has changed.
        await self._copy_rules(made)
        resized_at = self._clock.wall_ms()

        def resized(head: RingHead) -> RingHead | None:
            if head.size == shards:
                return None
            return msgspec.structs.replace(
                head,
                generation=head.generation + 1,
                sizes=(*head.sizes, shards),
                shards=max(head.shards, shards),
                resized_at=resized_at,
            )

        head = await self._root.change(resized)
        await self._copy_rules(made)
        return head

    async def tidy(self) -> RingHead:
        """Forget older sizes, if no shard holds anything that is where only they would look for it."""
        head = await self._root.read()
        if len(head.sizes) == 1 or self._clock.wall_ms() - head.resized_at < SETTLED_MS:
            return head
        if any(await self._each(range(head.walked), lambda shard: self._misplaced(shard, head))):
            return head

        def settled(now: RingHead) -> RingHead | None:
            same = now.generation == head.generation
            return msgspec.structs.replace(now, sizes=(head.size,)) if same else None

        return await self._root.change(settled)

    async def _found(self, tokens: Iterable[int]) -> list[int]:
        """Make shards that belong to a ring and have heard of none: they take no jobs. Of those that are there, the
        generation that they know."""
        return await self._each(tokens, _found)

    async def _copy_rules(self, tokens: Iterable[int]) -> None:
        tokens = list(tokens)
        copied: Rules | None = None
        while tokens:
            rules = _rules(await self._read(0))
            if rules == copied:
                return
            copied = rules
            await self._each(tokens, partial(self._set_rules, rules))

    async def _set_rules(self, rules: Rules, shard: Shard) -> None:
        (gates, zones), (here, known) = rules, _rules(await self._read(shard.token))
        for entrypoint in [None, *(here.entrypoints | gates.entrypoints)]:
            if here.of(entrypoint) is not gates.of(entrypoint):
                await shard.service.set_gate(gates.of(entrypoint), entrypoint=entrypoint)
        for zone in known | zones:
            await shard.service.set_zone(zone, zones.get(zone, PLAIN_RULES))  # as it is: nothing happens

    async def _misplaced(self, shard: Shard, head: RingHead) -> bool:
        """Whether it holds anything that newcomers would not look for there. It knows the ring then: so it stays
        true."""
        await shard.adopt(head)
        state = await self._read(shard.token)
        assert state.ring is not None
        return state.ring.generation != head.generation or state.places.misplaced(state.ring, len(state.jobs)) > 0

    async def _each(self, tokens: Iterable[int], work: Callable[[Shard], Awaitable[R]]) -> list[R]:
        room = asyncio.Semaphore(AT_ONCE)

        async def one(token: int) -> R:
            async with room:
                own = self._opener(token)
                await own.engine.start()
                try:
                    return await work(own)
                except QueueLedError:
                    if self._led is None:
                        raise
                finally:
                    await own.engine.stop()
                led = self._led(token)
                try:
                    return await work(led)
                finally:
                    await led.stop()

        return await asyncio.gather(*map(one, tokens))


async def _found(shard: Shard) -> int:
    def is_new(state: State, _now_ms: int) -> bool:
        return state.ring is not None or state.position == 0

    # Nobody leads what is no part of a ring yet.
    assert isinstance(shard, OwnShard)
    if not await shard.look(is_new):
        raise InvalidInputError(
            f"there is a queue of its own at {shard_prefix(shard.token)}; nothing was changed there"
        )
    ring: RingView = await shard.engine.execute(AdoptRing(0, 0, shard.token))
    return ring.generation


def _rules(state: State) -> Rules:
    return state.gates, dict(state.rules)
