"""What trials broke and is mended, each put back into the real code for the length of a test."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from casque.broker.broker import Broker
from casque.client import remote
from casque.client.small import SmallQueue
from casque.clock import Clock
from casque.engine import embedded
from casque.engine.embedded import EmbeddedService
from casque.engine.group import GroupCommit
from casque.engine.operation import Operation
from casque.errors import CasqueError, CorruptQueueError, InvalidInputError, JobNotFoundError, LeaseLostError
from casque.journal.archive import ArchiveRetention
from casque.journal.log.journal import LogJournal
from casque.journal.port import Batch, Refreshed
from casque.ring.admissions import Found
from casque.ring.admitter import Admitter
from casque.ring.broker import RingBroker
from casque.ring.members import _Seen
from casque.ring.shards import in_time
from casque.service import ShardService
from casque.service.requests import Ack, Nack, Purge
from casque.state import State
from casque.types import JobRecord
from casque.worker.claims import Claim
from casque.worker.runner import Runner
from casque.worker.worker import _Shift

# --- Leaders that answer from memory ---


def heartbeats_that_were_refused_renew_the_trust_of_a_leader(patch: pytest.MonkeyPatch) -> None:
    """It looks at the head, writes its sign of life, and does not ask whether that was written."""

    async def beat(self: LogJournal, state: State, batch: Batch) -> Refreshed:
        began_ms = self._clock.monotonic_ms()
        head = await self._head.read()
        self._heed(head)
        self._seen_ms = began_ms
        await self._head.replace(head.next(batch.writer))
        return Refreshed(state)

    patch.setattr(LogJournal, "beat", beat)


def successors_do_not_wait_for_memories_to_fade(patch: pytest.MonkeyPatch) -> None:
    """The one that led committed while its successor claimed the head, and answers from memory for half a lease."""

    async def at_once(self: Broker) -> None:
        """It leads."""

    patch.setattr(Broker, "_let_memories_fade", at_once)


# --- Brokers of a ring ---


def late_looks_restart_the_silence_of_all(patch: pytest.MonkeyPatch) -> None:
    """A look that comes after half a lease is taken for a fresh start: with such heartbeats, that is every look."""

    def stay_silent(self: _Seen, now_ms: int, *, late_ms: int, late_counts_ms: int) -> None:
        passed_ms = now_ms - self._counted_ms
        self.silent_ms = self.silent_ms + passed_ms if passed_ms < 2 * late_counts_ms else 0
        self._counted_ms = now_ms

    patch.setattr(_Seen, "stay_silent", stay_silent)


def shards_that_a_broker_has_not_heard_of_refused_for_good(patch: pytest.MonkeyPatch) -> None:
    shard = RingBroker.shard

    def strict(self: RingBroker, token: int) -> ShardService:
        if token not in self._seats and token >= self._shards:
            raise InvalidInputError(f"there is no shard {token} that this broker knows of; it knows {self._shards}")
        return shard(self, token)

    patch.setattr(RingBroker, "shard", strict)


# --- Admissions to a ring ---


def batches_refused_while_somebody_admits_them(patch: pytest.MonkeyPatch) -> None:
    """What an attempt finds wrong is what is wrong with the batch, whoever else is at work on it."""

    async def refuse(self: Admitter, source: str, batch: int, found: Found | None, error: CasqueError) -> bool:
        return True

    patch.setattr(Admitter, "_refuse", refuse)


# --- After a commit ---


def payloads_that_cannot_be_read_fail_what_was_committed(patch: pytest.MonkeyPatch) -> None:
    """The holder of a unique key is large, its payload is read after the commit, and the store does not answer."""
    patch.setattr(EmbeddedService, "_filled_if_possible", EmbeddedService._filled)


def claims_whose_payloads_cannot_be_read_called_failed(patch: pytest.MonkeyPatch) -> None:
    with_payloads = EmbeddedService._with_payloads

    async def raising(self: EmbeddedService, blobs: Any, claimed: list[JobRecord], request_id: str | None) -> Any:
        for found in await blobs.fetch(claimed):
            if isinstance(found, CasqueError):
                raise found
        return await with_payloads(self, blobs, claimed, request_id)

    patch.setattr(EmbeddedService, "_with_payloads", raising)


def claims_beside_a_missing_payload_left_to_their_leases(patch: pytest.MonkeyPatch) -> None:
    """The job whose payload is gone cannot be failed, and the other claims of its batch are forgotten."""
    with_payloads = EmbeddedService._with_payloads

    async def forgetful(self: EmbeddedService, blobs: Any, claimed: list[JobRecord], request_id: str | None) -> Any:
        try:
            fetched = await blobs.fetch(claimed)
        except BaseException:
            if request_id is None:
                self._return_soon(claimed)
            raise
        there: list[JobRecord] = []
        for job, found in zip(claimed, fetched, strict=True):
            if not isinstance(found, CorruptQueueError):
                there.append(job)
                continue
            with suppress(LeaseLostError, JobNotFoundError):
                await self._executor.execute(Nack(job.id, job.token, backoff=self._backoff, error=str(found)))
        return await with_payloads(self, blobs, there, request_id)

    patch.setattr(EmbeddedService, "_with_payloads", forgetful)


def unread_claims_of_a_repeated_request_given_back(patch: pytest.MonkeyPatch) -> None:
    """An earlier answer to the request named them, and somebody works on them."""
    with_payloads = EmbeddedService._with_payloads

    async def generous(self: EmbeddedService, blobs: Any, claimed: list[JobRecord], request_id: str | None) -> Any:
        whole = await with_payloads(self, blobs, claimed, request_id)
        there = {job.id for job in whole}
        if request_id is not None:
            self._return_soon([job for job in claimed if job.id not in there])
        return whole

    patch.setattr(EmbeddedService, "_with_payloads", generous)


def unread_claims_given_back_by_a_task_of_their_own(patch: pytest.MonkeyPatch) -> None:
    """A queue that is closed at once does not know of it, and they wait for their leases to run out."""

    def return_soon(self: EmbeddedService, claimed: list[JobRecord]) -> None:
        self._returning.start(self._return(claimed))

    patch.setattr(EmbeddedService, "_return_soon", return_soon)


def purges_whose_payloads_cannot_be_looked_for_called_failed(patch: pytest.MonkeyPatch) -> None:
    """Which payloads are still needed is looked up after the commit, and the store does not answer."""

    async def purge(self: EmbeddedService, command: Purge) -> int:
        blobs = await self._blobs_of_dead(command)
        purged: int = await self._executor.execute(command)
        if blobs and self._blobs is not None:
            await self._blobs.drop(sorted(blobs - await self._executor.look(embedded._blobs_in)))
        return purged

    patch.setattr(EmbeddedService, "_purge", purge)


# --- Clocks that are far ahead ---


def archives_kept_by_whatever_the_clock_says(patch: pytest.MonkeyPatch) -> None:
    """A clock that is set forward makes every hour of the archive an old one, also those of this very process."""
    patch.setattr(ArchiveRetention, "_now_ms", lambda self: self._clock.wall_ms())
    clocks_of_keepers_believed_from_their_start(patch)


def clocks_of_keepers_believed_from_their_start(patch: pytest.MonkeyPatch) -> None:
    """Nothing in the archive bears out what the clock said when the process began."""

    async def is_borne_out(self: ArchiveRetention) -> bool:
        return True

    patch.setattr(ArchiveRetention, "_is_borne_out", is_borne_out)


# --- Siblings ---


def workers_sent_away_by_brokers_that_disagree(patch: pytest.MonkeyPatch) -> None:
    """A caller of brokers gets the error that is for those who opened the store, and its worker ends for good."""
    patch.setattr(remote, "_final_error", lambda error, doubt: error if doubt is None else doubt)


def callers_cancelled_with_the_search_for_a_leader(patch: pytest.MonkeyPatch) -> None:
    """A queue that is closed ends its search, and those who wait for that are told to end."""

    async def shared(task: asyncio.Task[Any], _ended: Exception) -> Any:
        return await asyncio.shield(task)

    patch.setattr(remote, "joined", shared)


# --- Workers ---


def jobs_that_outlive_the_drain_left_to_their_leases(patch: pytest.MonkeyPatch) -> None:
    """A worker that is stopped leaves them as they are, which looks like a crash."""

    async def end_running(self: Any) -> None:
        for claim in [one for one in self._claims.running if not one.ended and not one.left]:
            self._runner.lose(claim)

    patch.setattr(_Shift, "_end_running", end_running)


def jobs_that_outlive_the_drain_called_failed(patch: pytest.MonkeyPatch) -> None:
    """Their handlers are cancelled, and that is told as an attempt that came to nothing."""
    stop = Runner.stop

    def blunt(self: Runner, claim: Claim) -> None:
        stop(self, claim)
        claim.stopping = False

    patch.setattr(Runner, "stop", blunt)


def heartbeats_wait_for_all_shards(patch: pytest.MonkeyPatch) -> None:
    """One that cannot be reached keeps the answers of the others, and nothing is beaten for meanwhile."""

    async def patient(calls: Any, *, clock: Clock, seconds: float | None = None) -> Any:
        return await in_time(calls, clock=clock, seconds=None)

    patch.setattr("casque.ring.service.in_time", patient)


# --- The small API ---


def small_queues_forget_the_tokens_of_their_claims(patch: pytest.MonkeyPatch) -> None:
    """Calls by id alone mean any lease, that of the next worker too."""
    patch.setattr(SmallQueue, "_token", lambda _self, _job_id, token: token)


# --- The window between two commits ---


def calls_in_the_window_lost_to_reads(patch: pytest.MonkeyPatch) -> None:
    """Reads do not wait, and the calls before them are dropped."""

    def take(self: GroupCommit) -> list[Operation]:
        reads = [operation for operation in self._pending if operation.look is not None]
        self._pending.clear()
        return reads

    patch.setattr(GroupCommit, "_take_reads", take)


def calls_that_wait_for_the_budget_answered_at_once(patch: pytest.MonkeyPatch) -> None:
    """An ack need not wait for its delayed commit: nobody waits for its answer."""
    admit = GroupCommit._admit

    def answered(self: GroupCommit, operation: Operation) -> asyncio.Future[Any]:
        future = admit(self, operation)
        if isinstance(operation.command, Ack) and self._is_paced and not future.done():
            future.set_result(None)
        return future

    patch.setattr(GroupCommit, "_admit", answered)
