"""A worker: claims jobs in batches, runs their handlers, keeps their leases and settles them, all at once."""

from __future__ import annotations

import asyncio
import pickle
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from casque import checks
from casque.client.queue import Queue
from casque.clock import Clock, Random, SystemClock, new_nonce, system_random, yield_once
from casque.errors import CasqueError
from casque.service import Lease
from casque.tasks import Background
from casque.telemetry import logger
from casque.worker.claims import Claim, Claims
from casque.worker.consumer import Consumer, ConsumerOptions
from casque.worker.guard import Guard
from casque.worker.handlers import Handler, Handlers
from casque.worker.hooks import Hooks, HookTable
from casque.worker.keeper import Keeper
from casque.worker.options import WorkerOptions, bounded, chosen
from casque.worker.patience import Patience
from casque.worker.processes import Processes, pickled
from casque.worker.runner import Runner
from casque.worker.settler import BACKLOG_MAX, Settler
from casque.worker.summary import Summary

log = logger("worker")

POLL_S = 30.0
"""How long one request for jobs waits for an answer."""
AHEAD_S = 0.2
"""Jobs are claimed ahead, as many as start within this time: claiming and running overlap."""
AHEAD_MAX = 1_000
STALE_MS = 2_000
"""A job that was claimed ahead and has waited this long for its start was claimed too early, and goes back."""
STOP_S = 2.0
"""How long a handler may take to notice that it should stop, after the time of `drain`."""
LEAVE_S = 5.0
"""Time limit for giving jobs back when `run` was cancelled."""
RETURNS_MAX = 4
"""Attempts to give a job back, within about a second."""


class Worker:
    """Runs the jobs of a queue with the functions of an app.

    `run` returns after `stop` was called, or with `burst=True` when nothing is due. Every start has a new name.

    >>> import asyncio
    >>> from casque import Queue
    >>> from casque.worker import Handler, Worker
    >>> class Mail:
    ...     url = "memory://worker-example"
    ...     opening = {}
    ...     handlers = {"send": Handler("send", lambda payload, context: print(payload), is_async=False)}
    >>> async def main():
    ...     async with Queue.open(Mail.url) as queue:
    ...         await queue.enqueue("send", b"hello")
    ...     print((await Worker(Mail(), burst=True).run()).done)
    >>> asyncio.run(main())
    b'hello'
    1
    """

    def __init__(
        self,
        handlers: Handlers,
        *,
        concurrency: int = 16,
        entrypoints: Sequence[str] | None = None,
        zones: str | Sequence[str] | None = None,
        lease: float = 60.0,
        drain: float = 30.0,
        burst: bool = False,
        recycle_after: int | None = None,
        recycle_memory: int | None = None,
        url: str | None = None,
        opening: Mapping[str, Any] | None = None,
        consumer: ConsumerOptions | None = None,
    ) -> None:
        """`url` and `opening` replace those of the app. `zones`: claims only jobs of these zones, instead of serving
        all in turns. `recycle_after` (jobs) and `recycle_memory` (MiB) are for functions that run in processes: a
        process that exceeds one of them is replaced. `consumer`: leases zones one after the other, and ignores jobs
        without a zone; its options replace `concurrency` and `lease`.

        Raises:
            InvalidInputError: there is nothing to run, or something that cannot be run.
        """
        if consumer is not None:
            concurrency, lease = consumer.workers, consumer.job_lease
        self._options = WorkerOptions(
            concurrency=concurrency,
            entrypoints=None if entrypoints is None else tuple(entrypoints),
            zones=checks.zones(zones),
            lease_s=lease,
            drain_s=drain,
            burst=burst,
            recycle_after=recycle_after,
            recycle_memory=recycle_memory,
            consumer=consumer,
        )
        self._app = handlers
        bound_s = None if consumer is None else consumer.processing_bound
        self._handlers = bounded(chosen(handlers.handlers, entrypoints), bound_s)
        self._apart = {name: handler for name, handler in self._handlers.items() if handler.executor == "process"}
        pickled(self._apart)  # refuse handlers without a name now
        found = (url, handlers.opening) if url is not None else located(handlers)
        self._url: Any = found[0]  # may also be a store object
        self._opening = {**found[1], **(opening or {})}
        self.name = f"{socket.gethostname()[:60]}-{new_nonce(system_random())}"
        self.summary = Summary()
        self.unstopped: list[Lease] = []
        """Leases of handlers that still run in this process after `run`: a thread, or a coroutine that ignores its
        cancellation. They must not be given back before this process has ended."""
        self._stopping = asyncio.Event()

    @property
    def entrypoints(self) -> tuple[str, ...]:
        return tuple(self._handlers)

    @property
    def zones(self) -> tuple[str, ...] | None:
        """The zones that it claims from; None for all."""
        return self._options.zones

    @property
    def preparing(self) -> Callable[[Queue[bytes]], Awaitable[None]] | None:
        """The app's own preparation before the first job, if any."""
        return getattr(self._app, "prepare", None)

    @property
    def place(self) -> tuple[Any, dict[str, Any]]:
        """URL of its queue, and the other arguments for `Queue.open`."""
        return self._url, dict(self._opening)

    def stop(self) -> None:
        """Stop claiming, give back jobs that are not started, let running ones finish within `drain`, then stop them
        and give them back. Call this on the loop that `run` runs on."""
        self._stopping.set()

    async def run(self) -> Summary:
        """
        Raises:
            CasqueError: the queue cannot be used, and a retry does not help.
        """
        opened = getattr(self._app, "open_queue", Queue.open)
        async with opened(self._url, worker=self.name, **self._opening) as queue:
            await self._work_on(queue, SystemClock(), system_random())
        return self.summary

    async def _work_on(self, queue: Queue[bytes], clock: Clock, rng: Random) -> None:
        with self._lent(queue):
            shift = _Shift(
                self,
                queue,
                self._handlers,
                self._options,
                self._guard(),
                self._processes(),
                getattr(self._app, "hooks", {}),
                clock=clock,
                rng=rng,
            )
            await shift.run(self._stopping)

    def _lent(self, queue: Queue[bytes]) -> AbstractContextManager[object]:
        """Lets functions enqueue others through this queue, if their app supports that."""
        through = getattr(self._app, "through", None)
        return nullcontext() if through is None else through(queue)

    def _processes(self) -> Processes | None:
        if not self._apart:
            return None
        memory = self._options.recycle_memory
        return Processes(
            self._apart,
            recycle_after=self._options.recycle_after,
            recycle_bytes=None if memory is None else memory * 2**20,
            clock=SystemClock(),
        )

    def _guard(self) -> Guard | None:
        """None for a queue in this process's memory, which no other process can reach."""
        if not isinstance(self._url, str) or self._url.startswith("memory:"):
            return None
        opening = {name: value for name, value in self._opening.items() if name not in ("clock", "rng")}
        try:
            return Guard(self._url, opening, worker=self.name, lease_s=self._options.lease_s)
        except (OSError, TypeError, AttributeError, pickle.PicklingError) as error:
            log.warning("could not start the process that renews leases while this one is busy: %s", error)
            return None


def located(handlers: Handlers) -> tuple[Any, Mapping[str, Any]]:
    """URL of the queue and other arguments for `Queue.open`; an app may have to look them up."""
    look = getattr(handlers, "located", None)
    return (handlers.url, handlers.opening) if look is None else look()


class _Shift:
    """One run of a worker on an open queue: joins the parts and receives their callbacks."""

    def __init__(
        self,
        worker: Worker,
        queue: Queue[bytes],
        handlers: dict[str, Handler],
        options: WorkerOptions,
        guard: Guard | None,
        processes: Processes | None,
        hooks: HookTable,
        *,
        clock: Clock,
        rng: Random,
    ) -> None:
        self._queue = queue
        self._handlers = handlers
        self._names = tuple(handlers)
        self._options = options
        self._guard = guard
        self._processes = processes
        self._summary = worker.summary
        self._unstopped = worker.unstopped
        self._preparing = worker.preparing
        self._clock, self._rng = clock, rng
        self._claims = Claims(None if guard is None else guard.gone)
        self._room = asyncio.Event()
        self._hooks = Hooks(hooks) if hooks else None
        self._settler = Settler(
            queue,
            self._claims,
            self._summary,
            clock=self._clock,
            rng=self._rng,
            settled=self._room.set,
            hooks=self._hooks,
        )
        self._runner = Runner(
            self._claims,
            self._settler,
            processes,
            concurrency=options.concurrency,
            clock=self._clock,
            rng=self._rng,
            ended=self._ended,
        )
        self._keeper = Keeper(
            queue,
            self._claims,
            guard,
            lease_s=options.lease_s,
            clock=self._clock,
            lost=self._lost,
            tick=self._tick,
        )
        self._ahead = 0
        self.reserved = 0
        self._behind = Background()

    async def run(self, stopping: asyncio.Event) -> None:
        settling = asyncio.create_task(self._settler.run(), name="casque settler")
        keeping = asyncio.create_task(self._keeper.run(), name="casque keeper")
        claiming = asyncio.create_task(self._claim(), name="casque claimer")
        asked = asyncio.create_task(stopping.wait())
        parts = {settling, keeping, claiming, asked}
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            claiming.cancel()
            await asyncio.gather(claiming, return_exceptions=True)
            await self._drain(settling)
        except asyncio.CancelledError:
            claiming.cancel()
            # Cancelled instead of stopped: its jobs go back all the same.
            await asyncio.wait({asyncio.ensure_future(self._hand_back(claiming))}, timeout=LEAVE_S)
            raise
        finally:
            for part in parts:
                part.cancel()
            ends = await asyncio.gather(*parts, return_exceptions=True)
            for claim in list(self._claims.running):
                self._runner.lose(claim)  # after a cancellation, its jobs are cancelled too
            await self._runner.close()
            if self._hooks is not None:
                await self._hooks.close()
            if self._guard is not None:
                self._guard.close()
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(end, asyncio.CancelledError):
                raise end

    # --- Claiming ---

    async def _claim(self) -> None:
        await self._prepare()
        if self._processes is not None:
            await self._processes.start()
        if (consumer := self._options.consumer) is not None:
            await Consumer(self, consumer, clock=self._clock, rng=self._rng).run(burst=self._options.burst)
            return
        patience = Patience(self._clock, self._rng)
        asked_ms, started = self._clock.monotonic_ms(), 0
        while True:
            wanted = self._wanted()
            if not wanted:
                self._room.clear()
                await self._room.wait()
                continue
            try:
                jobs = await self._queue.dequeue(
                    self._names,
                    batch_size=wanted,
                    wait=0 if self._options.burst else POLL_S,
                    lease=self._options.lease_s,
                    zone=self._options.zones,
                )
            except CasqueError as error:
                if patience.is_hopeless(error):
                    raise
                log.warning("could not ask for jobs, trying again: %s", error)
                await patience.wait()
                continue
            patience = Patience(self._clock, self._rng)
            if jobs:
                self._take(jobs)
                # Let them start before asking for more; jobs that finish at once are settled in the same commit.
                await yield_once()
                now_ms = self._clock.monotonic_ms()
                rate = (self._runner.started - started) * 1000 / max(now_ms - asked_ms, 1)
                self._ahead = min(AHEAD_MAX, int(rate * AHEAD_S))
                asked_ms, started = now_ms, self._runner.started
            elif self._options.burst:
                if not self._claims.held:
                    return
                self._room.clear()
                await self._room.wait()

    # --- The interface for a consumer of zones, which claims instead ---

    @property
    def queue(self) -> Queue[bytes]:
        return self._queue

    @property
    def names(self) -> tuple[str, ...]:
        return self._names

    @property
    def zones(self) -> tuple[str, ...] | None:
        return self._options.zones

    def room(self) -> int:
        return max(self._wanted() - self.reserved, 0)

    async def wait_for_room(self) -> None:
        self._room.clear()
        await self._room.wait()

    def holds(self, zone: str | None = None) -> bool:
        held = self._claims.held
        return bool(held) if zone is None else any(claim.job.zone == zone for claim in held.values())

    def take(self, jobs: Sequence[Any]) -> None:
        if jobs:
            self._take(list(jobs))

    async def _prepare(self) -> None:
        """Run the app's preparation before the first job, such as registering its schedules."""
        patience = Patience(self._clock, self._rng)
        while self._preparing is not None:
            try:
                await self._preparing(self._queue)
                return
            except CasqueError as error:
                if patience.is_hopeless(error):
                    raise
                log.warning("could not prepare the queue, trying again: %s", error)
                await patience.wait()

    def _wanted(self) -> int:
        """Number of jobs to claim now. While many are under way not one by one: at least half of those claimed
        ahead."""
        if self._settler.backlog >= BACKLOG_MAX or (self._hooks is not None and self._hooks.is_behind):
            return 0
        wanted = self._options.concurrency + self._ahead - self._claims.open
        return wanted if wanted >= max(1, self._ahead // 2) else 0

    def _take(self, jobs: list[Any]) -> None:
        now_ms = self._clock.monotonic_ms()
        taken = [Claim(job, self._handlers[job.entrypoint], now_ms) for job in jobs]
        self._summary.claimed += len(taken)
        if self._guard is not None:
            self._guard.held(taken)
        for claim in taken:
            self._claims.take(claim)
            if self._hooks is not None:
                self._hooks.claimed(claim)
            log.debug("claimed %s %s, attempt %d", claim.job.entrypoint, claim.job.id, claim.job.attempts)
        self._runner.fill()

    # --- Callbacks of the parts ---

    def _ended(self) -> None:
        if not self._room.is_set() and self._wanted():
            self._room.set()

    def _lost(self, claim: Claim) -> None:
        self._summary.lost += 1
        log.warning("lost the lease of job %s", claim.job.id)
        self._runner.lose(claim)

    def _tick(self) -> None:
        self._room.set()
        waiting = self._claims.waiting
        if waiting and self._clock.monotonic_ms() - waiting[0].beaten_ms > STALE_MS:
            self._ahead = 0
            self._behind.start(self._give_back())

    # --- Stopping ---

    async def _drain(self, settling: asyncio.Task[None]) -> None:
        await self._give_back()
        tasks = {claim.task for claim in self._claims.running if claim.task is not None}
        if tasks:
            log.info("waiting up to %g s for %d running jobs", self._options.drain_s, len(tasks))
            await asyncio.wait(tasks, timeout=self._options.drain_s)
        await self._end_running()
        await self._behind.ended(self._options.lease_s)
        idle = asyncio.create_task(self._settler.wait_idle())
        try:
            # Outcomes still count until the leases expire.
            limit_s = self._options.lease_s
            await asyncio.wait({idle, settling}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            idle.cancel()

    async def _hand_back(self, claiming: asyncio.Task[None]) -> None:
        await asyncio.gather(claiming, return_exceptions=True)
        await self._give_back()
        await self._end_running()

    async def _end_running(self) -> None:
        """Stop jobs that did not finish, and give them back: that this worker stops is not the job's fault.

        A lease is given back only when its handler can no longer act. A handler that does not stop keeps its lease."""
        left = [claim for claim in self._claims.running if not claim.ended and not claim.left]
        for claim in left:
            self._runner.stop(claim)
        running = await self._ended_within(left, STOP_S)
        for claim in running:
            self._runner.kill(claim)
        if any(claim.handler.executor == "process" for claim in running):
            # These were killed, or never started because of the request to stop: they can no longer act.
            await self._ended_within(running, STOP_S)
            running = [claim for claim in running if claim.handler.executor != "process"]
        for claim in running:
            self._summary.left += 1
            log.warning("job %s still runs and cannot be stopped; keeping its lease", claim.job.id)
            self._unstopped.append(Lease(claim.job.id, claim.job.token))
            self._runner.lose(claim)
        await self._return([claim for claim in left if not claim.left])

    async def _ended_within(self, claims: list[Claim], seconds: float) -> list[Claim]:
        """Claims whose handlers still run after this time."""
        if tasks := [claim.task for claim in claims if claim.task is not None]:
            await asyncio.wait(tasks, timeout=seconds)
        return [claim for claim in claims if claim.task is not None and not claim.task.done()]

    async def _give_back(self) -> None:
        """Give back jobs that were claimed and not started."""
        waiting = [claim for claim in self._claims.waiting if not claim.left]
        self._claims.waiting.clear()
        await self._return(waiting)

    async def _return(self, claims: list[Claim]) -> None:
        """These are not running: they wait again, and it was not an attempt."""
        if not claims:
            return
        for claim in claims:
            claim.left = True
        refused = await self._given_back(claims)
        self._summary.given_back += len(claims) - len(refused)
        if refused:
            log.warning("%d jobs could not be given back; their leases run out: %s", len(refused), refused[0])
        for claim in claims:
            self._claims.drop(claim)

    async def _given_back(self, claims: list[Claim]) -> list[CasqueError]:
        """Tries a few times: concurrent writers may win any single race. Returns why some jobs did not go back."""
        patience, jobs, tries = Patience(self._clock, self._rng), [claim.job for claim in claims], 0
        while True:
            tries += 1
            try:
                answers = await self._queue.give_back(jobs)
            except CasqueError as error:
                answers = [error] * len(jobs)
            jobs = [job for job, answer in zip(jobs, answers, strict=True) if answer is not None]
            refused = [answer for answer in answers if answer is not None]
            if tries == RETURNS_MAX or all(map(patience.is_hopeless, refused)):
                return refused
            await patience.wait()
