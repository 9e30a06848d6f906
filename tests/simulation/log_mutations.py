"""Rules of the log protocol, each dropped in the real code for the length of a test."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import pytest

from casque.clock import new_nonce
from casque.codec import stored
from casque.codec.archive import Range
from casque.codec.head import KEY, Owner
from casque.codec.log import LogHead, Mode, Segment, SnapshotRef, View, encode_segment, segment_key
from casque.engine.committer import Committer
from casque.journal import archive as journal_archive
from casque.journal.log import archiver, collector, journal, replica
from casque.journal.log.archiver import Archiver
from casque.journal.log.follower import Follower
from casque.journal.log.journal import LogJournal
from casque.journal.log.reader import Reader, Tail
from casque.journal.log.register import HeadRegister
from casque.journal.log.snapshots import naming
from casque.journal.port import Batch, Conflict, Refreshed, Sighting
from casque.state import State
from casque.storage.port import Store, Won
from casque.types import Finished


def wins_not_confirmed(patch: pytest.MonkeyPatch) -> None:
    """After a win the head is not read: the slot may have been collected long ago."""

    async def confirmed(self: LogJournal, position: int) -> bool:
        return True

    patch.setattr(LogJournal, "_confirmed", confirmed)


def second_body_for_a_tried_slot(patch: pytest.MonkeyPatch) -> None:
    """An attempt without an answer is taken for a lost race: the batch is decided anew, and written to the same slot.

    The engine would notice when the first attempt turns up; here it does not look.
    """

    async def place(store: Store, reader: Reader, patience: Any, *, body: bytes, **where: Any) -> Tail | None:
        outcome = await store.create(segment_key(where["position"]), body)
        if isinstance(outcome, Won):
            return None
        return await reader.tail(where["queue_id"], where["position"] - 1, where["chain"])

    patch.setattr(journal, "place", place)
    patch.setattr(Committer, "_landed_since", lambda self, number: False)


def deleted_before_the_floor_is_raised(patch: pytest.MonkeyPatch) -> None:
    keep = LogJournal._keep

    async def hasty(self: LogJournal, view: View, writer: str) -> None:
        head = await self._head.read()
        if head.snapshot is not None:
            early = msgspec.structs.replace(head, floor=head.snapshot.position)
            await collector.collect(self._store, early, fences=range(head.floor))
        await keep(self, view, writer)

    patch.setattr(LogJournal, "_keep", hasty)


def fences_collected(patch: pytest.MonkeyPatch) -> None:
    async def collect(store: Store, head: LogHead, *, fences: Collection[int]) -> None:
        await collector.collect(store, head, fences=())

    patch.setattr(journal, "collect", collect)


def floor_at_the_newest_snapshot(patch: pytest.MonkeyPatch) -> None:
    """Nothing is kept for those who are still reading from the snapshot before."""
    replace = HeadRegister.replace

    async def raised(self: HeadRegister, newer: LogHead) -> bool:
        floor = newer.snapshot.position if newer.snapshot is not None else 0
        return await replace(self, msgspec.structs.replace(newer, floor=floor, kept=()))

    patch.setattr(HeadRegister, "replace", raised)


def head_read_before_the_tail(patch: pytest.MonkeyPatch) -> None:
    """A follower looks at the floor first and reads the slots then: they may have been collected in between."""

    async def refresh(self: LogJournal, state: State) -> Refreshed:
        if self._head.known is None and await self._head.find() is None:
            return Refreshed(state)
        head = await self._head.read()
        self._heed(head)
        if head.floor > self._verified:
            return Refreshed(await self.load())
        tail = await self._reader.tail(self._head.queue_id, state.position, self._tip.chain)
        if tail.broken is not None:
            return Refreshed(await self.load())
        events = self._apply(state, tail.found)
        self._verified = state.position
        return Refreshed(state, events)

    patch.setattr(LogJournal, "refresh", refresh)


def log_probed_before_the_head_is_claimed(patch: pytest.MonkeyPatch) -> None:
    """Whoever takes the queue puts its fence first, and claims the head then."""

    async def claim(
        self: LogJournal, state: State, owner: Owner, batch: Batch, mode: Mode, seen: Sighting | None = None
    ) -> Refreshed | None:
        await self._be_there(batch)
        head = await self._head.read()
        self._epoch = head.epoch + 1
        fence = await self._fence_at_the_end(state, self._epoch, batch, [])
        taken = msgspec.structs.replace(
            head, version=head.version + 1, writer=batch.writer, epoch=self._epoch, mode=mode, owner=owner
        )
        if fence is None or not await self._head.replace(taken):
            return None
        self._pass(state, fence)
        self._verified, self._mode = state.position, mode
        self._stance = replica.Stance.LEADING if mode is Mode.LED else replica.Stance.HOLDING
        self._seen_ms = self._clock.monotonic_ms()
        return Refreshed(state)

    async def hold(self: LogJournal, state: State, batch: Batch) -> Refreshed:
        self._contention.claimed()
        taken = await self.claim(state, Owner(batch.writer, new_nonce(self._env.rng)), batch, Mode.EXCLUSIVE)
        return taken if taken is not None else Refreshed(await self.load())

    patch.setattr(LogJournal, "claim", claim)
    patch.setattr(LogJournal, "hold", hold)


def no_fence_after_a_change_of_epoch(patch: pytest.MonkeyPatch) -> None:
    """The queue is made open again, and nothing is put in the former holder's way."""

    async def fence(self: LogJournal, state: State, batch: Batch) -> Refreshed:
        self._tip.epoch = self._epoch
        return Refreshed(state)

    patch.setattr(LogJournal, "_fence", fence)


def without(view: View, facet: str) -> View:
    """A view that says nothing of this facet."""
    return msgspec.structs.replace(view, facets={name: data for name, data in view.facets.items() if name != facet})


def snapshots_forget_request_ids(patch: pytest.MonkeyPatch) -> None:
    of = View.of

    def forgetful(state: State, tip: Any) -> View:
        return msgspec.structs.replace(of(state, tip), requests={})

    patch.setattr(View, "of", staticmethod(forgetful))


def snapshots_forget_tags(patch: pytest.MonkeyPatch) -> None:
    to_stored = stored._to_stored

    def forgetful(*job: Any) -> stored.StoredJob:
        return msgspec.structs.replace(to_stored(*job), tags=())

    patch.setattr(stored, "_to_stored", forgetful)


def snapshots_forget_gates(patch: pytest.MonkeyPatch) -> None:
    of = View.of

    def forgetful(state: State, tip: Any) -> View:
        return without(of(state, tip), "gates")

    patch.setattr(View, "of", staticmethod(forgetful))


def snapshots_forget_what_visits_saw(patch: pytest.MonkeyPatch) -> None:
    of = View.of

    def forgetful(state: State, tip: Any) -> View:
        return without(of(state, tip), "vigils")

    patch.setattr(View, "of", staticmethod(forgetful))


def snapshots_forget_admissions(patch: pytest.MonkeyPatch) -> None:
    of = View.of

    def forgetful(state: State, tip: Any) -> View:
        return without(of(state, tip), "admissions")

    patch.setattr(View, "of", staticmethod(forgetful))


def deposed_leader_goes_on(patch: pytest.MonkeyPatch) -> None:
    """A leader that finds its slot taken takes it for an ordinary lost race."""
    lost = LogJournal._lost

    async def stubborn(self: LogJournal, state: State, others: Tail) -> Conflict:
        if self._stance is not replica.Stance.LEADING:
            return await lost(self, state, others)
        self.undo(state)
        return Conflict(Refreshed(state, self._apply(state, others.found)))

    patch.setattr(LogJournal, "_lost", stubborn)


def leader_without_a_fence(patch: pytest.MonkeyPatch) -> None:
    """It claims the head, reads the log to its end and begins, with nothing in its predecessor's way."""

    async def claim(
        self: LogJournal, state: State, owner: Owner, batch: Batch, mode: Mode, seen: Sighting | None = None
    ) -> Refreshed | None:
        await self._be_there(batch)
        head = await self._head.read()
        taken = msgspec.structs.replace(
            head, version=head.version + 1, writer=batch.writer, epoch=head.epoch + 1, mode=mode, owner=owner
        )
        if not await self._head.replace(taken):
            return None
        fresh = await self.load()
        self._stance = replica.Stance.LEADING if mode is Mode.LED else replica.Stance.HOLDING
        self._seen_ms = self._clock.monotonic_ms()
        return Refreshed(fresh)

    patch.setattr(LogJournal, "claim", claim)


def follower_that_never_looks_at_the_floor(patch: pytest.MonkeyPatch) -> None:
    read = Follower.read

    async def blind(self: Follower) -> list[Segment]:
        look = self._head.read

        async def low() -> LogHead:
            return msgspec.structs.replace(await look(), floor=0, snapshot=None)

        with pytest.MonkeyPatch.context() as eyes:
            eyes.setattr(self._head, "read", low)
            return await read(self)

    patch.setattr(Follower, "read", blind)


def head_collected(patch: pytest.MonkeyPatch) -> None:
    async def collect(store: Store, head: LogHead, *, fences: Collection[int]) -> None:
        await collector.collect(store, head, fences=fences)
        await store.delete(KEY)

    patch.setattr(journal, "collect", collect)


def fence_taken_for_an_ordinary_commit(patch: pytest.MonkeyPatch) -> None:
    """Whoever loses a slot to a newer epoch applies that and writes on, open writer or holder, by the head it knows."""

    async def stubborn(self: LogJournal, state: State, others: Tail) -> Conflict:
        self.undo(state)
        return Conflict(Refreshed(state, self._apply(state, others.found), certain=False))

    patch.setattr(LogJournal, "_lost", stubborn)


def fence_before_the_head_is_flipped(patch: pytest.MonkeyPatch) -> None:
    flip = LogJournal._flip

    async def hasty(self: LogJournal, state: State, batch: Batch) -> Refreshed:
        epoch, self._epoch = self._epoch, self._epoch + 1
        fenced = await self._fence(state, batch)
        self._epoch = epoch
        return await flip(self, fenced.state, batch)

    patch.setattr(LogJournal, "_flip", hasty)


def snapshots_published_into_another_epoch(patch: pytest.MonkeyPatch) -> None:
    async def keep(self: LogJournal, view: View, writer: str) -> None:
        ref = await self._snapshots.write(self._head.queue_id, view)
        head = await self._head.read()
        newer = naming(head, ref, writer=writer, retention_ms=1_000) if ref is not None else None
        if newer is not None and await self._head.replace(newer):
            await collector.collect(self._store, newer, fences=view.tip.fences)

    patch.setattr(LogJournal, "_keep", keep)


def archived_before_it_is_committed(patch: pytest.MonkeyPatch) -> None:
    """A range ends where the next commit will be, and what that may finish is archived with the rest."""
    claim = archiver.claim

    def hasty(finished: Sequence[Finished], begin: int, position: int) -> int | None:
        end = claim(finished, begin, position)
        return end + 1 if end == position else end

    patch.setattr(archiver, "claim", hasty)
    write = journal_archive.write_range

    async def ahead(store: Store, patience: Any, range_: Range, finished: Sequence[Finished], forms: Any) -> None:
        guessed = [msgspec.structs.replace(one, position=range_.last) for one in finished[-1:]]
        await write(store, patience, range_, [*finished, *guessed], forms)

    patch.setattr(archiver, "write_range", ahead)
    archive = Archiver.archive

    async def beyond(self: Archiver, state: State, finished: Any, position: int, **more: Any) -> None:
        await archive(self, state, finished, position + 1, **more)

    patch.setattr(Archiver, "archive", beyond)


def archived_without_claiming_the_range(patch: pytest.MonkeyPatch) -> None:
    """The objects first, and one write of the head afterwards."""

    async def archive(
        self: Archiver, state: State, finished: Sequence[Finished], position: int, *, writer: str, may_write: Any
    ) -> None:
        head = await self._head.read()
        if not may_write(head) or not archiver.claim(finished, head.archived_to, position):
            return
        await journal_archive.write_range(self._store, self._patience, Range(head.archived_to + 1, position), finished)
        head = await self._head.read()
        if may_write(head) and await self._head.replace(head.next(writer, archived=position)):
            state.shed(position)

    patch.setattr(Archiver, "archive", archive)


def another_range_than_the_one_that_was_begun(patch: pytest.MonkeyPatch) -> None:
    """Whoever comes after a crash archives as far as it has come itself."""
    archive = Archiver.archive

    async def stubborn(self: Archiver, state: State, finished: Any, position: int, **more: Any) -> None:
        head = await self._head.read()
        if head.archiving is not None and more["may_write"](head):
            await self._head.replace(head.next(more["writer"], archiving=None))
        await archive(self, state, finished, position, **more)

    patch.setattr(Archiver, "archive", stubborn)


def called_archived_before_it_is_written(patch: pytest.MonkeyPatch) -> None:
    async def later(store: Store, patience: Any, range_: Range, finished: Sequence[Finished], forms: Any) -> None:
        """Somebody will."""

    patch.setattr(archiver, "write_range", later)


def floor_past_what_is_archived(patch: pytest.MonkeyPatch) -> None:
    """The floor follows the snapshots alone, and they do not wait for the archive."""

    def naming_all(head: LogHead, ref: SnapshotRef, **more: Any) -> LogHead | None:
        archived = more.pop("archived")
        newer = naming(msgspec.structs.replace(head, archived=None), ref, **more)
        return None if newer is None else msgspec.structs.replace(newer, archived=archived)

    patch.setattr(journal, "naming", naming_all)
    patch.setattr(LogJournal, "_archive_and_keep", lambda self, state, view, writer: self._keep(view, writer))


def snapshots_forget_what_is_yet_to_be_archived(patch: pytest.MonkeyPatch) -> None:
    of = View.of

    def forgetful(state: State, tip: Any) -> View:
        return msgspec.structs.replace(of(state, tip), finished=[])

    patch.setattr(View, "of", staticmethod(forgetful))


def snapshots_forget_that_writers_were_forgotten(patch: pytest.MonkeyPatch) -> None:
    of = View.of

    def forgetful(state: State, tip: Any) -> View:
        view = of(state, tip)
        return msgspec.structs.replace(view, facets={**view.facets, "writers_forgotten": 0})

    patch.setattr(View, "of", staticmethod(forgetful))


def replicas_forget_requests_each_by_itself(patch: pytest.MonkeyPatch) -> None:
    """A commit does not say which requests it forgets: only its writer knows."""

    def silent(**fields: Any) -> bytes:
        return encode_segment(**{**fields, "forgets": None})

    patch.setattr(journal, "encode_segment", silent)
