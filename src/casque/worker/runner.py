"""Calls handlers, a limited number at once, and turns whatever they do into an outcome for the queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from casque import checks
from casque.client.job import Job
from casque.clock import Clock, Random
from casque.errors import InvalidPayloadError, NotUnderstoodError
from casque.service import Outcome, OutcomeKind
from casque.telemetry import logger
from casque.telemetry.tracing import Handling
from casque.worker.claims import Claim, Claims
from casque.worker.failures import described
from casque.worker.handlers import Cancel, Handler, Snooze, as_result
from casque.worker.processes import NoProcessError, ProcessDiedError, Processes
from casque.worker.threads import Threads

log = logger("worker")


class OutcomeSink(Protocol):
    """Takes the outcomes of jobs: usually a `Settler`."""

    def add(self, claim: Claim, outcome: Outcome) -> None: ...


LEVELS = {
    "failed": logging.WARNING,
    "crashed": logging.WARNING,
    "declined": logging.WARNING,
    "lost": logging.DEBUG,
}


class Runner:
    """`fill` starts waiting jobs while there is room. Each job is a task of its own, so that it can be cancelled and
    does not inherit another job's context."""

    def __init__(
        self,
        claims: Claims,
        settler: OutcomeSink,
        processes: Processes | None,
        *,
        concurrency: int,
        clock: Clock,
        rng: Random,
        ended: Callable[[], None],
    ) -> None:
        self._claims = claims
        self._settler = settler
        self._processes = processes
        self._concurrency = concurrency
        self._clock = clock
        self._rng = rng
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._threads = Threads()
        self.started = 0

    def fill(self) -> None:
        waiting, running = self._claims.waiting, self._claims.running
        while waiting and len(running) < self._concurrency:
            claim = waiting.popleft()
            if claim.left:
                continue
            claim.started_ms = self._clock.monotonic_ms()
            self.started += 1
            running[claim] = None
            claim.task = self._loop.create_task(self._work(claim))

    def lose(self, claim: Claim) -> None:
        """The lease is lost: the handler should stop, and its outcome is dropped."""
        claim.left = True
        self._claims.drop(claim)
        claim.context.lease_lost.set()
        if claim.task is not None and claim.handler.executor == "async":
            claim.task.cancel()
        elif self._processes is not None:
            self._processes.lose(claim)

    def stop(self, claim: Claim) -> None:
        """The worker stops and has waited long enough: the handler should end, so that the job can go back."""
        claim.stopping = True
        claim.context.lease_lost.set()
        if claim.task is not None and claim.handler.executor == "async":
            claim.task.cancel()
        elif self._processes is not None:
            self._processes.ask_to_end(claim)

    def kill(self, claim: Claim) -> None:
        """Kill a handler that runs in a process. A thread, or a coroutine that ignores its cancellation, cannot be
        killed."""
        if self._processes is not None:
            self._processes.kill(claim)

    async def close(self) -> None:
        self._threads.close()
        if self._processes is not None:
            await self._processes.close()

    async def _work(self, claim: Claim) -> None:
        context = claim.context
        claim.trace = Handling.begin(context.entrypoint, context.job_id, context.attempt, context.headers)
        try:
            match claim.handler.executor:
                case "thread":
                    await self._in_thread(claim)
                case "process":
                    await self._in_process(claim)
                case "async":
                    await self._on_loop(claim)
        finally:
            if claim.trace is not None:
                claim.trace.end(claim.how or "left", claim.why)
            self._claims.running.pop(claim, None)
            self.fill()
            self._ended()

    async def _on_loop(self, claim: Claim) -> None:
        handler = claim.handler
        limit: asyncio.Timeout | None = None
        try:
            returned: Any = handler.call(claim.job.raw_payload, claim.context)
            if handler.is_async:
                if handler.timeout_s is None:
                    returned = await returned
                else:
                    async with asyncio.timeout(handler.timeout_s) as limit:
                        returned = await returned
        except asyncio.CancelledError as error:
            self._failed(claim, error)  # unless its lease was lost, the handler cancelled itself
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  it is the job's outcome, SystemExit as well
            if limit is not None and limit.expired():
                self._timed_out(claim)
            else:
                self._failed(claim, error)
        else:
            self._returned(claim, returned)

    async def _in_thread(self, claim: Claim) -> None:
        """A thread cannot be stopped. After its timeout the job has failed; its place stays taken until the thread
        ends."""
        handler = claim.handler
        call = self._threads.call(lambda: handler.call(claim.job.raw_payload, claim.context))
        try:
            done, _ = await asyncio.wait({call}, timeout=handler.timeout_s)
            if not done:
                claim.context.lease_lost.set()
                self._timed_out(claim)
                await asyncio.wait({call})
                call.exception()  # mark the exception as retrieved
                return
            returned = call.result()
        except asyncio.CancelledError as error:
            if not call.done():
                raise  # the worker is being cancelled
            self._failed(claim, error)
        except BaseException as error:  # noqa: BLE001
            self._failed(claim, error)
        else:
            self._returned(claim, returned)

    async def _in_process(self, claim: Claim) -> None:
        """A process can be killed. If it is gone, it has crashed, and its job with it."""
        assert self._processes is not None
        try:
            ended = await self._processes.call(claim)
        except NoProcessError as error:
            self._failed_with(claim, str(error))
        except ProcessDiedError as error:
            self._crashed(claim, str(error))
        except TimeoutError:
            self._timed_out(claim)
        else:
            if ended.error is not None and ended.declined:
                self._declined(claim, ended.error)
            elif ended.error is not None:
                self._failed_with(claim, ended.error, final=ended.final)
            else:
                self._returned(claim, ended.snooze or ended.cancel or ended.result, encode=as_result)

    def _returned(
        self, claim: Claim, returned: object, *, encode: Callable[[object], bytes | None] | None = None
    ) -> None:
        job = claim.job
        if self._does_not_count(claim):
            return
        if isinstance(returned, Snooze):
            delay_ms = int(returned.seconds * 1000)
            self._finish(claim, "snoozed", Outcome(job.id, job.token, delay_ms=delay_ms, how=OutcomeKind.SNOOZED))
        elif isinstance(returned, Cancel):
            reason = returned.reason or None
            outcome = Outcome(job.id, job.token, reason, how=OutcomeKind.CANCELLED)
            self._finish(claim, "cancelled", outcome, returned.reason)
        else:
            try:
                result = checks.result((encode or claim.handler.encode_result)(returned))
            except Exception as error:  # noqa: BLE001  the function was called, but its result cannot be encoded
                self._failed(claim, error)
                return
            self._finish(claim, "done", Outcome(job.id, job.token, None, result))

    def _timed_out(self, claim: Claim) -> None:
        self._failed(claim, TimeoutError(f"the handler took longer than its {claim.handler.timeout_s:g} s"))

    def _failed(self, claim: Claim, error: BaseException) -> None:
        if isinstance(error, NotUnderstoodError):
            self._declined(claim, str(error))
            return
        final = isinstance(error, InvalidPayloadError)
        self._failed_with(claim, str(error) if final else described(error, caller=__file__), final=final)

    def _does_not_count(self, claim: Claim) -> bool:
        """Whether the handler ended because it was asked to. Its work may then be incomplete even if it returned
        normally: a function that checks `lease_lost` simply returns."""
        if claim.left or claim.stopping:
            self._finish(claim, "lost" if claim.left else "returned", None)
            return True
        return False

    def _failed_with(self, claim: Claim, text: str, *, final: bool = False) -> None:
        if self._does_not_count(claim):
            return
        job = claim.job
        delay_ms = claim.handler.retry.delay_ms(job.attempts, self._rng.random())
        how = OutcomeKind.FINAL if final or _is_last(job, claim.handler) else OutcomeKind.FAILED
        outcome = Outcome(job.id, job.token, text, delay_ms=delay_ms, how=how)
        claim.why = text
        self._finish(claim, "failed", outcome, text.partition("\n")[0])

    def _declined(self, claim: Claim, text: str) -> None:
        """This worker has another version of the function than the program that enqueued the job."""
        if self._does_not_count(claim):
            return
        claim.why = text
        outcome = Outcome(claim.job.id, claim.job.token, text, how=OutcomeKind.DECLINED)
        self._finish(claim, "declined", outcome, text)

    def _crashed(self, claim: Claim, text: str) -> None:
        if self._does_not_count(claim):
            return
        claim.why = text
        self._finish(claim, "crashed", crashed(claim.job, claim.handler, text, self._rng), text)

    def _finish(self, claim: Claim, how: str, outcome: Outcome | None, why: str = "") -> None:
        claim.ended = True
        claim.how = how
        claim.ended_ms = self._clock.monotonic_ms()
        if outcome is not None:
            self._settler.add(claim, outcome)
        level = LEVELS.get(how, logging.INFO)
        if log.isEnabledFor(level):
            job, elapsed_ms = claim.job, claim.ended_ms - claim.started_ms
            log.log(
                level,
                "%s %s %s, attempt %d, %d ms%s",
                how,
                job.entrypoint,
                job.id,
                job.attempts,
                elapsed_ms,
                f": {why}" if why else "",
                extra={
                    "job_id": job.id,
                    "entrypoint": job.entrypoint,
                    "attempt": job.attempts,
                    "elapsed_ms": elapsed_ms,
                    "failure": claim.why,
                },
            )


def crashed(job: Job[Any], handler: Handler, text: str, rng: Random) -> Outcome:
    """The outcome of a job whose process died."""
    counted = job.record.spec.max_crashes is not None  # counted apart from attempts, of which there may be none so far
    tries = job.record.crashes + 1 if counted else job.attempts
    delay_ms = handler.retry.delay_ms(tries, rng.random())
    how = OutcomeKind.FINAL if not counted and _is_last(job, handler) else OutcomeKind.CRASHED
    return Outcome(job.id, job.token, text, delay_ms=delay_ms, how=how)


def _is_last(job: Job[Any], handler: Handler) -> bool:
    """Whether the handler allows no more attempts: the job itself, if another program enqueued it, may allow more."""
    most = handler.retry.max_attempts
    return most is not None and job.attempts >= most
