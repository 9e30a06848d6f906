"""The loop on the driver: claims batches, sends them to executors, settles their outcomes.

Several batches are under way at once, so that executors have work while other batches are claimed and settled.
Everything that talks to the queue happens on one event loop; trips to Spark block their own threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

import msgspec

from casque.client.job import Job
from casque.client.queue import Queue
from casque.clock import Clock, Random, new_nonce
from casque.errors import CasqueError, WorkFailedError
from casque.spark.work.batch import Batch, Group
from casque.spark.work.courier import Courier, Delivery, SparkFailedError, Tracking, TroubleError
from casque.spark.work.keeper import keeping
from casque.spark.work.options import Until, WorkOptions
from casque.spark.work.pace import FIRST, Pace
from casque.spark.work.parcels import pieces
from casque.spark.work.reports import ReportServer
from casque.spark.work.results import ResultsTable
from casque.spark.work.settling import settle
from casque.spark.work.summary import Summary
from casque.telemetry import logger
from casque.types import JobState

log = logger("spark.work")

R = TypeVar("R")

BATCHES_MAX = 3
"""One that is being settled, two that run."""
AT_ONCE = 2
"""Batches on the executors: the next one fills the cores that the last tasks of this one leave idle."""
CLAIM_MAX = 10_000
"""Most jobs per dequeue. Concurrent dequeues still are one commit."""
WAIT_S = 30.0
LOOK_S = 2.0
"""How often a run that waits for other workers' jobs checks whether any are left."""
NARROWER = 8
"""Number of pieces that a batch which killed its process is split into."""
CULPRITS_MAX = 16
"""With more culprits in one batch, the jobs are not to blame."""

FRUITLESS_MAX = 3
"""With more batches in a row of which no job was started, the run ends instead of claiming the same jobs forever."""

UNFINISHED = (JobState.READY, JobState.DELAYED, JobState.RUNNING)


class Foreman:
    def __init__(
        self,
        queue: Queue[bytes],
        courier: Courier,
        options: WorkOptions,
        *,
        worker: str,
        stop: asyncio.Event,
        threads: Executor,
        clock: Clock,
        rng: Random,
        results: ResultsTable | None,
        reports: ReportServer | None,
        report: Callable[[Summary], None],
    ) -> None:
        self._queue = queue
        self._courier = courier
        self._options = options
        self._stop = stop
        self._threads = threads
        self._clock = clock
        self._rng = rng
        self._results = results
        self._reports = reports
        self._report = report
        self._summary = Summary(worker)
        self._began_ms = clock.monotonic_ms()
        self._pace = Pace(options.batch)
        self._batches: set[asyncio.Task[None]] = set()
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._failure: BaseException | None = None
        self._fruitless = 0
        """Batches in a row of which nothing was started."""

    async def run(self) -> Summary:
        """Run until there is nothing more to do, or `stop` is set. Batches under way are finished first.

        Raises:
            WorkFailedError: Spark or the handler cannot be used.
            CasqueError: the queue cannot be used.
        """
        try:
            await self._claim_on()
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            await asyncio.gather(*self._batches, return_exceptions=True)
        if self._failure is not None:
            raise self._failure
        return self._summarised()

    # --- Claiming ---

    async def _claim_on(self) -> None:
        while not self._is_over:
            most = BATCHES_MAX if self._pace.known else 1
            if len(self._batches) >= most:
                await asyncio.wait(self._batches, return_when=asyncio.FIRST_COMPLETED)
                continue
            if jobs := await self._claim(self._room(), wait_s=WAIT_S if self._options.follow else 0.0):
                self._start(jobs)
            elif self._options.follow:
                continue
            elif self._batches:
                # A batch under way may return jobs to the queue.
                await asyncio.wait(self._batches, return_when=asyncio.FIRST_COMPLETED)
            elif self._options.until is Until.DUE or not await self._something_is_left():
                return
            elif jobs := await self._claim(self._room(), wait_s=LOOK_S):
                self._start(jobs)

    @property
    def _is_over(self) -> bool:
        return self._stop.is_set() or self._room() == 0

    def _room(self) -> int:
        """Number of jobs to claim next."""
        limit, size = self._options.limit, self._pace.size
        if not self._summary.jobs:
            # A process that has just opened a queue may compute its first commit several times, until it knows the
            # state of the queue. So the first one is small.
            size = min(size, FIRST)
        return size if limit is None else min(size, limit - self._summary.jobs + self._summary.given_back)

    async def _claim(self, count: int, *, wait_s: float) -> list[Job[bytes]]:
        began_ms = self._clock.monotonic_ms()
        claiming = asyncio.create_task(self._dequeue(count, wait_s))
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({claiming, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            if not claiming.done():
                claiming.cancel()  # if the claim is on its way to the store, the queue gives it back
        try:
            jobs = await claiming
        except asyncio.CancelledError:
            if not claiming.cancelled():
                raise
            return []
        if jobs:
            self._count(jobs=len(jobs), running=len(jobs), claim_s=self._since(began_ms))
        return jobs

    async def _dequeue(self, count: int, wait_s: float) -> list[Job[bytes]]:
        if wait_s:
            first = await self._dequeue_one(min(count, CLAIM_MAX), wait_s)
            if len(first) < CLAIM_MAX:
                return first
            return first + await self._dequeue(count - len(first), 0.0) if count > len(first) else first
        sizes = [CLAIM_MAX] * (count // CLAIM_MAX) + [count % CLAIM_MAX] * (count % CLAIM_MAX > 0)
        answers = await asyncio.gather(*(self._dequeue_one(size) for size in sizes), return_exceptions=True)
        jobs = [job for answer in answers if not isinstance(answer, BaseException) for job in answer]
        for answer in answers:
            if isinstance(answer, BaseException):
                if not jobs or not isinstance(answer, CasqueError):
                    raise answer
                log.warning("a part of a claim failed, continuing with the rest: %s", answer)
        return jobs

    async def _dequeue_one(self, size: int, wait_s: float = 0.0) -> list[Job[bytes]]:
        options = self._options
        lease_s = options.lease_ms / 1000
        return await self._queue.dequeue(options.entrypoints, batch_size=size, wait=wait_s, lease=lease_s)

    async def _something_is_left(self) -> bool:
        """Whether jobs may still become due: delayed ones, and those that other workers have claimed."""
        names: Sequence[str | None] = self._options.entrypoints or (None,)
        for name in names:
            if await self._queue.jobs(states=UNFINISHED, entrypoint=name, limit=1):
                return True
        return False

    # --- One batch ---

    def _start(self, jobs: list[Job[bytes]]) -> None:
        task = asyncio.create_task(self._see_through(jobs), name="casque spark batch")
        self._batches.add(task)
        task.add_done_callback(self._batches.discard)

    async def _see_through(self, jobs: list[Job[bytes]]) -> None:
        batch = Batch(jobs, self._clock)
        leases = keeping(self._queue, batch.unsettled, lease_ms=self._options.lease_ms, clock=self._clock)
        try:
            async with leases:
                settling = asyncio.create_task(self._settle_arrivals(batch), name="casque spark settling")
                try:
                    await self._run_batch(batch, leases)
                finally:
                    batch.close()
                    try:
                        await settling
                    finally:
                        unsettled = batch.drop_arrived()
                        self._count(left=unsettled, running=-unsettled)
        except TroubleError as error:
            self._fail(WorkFailedError(f"the handler could not be called on an executor: {error}"))
        except SparkFailedError as error:
            # A lost executor may still run them, so the jobs are left to their leases.
            left = self._leave(batch.take())
            self._fail(WorkFailedError(str(error), left))
        except BaseException as error:
            self._leave(batch.take())
            self._fail(error)
            raise
        finally:
            self._summarised()

    async def _run_batch(self, batch: Batch, leases: keeping) -> None:
        """Until every job of the batch has an outcome, went back or is left to its lease. Outcomes are settled
        meanwhile."""
        try:
            async with self._at_once:
                if self._stop.is_set():
                    await self._give_back(batch.take())
                    return
                deliveries = await self._carried_out(batch, leases)
        except TroubleError:
            # It happened before the handler was called, or in our code: these jobs are not running.
            await self._give_back(batch.take())
            raise
        if deliveries is None:
            return
        await self._keep_results(deliveries)
        for delivery in deliveries:
            if delivery.files:
                batch.arrive(delivery.done, delivery.outcomes)
        await self._end_overdue(batch, deliveries)

    async def _carried_out(self, batch: Batch, leases: keeping) -> list[Delivery] | None:
        """The outcomes that were not reported on the way; None if Spark was interrupted, and the jobs went back or are
        left to their leases."""
        jobs = batch.jobs
        trip = _Trip(f"casque-{new_nonce(self._rng)}", self._clock.wall_ms() + self._options.timeout_ms)
        began_ms = self._clock.monotonic_ms()

        def overdue() -> None:
            trip.overdue = True
            leases.stop()
            self._threads.submit(self._courier.interrupt, trip.tag)

        # Tasks end at the timeout by themselves. One that does not, because a handler blocks the whole process or
        # because no executor was free, is interrupted later.
        timer = self._clock.call_later((self._options.timeout_ms + self._options.grace_ms) / 1000, overdue)
        stopping = asyncio.create_task(self._end_when_stopped(trip), name="casque spark stop")
        try:
            deliveries = await self._delivered_all(trip, batch)
        except SparkFailedError as error:
            took_s = self._since(began_ms)
            if trip.stopped:
                # Spark has given up on the tasks and kills their processes a moment later.
                await self._clock.sleep(self._options.killed_ms / 1000)
                back = batch.take()
                log.info("giving back %d jobs that did not end within the time to stop", len(back))
                await self._give_back(back)
                return None
            if not trip.overdue:
                raise
            left = self._leave(batch.take())
            log.warning("%d jobs took longer than %.1f s and are left to their leases: %s", left, took_s, error)
            self._count(run_s=took_s)
            self._pace.learn(jobs=len(jobs), payload_bytes=1, seconds=took_s * 10)
            return None
        finally:
            timer.cancel()
            stopping.cancel()
        took_s = self._since(began_ms)
        payload_bytes = sum(len(job.record.spec.payload) for job in jobs) if self._pace.learns else 0
        started = len(jobs) - sum(len(delivery.unstarted) for delivery in deliveries)
        self._pace.learn(jobs=max(started, 1), payload_bytes=payload_bytes, seconds=took_s)
        self._count(batches=1, run_s=took_s)
        return deliveries

    async def _end_overdue(self, batch: Batch, deliveries: list[Delivery]) -> None:
        """The timeout has come: jobs that were not started go back, jobs that run are left to their leases."""
        running = batch.take(job for delivery in deliveries for job in delivery.running)
        unstarted = batch.take(job for delivery in deliveries for job in delivery.unstarted)
        if running or unstarted:
            log.warning(
                "the timeout of %.1f s has come: %d jobs still run and are left to their leases, %d were not started "
                "and go back",
                self._options.timeout_ms / 1000,
                len(running),
                len(unstarted),
            )
        self._leave(running)
        await self._give_back(unstarted)
        self._fruitless = self._fruitless + 1 if len(unstarted) == len(batch.jobs) else 0
        if self._fruitless >= FRUITLESS_MAX:
            self._fail(
                WorkFailedError(
                    f"executors started no job of {FRUITLESS_MAX} batches within the timeout of "
                    f"{self._options.timeout_ms / 1000:g} s: are there free cores, do the clocks of driver and "
                    "executors agree, is the timeout long enough?"
                )
            )

    async def _end_when_stopped(self, trip: _Trip) -> None:
        await self._stop.wait()
        await self._clock.sleep(self._options.drain_ms / 1000)
        if not trip.overdue:
            trip.stopped = True
            await self._in_thread(lambda: self._courier.interrupt(trip.tag))

    async def _delivered_all(self, trip: _Trip, batch: Batch) -> list[Delivery]:
        """The outcomes. Jobs that a task handed over, because they wait behind a slow one, travel again."""
        under_way = {asyncio.create_task(self._delivered(batch.jobs, trip, batch))}
        handing = asyncio.create_task(batch.wait_for_handing_over())
        deliveries: list[Delivery] = []
        try:
            while under_way:
                ended, _ = await asyncio.wait({*under_way, handing}, return_when=asyncio.FIRST_COMPLETED)
                for delivery in [delivery for one in under_way & ended for delivery in one.result()]:
                    deliveries.append(delivery)
                    if not delivery.files:
                        batch.arrive(delivery.done, delivery.outcomes)
                under_way -= ended
                if jobs := batch.take_handed_over():
                    under_way.add(asyncio.create_task(self._delivered(jobs, trip, batch)))
                if handing.done():
                    handing = asyncio.create_task(batch.wait_for_handing_over())
            return deliveries
        except BaseException:
            if under_way:
                await self._in_thread(lambda: self._courier.interrupt(trip.tag))
            raise
        finally:
            handing.cancel()
            await asyncio.gather(*under_way, handing, return_exceptions=True)

    async def _delivered(self, jobs: Sequence[Job[bytes]], trip: _Trip, batch: Batch) -> list[Delivery]:
        """The outcomes. A batch that kills its process is retried in pieces, until the culprit is found.

        The handler is called again for other jobs of the batch, unless their outcomes were reported: it is unknown how
        far it got.
        """
        tracking = Tracking(trip.until_ms, self._reports, batch.arrive, batch.hand_over)
        try:
            return [await self._in_thread(lambda: self._courier.carry(jobs, trip.tag, tracking))]
        except SparkFailedError as error:
            if trip.overdue or trip.stopped:
                raise
            # If a trip without a job fails too, Spark or the machine is to blame, not a job.
            await self._in_thread(lambda: self._courier.probe(trip.tag))
            jobs = [job for job in jobs if batch.is_open(job)]
            if len(jobs) == 1:
                trip.culprits += 1
                if trip.culprits > CULPRITS_MAX:
                    raise
                log.warning("job %s killed the process that ran it: %s", jobs[0].id, error)
                return [self._courier.died(jobs, str(error), self._rng)]
            if trip.culprits >= CULPRITS_MAX:
                raise
            log.warning("Spark gave up on %d jobs, retrying them in pieces: %s", len(jobs), error)
        answered = await asyncio.gather(*(self._delivered(piece, trip, batch) for piece in pieces(jobs, NARROWER)))
        return [delivery for several in answered for delivery in several]

    async def _keep_results(self, deliveries: list[Delivery]) -> None:
        """Runs before the jobs are settled: the result of a done job is in the table, whatever happens next."""
        files = [file for delivery in deliveries for file in delivery.files]
        results = self._results
        if files and results is not None:
            await self._in_thread(lambda: results.add(files))

    async def _settle_arrivals(self, batch: Batch) -> None:
        async for group in batch.groups():
            try:
                await self._settle(group)
            except BaseException as error:
                self._count(left=len(group), running=-len(group))
                # The batch goes on, because handlers cannot be recalled; nothing new is claimed.
                self._fail(error)
                raise

    async def _settle(self, group: Group) -> None:
        began_ms = self._clock.monotonic_ms()
        settled = await settle(self._queue, group.done, group.outcomes, self._rng)
        self._count(**msgspec.structs.asdict(settled), running=-len(group), settle_s=self._since(began_ms))

    def _leave(self, jobs: Sequence[Job[bytes]]) -> int:
        """These jobs come back when their leases expire."""
        self._count(left=len(jobs), running=-len(jobs))
        return len(jobs)

    async def _give_back(self, jobs: Sequence[Job[bytes]]) -> None:
        if not jobs:
            return
        answers = await self._queue.give_back(jobs)
        back = sum(answer is None for answer in answers)
        self._count(given_back=back, lost=len(jobs) - back, running=-len(jobs))

    # --- Figures and failures ---

    def _fail(self, error: BaseException) -> None:
        """`run` raises the first error at the end; nothing more is claimed or started."""
        if self._failure is None:
            self._failure = error
        self._stop.set()

    def _count(self, **more: Any) -> None:
        changed = {name: getattr(self._summary, name) + amount for name, amount in more.items()}
        self._summary = msgspec.structs.replace(self._summary, **changed)

    def _summarised(self) -> Summary:
        self._summary = msgspec.structs.replace(self._summary, seconds=self._since(self._began_ms))
        self._report(self._summary)
        return self._summary

    def _since(self, began_ms: int) -> float:
        return (self._clock.monotonic_ms() - began_ms) / 1000

    def _in_thread(self, work: Callable[[], R]) -> Awaitable[R]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work)


class _Trip:
    """One batch under way."""

    def __init__(self, tag: str, until_ms: int) -> None:
        self.tag = tag
        self.until_ms = until_ms
        """When tasks end by themselves, by the wall clock."""
        self.overdue = False
        """Whether it was interrupted because its tasks did not end at the timeout."""
        self.stopped = False
        """Whether it was interrupted because the run stops."""
        self.culprits = 0
