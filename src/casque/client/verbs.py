"""The verbs of a lease holder, the same on every queue."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import msgspec

from casque import checks
from casque.client.job import Job
from casque.clock import Random
from casque.environment import Environment
from casque.errors import CasqueError, InvalidInputError
from casque.service import FAILURES, Outcome, QueueService, check_outcome, is_silent_ack, requests
from casque.settings import QueueSettings, milliseconds
from casque.types import Backoff


class LeaseVerbs:
    """ack, nack and heartbeat: checked here, carried out by the service."""

    _parts: Environment

    @property
    def _service(self) -> QueueService:
        raise NotImplementedError

    def _token(self, job_id: str, token: int | None) -> int | None:  # noqa: ARG002  the small API knows tokens by job
        """The token to send with a call that may name its job alone."""
        return checks.token(token)

    async def ack(
        self, job_id: str, token: int | None = None, *, result: bytes | None = None, request_id: str | None = None
    ) -> None:
        """Mark the job as done, which removes it from the queue. With a token, only if that lease is still current.

        `result`, up to 256 KiB, goes to the archive with it.

        Raises:
            JobNotFoundError: it is not in the queue (any more).
            LeaseLostError: a token was given, and it is not the current one.
        """
        await self._service.call(
            requests.Ack(
                checks.job_id(job_id),
                token=self._token(job_id, token),
                result=checks.result(result),
                request_id=checks.request_id(request_id),
            )
        )

    async def nack(
        self,
        job_id: str,
        token: int | None = None,
        *,
        delay: float | timedelta | None = None,
        error: BaseException | str | None = None,
        request_id: str | None = None,
    ) -> None:
        """Mark the attempt as failed: the job runs again after `delay`, or after a back-off that doubles with every
        attempt."""
        await self._service.call(
            requests.Nack(
                checks.job_id(job_id),
                token=self._token(job_id, token),
                delay_ms=None if delay is None else checks.span_ms("delay", delay),
                backoff=_backoff(self._parts.settings, self._parts.rng),
                error=checks.error_text(error),
                request_id=checks.request_id(request_id),
            )
        )

    async def settle(
        self, outcomes: Iterable[Job[Any] | Outcome], *, request_id: str | None = None
    ) -> list[CasqueError | None]:
        """Many acks and nacks in one commit. A claimed job means its ack; an `Outcome` without an error is an ack, and
        with one a nack, after its `delay_ms`, or after the queue's back-off. `how` says what else became of the job:
        `OutcomeKind.FINAL`, it is dead at once; `CRASHED`, `SNOOZED`, `CANCELLED` or `DECLINED`.

        Returns one entry per outcome, in order: None if it was carried out, or the error that it would raise alone,
        JobNotFoundError or LeaseLostError. A refused outcome does not affect the others. With a `request_id` the call
        can be repeated if no answer came: it returns the same answers, and nothing is done twice.

        >>> import asyncio
        >>> from casque import Outcome, Queue
        >>> async def main():
        ...     async with Queue.open("memory://settle-example") as q:
        ...         await q.enqueue_many([("send", b"%d" % n) for n in range(3)])
        ...         first, second, third = await q.dequeue("send", batch_size=3)
        ...         failed = Outcome(third.id, third.token, error="no such user")
        ...         print(await q.settle([first, Outcome(second.id, second.token, result=b"sent"), failed]))
        ...         print(type((await q.settle([first]))[0]).__name__)
        >>> asyncio.run(main())
        [None, None, None]
        JobNotFoundError
        """
        checked = [_ack(one) if isinstance(one, Job) else _outcome(one, self._parts) for one in outcomes]
        return await self._service.call(requests.Settle(tuple(checked), request_id=checks.request_id(request_id)))

    async def heartbeat(self, job_id: str, token: int | None = None) -> None:
        """Renew the lease to its full length. Raises LeaseLostError if it is no longer held."""
        await self._service.call(requests.Heartbeat(checks.job_id(job_id), token=self._token(job_id, token)))


def _ack(job: Job[Any]) -> Outcome:
    job.lease_holder()  # raises for a job that was not claimed
    return Outcome(job.record.spec.id, job.record.token)


def _outcome(given: Any, parts: Environment) -> Outcome:
    """Complete and check an outcome: the queue itself does not check types."""
    if type(given) is not Outcome:
        raise InvalidInputError(f"settle takes claimed jobs and outcomes, not {type(given).__name__}")
    job_id = checks.job_id(given.job_id)
    one = given if job_id is given.job_id else msgspec.structs.replace(given, job_id=job_id)
    checks.whole("token", one.token, 0)
    if is_silent_ack(one):
        return one
    check_outcome(one)
    if one.delay_ms is not None:
        checks.whole("delay_ms", one.delay_ms, 0, checks.LONGEST_S * 1000)
    if one.error is None:
        checks.result(one.result)
        return one
    backoff = one.backoff
    if backoff is not None:
        checks.backoff(backoff)
    elif one.delay_ms is None and one.kind in FAILURES:
        backoff = _backoff(parts.settings, parts.rng)
    return msgspec.structs.replace(one, error=checks.error_text(one.error), backoff=backoff)


def _backoff(settings: QueueSettings, rng: Random) -> Backoff:
    """The queue's back-off for one failed job, with its random share drawn already."""
    return Backoff(milliseconds(settings.backoff_base), milliseconds(settings.backoff_cap), rng.random())
