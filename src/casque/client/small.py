"""The small API: five verbs, group-committed (`BrokerQueue`) or with one commit each (`DirectQueue`)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Self, Unpack

from casque import checks
from casque.client.forks import Origin
from casque.client.job import Job, QueueState, plain_job
from casque.client.opening import Parts, as_store
from casque.client.verbs import LeaseVerbs
from casque.clock import Clock, Random, new_id
from casque.engine.embedded import EmbeddedService
from casque.engine.group import GroupCommit
from casque.engine.operation import Executor
from casque.errors import CasqueError, QueueClosedError, StorageError
from casque.service import requests
from casque.settings import QueueSettings, SettingsChanges
from casque.types import JobSpec

CLAIMS_MAX = 10_000
"""Claims whose tokens are remembered. Those of older claims are forgotten."""


class SmallQueue(LeaseVerbs):
    """What `BrokerQueue` and `DirectQueue` share: the verbs and the view of the whole queue.

    `ack`, `nack` and `heartbeat` by id alone mean the lease that this queue claimed: they raise LeaseLostError once
    the job was given to another worker. For a job that was claimed elsewhere they mean any lease.
    """

    _parts: Parts

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._blobs = parts.blobs(tolerant=True)
        self._claimed: dict[str, int] = {}
        """The token of the last claim of each job, oldest claim first. Those of settled jobs stay: the same call may be
        repeated, and a second call must not settle the lease of the next worker."""

    def _service_of(self, executor: Executor) -> EmbeddedService:
        return EmbeddedService(executor, self._parts.settings, blobs=self._blobs)

    @property
    def _service(self) -> EmbeddedService:
        raise NotImplementedError

    async def enqueue(
        self, entrypoint: str, payload: bytes, priority: int = 0, *, request_id: str | None = None
    ) -> Job[bytes]:
        spec = JobSpec(
            new_id(self._parts.rng),
            checks.entrypoint(entrypoint),
            checks.payload(payload),
            checks.priority(priority),
            max_attempts=self._parts.settings.max_attempts,
        )
        [record] = await self._service.call(requests.Enqueue((spec,), checks.request_id(request_id)))
        return plain_job(record)

    async def dequeue(
        self, entrypoint: str | None = None, *, batch_size: int = 1, request_id: str | None = None
    ) -> list[Job[bytes]]:
        """Claim jobs; an empty list if there are none."""
        records = await self._service.call(
            requests.Dequeue(
                entrypoints=checks.entrypoints(entrypoint),
                limit=checks.batch_size(batch_size),
                request_id=checks.request_id(request_id),
            )
        )
        for record in records:
            self._claimed.pop(record.id, None)
            self._claimed[record.id] = record.token
        while len(self._claimed) > CLAIMS_MAX:
            del self._claimed[next(iter(self._claimed))]
        return [plain_job(record, self) for record in records]

    def _token(self, job_id: str, token: int | None) -> int | None:
        return self._claimed.get(job_id) if token is None else checks.token(token)

    async def read_state(self) -> QueueState:
        """Everything in the queue as of now, read in full from the store, independently of calls in flight."""
        state = await self._parts.read()
        records = list(state.listed())
        if self._blobs is not None and any(record.spec.blob is not None for record in records):
            fetched = await self._blobs.fetch(records)
            for found in fetched:
                if isinstance(found, StorageError):
                    raise found
            pairs = zip(records, fetched, strict=True)
            records = [old if isinstance(new, CasqueError) else new for old, new in pairs]
        return QueueState(tuple([plain_job(record) for record in records]), state.position)

    async def requeue_stale(self, timeout: timedelta) -> int:
        """Take back jobs whose last written claim or heartbeat is older than `timeout`; returns their number.

        This compares the writer's clock with this machine's; leases that run out are judged by the monotonic clock
        alone.
        """
        cutoff_ms = self._parts.clock.wall_ms() - checks.span_ms("timeout", timeout)
        return await self._service.expire_before(cutoff_ms)


class BrokerQueue(SmallQueue):
    """Many concurrent calls, few writes: everything that arrives during a write forms the next one.

    `storage` is any object with async `read()` and `write(content, if_match)`, which then holds a document; or a store
    or a URL, where a new queue is a log unless `layout` says `document`.

    >>> import asyncio
    >>> from casque import BrokerQueue, InMemoryStorage
    >>> async def main():
    ...     async with BrokerQueue(InMemoryStorage()) as q:
    ...         await asyncio.gather(*(q.enqueue("task", b"%d" % n) for n in range(3)))
    ...         for job in await q.dequeue("task", batch_size=3):
    ...             await q.ack(job.id)
    ...         return len((await q.read_state()).jobs)
    >>> asyncio.run(main())
    0
    """

    def __init__(
        self,
        storage: Any,
        *,
        layout: str | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
        **settings: Unpack[SettingsChanges],
    ) -> None:
        chosen = QueueSettings().with_changes(settings)
        self._owns_store = isinstance(storage, str)
        super().__init__(Parts(as_store(storage), chosen, layout=layout, clock=clock, rng=rng))
        self._group: GroupCommit | None = None
        self._embedded: EmbeddedService | None = None
        self._origin = Origin()

    @property
    def _service(self) -> EmbeddedService:
        if self._embedded is None:
            raise QueueClosedError("BrokerQueue must be used as `async with BrokerQueue(...) as q:`")
        self._origin.check()
        return self._embedded

    async def __aenter__(self) -> Self:
        if self._group is not None:
            raise QueueClosedError("this queue was opened before; make a new BrokerQueue")
        self._origin = Origin()
        group = self._parts.group()
        await group.start()
        self._group, self._embedded = group, self._service_of(group)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._origin.is_elsewhere():
            return  # what is under way is the parent's
        assert self._group is not None
        await self._group.stop()
        if self._owns_store:
            await self._parts.store.close()


class DirectQueue(SmallQueue):
    """One commit per call; no background task, no `async with`. `storage` and `layout` are as for `BrokerQueue`.

    >>> import asyncio
    >>> from casque import DirectQueue, InMemoryStorage
    >>> async def main():
    ...     q = DirectQueue(InMemoryStorage())
    ...     await q.enqueue("task", b"data")
    ...     [job] = await q.dequeue("task")
    ...     await q.ack(job.id)
    ...     return await q.dequeue("task")
    >>> asyncio.run(main())
    []
    """

    def __init__(
        self,
        storage: Any,
        *,
        layout: str | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
        **settings: Unpack[SettingsChanges],
    ) -> None:
        simple = QueueSettings(conflict_retries=10, conflict_backoff=timedelta(milliseconds=10))
        super().__init__(Parts(as_store(storage), simple.with_changes(settings), layout=layout, clock=clock, rng=rng))
        self._owns_store = isinstance(storage, str)
        self._direct = self._parts.direct()
        self._embedded = self._service_of(self._direct)

    @property
    def _service(self) -> EmbeddedService:
        return self._embedded

    async def close(self) -> None:
        """Archive finished jobs, and close the store if it was opened by URL. Nothing else is held."""
        await self._direct.close()
        if self._owns_store:
            await self._parts.store.close()
