"""`DirectQueue`: one conditional write per call."""

from __future__ import annotations

from datetime import timedelta

from casque.client import small
from casque.compat.jqueue.core.verbs import Verbs
from casque.compat.jqueue.domain.errors import translated
from casque.compat.jqueue.ports.storage import ObjectStoragePort


class DirectQueue(Verbs):
    """No background task and no `async with`. `max_retries`: how often a lost race is repeated.

    >>> import asyncio
    >>> from datetime import timedelta
    >>> from casque.compat.jqueue import DirectQueue, InMemoryStorage
    >>> async def main():
    ...     q = DirectQueue(InMemoryStorage(), max_retries=3)
    ...     await q.enqueue("task", b"data")
    ...     await q.dequeue("task")
    ...     return await q.requeue_stale(timedelta(0))
    >>> asyncio.run(main())
    1
    """

    def __init__(self, storage: ObjectStoragePort, max_retries: int = 10) -> None:
        super().__init__(small.DirectQueue(storage, conflict_retries=max_retries))
        self.storage = storage
        self.max_retries = max_retries

    async def requeue_stale(self, timeout: timedelta) -> int:
        """Queue again what had no heartbeat for `timeout`, by the times in the storage; returns their number.

        With `timedelta(0)` that is everything in progress.
        """
        with translated():
            return await self._take_back(timeout)

    def __repr__(self) -> str:
        return f"DirectQueue(storage={self.storage!r}, max_retries={self.max_retries})"
