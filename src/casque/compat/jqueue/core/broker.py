"""`BrokerQueue`: group commit as an async context manager."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from casque.compat.jqueue.core.group_commit import GroupCommitLoop


class BrokerQueue(GroupCommitLoop):
    """Used as `async with BrokerQueue(storage) as q:`; the calls under way are finished at the end of the block.

    >>> import asyncio
    >>> from casque.compat.jqueue import BrokerQueue, InMemoryStorage
    >>> async def main():
    ...     async with BrokerQueue(InMemoryStorage()) as q:
    ...         await asyncio.gather(q.enqueue("task", b"1"), q.enqueue("task", b"2", priority=-1))
    ...         return [job.payload for job in (await q.read_state()).queued_jobs()]
    >>> asyncio.run(main())
    [b'2', b'1']
    """

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
