"""Reads a queue at an earlier moment: from the newest snapshot that is old enough, and the segments after it.

Everything above the floor is kept, and the head names the snapshots that are kept. Never writes.
"""

from __future__ import annotations

import msgspec

from casque.codec.admission import Staged
from casque.codec.head import KEY, check_single, read_layout
from casque.codec.log import LAYOUT, LogHead, SnapshotRef, Tip, replay
from casque.environment import Environment
from casque.errors import HistoryGoneError, InvalidInputError, NoHistoryError, StorageError
from casque.journal.log.reader import READ_AHEAD, Bodies, Placed, Reader, linked, lost
from casque.journal.log.register import HeadRegister
from casque.state import Limits, State
from casque.storage.port import Store, Stored
from casque.types import from_ms

READS_MAX = 20
"""How often reading restarts because the log was collected meanwhile."""


class Moment(msgspec.Struct, frozen=True):
    """A queue as of one commit."""

    state: State
    at_ms: int
    """The time of that commit, by the committer's clock."""


class Past:
    """The history of one log queue, as far back as it is kept."""

    def __init__(self, store: Store, env: Environment) -> None:
        self._env = env
        self._head = HeadRegister(store, env.patience)
        self._reader = Reader(store, env.patience)

    async def at_position(self, position: int | None) -> Moment:
        """The queue after this commit; None for the last one.

        Raises:
            NoHistoryError: the queue is a document.
            HistoryGoneError: the position is no longer kept.
            InvalidInputError: the position is in the future, or there is no queue.
        """
        await self._check_layout()
        for _ in range(READS_MAX):
            head = await self._head.read()
            refs = [ref for ref in refs_of(head) if position is None or ref.position <= position]
            if not refs and head.floor:
                raise HistoryGoneError(f"position {position}", oldest_of(head))
            stretch = await self._stretch(refs[-1] if refs else None, until=position)
            if stretch is None:
                continue
            if position is not None and stretch.end < position:
                raise InvalidInputError(
                    f"position {position} is in the future: the positions of this queue that can be read are "
                    f"{oldest_of(head)} to {stretch.end}"
                )
            return Moment(stretch.replayed(), stretch.at_ms)
        raise _too_fast()

    async def at_time(self, at_ms: int) -> Moment:
        """The queue after the last commit whose time, by its writer's clock, is not later.

        Raises:
            NoHistoryError, HistoryGoneError, InvalidInputError: as above.
        """
        await self._check_layout()
        for _ in range(READS_MAX):
            head = await self._head.read()
            refs = [ref for ref in refs_of(head) if ref.at <= at_ms]
            if not refs and head.floor:
                oldest = refs_of(head)[0]
                raise HistoryGoneError(
                    f"{_text(at_ms)} (the oldest moment left is {_text(oldest.at)})", oldest.position
                )
            stretch = await self._stretch(refs[-1] if refs else None, until=None)
            if stretch is None:
                continue
            latest_ms = max(self._env.clock.wall_ms(), stretch.at_ms)
            if at_ms > latest_ms:
                raise InvalidInputError(
                    f"{_text(at_ms)} is in the future: this queue can be read up to {_text(latest_ms)}, "
                    f"positions {oldest_of(head)} to {stretch.end}"
                )
            # Clocks differ: a commit may have a later time than the next one. Take the last one that is not too late.
            while stretch.found and stretch.found[-1].segment.at > at_ms:
                stretch.found.pop()
            return Moment(stretch.replayed(), at_ms)
        raise _too_fast()

    async def _check_layout(self) -> None:
        read = await self._reader.get(KEY)
        if not isinstance(read, Stored):
            raise InvalidInputError(f"there is no queue here: {KEY} is missing")
        if check_single(read_layout(KEY, read.body)).layout != LAYOUT:
            raise NoHistoryError
        self._head.adopt(read)

    async def _stretch(self, base: SnapshotRef | None, *, until: int | None) -> _Stretch | None:
        """The commits after a snapshot, or from the beginning; None if they were collected meanwhile."""
        start = base.position if base is not None else 0
        restored: tuple[State, Tip] | None = State(Limits()), Tip()
        if base is not None:
            restored = await self._reader.restore(base, queue_id=self._head.queue_id, limits=Limits())
        read = await self._bodies(start, until)
        # The head is read last: objects at or below its floor may be gone, or be different by now.
        later = await self._head.read()
        if (later.floor > start and until != start) or (base is not None and base not in refs_of(later)):
            return None
        if restored is None:
            assert base is not None
            raise await self._reader.missing_of(base, queue_id=self._head.queue_id)
        stretch = _Stretch(*restored, base.at if base is not None else 0)
        tail = linked(self._head.queue_id, start, stretch.tip.chain, read)
        if tail.broken is not None:
            raise tail.broken
        if tail.gap is not None or (until is None and start + len(tail.found) < _reaches(later)):
            raise lost(start + len(tail.found) + 1)
        stretch.found = tail.found
        return stretch

    async def _bodies(self, start: int, until: int | None) -> Bodies:
        if until is None:
            return await self._reader.bodies(start, ahead=READ_AHEAD)
        bodies: list[bytes] = []
        staged: Staged = {}
        while (left := until - start - len(bodies)) > 0:
            some = await self._reader.window(start + len(bodies), min(left, READ_AHEAD))
            bodies += some.bodies
            staged = {**staged, **some.staged}
            if len(some.bodies) < min(left, READ_AHEAD):
                return Bodies(bodies, some.gap, staged)
        return Bodies(bodies, None, staged)


class _Stretch:
    """A state and the commits after it, not applied yet."""

    def __init__(self, state: State, tip: Tip, since_ms: int) -> None:
        self._state = state
        self._since_ms = since_ms
        self.tip = tip
        self.found: list[Placed] = []

    @property
    def end(self) -> int:
        return self._state.position + len(self.found)

    @property
    def at_ms(self) -> int:
        return self.found[-1].segment.at if self.found else self._since_ms

    def replayed(self) -> State:
        for placed in self.found:
            replay(self._state, placed.segment)
        return self._state


def refs_of(head: LogHead) -> list[SnapshotRef]:
    """The snapshots that the past can be read from, oldest first."""
    named = [*head.kept, *([head.snapshot] if head.snapshot is not None else [])]
    return [ref for ref in named if ref.position >= head.floor]


def oldest_of(head: LogHead) -> int:
    """The first position that can still be read."""
    return refs_of(head)[0].position if head.floor else 0


def _reaches(head: LogHead) -> int:
    return head.snapshot.position if head.snapshot is not None else 0


def _text(ms: int) -> str:
    return from_ms(ms).isoformat(timespec="milliseconds")


def _too_fast() -> StorageError:
    return StorageError("the log was collected faster than it could be read; try again")
