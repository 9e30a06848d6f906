"""Assembles a broker of a ring: a candidacy in each of its shards, and connections to the leaders of the others."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias, cast

import msgspec

from casque.broker.broker import Broker, Shared
from casque.client.connecting import peer_connect
from casque.client.opening import Parts
from casque.client.remote import RemoteService
from casque.client.remote_shard import LedShard, RemoteShard
from casque.engine.group import GroupCommit
from casque.engine.history import History
from casque.errors import InvalidInputError, NoLeaderError, NotAllowedError, NotAuthenticatedError
from casque.journal.discovery import leader_here
from casque.ring.broker import RingBroker
from casque.ring.local import LocalShard
from casque.ring.members import Members
from casque.ring.service import RingService
from casque.ring.shards import Shard, Shards, checked
from casque.settings import BrokerSettings
from casque.storage.port import Store, place_of
from casque.transport.access import TokenBook
from casque.transport.grpc.credentials import ClientTls
from casque.transport.shard_border import as_peer
from casque.transport.tls import ServerTls

IDLE_LEASES = 4
"""Interval of heartbeats in an idle shard, in leases: the broker shows for all shards at once that it lives."""


HOW_TO_GET_ONE = (
    "make one with `casque token new --file FILE --name ring --scope peer`, and set CASQUE_PEER_TOKEN to it for every "
    "broker of the ring"
)


class Peers(msgspec.Struct, frozen=True, kw_only=True):
    """How the brokers of a ring reach each other."""

    token: str | None = None
    tls: ClientTls | None = None
    own: ServerTls | None = None
    """This broker's own certificate, which it shows to the others. None: the one in `tls`."""

    def check(self, book: TokenBook | None) -> None:
        """Check that the others will accept this broker, if their tokens are the same.

        Raises:
            InvalidInputError: they will not.
        """
        if book is None:
            return
        if self.token is None:
            raise InvalidInputError(f"the brokers of a ring call each other, and ask for tokens: {HOW_TO_GET_ONE}")
        try:
            principal = book.principal_for(f"Bearer {self.token}")
        except NotAuthenticatedError as error:
            raise InvalidInputError(
                f"the token for the other brokers of the ring is no good: {error}; {HOW_TO_GET_ONE}"
            ) from None
        try:
            as_peer(principal)
        except NotAllowedError:
            raise InvalidInputError(
                f"the token {principal.name!r} is not for the brokers of a ring: it lacks the scope peer, which admin "
                f"does not include, or is limited to zones or entrypoints; {HOW_TO_GET_ONE}"
            ) from None

    def connect(self, shard: int, address: str) -> RemoteService:
        tls = self.tls
        if tls is not None and self.own is not None:
            current = self.own.current()
            tls = msgspec.structs.replace(tls, key=current.key, chain=current.cert)
        return peer_connect(shard, self.token, tls)(address)


Connect: TypeAlias = Callable[[int, str], RemoteService]
"""Connects to a shard through the broker at an address."""


def ring_broker(parts: Parts, connect: Connect, *, address: str, settings: BrokerSettings) -> RingBroker:
    return _Joint(parts, connect, address, settings).broker


class _Joint:
    """Links a ring's service, its broker and its seats."""

    def __init__(self, parts: Parts, connect: Connect, address: str, settings: BrokerSettings) -> None:
        self._parts = parts
        self._connect = connect
        self._address = address
        self._settings = settings
        self._root = parts.root()
        self._members = Members(parts.store, address, parts, settings=settings)
        ring = RingService(
            Shards(parts.root(), self._shard, clock=parts.clock), parts, books=parts.books(), feeds=False
        )
        self.broker = RingBroker(self._members, ring, self._seat, parts, address=address, settings=settings)

    def _seat(self, token: int) -> Broker:
        parts = self._parts.shard(token)

        def serving(group: GroupCommit, history: History | None) -> LocalShard:
            return parts.shard_service(token, group, history, self._root.read)

        return Broker(
            parts.committer(),
            parts,
            parts.history(),
            address=self._address,
            settings=self._settings,
            shared=Shared(
                id=self._members.id,
                gone=self._members.is_gone,
                lives=partial(self._members.leads, token),
                idle=timedelta(seconds=self._settings.lease.total_seconds() * IDLE_LEASES),
                serving=serving,
                check=lambda state: checked(token, state.ring),
            ),
            place=partial(place_of, parts.store, make=True),
        )

    def _shard(self, token: int) -> Shard:
        parts = self._parts
        finder = _Finder(self.broker, token, parts.shard(token).store, self._address)

        def connect(address: str) -> RemoteService:
            if address == self._address:
                return cast(RemoteService, Here(self.broker, token, address))
            return self._connect(token, address)

        remote = RemoteShard(finder, connect, parts)
        return LedShard(token, remote)


class _Finder:
    """Finds the leader of a shard: this broker, if it leads it, or the one that the shard names."""

    def __init__(self, broker: RingBroker, token: int, store: Store, address: str) -> None:
        self._broker = broker
        self._token = token
        self._store = store
        self._address = address

    async def find(self) -> str:
        if self._token in self._broker.led():
            return self._address
        address = await leader_here(self._store)
        if address is None:
            raise NoLeaderError(f"the brokers are electing one for shard {self._token}")
        return address

    async def close(self) -> None:
        """Nothing to close: the store belongs to the code that opened it."""


class Here:
    """A shard that this broker leads, in place of a connection. Asks the broker each time, because leaders change."""

    def __init__(self, broker: RingBroker, token: int, address: str) -> None:
        self._broker = broker
        self._token = token
        self.address = address

    def __getattr__(self, name: str) -> Any:
        """
        Raises:
            QueueLedError: another broker leads it by now.
            NoLeaderError: it has no leader.
        """
        return getattr(self._broker.shard(self._token), name)

    async def close(self) -> None:
        """There is no connection."""
