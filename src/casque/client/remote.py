"""A queue that brokers lead: calls the leader, follows it when it changes, and retries.

Every call that changes something carries a request id, which makes a retry safe: if the first attempt was carried out
after all, the second gets its answer and does nothing. A failover in the middle of a call neither loses nor repeats it;
the caller merely waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Protocol, TypeAlias, TypeVar, Unpack, cast

import msgspec

from casque.client.probing import Prober
from casque.client.trust import UntrustedAddressError
from casque.clock import new_id
from casque.environment import Environment, Patience
from casque.errors import (
    BrokerUnreachableError,
    CasqueError,
    InvalidInputError,
    JobNotFoundError,
    LeadershipLostError,
    LeaseLostError,
    NoLeaderError,
    QueueClosedError,
    QueueLedError,
    UnknownOutcomeError,
    ZoneLeaseLostError,
    ZoneMovedError,
)
from casque.service import ArchivedJob, ArchiveFilter, QueueEvent, QueueService
from casque.service.requests import Dequeue, Request, Scope, is_named
from casque.tasks import Background, joined
from casque.telemetry import logger
from casque.types import JobRecord

log = logger("client")

A = TypeVar("A")
R = TypeVar("R")

ELSEWHERE = (QueueLedError, LeadershipLostError)
NOT_NOW = (NoLeaderError, BrokerUnreachableError, QueueClosedError)
"""Nothing was done: try another broker, or the same one a little later."""
ASKED_AGAIN = (*ELSEWHERE, *NOT_NOW, UnknownOutcomeError)
Errors: TypeAlias = tuple[type[CasqueError], ...]
SETTLED: Errors = (LeaseLostError, ZoneLeaseLostError, ZoneMovedError)
"""Refusals that hold for every attempt, also for one still on its way: tokens are never reused, and a shard never goes
back to an older ring."""
HINTS_AT_ONCE = 2
ASK_S = 60.0
"""Longest wait of one call, because brokers limit it; a longer wait is several calls."""
WAIT_LEFT_S = 0.05
"""A shorter remaining wait is not worth another call."""


class _Persistence(Patience):
    """How long one caller keeps trying."""

    hints = 0
    """Brokers that answered that another one leads."""


class RemoteService(QueueService, Protocol):
    """A service at one address."""

    address: str

    async def close(self) -> None: ...


class Finder(Protocol):
    """Finds the address to try first."""

    async def find(self) -> str:
        """
        Raises:
            NoLeaderError: no broker leads just now.
            StorageError: the bucket did not answer.
        """
        ...

    async def close(self) -> None: ...


class RemoteQueue(QueueService):
    """Satisfies `QueueService` through the current leader."""

    def __init__(
        self,
        finder: Finder,
        connect: Callable[[str], RemoteService],
        env: Environment,
        prober: Prober | None = None,
    ) -> None:
        self._finder = finder
        self._prober = prober
        """Until the first answer: after that the way is known to be right, and a failover must not wait for a look."""
        self._connect = connect
        self._env = env
        self._clock = env.clock
        self._leader: RemoteService | None = None
        self._finding: asyncio.Task[RemoteService] | None = None
        self._behind = Background()
        """Work that continues after its caller left: giving back claims, closing connections."""
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        if self._finding is not None:
            self._finding.cancel()
        await self._behind.ended()
        if self._leader is not None:
            await self._leader.close()
        await self._finder.close()

    @property
    def leader(self) -> str | None:
        """The broker that answered last."""
        return None if self._leader is None else self._leader.address

    # --- Verbs ---

    def call(self, request: Request[A]) -> Awaitable[A]:
        """Every change gets a request id, unless a second attempt is harmless anyway: a batch of a source is added
        once, and setting the same schedule twice changes nothing."""
        kind = type(request)
        if kind is Dequeue:
            return cast("Awaitable[A]", self._dequeue(cast(Dequeue, request)))
        if is_named(kind) and request.request_id is None:  # type: ignore[attr-defined]
            request = msgspec.structs.replace(request, request_id=new_id(self._env.rng))
        if request.done_if_gone:
            return self._ask(_AskedBefore(request).ask)
        return self._ask(lambda broker: broker.call(request), _settled(request))

    async def _dequeue(self, request: Dequeue) -> list[JobRecord]:
        own = request.request_id is None
        first = request.first or own
        asked = request.request_id or new_id(self._env.rng)
        ends_ms = self._clock.monotonic_ms() + request.wait_s * 1000

        def claim(broker: QueueService) -> Awaitable[list[JobRecord]]:
            nonlocal first
            left_s = max((ends_ms - self._clock.monotonic_ms()) / 1000, 0.0)
            never_asked, first = first, False
            return broker.call(
                msgspec.structs.replace(request, first=never_asked, wait_s=min(left_s, ASK_S), request_id=asked)
            )

        try:
            while True:
                jobs = await self._ask(claim)
                # A broker that stops ends waits early: the next leader may have jobs.
                if jobs or ends_ms - self._clock.monotonic_ms() < WAIT_LEFT_S * 1000:
                    return jobs
                await self._clock.sleep(self._env.rng.uniform(0.01, WAIT_LEFT_S))
        except asyncio.CancelledError:
            if own and not self._closed:
                ends_ms = 0
                self._behind.start(self._give_back_claims(claim))
            raise

    async def events(self, *, from_position: int | None = None, follow: bool = True) -> AsyncGenerator[QueueEvent]:
        position = (await self.stats()).position if from_position is None else from_position
        seen = (position, -1)
        patience = self._patience()
        while True:
            broker = await self._found(patience)
            try:
                # Request the commit of the last event again: the stream may have ended in the middle of it.
                stream = broker.events(from_position=seen[0] - 1 if seen[1] >= 0 else position, follow=follow)
                async with aclosing(stream) as events:
                    async for event in events:
                        if (event.position, event.index) > seen:
                            seen = (event.position, event.index)
                            patience = self._patience()
                            yield event
                if not follow:
                    return
            except ASKED_AGAIN as error:
                await self._turn_away(broker, error, patience)

    async def archive(self, **asked: Unpack[ArchiveFilter]) -> AsyncGenerator[ArchivedJob]:
        patience, begun = self._patience(), False
        while True:
            broker = await self._found(patience)
            try:
                stream = broker.archive(**asked)
                async with aclosing(stream) as jobs:
                    async for job in jobs:
                        begun = True
                        yield job
                return
            except ASKED_AGAIN as error:
                if begun:
                    raise  # what was read is correct; the caller knows best where to resume
                await self._turn_away(broker, error, patience)

    # --- Calling until a broker answers ---

    async def _ask(self, call: Callable[[QueueService], Awaitable[R]], settled: Errors = SETTLED) -> R:
        """Call the leader until it answers or patience runs out. `settled`: refusals that are final, whatever earlier
        attempts did.

        Raises:
            NoLeaderError: no leader was found in time; nothing was done.
            BrokerUnreachableError: no broker answered in time; nothing was done.
            UnknownOutcomeError: an attempt may have been carried out, and no broker confirmed it in time.
        """
        leader = self._leader
        if leader is not None and not self._closed:
            try:
                return await call(leader)
            except ASKED_AGAIN as error:
                return await self._ask_on(call, leader, error, settled)
        return await self._ask_on(call, None, None, settled)

    async def _ask_on(
        self,
        call: Callable[[QueueService], Awaitable[R]],
        asked: RemoteService | None,
        error: CasqueError | None,
        settled: Errors,
    ) -> R:
        patience = self._patience()
        doubt = error if isinstance(error, UnknownOutcomeError) else None
        while True:
            try:
                if asked is not None and error is not None:
                    await self._turn_away(asked, error, patience)
                asked = None
                asked = await self._found(patience)
                answer = await call(asked)
                self._prober = None
                return answer
            except ASKED_AGAIN as again:
                if isinstance(again, UnknownOutcomeError):
                    doubt = again
                # A cancelled search fails all its callers: the next one would be cancelled just the same.
                cut_off = asked is None and isinstance(again, QueueClosedError)
                if self._closed or cut_off or patience.is_over:
                    raise _final_error(again, doubt) from again
                error = again
            except settled:
                raise
            except CasqueError as failure:
                # The refusal says that nothing happened now, and nothing about an earlier attempt without an answer:
                # that one may still be on its way, and find another state when it arrives.
                raise _final_error(failure, doubt) from failure

    async def _turn_away(self, broker: RemoteService, error: CasqueError, patience: _Persistence) -> None:
        """This broker does not lead, or does not answer: choose another. Raises the error when patience runs out.

        Raises:
            InvalidInputError: no broker can be reached in this way, however long it is tried.
        """
        # A port with TLS closes the connection of a client without after its request: that looks like a lost answer.
        if isinstance(error, BrokerUnreachableError | UnknownOutcomeError) and self._prober is not None:
            problem = await self._prober.hopeless(broker.address)
            if problem is not None:
                raise InvalidInputError(problem) from error
        address = error.address if isinstance(error, ELSEWHERE) else None
        if self._leader is broker:
            self._leader = None
            self._behind.start(broker.close())
            if address is not None and address != broker.address:
                try:
                    self._leader = self._connect(address)
                except UntrustedAddressError as refusal:
                    log.warning("a broker says that %s leads, which is not asked: %s", address, refusal)
        # Follow the first hint at once. Brokers that point at each other get time to agree.
        patience.hints += 1
        if (self._leader is None or patience.hints > HINTS_AT_ONCE) and not await patience.wait():
            raise _final_error(error, None) from error

    async def _found(self, patience: _Persistence) -> RemoteService:
        if self._closed:
            raise QueueClosedError("the queue was closed; nothing was asked")
        if self._leader is not None:
            return self._leader
        if self._finding is None or self._finding.done():
            # One search for all waiting callers: a thousand of them would otherwise each read the bucket.
            self._finding = asyncio.create_task(self._search(patience), name="casque leader search")
            self._finding.add_done_callback(_retrieve_exception)
        return await joined(self._finding, QueueClosedError("the queue was closed while its leader was looked for"))

    async def _search(self, patience: _Persistence) -> RemoteService:
        while True:
            try:
                address = await patience.insist(self._finder.find)
            except NoLeaderError:
                if not await patience.wait():
                    raise
            else:
                self._leader = self._connect(address)
                return self._leader

    def _patience(self) -> _Persistence:
        return _Persistence(self._env)

    # --- After the caller left ---

    async def _give_back_claims(self, claim: Callable[[QueueService], Awaitable[list[JobRecord]]]) -> None:
        """Give back jobs claimed for a caller that left. The repeated request returns the same jobs."""
        left: list[JobRecord] = []
        try:
            left = await self._ask(claim)
        except CasqueError as error:
            log.info("a claim that its caller left could not be given back; its lease runs out: %s", error)
        for job in left:
            try:
                await self.give_back(job.id, token=job.token)
            except CasqueError as error:
                log.info("job %s could not be given back; its lease runs out: %s", job.id, error)


class _AskedBefore:
    """A request whose second attempt may find that the first one, which got no answer, was carried out."""

    def __init__(self, request: Request[A]) -> None:
        self._request = request
        self._attempts = 0

    async def ask(self, broker: QueueService) -> Any:
        self._attempts += 1
        try:
            return await broker.call(self._request)
        except self._request.done_if_gone:
            if self._attempts == 1:
                raise


def _settled(request: Request[Any]) -> Errors:
    if request.scope is Scope.READ:
        return (CasqueError,)  # reads change nothing
    return (*SETTLED, JobNotFoundError) if getattr(request, "token", None) is not None else SETTLED


def _final_error(error: CasqueError, doubt: UnknownOutcomeError | None) -> CasqueError:
    """The final error for a caller: an earlier attempt that may have been carried out makes the outcome unknown."""
    if isinstance(error, QueueLedError):
        # QueueLedError is for callers that opened the store; a caller of brokers only meets it during a change of
        # leader.
        error = NoLeaderError(f"a broker says that {error.address} does, and that one was not found to lead in time")
    if doubt is None or error is doubt:
        return error
    return UnknownOutcomeError(f"{doubt}; asked again, and: {error}")


def _retrieve_exception(task: asyncio.Task[RemoteService]) -> None:
    """Mark the exception as retrieved: every waiting caller has it, and there may be none."""
    if not task.cancelled():
        task.exception()
