"""Sends jobs to the shard they belong to.

After a resize a zone may still be where an older size put it. An enqueue asks that shard first, after it has adopted
the new ring; a shard that answers "not here" under the newest ring will never create the zone again, so it may be
created in its new shard. The places of zones are cached: a shard refuses an outdated one, and it is looked up again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeAlias

from casque.codec.head import KEY
from casque.codec.ring import RingHead
from casque.environment import Environment
from casque.errors import CASConflictError, CorruptQueueError, UnknownOutcomeError, ZoneMovedError
from casque.ring.numbers import record_of
from casque.ring.shards import Shard, Shards, together, worst
from casque.service.requests import Enqueue
from casque.state.ring import home, place_of
from casque.types import JobRecord, JobSpec

Parts: TypeAlias = dict[tuple[str | None, bool], list[int]]
"""The rows of each zone, of each unique key without a zone, and of jobs that can go anywhere."""

POINTERS_MAX = 65_536
RESOLVED_MAX = 20
"""How often the ring may change while one call is under way."""


class Enqueuer:
    """Adds jobs, those of each zone together."""

    def __init__(self, shards: Shards, env: Environment) -> None:
        self._shards = shards
        self._turn = env.rng.getrandbits(32)
        self._pointers: OrderedDict[str, int] = OrderedDict()
        self._pointed = 0
        """The generation of the cached places. Those of another ring are useless for this one."""

    async def enqueue(self, specs: Sequence[JobSpec], request_id: str | None) -> list[JobRecord]:
        """
        Raises:
            UnknownOutcomeError: some zones have their jobs, others do not.
        """
        parts = _parted(specs)
        if len(parts) == 1:
            return await self._add(list(specs), request_id)
        head = self._shards.recent()
        if request_id is None and len(head.sizes) == 1:
            return await self._add_joined(specs, parts, head)
        return await self._add_parts(specs, parts, request_id)

    async def _add_joined(self, specs: Sequence[JobSpec], parts: Parts, head: RingHead) -> list[JobRecord]:
        """Parts for the same shard are added in one call."""
        anywhere = self._next(head)
        joined: dict[int, list[int]] = {}
        for (place, _), rows in parts.items():
            joined.setdefault(anywhere if place is None else home(place, head.size), []).extend(rows)
        calls = (self._add_to(token, [specs[row] for row in rows], head) for token, rows in joined.items())
        return _in_order(len(specs), list(joined.values()), await together(calls))

    async def _add_to(self, token: int, specs: list[JobSpec], head: RingHead) -> list[JobRecord]:
        shard = await self._shards.adopted(token, head)
        if shard is not None:
            try:
                return await _enqueue(shard, specs, None, head)
            except ZoneMovedError:
                await self._shards.refresh()
        # The ring has changed: these may belong to several shards now.
        return await self._add_parts(specs, _parted(specs), None)

    async def _add_parts(self, specs: Sequence[JobSpec], parts: Parts, request_id: str | None) -> list[JobRecord]:
        """Add each zone by itself, with its own request id: the shard of each may have changed when the call is
        repeated."""
        calls = (
            self._add([specs[row] for row in rows], None if request_id is None else _part_id(request_id, part))
            for part, rows in parts.items()
        )
        return _in_order(len(specs), list(parts.values()), await together(calls))

    async def _add(self, specs: list[JobSpec], request_id: str | None) -> list[JobRecord]:
        """Add jobs of one zone, or of none."""
        place = place_of(specs[0], request_id)
        return await (self._add_anywhere(specs) if place is None else self._add_at_home(place, specs, request_id))

    async def _add_anywhere(self, specs: list[JobSpec]) -> list[JobRecord]:
        for _ in range(RESOLVED_MAX):
            head = self._shards.recent()
            shard = await self._shards.adopted(await self._next_there(head), head)
            if shard is None:
                continue
            try:
                return await _enqueue(shard, specs, None, head)
            except ZoneMovedError:
                await self._shards.refresh()
        raise _restless()

    async def _add_at_home(self, place: str, specs: list[JobSpec], request_id: str | None) -> list[JobRecord]:
        for _ in range(RESOLVED_MAX):
            head = self._shards.recent()
            for token in await self._candidates(place, head, request_id):
                shard = await self._shards.adopted(token, head)
                if shard is None:
                    break  # the ring has changed
                try:
                    added = await _enqueue(shard, specs, request_id, head)
                except ZoneMovedError as error:
                    self._pointers.pop(place, None)
                    if error.generation > head.generation:
                        await self._shards.refresh()
                        break
                    continue
                if len(head.sizes) > 1:
                    self._point(place, token, head)
                return added
            else:
                raise CorruptQueueError(KEY, "its shards know another ring of this generation: it was edited by hand")
        raise _restless()

    async def _candidates(self, place: str, head: RingHead, request_id: str | None) -> list[int]:
        """The shards that may have this zone, in the order in which they are tried."""
        homes = head.homes(place)
        if len(homes) == 1:
            return homes
        if self._pointed != head.generation:
            self._pointers.clear()
            self._pointed = head.generation
        if request_id is not None:
            # The zone may have been elsewhere at the first attempt. All shards must adopt the ring before they are
            # asked: then none of them carries the request out later.
            adopted = [await self._shards.adopted(token, head) for token in homes]
            for shard in adopted:
                if shard is not None and await shard.answered(request_id):
                    return [shard.token]
            return homes
        found = self._pointers.get(place)
        if found is None or found not in homes:
            return homes
        self._pointers.move_to_end(place)
        # In its newest shard a zone stays as long as the ring does, and older shards need not be asked again.
        return [found] if found == homes[-1] else [found, *(token for token in homes if token != found)]

    def _point(self, place: str, token: int, head: RingHead) -> None:
        if self._pointed != head.generation:
            return
        self._pointers[place] = token
        if len(self._pointers) > POINTERS_MAX:
            self._pointers.popitem(last=False)

    async def _next_there(self, head: RingHead) -> int:
        """A shard with a leader, if any has one."""
        for _ in range(head.size - 1):
            token = self._next(head)
            if not (await self._shards.shard(token)).away:
                return token
        return self._next(head)

    def _next(self, head: RingHead) -> int:
        """Shards take turns."""
        self._turn += 1
        return self._turn % head.size


async def _enqueue(shard: Shard, specs: list[JobSpec], request_id: str | None, head: RingHead) -> list[JobRecord]:
    added = await shard.service.call(Enqueue(tuple(specs), request_id, head.generation))
    return [record_of(job, shard.token) for job in added]


def _in_order(count: int, rows: list[list[int]], answers: list[list[JobRecord] | BaseException]) -> list[JobRecord]:
    added: dict[int, JobRecord] = {}
    failures: list[BaseException] = []
    for some, answer in zip(rows, answers, strict=True):
        if isinstance(answer, BaseException):
            failures.append(answer)
        else:
            added.update(zip(some, answer, strict=True))
    if failures and added:
        raise UnknownOutcomeError(
            f"{len(added)} of {count} jobs were added, and others were not: {failures[0]}. On a ring jobs are added "
            "together for each zone; repeat the call with the same request_id, or look first"
        ) from failures[0]
    if failures:
        raise worst(failures)
    return [added[row] for row in range(count)]


def _parted(specs: Sequence[JobSpec]) -> Parts:
    parts: Parts = {}
    for row, spec in enumerate(specs):
        parts.setdefault((place_of(spec), spec.zone is not None), []).append(row)
    return parts


def _part_id(request_id: str, part: tuple[str | None, bool]) -> str:
    """Each part of a request has its own id, the same whenever it is repeated."""
    place, is_zone = part
    digest = blake2b(f"{is_zone}{place}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{request_id}#{digest}"


def _restless() -> CASConflictError:
    return CASConflictError("the ring keeps changing; nothing was done. Try again")
