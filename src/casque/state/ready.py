"""Which job is next: waiting jobs by entrypoint, in the order (priority, due time, enqueue order).

Jobs mostly arrive in the order they leave, so each lane keeps a run that only grows at its end and a heap for what
comes out of order; both ends cost the same at any depth. Entries are never searched for: one that is out of date is
recognised when it surfaces, because the queue then holds another record for its job, or none.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import chain, count
from typing import TypeAlias

from casque.types import JobRecord

Key: TypeAlias = tuple[int, int, int]
"""(priority, due time, enqueue order): unique to a job, but not to its records."""
Entry: TypeAlias = tuple[int, int, int, int, JobRecord]
"""A key, a number of its own so that records never get compared, and the record."""

RUNS_MAX = 64
BLOCK = 512


class Run:
    """Records of one priority that came in order. Never empty; `shift` says when it would be.

    All but both ends lies in tuples of records, which the garbage collector stops looking into. One deque would be
    walked through by every full collection: at a million jobs tens of milliseconds, many times a minute.
    """

    __slots__ = ("_back", "_blocks", "_front", "last")

    def __init__(self, record: JobRecord) -> None:
        self._front = [record]
        """The first ones, next one last."""
        self._blocks: deque[tuple[JobRecord, ...]] = deque()
        self._back: list[JobRecord] = []
        self.last = record

    @property
    def first(self) -> JobRecord:
        return self._front[-1]

    def append(self, record: JobRecord) -> None:
        self.last = record
        back = self._back
        back.append(record)
        if len(back) >= BLOCK:
            self._blocks.append(tuple(back))
            self._back = []

    def unshift(self, record: JobRecord) -> None:
        """Put one before the first."""
        self._front.append(record)

    def extend(self, records: list[JobRecord]) -> None:
        self.last = records[-1]
        back = self._back
        back += records
        if len(back) >= BLOCK:
            whole = len(back) - len(back) % BLOCK
            self._blocks += [tuple(back[start : start + BLOCK]) for start in range(0, whole, BLOCK)]
            self._back = back[whole:]

    def shift(self) -> bool:
        """Take the first one out; False if it was the only one, and stays."""
        front = self._front
        if len(front) > 1:
            front.pop()
        elif self._blocks:
            self._front = list(self._blocks.popleft())
            self._front.reverse()
        elif self._back:
            self._front, self._back = self._back, []
            self._front.reverse()
        else:
            return False
        return True

    def take(self, most: int) -> tuple[list[JobRecord], bool]:
        """Take out up to so many, in order. False if nothing is left, and the run is not to be used any more."""
        taken: list[JobRecord] = []
        while True:
            front = self._front
            if len(front) > most:
                taken += front[: -most - 1 : -1]
                del front[len(front) - most :]
                return taken, True
            taken += reversed(front)
            most -= len(front)
            while most >= BLOCK and self._blocks:
                taken += self._blocks.popleft()
                most -= BLOCK
            if self._blocks:
                self._front = list(self._blocks.popleft())
            elif self._back:
                self._front, self._back = self._back, []
            else:
                return taken, False
            self._front.reverse()

    def records(self) -> chain[JobRecord]:
        return chain(self._front, *self._blocks, self._back)

    def __len__(self) -> int:
        return len(self._front) + len(self._blocks) * BLOCK + len(self._back)


class Lane:
    """The waiting jobs of one entrypoint: a run for each of its priorities, and a heap for the rest."""

    __slots__ = ("heap", "live", "priorities", "runs")

    def __init__(self) -> None:
        self.runs: dict[int, Run] = {}
        self.priorities: list[int] = []
        """Those that have a run, lowest first."""
        self.heap: list[Entry] = []
        self.live = 0

    def push(self, record: JobRecord, stamp: int) -> None:
        priority, due_ms = record.spec.priority, record.due_ms
        self.live += 1
        run = self.runs.get(priority)
        if run is None:
            if len(self.runs) < RUNS_MAX:
                self.runs[priority] = Run(record)
                insort(self.priorities, priority)
                return
            # A queue that counts its priorities up would have a run per job: the heap takes the rest.
        else:
            last = run.last
            if due_ms > last.due_ms or (due_ms == last.due_ms and record.sequence >= last.sequence):
                run.append(record)
                return
            first = run.first
            if due_ms < first.due_ms or (due_ms == first.due_ms and record.sequence < first.sequence):
                run.unshift(record)  # a claim that was undone or given back: the last ones come first
                return
        heappush(self.heap, (priority, due_ms, record.sequence, stamp, record))

    def push_rest(self, records: list[JobRecord], stamps: Iterator[int]) -> None:
        """Records of one priority in their order, of which the first was pushed just now."""
        run = self.runs.get(records[0].spec.priority)
        if run is not None and run.last is records[0]:
            self.live += len(records) - 1
            run.extend(records[1:])
        else:
            for record in records[1:]:
                self.push(record, next(stamps))

    def head(self, jobs: dict[str, JobRecord]) -> JobRecord | None:
        """The best record that is still true, left in place; those before it that are not are dropped."""
        while (record := self._first()) is not None:
            if jobs.get(record.spec.id) is record:
                return record
            self._drop_first()
        return None

    def take(self, jobs: dict[str, JobRecord]) -> JobRecord | None:
        """The same, taken out."""
        record = self.head(jobs)
        if record is not None:
            self._drop_first()
            self.live -= 1
        return record

    def take_many(self, jobs: dict[str, JobRecord], most: int) -> list[JobRecord]:
        """Up to so many, best first; fewer only if there are no more, or if one of them was listed twice."""
        found: list[JobRecord] = []
        while len(found) < most:
            run = self.runs[self.priorities[0]] if self.priorities else None
            if run is None or (self.heap and self.heap[0][:3] < key_of(run.last)):
                record = self.head(jobs)
                if record is None:
                    break
                self._drop_first()
                found.append(record)
            else:
                # Nothing in the heap comes before the end of this run.
                taken, more = run.take(most - len(found))
                found += [record for record in taken if jobs.get(record.spec.id) is record]
                if not more:
                    del self.runs[self.priorities.pop(0)]
        # An undone batch lists again what may be listed still: those who take one by one know it by its new record.
        if len({record.spec.id for record in found}) < len(found):
            found = list({record.spec.id: record for record in found}.values())
        self.live -= len(found)
        return found

    def forget(self, jobs: dict[str, JobRecord]) -> None:
        """A waiting job left without being claimed. Its entry stays until most entries are like that."""
        self.live -= 1
        if len(self) > 2 * self.live + 64:
            heaped = (entry[4] for entry in self.heap)
            there = chain(heaped, *(run.records() for run in self.runs.values()))
            true = {id(record): record for record in there if jobs.get(record.spec.id) is record}
            self.runs, self.priorities = {}, []
            self.heap = sorted((*key_of(record), stamp, record) for stamp, record in enumerate(true.values()))

    def __len__(self) -> int:
        return sum(map(len, self.runs.values())) + len(self.heap)

    def _first(self) -> JobRecord | None:
        heap = self.heap
        if not self.priorities:
            return heap[0][4] if heap else None
        first = self.runs[self.priorities[0]].first
        return heap[0][4] if heap and heap[0][:3] < key_of(first) else first

    def _drop_first(self) -> None:
        priorities, heap = self.priorities, self.heap
        if priorities:
            run = self.runs[priorities[0]]
            if not (heap and heap[0][:3] < key_of(run.first)):
                if not run.shift():
                    del self.runs[priorities.pop(0)]
                return
        heappop(heap)


def key_of(record: JobRecord) -> Key:
    return record.spec.priority, record.due_ms, record.sequence


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

    def push_run(self, records: list[JobRecord]) -> None:
        """Jobs of one entrypoint and one priority that are due now, in their order."""
        self.push(records[0])
        if len(records) > 1:
            self._lanes[records[0].spec.entrypoint].push_rest(records, self._stamps)

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
        joined: set[str] = set()
        while delayed and delayed[0][0] <= now_ms:
            record = heappop(delayed)[2]
            # One that left and came back, by a batch that was undone, is listed twice: both times for the same moment.
            if jobs.get(record.spec.id) is record and record.spec.id not in joined:
                joined.add(record.spec.id)
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
        lane = self._lanes.get(entrypoints[0]) if len(entrypoints) == 1 else self._best_of(entrypoints)
        record = lane.take(self._jobs) if lane is not None else None
        if lane is None or record is None:
            return None
        self._left(record.spec.entrypoint, lane)
        return record

    def only_lane(self, entrypoints: tuple[str, ...] | None) -> str | None:
        """The entrypoint, if all that these callers can get are of one."""
        names = self._lanes if entrypoints is None else entrypoints
        return next(iter(names)) if len(names) == 1 else None

    def pop_many(self, entrypoint: str, most: int) -> list[JobRecord]:
        """Take up to so many out, best first. The caller changes their records before anything else happens, and asks
        again unless there are none."""
        lane = self._lanes.get(entrypoint)
        if lane is None:
            return []
        records = lane.take_many(self._jobs, most)
        self._left(entrypoint, lane)
        return records

    def names(self) -> Iterable[str]:
        """The entrypoints of all jobs that are due, and maybe of some that were."""
        return self._lanes

    def has_due(self, entrypoints: tuple[str, ...] | None) -> bool:
        names = self._lanes if entrypoints is None else entrypoints
        return any((lane := self._lanes.get(n)) is not None and lane.head(self._jobs) for n in names)

    def _best_of(self, entrypoints: tuple[str, ...]) -> Lane | None:
        best: Key | None = None
        best_lane: Lane | None = None
        for name in entrypoints:
            lane = self._lanes.get(name)
            head = lane.head(self._jobs) if lane is not None else None
            if head is not None and (best is None or key_of(head) < best):
                best, best_lane = key_of(head), lane
        return best_lane

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
            if key_of(head) != key:  # its head was cancelled in the meantime
                self._list_head(name)
                continue
            lane.take(self._jobs)
            self._left(name, lane)
            return head
        return None

    def _list_head(self, name: str) -> None:
        lane = self._lanes.get(name)
        head = lane.head(self._jobs) if lane is not None else None
        key = None if head is None else key_of(head)
        if key is None or self._listed.get(name) == key:
            return
        self._listed[name] = key
        heappush(self._heads, (key, name))
        if len(self._heads) > 2 * len(self._listed) + 64:
            self._heads = [(key, name) for name, key in self._listed.items()]
            heapify(self._heads)
