"""Mistakes that brokers of other queues have made, each made by ours for the length of a test."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from casque.broker.election import Elected, Election, ElectionResult
from casque.client import remote
from casque.clock import new_nonce
from casque.codec.head import Owner
from casque.journal.document import DocumentJournal
from casque.service import QueueService
from casque.service.requests import Dequeue
from casque.transport.errors import to_wire
from casque.transport.grpc.packets import Answer, Done, Failed, Within
from casque.transport.grpc.refusals import as_refusal
from casque.transport.grpc.session import Session


def healthy_leader_evicted(patch: pytest.MonkeyPatch) -> None:
    """Any new broker takes over, whoever leads."""
    patch.setattr(Election, "_is_silent", lambda self, asked_ms: True)


def takeover_by_wall_clock(patch: pytest.MonkeyPatch) -> None:
    """The time that the leader wrote is compared with this machine's clock."""

    def is_silent(self: Election, asked_ms: int) -> bool:
        journal = self._committer._journal
        assert isinstance(journal, DocumentJournal)
        return self._clock.wall_ms() - journal._codec.leadership.heartbeat_ms >= self._lease_ms

    patch.setattr(Election, "_is_silent", is_silent)


def silence_measured_until_the_answer(patch: pytest.MonkeyPatch) -> None:
    """How long a slow store took to answer counts as silence of the leader."""
    is_silent = Election._is_silent
    patch.setattr(Election, "_is_silent", lambda self, _: is_silent(self, self._clock.monotonic_ms()))


def registers_again_on_conflict(patch: pytest.MonkeyPatch) -> None:
    """A leader that finds another in its place puts itself back there."""
    try_elect = Election.try_elect
    was_leader: dict[str, bool] = {}

    async def again(self: Election) -> ElectionResult:
        if was_leader.get(self.id):
            await self._committer.refresh()
            owner = Owner(self.id, new_nonce(self._rng), self._address)
            if await self._committer.lead(owner, lease_ms=self._lease_ms, seen=None):
                return Elected(self._committer.sighting().epoch)
        result = await try_elect(self)
        was_leader[self.id] = was_leader.get(self.id, False) or isinstance(result, Elected)
        return result

    patch.setattr(Election, "try_elect", again)


def deposed_document_leader_goes_on(patch: pytest.MonkeyPatch) -> None:
    """A leader that finds another's name in the document writes its own over it."""

    def check_lead(self: DocumentJournal) -> None:
        if self._mine is not None:
            self._codec.leadership = self._mine

    patch.setattr(DocumentJournal, "_check_lead", check_lead)


def cut_off_calls_answered_as_done(patch: pytest.MonkeyPatch) -> None:
    """A search for a leader that is cancelled by a clean stop is taken for a caller that left, and answered `Done`."""

    async def serve(self: Session, service: QueueService, call: Any) -> None:
        answer: Answer
        try:
            if type(call.request) is Dequeue:
                answer = await self._claim(service, call.number, call.request)
            elif type(call.request) is Within:
                answer = await self._within(service, call.number, call.request)
            else:
                answer = await self._carry_out(service, call.number, call.request)
        except asyncio.CancelledError:
            if self._over:
                raise
            answer = Done(call.number)
        except Exception as error:
            answer = Failed(call.number, to_wire(as_refusal(error)))
        del self._running[call.number]
        self._say(answer)

    async def shared(task: asyncio.Task[Any], _ended: Exception) -> Any:
        return await asyncio.shield(task)

    patch.setattr(Session, "_serve", serve)
    patch.setattr(remote, "joined", shared)
