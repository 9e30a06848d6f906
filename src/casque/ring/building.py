"""Makes a ring, and changes its size. Nothing that is in a shard moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias, TypeVar

import msgspec

from casque.clock import Clock, Random, new_id, new_nonce
from casque.codec.head import FORMAT, KEY
from casque.codec.ring import SHARDS_MAX, RingHead, shard_prefix
from casque.errors import (
    CASConflictError,
    CasqueError,
    CorruptQueueError,
    InvalidInputError,
    QueueLedError,
    UnknownOutcomeError,
)
from casque.ring.forgetting import Forgetting
from casque.ring.root import Root
from casque.ring.shards import OwnShard, Shard
from casque.service.requests import Adopt, CopyGate, CopyZone
from casque.state import State
from casque.storage.port import Stored
from casque.types import PLAIN_RULES, Gates, ZoneRules

R = TypeVar("R")
Rules: TypeAlias = tuple[Gates, dict[str, ZoneRules]]
"""What is paused or being drained, and what was set for zones."""
Reader: TypeAlias = Callable[[int], Awaitable[State]]
"""Reads a shard as it is stored, beside whoever leads it."""

COPIES_MAX = 20
"""How often gates and rules may change while they are copied to a shard."""
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
        self._forgetting = Forgetting(root, clock=clock)

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
        # Those that are made, and those of an earlier, larger ring: what was set since did not reach them.
        added = range(head.walked, max(head.walked, shards))
        await self._found(added)
        # Gates and the rules of zones hold in the new shards as well. Before the change for those who come at once,
        # after it for what was set meanwhile: whoever sets something looks afterwards whether the ring has changed.
        await self._copy_rules(added)
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
                cleared_at=msgspec.UNSET,
            )

        head = await self._root.change(resized)
        try:
            # In all of them: whoever did this before may have been stopped half-way.
            await self._copy_rules(range(1, head.walked))
        except CasqueError as error:
            raise UnknownOutcomeError(
                f"the ring has {head.size} shards now, but gates and the rules of zones may be missing in some: "
                f"{error}. Resize it to the same size again"
            ) from error
        return head

    async def tidy(self) -> RingHead:
        """Note it if no shard holds anything that is where only older sizes would look for it. They are forgotten by a
        process that has the ring open for a quarter of an hour after that, or by this builder, if it is there for so
        long."""
        head = await self._root.read()
        if len(head.sizes) > 1 and head.cleared_at is msgspec.UNSET:
            if any(await self._each(range(head.walked), lambda shard: self._misplaced(shard, head))):
                return head
            # What is true now is true for as long as the ring is this one.
            head = await self._note_clear(head)
        return await self._forgetting.forget(head) if self._forgetting.is_time(head) else head

    async def _note_clear(self, seen: RingHead) -> RingHead:
        """Unless somebody has resized it since, or was faster."""
        found_at = self._clock.wall_ms()

        def changed(now: RingHead) -> RingHead | None:
            same = (now.generation, now.sizes, now.cleared_at) == (seen.generation, seen.sizes, msgspec.UNSET)
            return msgspec.structs.replace(now, cleared_at=found_at) if same else None

        return await self._root.change(changed)

    async def _found(self, tokens: Iterable[int]) -> list[int]:
        """Make shards that belong to a ring and have heard of none: they take no jobs. Of those that are there, the
        generation that they know."""
        return await self._each(tokens, _found)

    async def _copy_rules(self, tokens: Iterable[int]) -> None:
        """Have these know what the first one knows, which is told of everything before the others are."""
        await self._each(tokens, self._follow)

    async def _follow(self, shard: Shard) -> None:
        """
        Raises:
            CASConflictError: others keep changing what it is to know.
        """
        for _ in range(COPIES_MAX):
            # In this order: what is here came from the first one earlier than what that one says now. And only if it is
            # still here: what somebody has set meanwhile is newer than both.
            here, known = _rules(await self._read(shard.token))
            gates, zones = _rules(await self._read(0))
            if (here, known) == (gates, zones):
                return
            for entrypoint in [None, *(here.entrypoints | gates.entrypoints)]:
                if (gate := gates.of(entrypoint)) is not here.of(entrypoint):
                    await shard.service.call(CopyGate(gate, entrypoint, here.of(entrypoint)))
            for zone in known | zones:
                rules, expected = zones.get(zone, PLAIN_RULES), known.get(zone, PLAIN_RULES)
                if rules != expected:
                    await shard.service.call(CopyZone(zone, rules, expected))
        raise CASConflictError("others keep changing gates and the rules of zones at the same time. Try again")

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

    # One that brokers lead is a shard of an earlier, larger ring: they lead nothing else.
    if isinstance(shard, OwnShard) and not await shard.look(is_new):
        raise InvalidInputError(
            f"there is a queue of its own at {shard_prefix(shard.token)}; nothing was changed there"
        )
    return await shard.service.call(Adopt(0, 0))


def _rules(state: State) -> Rules:
    return state.gates, dict(state.rules)
