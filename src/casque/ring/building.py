"""Creates a ring, and changes its size. Nothing that is in a shard moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias, TypeVar

import msgspec

from casque.clock import new_id, new_nonce
from casque.codec.head import FORMAT, KEY
from casque.codec.ring import SHARDS_MAX, RingHead, shard_prefix
from casque.environment import Environment
from casque.errors import (
    CASConflictError,
    CorruptQueueError,
    InvalidInputError,
    QueueLedError,
)
from casque.ring.forgetting import Forgetting
from casque.ring.root import Root
from casque.ring.shards import OwnShard, Shard
from casque.service.requests import Adopt, CopyGate, CopyZone
from casque.state import State
from casque.storage.port import Stored
from casque.types import PLAIN_RULES, Gates, ZoneRules

R = TypeVar("R")
Reader: TypeAlias = Callable[[int], Awaitable[State]]
"""Reads the stored state of a shard, independently of its leader."""

COPIES_MAX = 20
"""How often gates and rules may change while they are copied to a shard."""
AT_ONCE = 32
"""Shards that are created or called at the same time."""


def checked_shards(shards: int) -> int:
    if not 1 <= shards <= SHARDS_MAX:
        raise InvalidInputError(f"a ring has from 1 to {SHARDS_MAX} shards, not {shards}")
    return shards


class Builder:
    """Works while the ring is in use. Shards that brokers lead are written through `led`."""

    def __init__(
        self,
        root: Root,
        opener: Callable[[int], OwnShard],
        reader: Reader,
        env: Environment,
        *,
        led: Callable[[int], Shard] | None = None,
    ) -> None:
        self._root = root
        self._opener = opener
        self._read = reader
        self._led = led
        self._env = env
        self._forgetting = Forgetting(root, clock=env.clock)

    async def create(self, shards: int) -> bool:
        """Create a ring in an empty location; True if this call created it. An interrupted call leaves invisible
        shards,
        which the next one uses.

        Raises:
            InvalidInputError: the number of shards is out of range.
        """
        found = await self._found(range(checked_shards(shards)))
        if any(found):
            # Another process was faster, or the root was deleted; then its shards know more than a new one would.
            if isinstance(await self._root.store.get(KEY), Stored):
                return False
            raise CorruptQueueError(
                KEY, "is missing although there are shards of a ring: it was deleted. Restore it from a backup"
            )
        head = RingHead(
            format=FORMAT,
            queue_id=new_id(self._env.rng),
            version=1,
            writer=new_nonce(self._env.rng),
            sizes=(shards,),
            shards=shards,
            resized_at=self._env.clock.wall_ms(),
        )
        return await self._root.create(head)

    async def resize(self, shards: int) -> RingHead:
        """Spread new zones over `shards` shards. Returns the new ring.

        Raises:
            InvalidInputError: the number of shards is out of range, or there is no ring.
            CASConflictError: others kept changing it.
        """
        checked_shards(shards)
        head = await self._root.read()
        await self._found(range(head.shards, max(head.shards, shards)))

        def announced(head: RingHead) -> RingHead | None:
            return msgspec.structs.replace(head, shards=shards) if head.shards < shards else None

        # First announce the new shards: from then on each new gate or rule of a zone is set there as well. Then copy
        # the earlier ones. Only then let jobs in: if this call is interrupted, no shard takes jobs without them.
        head = await self._root.change(announced)
        await self._copy_settings(range(1, head.shards))
        resized_at = self._env.clock.wall_ms()

        def resized(head: RingHead) -> RingHead | None:
            if head.size == shards:
                return None
            return msgspec.structs.replace(
                head,
                generation=head.generation + 1,
                sizes=(*head.sizes, shards),
                shards=max(head.shards, shards),
                resized_at=resized_at,
                cleared_at=msgspec.UNSET,
            )

        return await self._root.change(resized)

    async def tidy(self) -> RingHead:
        """Record that no shard holds zones that only older sizes would find. Older sizes are forgotten by a process
        that
        keeps the ring open for a quarter of an hour after that, or by this builder, if it lives that long."""
        head = await self._root.read()
        if len(head.sizes) > 1 and head.cleared_at is msgspec.UNSET:
            if any(await self._each(range(head.walked), lambda shard: self._misplaced(shard, head))):
                return head
            # This stays true as long as the ring does not change.
            head = await self._note_clear(head)
        return await self._forgetting.forget(head) if self._forgetting.is_time(head) else head

    async def _note_clear(self, seen: RingHead) -> RingHead:
        """Unless the ring was resized since, or another process was faster."""
        found_at = self._env.clock.wall_ms()

        def changed(now: RingHead) -> RingHead | None:
            same = (now.generation, now.sizes, now.cleared_at) == (seen.generation, seen.sizes, msgspec.UNSET)
            return msgspec.structs.replace(now, cleared_at=found_at) if same else None

        return await self._root.change(changed)

    async def _found(self, tokens: Iterable[int]) -> list[int]:
        """Create shards that belong to a ring and know no generation yet: they take no jobs. For existing ones, returns
        the generation that they know."""
        return await self._each(tokens, _found)

    async def _copy_settings(self, tokens: Iterable[int]) -> None:
        """Copy gates and rules from the first shard, which gets every change before the others."""
        await self._each(tokens, self._follow)

    async def _follow(self, shard: Shard) -> None:
        """
        Raises:
            CASConflictError: others keep changing what is copied.
        """
        for _ in range(COPIES_MAX):
            # In this order, so that what is here came from the first shard before what the first shard has now. A
            # setting written here after this read is newer than both, and stays.
            state = await self._read(shard.token)
            here, known = _settings(state)
            gates, zones = _settings(await self._read(0))
            if (here, known) == (gates, zones):
                return
            for entrypoint in [None, *(here.entrypoints | gates.entrypoints)]:
                if (gate := gates.of(entrypoint)) is not here.of(entrypoint):
                    await shard.service.call(CopyGate(gate, entrypoint, since=state.position))
            for zone in known | zones:
                rules = zones.get(zone, PLAIN_RULES)
                if rules != known.get(zone, PLAIN_RULES):
                    await shard.service.call(CopyZone(zone, rules, since=state.position))
        raise CASConflictError("others keep changing gates and the rules of zones at the same time. Try again")

    async def _misplaced(self, shard: Shard, head: RingHead) -> bool:
        """True if the shard holds anything that the newest size would not look for there. It knows the ring by then, so
        the answer stays true."""
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

    # A shard that brokers lead belongs to an earlier, larger ring: they lead nothing else.
    if isinstance(shard, OwnShard) and not await shard.look(is_new):
        raise InvalidInputError(
            f"there is a queue of its own at {shard_prefix(shard.token)}; nothing was changed there"
        )
    return await shard.service.call(Adopt(0, 0))


def _settings(state: State) -> tuple[Gates, dict[str, ZoneRules]]:
    return state.gates, state.rules
