"""The verbs for whoever holds a lease, the same on every queue."""

from __future__ import annotations

from datetime import timedelta

from casque import checks
from casque.client.opening import Surroundings
from casque.clock import Random
from casque.service import QueueService
from casque.settings import QueueSettings, milliseconds
from casque.types import Backoff


class LeaseVerbs:
    """ack, nack and heartbeat: checked here, carried out by the service."""

    _parts: Surroundings

    @property
    def _service(self) -> QueueService:
        raise NotImplementedError

    async def ack(
        self, job_id: str, token: int | None = None, *, result: bytes | None = None, request_id: str | None = None
    ) -> None:
        """The job is done and leaves the queue. With a token only if the lease is still that one.

        `result`, up to 256 KiB, goes to the archive with it.

        Raises:
            JobNotFoundError: it is not in the queue (any more).
            LeaseLostError: a token was given, and it is not the current one.
        """
        await self._service.ack(
            checks.job_id(job_id),
            token=checks.token(token),
            result=checks.result(result),
            request_id=checks.request_id(request_id),
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
        """The job failed: back into the queue, after `delay` or a back-off that doubles with every attempt."""
        await self._service.nack(
            checks.job_id(job_id),
            token=checks.token(token),
            delay_ms=None if delay is None else checks.span_ms("delay", delay),
            backoff=_backoff(self._parts.settings, self._parts.rng),
            error=checks.error_text(error),
            request_id=checks.request_id(request_id),
        )

    async def heartbeat(self, job_id: str, token: int | None = None) -> None:
        """The lease starts again at full length. Raises LeaseLostError if it is no longer held."""
        await self._service.heartbeat(checks.job_id(job_id), token=checks.token(token))


def _backoff(settings: QueueSettings, rng: Random) -> Backoff:
    """The queue's back-off for one failed job, with its share of chance already drawn."""
    return Backoff(milliseconds(settings.backoff_base), milliseconds(settings.backoff_cap), rng.random())
