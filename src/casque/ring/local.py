"""A shard whose engine runs in this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from casque.codec.ring import RingHead
from casque.engine.blobs import Blobs
from casque.engine.embedded import EmbeddedService
from casque.engine.history import History
from casque.engine.operation import Executor
from casque.engine.staging import Staging
from casque.errors import InvalidInputError
from casque.service import Known, Place
from casque.settings import QueueSettings
from casque.state import AdoptRing, RingView, SetGate, SetZone, State
from casque.types import Gate, ZoneRules


class LocalShard(EmbeddedService):
    """Satisfies `ShardService` without any transport."""

    def __init__(
        self,
        token: int,
        executor: Executor,
        settings: QueueSettings,
        history: History | None = None,
        *,
        blobs: Blobs | None = None,
        staging: Staging | None = None,
        root: Callable[[], Awaitable[RingHead]] | None = None,
    ) -> None:
        """`root` reads the ring's: where others say which ring it is, they are not simply believed."""
        super().__init__(executor, settings, history, blobs=blobs, staging=staging)
        self._token = token
        self._root = root

    async def adopt(self, generation: int, size: int) -> int:
        if self._root is not None:
            known = cast("RingView | None", await self._executor.look(lambda state, _now_ms: state.ring))
            if known is None or generation > known.generation:
                # A shard never goes back to an older ring: one that does not exist would lock it for ever.
                head = await self._root()
                if generation > head.generation or (generation == head.generation and size != head.size):
                    raise InvalidInputError(
                        f"there is no ring of generation {generation} and size {size}: the root is of generation "
                        f"{head.generation} and size {head.size}"
                    )
                generation, size = head.generation, head.size
        ring = cast(RingView, await self._executor.execute(AdoptRing(generation, size, self._token)))
        return ring.generation

    async def known(
        self,
        job_ids: Sequence[str] = (),
        *,
        request_id: str | None = None,
        places: Sequence[Place] = (),
        admission: tuple[str, int] | None = None,
    ) -> Known:
        def look(state: State, _now_ms: int) -> Known:
            held = state.places
            return Known(
                frozenset([job_id for job_id in job_ids if job_id in state.jobs]),
                request_id is not None and request_id in state.requests,
                frozenset([(is_zone, name) for is_zone, name in places if held.holds(name, is_zone=is_zone)]),
                frozenset([name for is_zone, name in places if is_zone and state.is_fifo(name)]),
                None if admission is None else state.admitted(*admission),
            )

        return cast(Known, await self._executor.look(look))

    async def copy_gate(self, gate: Gate, *, entrypoint: str | None, expected: Gate) -> None:
        await self._executor.execute(SetGate(gate, entrypoint, expected=expected))

    async def copy_zone(self, zone: str, rules: ZoneRules, *, expected: ZoneRules) -> None:
        await self._executor.execute(SetZone(zone, rules, expected=expected))

    async def has_due(self, entrypoints: tuple[str, ...] | None, zones: tuple[str, ...] | None) -> bool:
        return cast(bool, await self._executor.look(lambda state, now_ms: state.has_due(entrypoints, now_ms, zones)))
