"""A ring in a bucket: every shard is watched as a queue of its own, and all of them together for what a ring promises.

What order the shards' commits have among each other, no shard knows and no clock tells. The bucket does: it takes one
write after the other. In that order no zone may ever be in two shards, or where the root would not look for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from casque.codec.head import KEY
from casque.codec.member import FOLDER
from casque.codec.ring import SHARDS, RingHead, decode_ring
from casque.codec.staged import STAGED
from casque.ring.admissions import ADMISSIONS, Batch
from casque.ring.numbers import inner
from casque.state import State
from casque.storage.port import Stored
from casque.types import JobRecord
from simulation.world.asked import Request
from simulation.world.history import Claim, History
from simulation.world.invariants import Invariant
from simulation.world.layout import SETTLED_MS, Layout
from simulation.world.onlooker import Effect
from simulation.world.settings import demand_same_settings
from simulation.world.shelves import Shelves
from simulation.world.steps import Steps
from simulation.world.tenancies import Tenancy

if TYPE_CHECKING:
    from simulation.world.life import Life

REMEMBERED_S = SETTLED_MS / 1000 - 1.0
"""Whoever repeats a request later than this may find the ring without any memory of it; a second is for clocks, which
differ and are set."""


class RingHistory(History):
    """What has landed in all shards, and in the root."""

    is_ring = True

    def __init__(self, now: Callable[[], float], *, led: bool = False) -> None:
        super().__init__(now)
        # A shard whose leader is gone is not waited for by those who could claim elsewhere.
        self.keeps_claims = not led
        self.shards: dict[int, History] = {}
        self.root: RingHead | None = None
        self.roots: list[tuple[float, int]] = []
        """When each version of the root landed, and how many shards it has jobs looked for in."""

    def shard(self, token: int) -> History:
        if token not in self.shards:
            self.shards[token] = History(self.now, of=self)
        return self.shards[token]

    @property
    def position(self) -> int:
        """Rises with every commit, wherever that is."""
        return sum(shard.position for shard in self.shards.values())

    def record(self, job_id: str) -> JobRecord | None:
        return next((found for shard in self.shards.values() if (found := shard.record(job_id)) is not None), None)

    def lately(self, job_id: str) -> list[JobRecord]:
        return [found for shard in self.shards.values() for found in shard.lately(job_id)]

    def claim(self, token: int) -> Claim | None:
        own, shard = inner(token)
        return self.shards[shard].claim(own) if shard in self.shards else None

    def tenancy(self, token: int) -> Tenancy | None:
        own, shard = inner(token)
        return self.shards[shard].tenancy(own) if shard in self.shards else None

    def holds_zone(self, zone: str, token: int) -> bool:
        own, shard = inner(token)
        return shard in self.shards and self.shards[shard].holds_zone(zone, own)

    def own(self, token: int) -> int:
        return inner(token)[0]

    def everything(self) -> list[State]:
        return [shard.state for shard in self.shards.values()]

    def walked(self, since: float | None = None) -> list[History]:
        count = 0 if self.root is None else self.root.walked
        if since is not None:
            before = [walked for at, walked in self.roots if at <= since][-1:]
            count = min([*before, *(walked for at, walked in self.roots if at > since)])
        return [shard for token, shard in sorted(self.shards.items()) if token < count]

    def remembers(self, request: Request) -> bool:
        return self.now() - request.since <= REMEMBERED_S


class RingSteps:
    """Run after every write and every deletion that lands."""

    def __init__(self, history: RingHistory, layout: Layout) -> None:
        self._history = history
        self._layout = layout
        self._steps: dict[int, Steps] = {}
        self._objects: dict[int, dict[str, Stored]] = {}
        self._forgotten = 0
        self._beside: Counter[Effect] = Counter()
        """What lands or is deleted beside the root."""
        self._batches: dict[str, Batch] = {}

    @property
    def effects(self) -> Counter[Effect]:
        counted = Counter({Effect.RING: len(self._history.roots), Effect.FORGOTTEN: self._forgotten}) + self._beside
        for steps in self._steps.values():
            counted.update(steps.effects)
        return +counted

    def landed(self, objects: Mapping[str, Stored], key: str, sender: Life) -> None:
        if key == KEY:
            self._root_changed(decode_ring(objects[key].body))
            return
        if key.startswith(FOLDER):
            self._beside[Effect.MEMBER] += 1
            return  # who tries to lead, which no promise rests on
        if key.startswith(STAGED):
            self._beside[Effect.STAGED] += 1
            return
        if key.startswith(ADMISSIONS):
            self._beside[Effect.BATCH] += 1
            if key.endswith(".json"):
                self._batch_changed(key, objects[key].body)
            return
        token, name = self._parsed(key)
        own = self._objects.setdefault(token, {})
        own[name] = objects[key]
        if token not in self._steps:
            self._steps[token] = Steps(self._history.shard(token), self._layout)
        self._steps[token].landed(own, name, sender)
        self._check_places(token)

    def deleted(self, key: str) -> None:
        if key.startswith((FOLDER, STAGED, ADMISSIONS)):
            self._beside[Effect.DELETION] += 1
            self._check_not_needed(key)
            return
        token, name = self._parsed(key)
        self._objects[token].pop(name)
        self._steps[token].deleted(name)

    @property
    def shelves(self) -> dict[int, Shelves]:
        return {token: steps.shelves for token, steps in self._steps.items()}

    def archive_is_complete(self, objects: Mapping[str, Stored]) -> bool:  # noqa: ARG002  each shard has its own
        return all(steps.archive_is_complete(self._objects[token]) for token, steps in self._steps.items())

    def _parsed(self, key: str) -> tuple[int, str]:
        folder, _, rest = key.partition("/")
        number, _, name = rest.partition("/")
        self._history.demand(
            folder == SHARDS and number.isdigit() and bool(name),
            Invariant.CAUSED,
            lambda: f"{key} is no object that a ring has, or may lose",
        )
        return int(number), name

    # --- Admissions ---

    def _batch_changed(self, key: str, body: bytes) -> None:
        h, batch, before = self._history, msgspec.json.decode(body, type=Batch), self._batches.get(key)
        self._batches[key] = batch
        # The book stays as it was, and names what was refused: also if that was refused before.
        if batch.refused >= 0 and batch.done and (before is None or (before.batch, before.done) == (batch.batch, True)):
            self._batch_refused(batch, before)
            return
        request = h.requests[batch.batch]
        h.demand(
            batch.source == request.source
            and (before is None or (before.batch < batch.batch if before.done else before.batch == batch.batch)),
            Invariant.ADMITTED,
            lambda: f"the batch {before} became {batch}",
        )
        h.demand(
            not batch.done or (batch.jobs == len(request.effects) and batch.jobs + batch.skipped == request.items),
            Invariant.ADMITTED,
            lambda: f"{request} is done as {batch}, and brought {request.effects}",
        )

    def _batch_refused(self, batch: Batch, before: Batch | None) -> None:
        """Nothing else has changed, and nothing of it has come."""
        h, request = self._history, self._history.requests[batch.refused]
        last = Batch(batch.source, -1, done=True) if before is None else before
        h.demand(
            last.done and batch == msgspec.structs.replace(last, writer=batch.writer, refused=batch.refused),
            Invariant.ADMITTED,
            lambda: f"the batch {before} became {batch}",
        )
        h.demand(
            not request.effects,
            Invariant.ABSENT,
            lambda: f"{request} is refused, and brought {request.effects}",
        )

    def _check_not_needed(self, key: str) -> None:
        needed = [
            one for one in self._batches.values() if not one.done and key in (one.assigned, *(p.key for p in one.parts))
        ]
        self._history.demand(
            not needed and not key.endswith(".json"),
            Invariant.KEPT,
            lambda: f"{key} was deleted, and {needed} is not done",
        )

    # --- The ring as a whole ---

    def _root_changed(self, new: RingHead) -> None:
        h, old = self._history, self._history.root
        h.root = new
        h.roots.append((h.now(), new.walked))
        if old is not None:
            h.demand(
                new.queue_id == old.queue_id and new.version == old.version + 1 and new.shards >= old.shards,
                Invariant.ONE_HISTORY,
                lambda: f"the ring became {new}, and was {old}",
            )
            h.demand(
                new.generation == old.generation + (new.size != old.size),
                Invariant.EPOCHS,
                lambda: f"the ring's generation went from {old.generation} to {new.generation}: {old.sizes, new.sizes}",
            )
            self._forgotten += len(new.sizes) < len(old.sizes)
            if new.walked > old.walked:
                demand_same_settings(h, h.walked())
        for token in self._steps:
            self._check_places(token)

    def _check_places(self, token: int) -> None:
        """What this shard holds is in no other, and where the root would look for it."""
        h = self._history
        state = h.shards[token].state
        if not state.jobs and not state.zone_leases:
            return
        root = h.root
        h.demand(
            root is not None and token < root.walked,
            Invariant.REACHED,
            lambda: f"there is something in shard {token}, and nobody looks there: {root}",
        )
        assert root is not None
        places = _places(state)
        for other, shard in h.shards.items():
            if other != token:
                twice = sorted(places & _places(shard.state))
                h.demand(
                    not twice,
                    Invariant.ONE_PLACE,
                    lambda: f"{twice} is in shard {token} and in shard {other}: {root}",  # noqa: B023
                )
        lost = [place for place in sorted(places) if token not in root.homes(place)]
        h.demand(
            not lost, Invariant.REACHED, lambda: f"{lost} is in shard {token}, and nobody would look there: {root}"
        )


def _places(state: State) -> set[str]:
    """Zones that have jobs or a lease here, and unique keys outside all zones."""
    return {*state.zone_jobs, *state.places.keys, *state.zone_leases}
