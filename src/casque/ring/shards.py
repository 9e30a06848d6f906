"""The shards of a ring as one process knows them: opened on first use, and informed of
the ring before they get jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from casque.clock import Clock
from casque.codec.head import KEY
from casque.codec.ring import RingHead, shard_prefix
from casque.engine.operation import Executor
from casque.errors import CasqueError, CorruptQueueError, QueueClosedError, UnknownOutcomeError
from casque.ring.forgetting import Forgetting
from casque.ring.numbers import inner
from casque.ring.root import Root
from casque.service import Known, ShardService
from casque.service.requests import Adopt, AskKnown, GiveBack
from casque.state import RingView, State
from casque.tasks import joined
from casque.telemetry import logger
from casque.types import JobRecord

R = TypeVar("R")

log = logger("ring")

ANSWER_S = 3.0
"""How long calls that can do without one shard wait for it. Well below every sensible lease."""
CLOSED = "the queue is not open; use it inside `async with`"
LOOK_MS = 1_000
"""How often a dequeue checks whether the ring has changed: new shards have jobs as well."""


class Running(Executor, Protocol):
    """A shard's engine."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class Shard:
    """One shard, led by any process."""

    def __init__(self, token: int, service: ShardService) -> None:
        self.token = token
        self.service = service
        self.generation = 0
        """The newest generation of the ring that it is known to have adopted."""

    async def start(self) -> None:
        """Nothing to start: its leader has opened it."""

    async def stop(self) -> None:
        """Nothing to stop: its leader goes on."""

    can_be_missed = False
    """True if it may have no leader for a while, so that calls that can do without it do."""

    @property
    def away(self) -> bool:
        """True if it cannot be called just now, because its leader is gone and the next one is not there yet."""
        return False

    def is_away(self, error: BaseException) -> bool:  # noqa: ARG002
        """True if the error means that."""
        return False

    async def at_once(self, call: Callable[[ShardService], Awaitable[R]]) -> R:
        """Call it without waiting for a leader. Raises an error that `is_away` recognises if there is none."""
        return await call(self.service)

    async def answered(self, request_id: str) -> bool:
        """True if it remembers this request."""
        return (await self.service.call(AskKnown(of_request=request_id))).request

    async def adopt(self, head: RingHead) -> int:
        """Announce a ring to it; returns the generation that it knows then."""
        self.generation = await self.service.call(Adopt(head.generation, head.size))
        return self.generation


class OwnShard(Shard):
    """One shard, open in this process."""

    def __init__(self, token: int, engine: Running, service: ShardService) -> None:
        super().__init__(token, service)
        self.engine = engine

    async def start(self) -> None:
        await self.engine.start()
        try:
            self.generation = checked(self.token, await self.look(lambda state, _now_ms: state.ring)).generation
        except BaseException:
            await self.engine.stop()
            raise

    async def stop(self) -> None:
        await self.engine.stop()

    async def look(self, look: Callable[[State, int], R]) -> R:
        answer: R = await self.engine.look(look)
        return answer


def checked(token: int, ring: RingView | None) -> RingView:
    """
    Raises:
        CorruptQueueError: what lies there is not this shard.
    """
    if ring is None or ring.token != token:
        what = "is missing or no shard of a ring" if ring is None else f"is that of shard {ring.token}"
        raise CorruptQueueError(
            f"{shard_prefix(token)}/{KEY}", f"{what}: it was deleted or moved. Restore it from a backup"
        )
    return ring


Opener = Callable[[int], Shard]
"""Creates the shard of a token, to be started."""


class Shards:
    """All shards, and the ring as last seen."""

    def __init__(self, root: Root, opener: Opener, *, clock: Clock) -> None:
        self._root = root
        self._opener = opener
        self._clock = clock
        self._forgetting = Forgetting(root, clock=clock)
        self._head: RingHead | None = None
        self._looked_ms = 0
        self._opening: dict[int, asyncio.Task[Shard]] = {}
        self._closed = False
        self._looking: asyncio.Task[None] | None = None
        self.changed = asyncio.Event()
        """Set, and replaced by a new one, when the ring has changed."""

    @property
    def head(self) -> RingHead:
        assert self._head is not None, "start() comes first"
        return self._head

    async def start(self) -> None:
        await self.refresh()

    async def stop(self) -> None:
        """Answer all pending calls; then close the shards, all at once."""
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
            await together([self._looking])
        opening = list(self._opening.values())
        opened = await asyncio.gather(*opening, return_exceptions=True)
        await asyncio.gather(*(shard.stop() for shard in opened if isinstance(shard, Shard)))

    # --- The ring ---

    async def refresh(self) -> RingHead:
        """Read the root, and forget older sizes if this process has seen for long enough that nothing needs them."""
        head = await self._root.read()
        if self._forgetting.is_time(head):
            try:
                head = await self._forgetting.forget(head)
            except CasqueError as error:
                log.warning("older sizes of the ring could not be forgotten, trying again: %s", error)
        self._looked_ms = self._clock.monotonic_ms()
        old = self._head
        if old is None or head.version > old.version:
            self._head = head
            if old is not None and head.generation > old.generation:
                changed, self.changed = self.changed, asyncio.Event()
                changed.set()
        return self.head

    def recent(self) -> RingHead:
        """The ring as last seen. It is read again now and then in the background: a call based on an old ring is either
        refused or right."""
        if self._clock.monotonic_ms() - self._looked_ms >= LOOK_MS and self._looking is None and not self._closed:
            self._looking = asyncio.create_task(self._look(), name="casque ring")
        return self.head

    async def _look(self) -> None:
        try:
            await self.refresh()
        except CasqueError as error:
            self._looked_ms = self._clock.monotonic_ms()
            log.warning("could not look whether the ring has changed: %s", error)
        finally:
            self._looking = None

    # --- The shards ---

    async def shard(self, token: int) -> Shard:
        """
        Raises:
            CorruptQueueError: it is not there.
            QueueLedError: a broker leads it.
        """
        if self._closed:
            raise QueueClosedError(CLOSED)
        opening = self._opening.get(token)
        if opening is None or (opening.done() and _failed(opening)):
            opening = self._opening[token] = asyncio.create_task(self._open(token), name=f"casque shard {token}")
        # Other callers may wait for it as well: a cancelled one must not cancel the opening.
        return opening.result() if opening.done() else await joined(opening, QueueClosedError(CLOSED))

    async def several(self, tokens: Iterable[int]) -> list[Shard]:
        return await asyncio.gather(*(self.shard(token) for token in tokens))

    async def walked(self) -> list[Shard]:
        """The shards that may have waiting jobs."""
        return await self.several(range(self.recent().walked))

    async def every(self) -> list[Shard]:
        """Including those that are no longer part of the ring: their history counts."""
        return await self.several(range(self.recent().shards))

    async def adopted(self, token: int, head: RingHead) -> Shard | None:
        """A shard that knows this ring; None if it knows a newer one, which is then read."""
        shard = await self.shard(token)
        if shard.generation < head.generation:
            await shard.adopt(head)
        if shard.generation > head.generation:
            await self.refresh()
            return None
        return shard

    async def known(
        self, shards: Sequence[Shard], job_ids: Sequence[str], request_id: str | None = None
    ) -> list[Known]:
        """Ask all of them at once."""
        return await asyncio.gather(*(one.service.call(AskKnown(tuple(job_ids), request_id)) for one in shards))

    async def give_back(self, jobs: Iterable[JobRecord]) -> None:
        """Give back claims that will not be processed. One that cannot be given back
        returns when its lease runs out."""
        for job in jobs:
            token, number = inner(job.token)
            with suppress(CasqueError):
                await (await self.shard(number)).service.call(GiveBack(job.id, token))

    async def _open(self, token: int) -> Shard:
        shard = self._opener(token)
        await shard.start()
        return shard


def _failed(opening: asyncio.Task[Shard]) -> bool:
    return opening.cancelled() or opening.exception() is not None


async def together(calls: Iterable[Awaitable[R]]) -> list[R | BaseException]:
    """Run all of them to their end, whatever happens to some. A cancelled one may have been carried out."""
    answers = await asyncio.gather(*calls, return_exceptions=True)
    return [cut_off() if isinstance(answer, asyncio.CancelledError) else answer for answer in answers]


def cut_off() -> UnknownOutcomeError:
    return UnknownOutcomeError("a call to a shard was cancelled while it was under way; it may have been carried out")


async def in_time(
    calls: Iterable[Awaitable[R]], *, clock: Clock, seconds: float | None = ANSWER_S
) -> list[asyncio.Future[R]]:
    """Call several shards, and wait until all have answered or the time is up: one that hangs must not delay the
    answers of the others. The caller cancels those that are not done, or leaves them alone."""
    asked: list[asyncio.Future[R]] = [asyncio.ensure_future(call) for call in calls]
    if not asked:
        return []
    everything = asyncio.gather(*asked, return_exceptions=True)
    if seconds is None:
        await everything
        return asked
    limit = asyncio.ensure_future(clock.sleep(seconds))
    try:
        both: tuple[asyncio.Future[Any], ...] = (everything, limit)
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        everything.add_done_callback(_passed_over)
        everything.cancel()
        raise
    finally:
        limit.cancel()
    return asked


def _passed_over(ended: asyncio.Future[Any]) -> None:
    """Mark the exception as retrieved: asyncio would log the traceback of a failure that is not looked at."""
    if not ended.cancelled():
        ended.exception()


def worst(failures: Sequence[BaseException]) -> BaseException:
    """The error for a call of which nothing is known to have been done: if one part is in doubt, all of it is."""
    return next((one for one in failures if isinstance(one, UnknownOutcomeError)), failures[0])
