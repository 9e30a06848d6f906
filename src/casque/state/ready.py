"""Which job is next: waiting jobs by entrypoint, in the order (priority, due time, enqueue order).

Jobs mostly arrive in the order they leave, so each lane keeps a run that only grows at its end and a heap for what
comes out of order; both ends cost the same at any depth. Entries are never searched for: one that is out of date is
recognised when it surfaces, because the queue then holds another record for its job, or none.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from heapq import heapify, heappop, heappush
from itertools import chain, count
from typing import TypeAlias

from casque.types import JobRecord

Key: TypeAlias = tuple[int, int, int]
"""(priority, due time, enqueue order): unique to a job, but not to its records."""
Entry: TypeAlias = tuple[int, int, int, int, JobRecord]
"""A key, a number of its own so that records never get compared, and the record."""

RUNS_MAX = 64


class Lane:
    """The waiting jobs of one entrypoint: a run for each of its priorities, and a heap for the rest."""

    __slots__ = ("heap", "live", "priorities", "runs")

    def __init__(self) -> None:
        self.runs: dict[int, deque[Entry]] = {}
        self.priorities: list[int] = []
        """Those that have a run, lowest first. No run is empty."""
        self.heap: list[Entry] = []
        self.live = 0

    def push(self, record: JobRecord, stamp: int) -> None:
        priority = record.spec.priority
        entry = (priority, record.due_ms, record.sequence, stamp, record)
        self.live += 1
        run = self.runs.get(priority)
        if run is None:
            if len(self.runs) >= RUNS_MAX:  # a queue that counts its priorities up would have a run per job
                heappush(self.heap, entry)
            else:
                self.runs[priority] = deque((entry,))
                insort(self.priorities, priority)
        elif entry > run[-1]:
            run.append(entry)
        else:
            heappush(self.heap, entry)

    def head(self, jobs: dict[str, JobRecord]) -> Entry | None:
        """The best entry that is still true, left in place; those before it that are not are dropped."""
        while (entry := self._first()) is not None:
            if jobs.get(entry[4].spec.id) is entry[4]:
                return entry
            self._drop_first()
        return None

    def drop_head(self) -> None:
        """Remove what `head` just returned."""
        self._drop_first()
        self.live -= 1

    def forget(self, jobs: dict[str, JobRecord]) -> None:
        """A waiting job left without being claimed. Its entry stays until most entries are like that."""
        self.live -= 1
        if len(self) > 2 * self.live + 64:
            entries = [*self.heap, *chain.from_iterable(self.runs.values())]
            true = {id(e[4]): e for e in entries if jobs.get(e[4].spec.id) is e[4]}
            self.runs, self.priorities, self.heap = {}, [], sorted(true.values())

    def __len__(self) -> int:
        return sum(map(len, self.runs.values())) + len(self.heap)

    def _first(self) -> Entry | None:
        heap = self.heap
        if not self.priorities:
            return heap[0] if heap else None
        first = self.runs[self.priorities[0]][0]
        return heap[0] if heap and heap[0] < first else first

    def _drop_first(self) -> None:
        priorities, heap = self.priorities, self.heap
        if priorities:
            run = self.runs[priorities[0]]
            if not (heap and heap[0] < run[0]):
                run.popleft()
                if not run:
                    del self.runs[priorities.pop(0)]
                return
        heappop(heap)


class ReadyIndex:
    """All lanes, and the best job over all of them for callers who take any."""

    __slots__ = ("_delayed", "_heads", "_jobs", "_lanes", "_listed", "_moved", "_promoted_to", "_stamps", "delayed")

    def __init__(self, jobs: dict[str, JobRecord]) -> None:
        self._jobs = jobs
        self._lanes: dict[str, Lane] = {}
        # Heads of lanes, for callers who take any. A lane is refreshed here only when such a caller comes,
        # so that a queue whose workers all name their entrypoint pays nothing for it.
        self._heads: list[tuple[Key, str]] = []
        self._listed: dict[str, Key] = {}
        self._moved: set[str] = set()
        self._delayed: list[tuple[int, int, JobRecord]] = []
        self._stamps = count()
        self._promoted_to = -1
        self.delayed = 0

    def push(self, record: JobRecord) -> None:
        """A job that is due now takes its place."""
        name = record.spec.entrypoint
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane()
        lane.push(record, next(self._stamps))
        self._moved.add(name)

    def push_delayed(self, record: JobRecord) -> None:
        if record.due_ms <= self._promoted_to:
            self.push(record)
        else:
            heappush(self._delayed, (record.due_ms, next(self._stamps), record))
            self.delayed += 1

    def forget(self, record: JobRecord, *, was_delayed: bool) -> None:
        """A waiting job was taken out other than by `pop`."""
        if was_delayed and record.due_ms > self._promoted_to:
            self.delayed -= 1
            if len(self._delayed) > 2 * self.delayed + 64:
                self._delayed = [e for e in self._delayed if self._jobs.get(e[2].spec.id) is e[2]]
                heapify(self._delayed)
        else:
            self._lanes[record.spec.entrypoint].forget(self._jobs)

    def promote(self, now_ms: int) -> None:
        """Jobs whose time has come join their lanes."""
        if now_ms <= self._promoted_to:
            return
        self._promoted_to = now_ms
        delayed, jobs = self._delayed, self._jobs
        while delayed and delayed[0][0] <= now_ms:
            record = heappop(delayed)[2]
            if jobs.get(record.spec.id) is record:
                self.delayed -= 1
                self.push(record)

    def next_due_ms(self) -> int | None:
        """When the next delayed job becomes due."""
        delayed = self._delayed
        while delayed and self._jobs.get(delayed[0][2].spec.id) is not delayed[0][2]:
            heappop(delayed)
        return delayed[0][0] if delayed else None

    def pop(self, entrypoints: tuple[str, ...] | None) -> JobRecord | None:
        """Take the best job out. The caller changes its record before anything else happens."""
        if entrypoints is None:
            return self._pop_any()
        if len(entrypoints) == 1:
            lane = self._lanes.get(entrypoints[0])
            best = lane.head(self._jobs) if lane is not None else None
        else:
            lane, best = self._best_of(entrypoints)
        if lane is None or best is None:
            return None
        lane.drop_head()
        self._left(best[4].spec.entrypoint, lane)
        return best[4]

    def has_due(self, entrypoints: tuple[str, ...] | None) -> bool:
        names = self._lanes if entrypoints is None else entrypoints
        return any((lane := self._lanes.get(n)) is not None and lane.head(self._jobs) for n in names)

    def _best_of(self, entrypoints: tuple[str, ...]) -> tuple[Lane | None, Entry | None]:
        best: Entry | None = None
        best_lane: Lane | None = None
        for name in entrypoints:
            lane = self._lanes.get(name)
            head = lane.head(self._jobs) if lane is not None else None
            if head is not None and (best is None or head < best):
                best, best_lane = head, lane
        return best_lane, best

    def _left(self, name: str, lane: Lane) -> None:
        if lane.priorities or lane.heap:
            self._moved.add(name)
        else:
            del self._lanes[name]  # an entrypoint with nothing waiting costs nothing

    def _pop_any(self) -> JobRecord | None:
        for name in self._moved:
            self._list_head(name)
        self._moved.clear()
        listed = self._listed
        while self._heads:
            key, name = heappop(self._heads)
            if listed.get(name) != key:
                continue  # the lane has been listed with another head since
            del listed[name]
            lane = self._lanes.get(name)
            head = lane.head(self._jobs) if lane is not None else None
            if lane is None or head is None:
                continue
            if head[:3] != key:  # its head was cancelled in the meantime
                self._list_head(name)
                continue
            lane.drop_head()
            self._left(name, lane)
            return head[4]
        return None

    def _list_head(self, name: str) -> None:
        lane = self._lanes.get(name)
        head = lane.head(self._jobs) if lane is not None else None
        if head is None or self._listed.get(name) == head[:3]:
            return
        self._listed[name] = head[:3]
        heappush(self._heads, (head[:3], name))
        if len(self._heads) > 2 * len(self._listed) + 64:
            self._heads = [(key, name) for name, key in self._listed.items()]
            heapify(self._heads)
