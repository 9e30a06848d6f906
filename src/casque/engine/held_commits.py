"""Commits that readers of the feed have decoded and not handed on yet, bounded in bytes for all readers together.

A reader that stops reading is in the middle of a commit, which may be megabytes. Its commits can be read again, so they
are dropped as soon as another reader needs the room; the reader keeps its position and reads again when asked for more.
So an idle reader costs only its position.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from casque.clock import Clock
from casque.codec.log import Segment
from casque.journal.log.follower import Follower

HELD_BYTES = 8 * 1024 * 1024
"""Stored size. A larger commit is held alone."""
LOOK_S = 0.1
LOOKS = 3
"""After this many checks that find all readers active, the one that has held its commits longest loses them."""


class HeldCommits:
    """Room for decoded commits. A reader that hands nothing on for a moment makes way for one that wants to read."""

    def __init__(self, clock: Clock, bytes_max: int = HELD_BYTES) -> None:
        self._clock = clock
        self._bytes_max = bytes_max
        self._stretches: dict[Stretch, None] = {}
        """Stretches that hold commits, oldest first."""
        self.bytes = 0

    async def make_room(self, size: int) -> None:
        looks = 0
        while not self._has_room(size):
            handed_on = [(stretch, stretch.handed_on) for stretch in self._stretches]
            await self._clock.sleep(LOOK_S)
            looks += 1
            idle = [stretch for stretch, before in handed_on if stretch.handed_on == before]
            self._drop(idle if looks < LOOKS else [*idle, *self._stretches], size)

    def hold(self, stretch: Stretch, size: int) -> None:
        self._stretches[stretch] = None
        self.bytes += size

    def let_go(self, stretch: Stretch, size: int) -> None:
        if stretch in self._stretches:
            del self._stretches[stretch]
            self.bytes -= size

    def _has_room(self, size: int) -> bool:
        return not self._stretches or self.bytes + size <= self._bytes_max

    def _drop(self, stretches: Iterable[Stretch], size: int) -> None:
        for stretch in stretches:
            if self._has_room(size):
                return
            if stretch in self._stretches:
                stretch.drop()


class Stretch:
    """Commits that one reader has read and hands on, event by event."""

    def __init__(self, held: HeldCommits) -> None:
        self._held = held
        self._size = 0
        self._commits: deque[Segment] = deque()
        self._index = 0
        """Index of the next event in the first commit."""
        self._back_to: tuple[int, str] | None = None
        """Where to read dropped commits again: a position, and the digest of its segment."""
        self.handed_on = 0

    async def fill(self, follower: Follower) -> bool:
        """Read on, or again from where the commits were dropped. False if there is nothing to read for now."""
        if self._back_to is not None:
            follower.stand_at(*self._back_to)
        commits = await follower.read()
        if not commits:
            return False
        size = follower.read_bytes
        await self._held.make_room(size)
        self._commits.extend(commits)
        if self._back_to is None:
            self._index = 0
        self._back_to = None
        self._size = size
        self._held.hold(self, self._size)
        return True

    def next(self) -> tuple[Segment, int] | None:
        """A commit and the index of its next event; None if nothing is left, or if it was dropped."""
        while self._commits:
            first = self._commits[0]
            if self._index < len(first.events):
                self._index += 1
                self.handed_on += 1
                return first, self._index - 1
            self._commits.popleft()
            self._index = 0
        self.let_go()
        return None

    @property
    def was_dropped(self) -> bool:
        return self._back_to is not None

    def drop(self) -> None:
        """Release the room for another reader."""
        first = self._commits[0]
        self._back_to = first.position - 1, first.prev
        self.let_go()

    def let_go(self) -> None:
        self._commits.clear()
        self._held.let_go(self, self._size)
