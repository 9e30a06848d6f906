"""`GroupCommitLoop`: concurrent calls share one write. `BrokerQueue` is the same with `async with`."""

from __future__ import annotations

from datetime import timedelta

from casque.client import small
from casque.compat.jqueue.core.verbs import Verbs
from casque.compat.jqueue.domain.errors import translated
from casque.compat.jqueue.ports.storage import ObjectStoragePort

SHORTEST = timedelta(milliseconds=1)


class GroupCommitLoop(Verbs):
    """Calls between `start` and `stop` are batched. `stale_timeout`: how long a claim lasts without a heartbeat."""

    def __init__(self, storage: ObjectStoragePort, stale_timeout: timedelta = timedelta(minutes=5)) -> None:
        self._group = small.BrokerQueue(storage, stale_timeout=max(stale_timeout, SHORTEST))
        super().__init__(self._group, stale_timeout)
        self.storage = storage
        self.stale_timeout = stale_timeout
        self._started = self._stopped = False

    async def start(self) -> None:
        """Raises RuntimeError if it was started before."""
        if self._started:
            raise RuntimeError(f"this {type(self).__name__} was started before; make a new one")
        with translated():
            await self._group.__aenter__()
        self._started = True

    async def stop(self) -> None:
        """Finish the calls under way. Later ones raise JQueueError."""
        if self._started and not self._stopped:
            self._stopped = True
            with translated():
                await self._group.__aexit__(None, None, None)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(storage={self.storage!r}, stale_timeout={self.stale_timeout!r})"
