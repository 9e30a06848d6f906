"""The brokers of a ring as one of them knows them: each keeps one small object below the ring's root.

Whether a broker lives is judged by changes of its object, by this process's own clock; times written by others are
never compared with it. This only decides who should try to lead. The shards themselves decide who leads.
"""

from __future__ import annotations

import asyncio

from casque.clock import new_id, new_nonce
from casque.codec.member import FOLDER, Member, decode_member, encode_member, member_key
from casque.environment import Environment
from casque.errors import CasqueError, QueueCopiedError, StorageError
from casque.settings import BrokerSettings, milliseconds
from casque.storage.port import Missing, Store, Stored, Won, place_of
from casque.telemetry import logger

log = logger("ring")

FORGOTTEN_LEASES = 20
"""The object of a dead broker is removed after this many leases of silence, by the first broker to notice."""


LATE_BEATS = 1.5
"""Reads and heartbeats are never on time to the millisecond: up to this many heartbeats apart is not late."""


class _Seen:
    """Another broker, as last seen."""

    def __init__(self, member: Member, etag: str, now_ms: int, *, moves: bool) -> None:
        self.member = member
        self.etag = etag
        self.moves = moves
        """True if this process has seen it change."""
        self.silent_ms = 0
        """How long it is known not to have changed. Only a change resets this to 0."""
        self._counted_ms = now_ms

    def stay_silent(self, now_ms: int, *, late_ms: int, late_counts_ms: int) -> None:
        """It has not changed since the last read. If that was long ago, the store or this process was unavailable, and
        the
        other broker may have been cut off, too: then the time counts only in part."""
        passed_ms = now_ms - self._counted_ms
        self.silent_ms += passed_ms if passed_ms <= late_ms else late_counts_ms
        self._counted_ms = now_ms


class Members:
    """This broker's own object, and the known others."""

    def __init__(self, store: Store, address: str, env: Environment, *, settings: BrokerSettings) -> None:
        self.id = new_id(env.rng)
        self._store = store
        self._address = address
        self._lease_ms = milliseconds(settings.lease)
        self.late_ms = max(self._lease_ms // 2, int(milliseconds(settings.heartbeat) * LATE_BEATS))
        """A longer time between two reads, or two heartbeats, is unusual."""
        self._clock = env.clock
        self._rng = env.rng
        self._etag: str | None = None
        self._beats = 0
        self._place: str | None = None
        self._seen: dict[str, _Seen] = {}

    # --- Oneself ---

    async def beat(self, leads: tuple[int, ...] = ()) -> None:
        """Show that this broker lives, and what it leads.

        Raises:
            StorageError: as far as is known, nothing was written.
        """
        self._beats += 1
        key = member_key(self.id)
        if self._place is None:
            self._place = await place_of(self._store, make=True)
        member = Member(
            id=self.id,
            address=self._address,
            beats=self._beats,
            nonce=new_nonce(self._rng),
            place=self._place,
            leads=leads,
        )
        body = encode_member(member)
        for _ in range(2):
            if self._etag is None:
                outcome = await self._store.create(key, body)
            else:
                outcome = await self._store.replace(key, body, expected=self._etag)
            if isinstance(outcome, Won):
                self._etag = outcome.etag
                return
            # No other process writes it: an earlier attempt of ours landed, or another broker declared us dead.
            read = await self._store.get(key)
            self._etag = read.etag if isinstance(read, Stored) else None
            if isinstance(read, Stored) and read.body == body:
                return
        raise StorageError(f"{key} could not be written")

    async def leave(self) -> None:
        """A clean end: the others need not wait until this broker seems dead."""
        await self._store.delete(member_key(self.id))

    # --- The others ---

    async def look(self) -> None:
        """Read which brokers exist, and which have changed.

        Raises:
            StorageError: the store did not answer.
        """
        now_ms = self._clock.monotonic_ms()
        if self._place is None:
            self._place = await place_of(self._store)
        keys = [key async for key in self._store.list(FOLDER) if key != member_key(self.id)]
        found = await asyncio.gather(*map(self._read, keys))
        before, self._seen = self._seen, {seen.member.id: seen for seen in found if seen is not None}
        for name, seen in list(self._seen.items()):
            if before.get(name) is seen:
                seen.stay_silent(now_ms, late_ms=self.late_ms, late_counts_ms=self._lease_ms // 4)
            if seen.silent_ms >= FORGOTTEN_LEASES * self._lease_ms:
                await self._forget(name)

    async def _read(self, key: str) -> _Seen | None:
        name = key.removeprefix(FOLDER)
        known = self._seen.get(name)
        read = await self._store.get(key, unless=known.etag if known is not None else None)
        if isinstance(read, Missing):
            return None
        if not isinstance(read, Stored):
            return known
        member = decode_member(read.body)
        if member is None or member.id != name:
            return None
        return _Seen(member, read.etag, self._clock.monotonic_ms(), moves=known is not None)

    async def forget_all(self) -> None:
        """Remove the objects of all others: they are known to be dead."""
        for name in list(self._seen):
            await self._forget(name)

    async def _forget(self, name: str) -> None:
        try:
            await self._store.delete(member_key(name))
            log.info("the broker at %s has been silent for long, and is forgotten", self._seen[name].member.address)
            del self._seen[name]
        except CasqueError as error:
            log.warning("the object of a dead broker could not be removed: %s", error)

    def alive(self) -> dict[str, Member]:
        """Other brokers that have changed within a lease."""
        return {name: seen.member for name, seen in self._seen.items() if not self._is_silent(seen)}

    def is_gone(self, member_id: str) -> bool:
        """True if its object exists, and has not changed for a lease. If the object is missing, it may be about to
        leave."""
        seen = self._seen.get(member_id)
        return seen is not None and self._is_silent(seen)

    def leads(self, token: int, member_id: str) -> bool:
        """True if it lives, and says that it leads this shard."""
        seen = self._seen.get(member_id)
        return seen is not None and token in seen.member.leads and not self._is_silent(seen)

    def _is_silent(self, seen: _Seen) -> bool:
        # A broker whose object was copied with the ring lives elsewhere, and never here.
        return seen.silent_ms >= self._lease_ms or not _is_at(seen.member, self._place)

    def has_twin(self) -> bool:
        """True if another live broker has the same address. A dead one is ordinary: it
        was this one before a restart."""
        return any(seen.moves and seen.member.address == self._address for seen in self._seen.values())


async def addresses(store: Store) -> list[str]:
    """Addresses of a ring's brokers: some of them may be dead.

    Raises:
        StorageError: the store did not answer.
        QueueCopiedError: all of them are brokers of the original of this copy.
    """
    keys = [key async for key in store.list(FOLDER)]
    reads = await asyncio.gather(*map(store.get, keys))
    found = [member for read in reads if isinstance(read, Stored) and (member := decode_member(read.body)) is not None]
    place = await place_of(store)
    here = [member for member in found if _is_at(member, place)]
    if found and not here:
        raise QueueCopiedError(found[0].address)
    return sorted({member.address for member in here})


def _is_at(member: Member, place: str | None) -> bool:
    return member.place is None or place in (None, member.place)
