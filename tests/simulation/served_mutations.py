"""Mistakes in sessions, in connections and in brokers of a ring, each made for the length of a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from casque.client import remote
from casque.errors import BrokerUnreachableError, CasqueError
from casque.ring import admitter, building
from casque.ring.admitter import Admitter
from casque.ring.broker import RingBroker
from casque.ring.members import Members
from casque.service import QueueService, ShardService
from casque.service.requests import Ack, Enqueue, Request
from casque.transport.grpc.exchange import ExchangeClient
from casque.transport.grpc.packets import Answer, Done
from casque.transport.grpc.session import Session
from casque.types import Admission, Gates


def _on_the_wire(patch: pytest.MonkeyPatch, change: Callable[[Request[Any]], Request[Any]]) -> None:
    carry_out = Session._carry_out

    async def changed(self: Session, service: QueueService, number: int, request: Request[Any]) -> Answer:
        return await carry_out(self, service, number, change(request))

    patch.setattr(Session, "_carry_out", changed)


def request_ids_lost_on_the_wire(patch: pytest.MonkeyPatch) -> None:
    _on_the_wire(patch, lambda asked: Enqueue(asked.specs) if isinstance(asked, Enqueue) else asked)


def tokens_lost_on_the_wire(patch: pytest.MonkeyPatch) -> None:
    def without(asked: Request[Any]) -> Request[Any]:
        return msgspec.structs.replace(asked, token=None) if isinstance(asked, Ack) else asked

    _on_the_wire(patch, without)


def answered_before_it_was_asked_of_the_queue(patch: pytest.MonkeyPatch) -> None:
    """An ack is passed on, and nobody waits for what comes of it."""
    passed_on: set[asyncio.Future[None]] = set()
    carry_out = Session._carry_out

    async def hasty(self: Session, service: QueueService, number: int, request: Request[Any]) -> Answer:
        if not isinstance(request, Ack):
            return await carry_out(self, service, number, request)
        passed_on.add(asyncio.ensure_future(service.call(request)))
        return Done(number)

    patch.setattr(Session, "_carry_out", hasty)


def calls_lost_with_their_connection_called_failed(patch: pytest.MonkeyPatch) -> None:
    def perhaps_done(self: ExchangeClient, ending: CasqueError | None) -> CasqueError:
        return BrokerUnreachableError(self._address, str(ending))

    patch.setattr(ExchangeClient, "_perhaps_done", perhaps_done)


def refusals_believed_though_an_attempt_is_on_its_way(patch: pytest.MonkeyPatch) -> None:
    """Asked again, a broker refuses: then the attempt before that is taken for refused as well."""
    patch.setattr(remote, "_settled", lambda request: (CasqueError,))


# --- Brokers of a ring ---


def calls_served_by_whatever_shard_is_led(patch: pytest.MonkeyPatch) -> None:
    shard = RingBroker.shard

    def any_shard(self: RingBroker, token: int) -> ShardService:
        led = self.led()
        return shard(self, led[0] if led and token not in led else token)

    patch.setattr(RingBroker, "shard", any_shard)


def idle_shards_taken_from_brokers_that_live(patch: pytest.MonkeyPatch) -> None:
    """A shard that nothing happens in counts as silent, though its broker lives and says that it leads it."""
    patch.setattr(Members, "leads", lambda _self, _token, _member_id: False)
    patch.setattr(RingBroker, "_step_in", _stays(RingBroker._step_in))


def _stays(step_in: Any) -> Any:
    def stays(self: RingBroker, led_by_others: Any) -> None:
        before = set(self._instead)
        step_in(self, led_by_others)
        self._instead |= before

    return stays


def dead_brokers_keep_their_shards(patch: pytest.MonkeyPatch) -> None:
    """Whoever was seen once lives for ever."""
    patch.setattr(Members, "alive", lambda self: {name: seen.member for name, seen in self._seen.items()})
    patch.setattr(Members, "is_gone", lambda self, member_id: False)
    patch.setattr(RingBroker, "_step_in", lambda self, led_by_others: None)


def shards_in_another_place_left_to_nobody(patch: pytest.MonkeyPatch) -> None:
    """A broker leads what it knew of when it started."""
    share = RingBroker._share

    def as_ever(self: RingBroker) -> None:
        self._shards = self.__dict__.setdefault("known_at_first", self._shards)
        share(self)

    patch.setattr(RingBroker, "_share", as_ever)


def gates_not_copied_to_shards_that_are_added(patch: pytest.MonkeyPatch) -> None:
    settings = building._settings
    patch.setattr(building, "_settings", lambda state: (Gates(), settings(state)[1]))


# --- Admissions on rings ---


def batches_done_before_all_shards_have_theirs(patch: pytest.MonkeyPatch) -> None:
    async def together(calls: Any) -> list[Any]:
        answers = await asyncio.gather(*calls, return_exceptions=True)
        return [Admission(0, 0) if isinstance(one, BaseException) else one for one in answers]

    patch.setattr(admitter, "together", together)


def parts_deleted_while_their_batch_is_under_way(patch: pytest.MonkeyPatch) -> None:
    complete = Admitter._complete

    async def hasty(self: Admitter, found: Any, skip_known: bool, **columns: Any) -> Any:
        await self._books._blobs.drop([part.key for part in found.batch.parts])
        return await complete(self, found, skip_known, **columns)

    patch.setattr(Admitter, "_complete", hasty)
