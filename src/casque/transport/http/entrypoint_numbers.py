"""Metrics by entrypoint: depth, age, waits and run times; and how many workers there are.

Names of entrypoints are not for everyone: on a broker with tokens, a scrape with a token of the scope `read` gets those
that the token reaches, one without gets none. So these metrics have a registry of their own, and the text is made for
each caller. A caller that is limited to zones gets none: the numbers are of all zones.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Sequence
from heapq import nlargest
from typing import Any, TypeVar, Unpack, cast

from casque.clock import Clock
from casque.errors import CasqueError
from casque.service import ArchivedJob, ArchiveFilter, QueueEvent, QueueService
from casque.service.requests import Ack, Dequeue, GiveBack, Nack, Request, Settle
from casque.telemetry.metrics import SPANS, Metrics
from casque.transport.border import Admit, Wrapper, principal_of
from casque.transport.http.led_states import Depth, Depths, LedStates
from casque.transport.scopes import ANYBODY, Principal, Scope
from casque.types import JobRecord

A = TypeVar("A")

NAMES_MAX = 200
"""Entrypoints with series of their own. Each is some forty series, which Prometheus keeps for good."""
OTHERS = "(others)"
HELD_MAX = 50_000
"""Claims that are remembered until they are settled."""
WORKERS_MAX = 10_000
WORKER_MS = 60_000
"""A worker that holds no job counts for this long after it asked for one."""
STATES = ("ready", "delayed", "running", "dead")


class EntrypointNumbers:
    """Numbers by entrypoint, from the states that this broker leads and the calls that it answers."""

    def __init__(self, states: LedStates, clock: Clock) -> None:
        self.states = states
        self._clock = clock
        self._metrics = Metrics()
        self._jobs = self._metrics.gauge(
            "casque_entrypoint_jobs", "Jobs in the queue by entrypoint and state.", ("entrypoint", "state")
        )
        self._oldest = self._metrics.gauge(
            "casque_entrypoint_oldest_due_seconds",
            "How long the job that has waited longest has been due; 0 if none is.",
            ("entrypoint",),
        )
        self._waits = self._metrics.histogram(
            "casque_job_wait_seconds", "From the moment a job was due to its claim.", ("entrypoint",), bounds=SPANS
        )
        self._runs = self._metrics.histogram(
            "casque_job_run_seconds",
            "From the claim of a job to its outcome, whatever that was.",
            ("entrypoint",),
            bounds=SPANS,
        )
        self._claimed: set[str] = set()
        """Entrypoints of claimed jobs, at most `NAMES_MAX`."""
        self._held: dict[tuple[str, int], tuple[str, int]] = {}
        """Entrypoint and time of the claim, by job and token."""
        self._asked: dict[str, int] = {}
        """When each worker last asked for jobs."""

    # --- What calls report ---

    def asked(self, worker: str | None) -> None:
        if worker is None:
            return
        # Moved to the end: the first ones asked longest ago.
        self._asked.pop(worker, None)
        self._asked[worker] = self._clock.monotonic_ms()
        if len(self._asked) > WORKERS_MAX:
            del self._asked[next(iter(self._asked))]

    def claimed(self, jobs: Sequence[JobRecord]) -> None:
        now_ms = self._clock.monotonic_ms()
        for job in jobs:
            key = job.spec.id, job.token
            if key in self._held:
                continue  # the answer to a repeated request
            name = self._label(job.spec.entrypoint)
            if job.claimed_ms is not None:
                # Two leaders' clocks may differ: a wait is never negative.
                self._waits.of(name).observe(max(job.claimed_ms - job.due_ms, 0) / 1000)
            self._held[key] = name, now_ms
        while len(self._held) > HELD_MAX:
            del self._held[next(iter(self._held))]

    def settled(self, job_id: str, token: int | None) -> None:
        if token is not None and (held := self._held.pop((job_id, token), None)) is not None:
            name, began_ms = held
            self._runs.of(name).observe((self._clock.monotonic_ms() - began_ms) / 1000)

    def returned(self, job_id: str, token: int) -> None:
        """The job was not run."""
        self._held.pop((job_id, token), None)

    def _label(self, entrypoint: str) -> str:
        if entrypoint in self._claimed:
            return entrypoint
        if len(self._claimed) >= NAMES_MAX:
            return OTHERS
        self._claimed.add(entrypoint)
        return entrypoint

    # --- What a scrape takes ---

    def workers(self, depths: Depths) -> tuple[int, int]:
        """Workers that hold jobs, and workers that do not but asked for some recently."""
        since_ms = self._clock.monotonic_ms() - WORKER_MS
        for worker, asked_ms in list(self._asked.items()):
            if asked_ms >= since_ms:
                break
            del self._asked[worker]
        return len(depths.workers), len(self._asked.keys() - depths.workers)

    def text(self, depths: Depths | None, principal: Principal) -> str:
        """The numbers that this caller may see. `depths`: None if this broker does not lead."""
        if not principal.may(Scope.READ) or principal.zones is not None:
            return ""
        self._set(depths)
        unlimited = not principal.limited

        def shows(labels: tuple[str, ...]) -> bool:
            return unlimited or (labels[0] != OTHERS and principal.reaches_entrypoint(labels[0]))

        return self._metrics.text(shows)

    def _set(self, depths: Depths | None) -> None:
        self._jobs.forget()
        self._oldest.forget()
        if depths is None:
            return
        now_ms = self._clock.wall_ms()
        for name, depth in self._shown(depths).items():
            for state in STATES:
                self._jobs.of(name, state).value = getattr(depth, state)
            due_ms = depth.oldest_due_ms
            self._oldest.of(name).value = 0 if due_ms is None else max(now_ms - due_ms, 0) / 1000

    def _shown(self, depths: Depths) -> dict[str, Depth]:
        """Entrypoints that workers claim jobs of, also at zero; then those with the most jobs; the others as one."""
        found = depths.by_entrypoint
        shown = {name: found.get(name, Depth()) for name in sorted(self._claimed)}
        unclaimed = found.keys() - shown.keys()
        most = nlargest(NAMES_MAX - len(shown), unclaimed, key=lambda name: (_waiting(found[name]), name))
        shown |= {name: found[name] for name in sorted(most)}
        if others := unclaimed - shown.keys():
            rest = shown[OTHERS] = Depth()
            for name in others:
                rest.add(found[name])
        return shown


def _waiting(depth: Depth) -> int:
    return depth.ready + depth.delayed + depth.running


def watching(admit: Admit, numbers: EntrypointNumbers) -> Admit:
    """The same hook for a server, with the claims and outcomes of every call that it admits in `numbers`."""

    def admitted(authorization: str | None) -> Wrapper:
        return _Watching(admit(authorization), numbers)

    return admitted


class _Watching:
    """Wraps a session's service. Asked for every call, and mostly for the same service as before."""

    def __init__(self, wrapper: Wrapper, numbers: EntrypointNumbers) -> None:
        self._wrapper = wrapper
        self._numbers = numbers
        self._watched: WatchedService | None = None
        self.principal_key = principal_of(wrapper)

    def __call__(self, service: QueueService) -> QueueService:
        inner = self._wrapper(service)
        if self._watched is None or inner is not self._watched.service:
            self._watched = WatchedService(inner, self._numbers)
        return self._watched


class WatchedService(QueueService):
    """Satisfies `QueueService` by passing every call on, and reporting claims and outcomes."""

    def __init__(self, service: QueueService, numbers: EntrypointNumbers) -> None:
        self.service = service
        self._numbers = numbers

    @property
    def principal(self) -> Principal:
        """The caller that the border below was made for."""
        return cast(Principal, getattr(self.service, "principal", ANYBODY))

    def call(self, request: Request[A]) -> Awaitable[A]:
        report = _REPORTS.get(type(request))
        # No coroutine in between for all others.
        return self.service.call(request) if report is None else cast("Awaitable[A]", report(self, request))

    async def _dequeue(self, request: Dequeue) -> list[JobRecord]:
        self._numbers.asked(request.worker)
        claimed = await self.service.call(request)
        if claimed:
            self._numbers.asked(request.worker)  # it may have waited for long
            self._numbers.claimed(claimed)
        return claimed

    async def _end(self, request: Ack | Nack) -> Any:
        answer: Any = await self.service.call(request)
        self._numbers.settled(request.job_id, request.token)
        return answer

    async def _settle(self, request: Settle) -> list[CasqueError | None]:
        answers = await self.service.call(request)
        for outcome, refused in zip(request.outcomes, answers, strict=True):
            if refused is None:
                self._numbers.settled(outcome.job_id, outcome.token)
        return answers

    async def _give_back(self, request: GiveBack) -> None:
        await self.service.call(request)
        self._numbers.returned(request.job_id, request.token)

    def events(self, *, from_position: int | None = None, follow: bool = True) -> AsyncGenerator[QueueEvent]:
        return self.service.events(from_position=from_position, follow=follow)

    def archive(self, **asked: Unpack[ArchiveFilter]) -> AsyncGenerator[ArchivedJob]:
        return self.service.archive(**asked)


_REPORTS: dict[type[Request[Any]], Any] = {
    Dequeue: WatchedService._dequeue,  # noqa: SLF001  its own methods
    Ack: WatchedService._end,  # noqa: SLF001
    Nack: WatchedService._end,  # noqa: SLF001
    Settle: WatchedService._settle,  # noqa: SLF001
    GiveBack: WatchedService._give_back,  # noqa: SLF001
}
