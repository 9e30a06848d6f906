"""What a server under test stands in front of: an embedded queue that always leads, or never."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar, Unpack, cast

from casque.client.opening import Parts, as_store
from casque.client.queue import DEFAULTS
from casque.clock import Clock, Random
from casque.engine.embedded import EmbeddedService
from casque.errors import CasqueError
from casque.service import ArchivedJob, QueueEvent, QueueService, Role, Standing
from casque.service.requests import Dequeue, Request, verb_of
from casque.settings import SettingsChanges
from casque.types import JobRecord

A = TypeVar("A")


class FixedHost:
    """Satisfies `Host`: leads with this service until a test says otherwise.

    >>> import asyncio
    >>> async def main():
    ...     async with leading("memory://hosting-example") as host:
    ...         print(host.standing().role.value, (await host.service().stats()).totals.enqueued)
    >>> asyncio.run(main())
    leader 0
    """

    def __init__(self, service: QueueService) -> None:
        self.queue = service
        self.refusal: CasqueError | None = None
        """Set to a `QueueLedError` or a `NoLeaderError`: from then on the queue is led elsewhere, or has no leader."""
        self.stands = Standing(Role.LEADER, epoch=1)

    def service(self) -> QueueService:
        if self.refusal is not None:
            raise self.refusal
        return self.queue

    def standing(self) -> Standing:
        return self.stands


class Instead(QueueService):
    """A queue that does some things in another way: those for which a subclass has a method, which is called with the
    fields of the request by name. All others are passed on."""

    def __init__(self, service: QueueService) -> None:
        self._service = service

    async def call(self, request: Request[A]) -> A:
        verb = verb_of(type(request))
        if getattr(type(self), verb) is getattr(QueueService, verb):
            return await self._service.call(request)
        fields = {name: getattr(request, name) for name in request.__struct_fields__}
        return cast(A, await getattr(self, verb)(**fields))

    def events(self, **asked: Any) -> AsyncGenerator[QueueEvent]:
        return self._service.events(**asked)

    def archive(self, **asked: Any) -> AsyncGenerator[ArchivedJob]:
        return self._service.archive(**asked)


class Noticing(Instead):
    """A queue that sets `came` when a caller dequeues, and `left` when a dequeue is cancelled."""

    def __init__(self, service: QueueService) -> None:
        super().__init__(service)
        self.came = asyncio.Event()
        self.left = asyncio.Event()

    async def dequeue(self, **asked: Any) -> list[JobRecord]:
        self.came.set()
        try:
            return await self._service.call(Dequeue(**asked))
        except asyncio.CancelledError:
            self.left.set()
            raise


@asynccontextmanager
async def leading(
    place: Any,
    *,
    layout: str | None = None,
    clock: Clock | None = None,
    rng: Random | None = None,
    **settings: Unpack[SettingsChanges],
) -> AsyncIterator[FixedHost]:
    """A host that leads the queue at `place`: a URL or a store."""
    parts = Parts(as_store(place), DEFAULTS.with_changes(settings), layout=layout, clock=clock, rng=rng)
    group = parts.group()
    await group.start()
    try:
        yield FixedHost(
            EmbeddedService(group, parts.settings, parts.history(), blobs=parts.blobs(), staging=parts.staging())
        )
    finally:
        await group.stop()
        if isinstance(place, str):
            await parts.store.close()
