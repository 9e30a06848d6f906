"""An onlooker who has seen everything: what was first put into each slot, though the slot was emptied long ago.

A fresh reader can only judge what is there. Whether what it finds is the whole history, and whether what is gone was
allowed to go, is known here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol

import msgspec

from casque.codec.admission import Staged, expanded, named_parts
from casque.codec.archive import ARCHIVE
from casque.codec.blobs import BLOBS
from casque.codec.head import KEY
from casque.codec.log import (
    LogHead,
    Mode,
    Segment,
    SnapshotRef,
    Tip,
    decode_head,
    decode_segment,
    digest,
    replay,
)
from casque.codec.snapshot import decode_snapshot, snapshot_of
from casque.codec.staged import STAGED, decode_staged, missing_part
from casque.errors import CorruptQueueError
from casque.state import State
from casque.state.events import subject
from casque.storage.port import Stored
from casque.types import Finished, JobState
from simulation.world.history import History
from simulation.world.invariants import Invariant
from simulation.world.limits import LIMITS
from simulation.world.shelves import Shelves
from simulation.world.stories import Stories, go_on


class Effect(StrEnum):
    """What a write means to the queue."""

    COMMIT = "commit"
    FENCE = "fence"
    """One position further, and nothing else."""
    HEAD = "head"
    """A new version of the head: what a fresh reader finds is as before."""
    SNAPSHOT = "snapshot"
    """Likewise, and nobody knows of it yet."""
    RETAKEN = "slot retaken"
    """A slot that was emptied is taken by somebody who overslept: nobody will ever read it."""
    ARCHIVED = "archive object"
    """Finished jobs, on their way out of the queue."""
    STAGED = "staged object"
    """Jobs on their way into the queue, of which it knows nothing yet."""
    DELETION = "deletion"
    RING = "ring"
    """The root of a ring: its first version, another size, or older sizes forgotten."""
    FORGOTTEN = "older sizes forgotten"
    BATCH = "batch of a ring"
    """How far an admission has got that several shards share."""
    BLOB = "large payload"
    CONVERTED = "conversion"
    """The switch from one layout to the other."""
    BESIDE = "log beside a document"
    """Written for a log that is to come, or by somebody who missed that it ended: nobody reads it now."""
    MEMBER = "sign of life"
    """Of a broker of a ring, for all of its shards."""


class Onlooker(Protocol):
    """Watches one bucket."""

    @property
    def shelves(self) -> Shelves:
        """What was finished, and how far that is archived."""
        ...

    def landed(self, objects: Mapping[str, Stored], key: str) -> Effect:
        """What this write means to the queue."""
        ...

    def deleted(self, key: str) -> None:
        """This object is no longer there."""
        ...

    def recovered(self, objects: Mapping[str, Stored], state: State) -> None:
        """This is what a process finds which knows nothing but the bucket."""
        ...

    def archive_is_complete(self, objects: Mapping[str, Stored]) -> bool:
        """Whether everything that was finished is archived."""
        ...


class _Epoch(msgspec.Struct):
    epoch: int = 0


class DocumentOnlooker:
    """Every write is the whole queue, or a part of the archive, and nothing is ever deleted."""

    def __init__(self, history: History, *, shelves: Shelves | None = None) -> None:
        self._h = history
        self.shelves = self._shelves = shelves or Shelves(history)
        self._epoch = 0

    def landed(self, objects: Mapping[str, Stored], key: str) -> Effect:
        if key.startswith(ARCHIVE):
            self._shelves.landed(key, objects[key].body)
            return Effect.ARCHIVED
        if key.startswith(STAGED):
            return Effect.STAGED
        if key.startswith(BLOBS):
            return Effect.BLOB
        epoch, self._epoch = self._epoch, msgspec.json.decode(objects[key].body, type=_Epoch).epoch
        self._h.demand(self._epoch >= epoch, Invariant.EPOCHS, lambda: f"the epoch fell from {epoch} to {self._epoch}")
        self._h.demand(key == KEY, Invariant.CAUSED, lambda: f"{key} is no object that a document queue has")
        return Effect.COMMIT

    def deleted(self, key: str) -> None:
        if not key.startswith(BLOBS):
            self._h.broken(Invariant.KEPT, f"{key} was deleted")

    def recovered(self, objects: Mapping[str, Stored], state: State) -> None:
        """The step from the version before says all there is to say, but for what is over."""
        if state.position == self._h.state.position:
            return
        fresh = [one for one in state.finished if one.position == state.position]
        self._check_finished(self._h.state, state, fresh)
        self._shelves.happened(fresh)
        self._h.demand(
            state.finished == self._shelves.after(state.archived),
            Invariant.ARCHIVED,
            lambda: f"the document of {state.position} does not hold all that is to be archived",
        )
        self._shelves.marked(objects, state.archived, state.archiving, position=state.position)

    def _check_finished(self, old: State, new: State, fresh: list[Finished]) -> None:
        """Whatever left or died by this commit is kept by the very same."""
        ended = Counter(one.state for one in fresh)
        a, b = old.counters, new.counters
        dead = {i for i in new.dead if i not in old.dead}
        left = {i for i, job in old.jobs.items() if i not in new.jobs and job.state is not JobState.DEAD}
        purged = b.dead_purged > a.dead_purged
        ids = {one.job.id for one in fresh}
        self._h.demand(
            (ended[JobState.DONE], ended[JobState.CANCELLED]) == (b.done - a.done, b.cancelled - a.cancelled)
            and dead <= ids
            and (left <= ids or purged),
            Invariant.ARCHIVED,
            lambda: f"what the commit {new.position} finished is {left | dead}, and it kept {ids}",
        )
        for one in fresh:
            before = old.jobs.get(one.job.id)
            self._h.demand(
                before is None or go_on(before.tries, one.job.tries),
                Invariant.TRIES,
                lambda: f"job {one.job.id[:8]} ended, and its tries are {one.job.tries}",  # noqa: B023  called at once
            )

    def archive_is_complete(self, objects: Mapping[str, Stored]) -> bool:
        return self._shelves.complete(objects)


class LogOnlooker:
    """Replays each segment when it is first put, and follows the head."""

    def __init__(self, history: History) -> None:
        self._h = history
        self._head: LogHead | None = None
        self._full = State(LIMITS)
        self.shelves = self._shelves = Shelves(history)
        self._stories = Stories()
        self._tip = Tip()
        self._beginning = 0
        """Where the log begins: what is yet to be archived by then is in its first snapshot."""
        self._claimant = ""
        """The writer that began the epoch."""

    @classmethod
    def begun(cls, history: History, shelves: Shelves, head: LogHead, state: State, tip: Tip) -> LogOnlooker:
        """A log that begins with all that a document was."""
        log = cls(history)
        log.shelves = log._shelves = shelves
        log._head, log._full, log._tip, log._beginning = head, state, tip, state.position
        log._stories.begin(state.jobs.values())
        state.shed(state.position)
        return log

    @property
    def fences(self) -> list[int]:
        return self._tip.fences

    def landed(self, objects: Mapping[str, Stored], key: str) -> Effect:
        body = objects[key].body
        if key == KEY:
            self._head_changed(objects, decode_head(KEY, body))
            return Effect.HEAD
        if key.startswith("log/"):
            return self._put(objects, _number(key), body)
        if key.startswith(ARCHIVE):
            self._shelves.landed(key, body)
            return Effect.ARCHIVED
        if key.startswith(STAGED):
            return Effect.STAGED
        if key.startswith(BLOBS):
            return Effect.BLOB
        self._h.demand(
            key.startswith("snapshots/"), Invariant.CAUSED, lambda: f"{key} is no object that a log queue has"
        )
        return Effect.SNAPSHOT

    def archive_is_complete(self, objects: Mapping[str, Stored]) -> bool:
        return self._shelves.complete(objects)

    def recovered(self, objects: Mapping[str, Stored], state: State) -> None:  # noqa: ARG002
        full = self._full
        self._h.demand(
            state.finished == self._shelves.after(state.archived),
            Invariant.ARCHIVED,
            lambda: f"snapshot and tail of position {state.position} do not tell all that is to be archived",
        )
        self._h.demand(
            (
                state.position,
                state.jobs,
                state.counters,
                state.writers,
                state.writers_forgotten,
                state.requests,
                state.admissions,
                state.schedules,
                state.gates,
                state.rules,
                state.zone_leases,
                state.ring,
            )
            == (
                full.position,
                full.jobs,
                full.counters,
                full.writers,
                full.writers_forgotten,
                full.requests,
                full.admissions,
                full.schedules,
                full.gates,
                full.rules,
                full.zone_leases,
                full.ring,
            ),
            Invariant.REPLAY,
            lambda: (
                f"snapshot and tail give position {state.position}, and the full replay another state, of position"
                f" {full.position}"
            ),
        )

    # --- Segments ---

    def _put(self, objects: Mapping[str, Stored], position: int, body: bytes) -> Effect:
        h, full, tip, head = self._h, self._full, self._tip, self._head
        if head is None or head.queue_id is None:
            h.broken(Invariant.ONE_HISTORY, f"commit {position} was put before there was a head")
        if position <= full.position:
            h.demand(
                position <= head.floor,
                Invariant.KEPT,
                lambda: f"slot {position} was taken a second time, above the floor {head.floor}",
            )
            return Effect.RETAKEN
        h.demand(
            position == full.position + 1,
            Invariant.ONE_HISTORY,
            lambda: f"slot {position} was taken, and the log ended at {full.position}",
        )
        try:
            segment = decode_segment(body, queue_id=head.queue_id, position=position, prev=tip.chain)
            segment = expanded(segment, staged_among(objects, body))
            replay(full, segment)
        except CorruptQueueError as error:
            h.broken(Invariant.ONE_HISTORY, str(error))
        h.demand(
            tip.epoch <= segment.epoch <= head.epoch,
            Invariant.EPOCHS,
            lambda: (
                f"commit {position} has epoch {segment.epoch}, the one before it {tip.epoch}, the head {head.epoch}"
            ),
        )
        tip.advance(segment, digest(body))
        finished = [one for one in full.finished if one.position == position]
        self._check_tries(segment, finished)
        self._shelves.happened(finished)
        full.shed(position)  # from here on the shelves know
        h.segments[position] = segment
        return Effect.FENCE if segment.is_fence else Effect.COMMIT

    def _check_tries(self, segment: Segment, finished: list[Finished]) -> None:
        over = self._stories.follow(segment)
        self._h.demand(
            not self._stories.lapsed_at_work,
            Invariant.LAPSED,
            lambda: f"commit {segment.position} let a job expire that was running",
        )
        told = {i: tries for event in segment.events if (i := subject(event)) and (tries := self._stories.tries.get(i))}
        kept = {i: self._full.jobs[i].tries for i in told}
        self._h.demand(
            [one.job.tries for one in finished] == over and kept == told,
            Invariant.TRIES,
            lambda: f"after commit {segment.position} jobs have tried {kept}, and the events tell {told}",
        )

    # --- The head ---

    def _head_changed(self, objects: Mapping[str, Stored], new: LogHead) -> None:
        h, old = self._h, self._head
        self._head = new
        for ref in _named(new):
            h.demand(ref.key in objects, Invariant.KEPT, lambda: f"the head names {ref.key}, which is not there")  # noqa: B023
        self._shelves.marked(objects, new.archived_to, new.archiving, position=self._full.position)
        h.demand(
            new.floor <= max(new.archived_to, self._beginning),
            Invariant.ARCHIVED,
            lambda: f"the floor is {new.floor}, and what is archived ends at {new.archived_to}",
        )
        if old is None:
            return
        h.demand(
            new.queue_id == old.queue_id and new.version > old.version,
            Invariant.ONE_HISTORY,
            lambda: f"the head's version {old.version} of {old.queue_id} became {new.version} of {new.queue_id}",
        )
        h.demand(
            new.epoch >= old.epoch, Invariant.EPOCHS, lambda: f"the head's epoch fell from {old.epoch} to {new.epoch}"
        )
        h.demand(new.floor >= old.floor, Invariant.KEPT, lambda: f"the floor fell from {old.floor} to {new.floor}")
        if new.epoch != old.epoch:
            self._claimant = new.writer
        if new.snapshot != old.snapshot:
            h.demand(
                new.mode is Mode.OPEN or new.writer == self._claimant,
                Invariant.EPOCHS,
                lambda: (
                    f"{new.writer} published a snapshot in epoch {new.epoch}, which {self._claimant} has for itself"
                ),
            )
            self._check_snapshot(objects, old, new)

    def _check_snapshot(self, objects: Mapping[str, Stored], old: LogHead, new: LogHead) -> None:
        """It is newer than the last, which stays; the past can be read from the oldest one on; it knows all fences."""
        h, ref = self._h, new.snapshot
        if ref is None or new.queue_id is None:
            h.broken(Invariant.KEPT, "the head no longer names a snapshot")
        h.demand(
            old.snapshot is None or (old.snapshot in new.kept and old.snapshot.position < ref.position),
            Invariant.KEPT,
            lambda: f"the snapshot of {ref.position} took the place of {old.snapshot}, which is gone",
        )
        oldest = min(ref.position for ref in _named(new))
        h.demand(
            new.floor <= oldest and (new.kept != () or new.floor == 0),
            Invariant.KEPT,
            lambda: f"the floor is {new.floor}, and the oldest snapshot {oldest}",
        )
        _, tip = decode_snapshot(
            ref, objects[ref.key].body, queue_id=new.queue_id, limits=LIMITS, read=lambda key: objects[key].body
        )
        h.demand(
            tip.fences == [position for position in self._tip.fences if position <= ref.position],
            Invariant.KEPT,
            lambda: f"the snapshot of {ref.position} knows the fences {tip.fences} of {self._tip.fences}",
        )

    # --- Deletions ---

    def deleted(self, key: str) -> None:
        h, head = self._h, self._head
        if key.startswith(ARCHIVE):
            self._shelves.deleted(key)
        if key.startswith(BLOBS):
            return  # perhaps before there is a head; a job that needs it is looked for by the caller
        if head is None or key == KEY:
            h.broken(Invariant.KEPT, f"{key} was deleted")
        if key.startswith("log/"):
            position = _number(key)
            h.demand(
                position <= head.floor,
                Invariant.KEPT,
                lambda: f"commit {position} was deleted, and the floor is {head.floor}",
            )
            h.demand(position not in self._tip.fences, Invariant.KEPT, lambda: f"the fence at {position} was deleted")
        else:
            h.demand(
                snapshot_of(key) not in [ref.key for ref in _named(head)],
                Invariant.KEPT,
                lambda: f"{key} was deleted, which the head names",
            )


def staged_among(objects: Mapping[str, Stored], body: bytes) -> Staged:
    """The jobs that a segment names, as they lie in the bucket."""
    return {
        part.key: decode_staged(part, objects[part.key].body) if part.key in objects else missing_part(part.key)
        for part in named_parts(body)
    }


def _named(head: LogHead) -> list[SnapshotRef]:
    return [*head.kept, head.snapshot] if head.snapshot is not None else []


def _number(key: str) -> int:
    return int(key.removeprefix("log/"))
