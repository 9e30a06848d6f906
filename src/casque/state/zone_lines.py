"""The waiting jobs of one zone and entrypoint, the boards that list them, and the clock of a priority.

What `fair` keeps turns with. A zone with a job or two is ordinary, so its jobs lie in a plain list first.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import TypeAlias

from casque.state.lane import Key, Lane, key_of
from casque.types import JobRecord

Turn: TypeAlias = tuple[int, float, int, int, str]
"""Priority, start, due time and enqueue order of the job that is first in its zone, and the zone."""
Vest: TypeAlias = tuple[int, str]
"""When the first job of a zone became due, and the zone."""
NO_ZONE = ""
"""Jobs without a zone take turns with the zones, as if this was theirs."""

FEW = 16
"""Maximum number of a zone's jobs in a plain list: a million zones with a job or two each are ordinary."""
SWEPT = 64
LEVELS_MAX = 1_024
FIFO_PRIORITY = 0


class Line:
    """The waiting jobs of one zone and one entrypoint, or those of no zone: then it stands for their lane."""

    __slots__ = ("listed", "records", "turn")

    def __init__(self, lane: Lane | None = None) -> None:
        self.records: list[JobRecord] | Lane = [] if lane is None else lane
        """The next one last."""
        self.turn: Turn | None = None
        """How it is listed, if it is."""
        self.listed: JobRecord | None = None
        """The record that the turn was made for. A number would not do: a batch that is undone gives its enqueue
        numbers back, and another job of the same millisecond gets one of them, maybe with another priority."""

    def push(self, record: JobRecord, jobs: dict[str, JobRecord], stamps: Iterator[int]) -> None:
        records = self.records
        if isinstance(records, Lane):
            records.push(record, next(stamps))
        elif len(records) < FEW:
            if any(listed is record for listed in records):
                return  # an undone batch lists again what may be listed still
            records.append(record)
            if len(records) > 1 and key_of(record) > key_of(records[-2]):
                records.sort(key=key_of, reverse=True)
        else:
            lane = Lane()
            for known in reversed(records):
                if jobs.get(known.spec.id) is known:
                    lane.push(known, next(stamps))
            lane.push(record, next(stamps))
            self.records = lane

    def head(self, jobs: dict[str, JobRecord]) -> JobRecord | None:
        records = self.records
        if isinstance(records, Lane):
            return records.head(jobs)
        while records:
            record = records[-1]
            if jobs.get(record.spec.id) is record:
                return record
            records.pop()
        return None

    def take(self, jobs: dict[str, JobRecord]) -> JobRecord | None:
        records = self.records
        if isinstance(records, Lane):
            return records.take(jobs)
        return records.pop() if self.head(jobs) is not None else None

    def forget(self, jobs: dict[str, JobRecord]) -> None:
        records = self.records
        if isinstance(records, Lane):
            records.forget(jobs)
        else:
            self.records = [record for record in records if jobs.get(record.spec.id) is record]

    def vesting_ms(self, jobs: dict[str, JobRecord]) -> int | None:
        """When the first of its jobs became due."""
        records = self.records
        if isinstance(records, Lane):
            return records.vesting_ms(jobs)
        return min([record.due_ms for record in records if jobs.get(record.spec.id) is record], default=None)

    @staticmethod
    def priority_of(head: JobRecord) -> int:
        return head.spec.priority


class FifoLine(Line):
    """The waiting jobs of a FIFO zone, of whichever entrypoint, strictly in enqueue order, and one at a time: while one
    of them runs, or waits to be tried again, no other is handed out."""

    __slots__ = ("board", "heap", "held", "running")

    def __init__(self) -> None:
        super().__init__()
        self.heap: list[tuple[int, int, JobRecord]] = []
        self.running = 0
        self.held = 0
        """Jobs that wait for their time: failed ones, which keep their place."""
        self.board: str | None = None
        """The entrypoint where it is listed: that of its first job."""

    def push(self, record: JobRecord, jobs: dict[str, JobRecord], stamps: Iterator[int]) -> None:  # noqa: ARG002
        heappush(self.heap, (record.sequence, next(stamps), record))

    def head(self, jobs: dict[str, JobRecord]) -> JobRecord | None:
        if self.running or self.held:
            return None
        heap = self.heap
        while heap:
            record = heap[0][2]
            if jobs.get(record.spec.id) is record:
                return record
            heappop(heap)
        return None

    def take(self, jobs: dict[str, JobRecord]) -> JobRecord | None:
        return heappop(self.heap)[2] if self.head(jobs) is not None else None

    def forget(self, jobs: dict[str, JobRecord]) -> None:
        """Its entry stays until it would be first."""

    def vesting_ms(self, jobs: dict[str, JobRecord]) -> int | None:
        """Its first job is the only one that may be had."""
        head = self.head(jobs)
        return None if head is None else head.due_ms

    @staticmethod
    def priority_of(head: JobRecord) -> int:  # noqa: ARG004
        return FIFO_PRIORITY


class Level:
    """The clock of one priority."""

    __slots__ = ("_ends", "_room", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._ends: dict[str, float] = {}
        """Where the last turns ended of the zones that are ahead of the clock, and of some that were."""
        self._room = SWEPT

    def start_of(self, zone: str) -> float:
        return max(self.now, self._ends.get(zone, 0.0))

    def end_of(self, zone: str) -> float:
        """Before this no turn of it starts."""
        return self._ends.get(zone, 0.0)

    def give(self, zone: str, start: float, cost: float) -> None:
        if start > self.now:
            self.now = start
        ends = self._ends
        ends[zone] = start + cost
        if len(ends) > self._room:
            self._ends = {one: end for one, end in ends.items() if end > self.now}
            self._room = 2 * len(self._ends) + SWEPT


class Levels:
    """The clocks of all priorities."""

    def __init__(self) -> None:
        self.known: dict[int, Level] = {}
        self._most = LEVELS_MAX

    def at(self, priority: int, boards: dict[str, Board]) -> Level:
        level = self.known.get(priority)
        if level is None:
            if len(self.known) >= self._most:
                # A queue that counts its priorities up leaves most of them behind for good.
                used = {turn[0] for board in boards.values() for turn in board.heap}
                self.known = {one: clock for one, clock in self.known.items() if one in used}
                self._most = max(LEVELS_MAX, 2 * len(used))
            level = self.known[priority] = Level()
        return level

    def clear(self) -> None:
        self.known.clear()


class Board:
    """The zones that have jobs of one entrypoint waiting, the next one first."""

    __slots__ = ("heap", "lines", "name", "vested", "vests")

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: dict[str, Line] = {}
        self.heap: list[Turn] = []
        self.vests: list[Vest] = []
        """The same zones by vesting time, each at least once, unless it has to wait. Not all before the first peek."""
        self.vested = False
        """Whether they are all there."""


def order_of(line: Line, head: JobRecord) -> Key:
    return line.priority_of(head), head.due_ms, head.sequence
