"""A shard whose engine runs in this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from casque.codec.ring import RingHead
from casque.engine.blobs import Blobs
from casque.engine.embedded import EmbeddedService
from casque.engine.history import History
from casque.engine.operation import Executor
from casque.engine.staging import Staging
from casque.errors import InvalidInputError
from casque.service import Known, ShardService
from casque.service.requests import Adopt, AskKnown, HasDue, Request
from casque.settings import QueueSettings
from casque.state import AdoptRing, RingView, State

A = TypeVar("A")


class LocalShard(EmbeddedService, ShardService):
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
        """`root` reads the ring's root: a ring announced by others is checked against it."""
        super().__init__(executor, settings, history, blobs=blobs, staging=staging)
        self._token = token
        self._root = root

    def call(self, request: Request[A]) -> Awaitable[A]:
        name = _METHODS.get(type(request))
        return super().call(request) if name is None else cast("Awaitable[A]", getattr(self, name)(request))

    async def _adopt(self, request: Adopt) -> int:
        generation, size = request.generation, request.size
        if self._root is not None:
            known = cast("RingView | None", await self._executor.look(lambda state, _now_ms: state.ring))
            if known is None or generation > known.generation:
                # A shard never goes back to an older ring: adopting one that does not exist would lock it for ever.
                head = await self._root()
                if generation > head.generation or (generation == head.generation and size != head.size):
                    raise InvalidInputError(
                        f"there is no ring of generation {generation} and size {size}: the root is of generation "
                        f"{head.generation} and size {head.size}"
                    )
                generation, size = head.generation, head.size
        ring = cast(RingView, await self._executor.execute(AdoptRing(generation, size, self._token)))
        return ring.generation

    async def _known(self, request: AskKnown) -> Known:
        job_ids, places, request_id = request.job_ids, request.places, request.of_request

        def look(state: State, _now_ms: int) -> Known:
            held = state.places
            return Known(
                frozenset([job_id for job_id in job_ids if job_id in state.jobs]),
                request_id is not None and request_id in state.requests,
                frozenset([(is_zone, name) for is_zone, name in places if held.holds(name, is_zone=is_zone)]),
                frozenset([name for is_zone, name in places if is_zone and state.is_fifo(name)]),
                None if request.admission is None else state.admitted(*request.admission),
            )

        return cast(Known, await self._executor.look(look))

    async def _has_due(self, request: HasDue) -> bool:
        def look(state: State, now_ms: int) -> bool:
            return state.has_due(request.entrypoints, now_ms, request.zones)

        return cast(bool, await self._executor.look(look))


_METHODS: dict[type[Request[Any]], str] = {Adopt: "_adopt", AskKnown: "_known", HasDue: "_has_due"}
