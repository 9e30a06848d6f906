"""A service that counts and times its calls, for every wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import TypeVar, Unpack, cast

from casque.errors import CasqueError
from casque.service import ArchivedJob, ArchiveFilter, QueueEvent, QueueService
from casque.service.requests import Dequeue, Request, verb_of
from casque.telemetry.metrics import Metrics
from casque.transport import audit
from casque.transport.border import Admit, Wrapper, principal_of
from casque.transport.errors import name_of

A = TypeVar("A")


def measuring(admit: Admit, metrics: Metrics) -> Admit:
    """The same hook for a server, counting every call that it admits."""

    def admitted(authorization: str | None) -> Wrapper:
        return _Measuring(admit(authorization), metrics)

    return admitted


class _Measuring:
    """Wraps a session's service. Asked for every call, and mostly for the same service as before."""

    def __init__(self, wrapper: Wrapper, metrics: Metrics) -> None:
        self._wrapper = wrapper
        self._metrics = metrics
        self._inner: QueueService | None = None
        self._measured: Measured | None = None
        self.principal_key = principal_of(wrapper)

    def __call__(self, service: QueueService) -> QueueService:
        inner = self._wrapper(service)
        if self._measured is None or inner is not self._inner:
            self._inner, self._measured = inner, Measured(inner, self._metrics)
        return self._measured


class Numbers:
    """Metrics about calls. Create it before the first call, so that the counters show up at zero."""

    def __init__(self, metrics: Metrics) -> None:
        self.calls = metrics.counter(
            "casque_calls_total", "Calls that ended, by outcome: ok, cancelled, or an error.", ("verb", "outcome")
        )
        self.seconds = metrics.histogram(
            "casque_call_duration_seconds", "How long calls took, the waiting of a dequeue included.", ("verb",)
        )
        self.in_flight = metrics.gauge("casque_calls_in_flight", "Calls that are being carried out.", ("verb",))
        self.waiting = metrics.gauge("casque_dequeues_waiting", "Dequeues that may wait for a job.").of()

    def of(self, verb: str) -> OfVerb:
        return OfVerb(verb, self)


class OfVerb:
    """The metrics of one verb, looked up once: thousands of calls a second are counted here."""

    __slots__ = ("_numbers", "_ok", "_verb", "in_flight", "seconds")

    def __init__(self, verb: str, numbers: Numbers) -> None:
        self._verb = verb
        self._numbers = numbers
        self._ok = numbers.calls.of(verb, "ok")
        self.in_flight = numbers.in_flight.of(verb)
        self.seconds = numbers.seconds.of(verb)

    def went_well(self) -> None:
        self._ok.value += 1

    def went_wrong(self, error: BaseException) -> None:
        if isinstance(error, CasqueError):
            outcome = name_of(error)
            if isinstance(error, audit.REFUSALS):
                audit.refused(self._verb, error)
        elif isinstance(error, asyncio.CancelledError | GeneratorExit):
            outcome = "cancelled"  # the caller disconnected
        else:
            outcome = "failure"
        self._numbers.calls.of(self._verb, outcome).add()


class Measured(QueueService):
    """Satisfies `QueueService` by counting every call and passing it on."""

    def __init__(self, service: QueueService, metrics: Metrics) -> None:
        self._service = service
        self._numbers = Numbers(metrics)
        self._verbs: dict[str, OfVerb] = {}
        self._now: Callable[[], float] | None = None

    async def call(self, request: Request[A]) -> A:
        kind = type(request)
        # No coroutine in between: every call passes here.
        with self._counting(verb_of(kind)):
            if kind is Dequeue and cast(Dequeue, request).wait_s > 0:
                with self._waiting():
                    return await self._service.call(request)
            if kind.audited:
                with audit.recorded(request):
                    return await self._service.call(request)
            return await self._service.call(request)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self._numbers.waiting.add(1)
        try:
            yield
        finally:
            self._numbers.waiting.add(-1)

    async def events(self, *, from_position: int | None = None, follow: bool = True) -> AsyncGenerator[QueueEvent]:
        stream = self._service.events(from_position=from_position, follow=follow)
        with self._counting("events"):
            async with aclosing(stream):
                async for event in stream:
                    yield event

    async def archive(self, **asked: Unpack[ArchiveFilter]) -> AsyncGenerator[ArchivedJob]:
        stream = self._service.archive(**asked)
        with self._counting("archive"):
            async with aclosing(stream):
                async for job in stream:
                    yield job

    def _counting(self, verb: str) -> _Counting:
        numbers = self._verbs.get(verb)
        if numbers is None:
            numbers = self._verbs[verb] = self._numbers.of(verb)
        if self._now is None:
            # Once: asking for the running loop is a system call on some versions of Python.
            self._now = asyncio.get_running_loop().time
        return _Counting(numbers, self._now)


class _Counting:
    """Times one call."""

    __slots__ = ("_began", "_now", "_numbers")

    def __init__(self, numbers: OfVerb, now: Callable[[], float]) -> None:
        self._numbers = numbers
        self._now = now

    def __enter__(self) -> None:
        self._numbers.in_flight.value += 1
        self._began = self._now()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        numbers = self._numbers
        numbers.in_flight.value -= 1
        numbers.seconds.observe(self._now() - self._began)
        if error is None:
            numbers.went_well()
        else:
            numbers.went_wrong(error)
