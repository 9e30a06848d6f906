"""What a server under test stands in front of: an embedded queue that always leads, or never."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Unpack

from casque.client.opening import Parts, as_store
from casque.client.queue import DEFAULTS
from casque.clock import Clock, Random
from casque.engine.embedded import EmbeddedService
from casque.errors import CasqueError
from casque.service import QueueService, Role, Standing
from casque.settings import SettingsChanges
from casque.types import JobRecord


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
        """Set to a `QueueLedError` or a `NoLeaderError`: from then on the queue is led elsewhere, or by nobody."""
        self.stands = Standing(Role.LEADER, epoch=1)

    def service(self) -> QueueService:
        if self.refusal is not None:
            raise self.refusal
        return self.queue

    def standing(self) -> Standing:
        return self.stands


class Noticing:
    """A queue that notices when somebody comes for a job (`came`), and when somebody leaves without one (`left`)."""

    def __init__(self, service: QueueService) -> None:
        self._service = service
        self.came = asyncio.Event()
        self.left = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)

    async def dequeue(self, **asked: Any) -> list[JobRecord]:
        self.came.set()
        try:
            return await self._service.dequeue(**asked)
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
