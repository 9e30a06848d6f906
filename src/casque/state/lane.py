"""The waiting jobs of one entrypoint in the order (priority, due time, enqueue order).

Jobs mostly arrive in the order they leave, so each lane keeps a run that only grows at its end and a heap for what
comes out of order; both ends cost the same at any depth. Entries are never searched for: one that is out of date is
recognised when it surfaces, because the queue then holds another record for its job, or none.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import chain
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
        """Take out up to `most`, in order. False if nothing is left, and the run is not to be used any more."""
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

    def vesting_ms(self, jobs: dict[str, JobRecord]) -> int | None:
        """When the first of them became due. Only the best of the jobs that came out of order counts: reading all of
        them would take time proportional to their number."""
        if self.head(jobs) is None:
            return None
        firsts = [run.first.due_ms for run in self.runs.values() if jobs.get(run.first.spec.id) is run.first]
        if self.heap and jobs.get(self.heap[0][4].spec.id) is self.heap[0][4]:
            firsts.append(self.heap[0][1])
        return min(firsts)

    def take(self, jobs: dict[str, JobRecord]) -> JobRecord | None:
        """The same, taken out."""
        record = self.head(jobs)
        if record is not None:
            self._drop_first()
            self.live -= 1
        return record

    def take_many(self, jobs: dict[str, JobRecord], most: int) -> list[JobRecord]:
        """Up to `most`, best first; fewer only if there are no more, or if one of them was listed twice."""
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
