"""What a shard of a ring knows about the ring, and which jobs are at home in it.

The shard itself is the index of its zones: a zone is here as long as one of its jobs is, or it is leased. So
an idle zone costs nothing, and "not here" is a fact of the shard's own history.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import msgspec

from casque.errors import ZoneMovedError
from casque.types import JobSpec, ZoneLease


class RingView(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The newest ring that a shard has heard of. Stored as an array: fields only ever come at the end."""

    generation: int
    """Rises with every change of the size. 0 for a shard that is made and has heard of no ring yet."""
    size: int
    token: int
    """Which of the shards this is, from 0."""


def home(place: str, size: int) -> int:
    """The shard that a zone belongs to on a ring of this size: the same everywhere and for ever.

    >>> home("globex", 16), home("globex", 64)
    (10, 26)
    """
    digest = blake2b(place.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % size


def place_of(spec: JobSpec, request_id: str | None = None) -> str | None:
    """What decides where a job belongs: its zone; without one its unique key, so that a key is compared with all who
    have it; without either the request that adds it, so that a repeated request meets itself. None: it may be anywhere.
    """
    if spec.zone is not None:
        return spec.zone
    return spec.key if spec.key is not None else request_id


class Places:
    """How many jobs there are of each zone, which the state counts for itself, and of each unique key outside all
    zones, which only the shards of a ring count. Dead ones too: they may be given fresh attempts."""

    def __init__(self, zones: dict[str, int], leased: dict[str, ZoneLease]) -> None:
        self.zones = zones
        self.leased = leased
        """A leased zone stays here: elsewhere it could be leased a second time."""
        self.keys: dict[str, int] = {}

    def add(self, spec: JobSpec) -> None:
        if spec.zone is None and spec.key is not None:
            self.keys[spec.key] = self.keys.get(spec.key, 0) + 1

    def drop(self, spec: JobSpec) -> None:
        if spec.zone is None and spec.key is not None:
            left = self.keys[spec.key] - 1
            if left:
                self.keys[spec.key] = left
            else:
                del self.keys[spec.key]

    def check(self, ring: RingView, specs: Iterable[JobSpec], *, request_id: str | None, generation: int) -> None:
        """That all of these may be added here, by a caller that knows the ring as of `generation`.

        A zone that is here stays here. One that is not comes here only if this is its home on the newest ring that the
        shard knows, and the caller knows the same one: then no other has it, or is about to. A request with an id is
        taken only from those who know that ring: with an older one it was not looked for where it may have been
        carried out since.

        Raises:
            ZoneMovedError: one of them belongs elsewhere, or the caller's ring is an old one.
        """
        if request_id is not None and generation < ring.generation:
            raise ZoneMovedError(None, ring.generation)
        for zone, key in {(spec.zone, None if spec.zone is not None else spec.key) for spec in specs}:
            place = zone if zone is not None else key if key is not None else request_id
            if place is None:
                if ring.token >= ring.size:
                    raise ZoneMovedError(None, ring.generation)
            elif (zone is not None or key is not None) and self.holds(place, is_zone=zone is not None):
                continue
            elif generation != ring.generation or not is_home(ring, place):
                raise ZoneMovedError(zone, ring.generation)

    def holds(self, name: str, *, is_zone: bool) -> bool:
        """Whether a zone, or a unique key outside all zones, is here. The only answer to that question: a zone that is
        leased is here although it has no jobs, for those who add jobs, admit them and look alike."""
        return name in self.zones or name in self.leased if is_zone else name in self.keys

    def may_tick(self, ring: RingView, spec: JobSpec) -> bool:
        """Whether a schedule of this shard may add its job. What could belong to another shard is added only where it
        is already: a tick does not ask the other homes."""
        if spec.zone is not None:
            return self.holds(spec.zone, is_zone=True)
        if spec.key is not None:
            return self.holds(spec.key, is_zone=False)
        return ring.token < max(ring.size, 1)  # the first shard is part of every ring, also of one it has not heard of

    def misplaced(self, ring: RingView, jobs: int) -> int:
        """How many zones and keys would be elsewhere if they were made now; of a shard that is no part of the ring any
        more, how many of its jobs there are at all."""
        if ring.token >= ring.size:
            return jobs + len(self.leased.keys() - self.zones.keys())
        there = (self.zones.keys() | self.leased.keys(), self.keys)
        return sum(not is_home(ring, place) for held in there for place in held)


def is_home(ring: RingView, place: str) -> bool:
    return ring.size > 0 and home(place, ring.size) == ring.token
