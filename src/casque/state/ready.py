"""Which job is next: a lane for each entrypoint, the delayed jobs, and turns between zones where there are any.

A queue whose jobs have no zones never gets beyond the lanes; see `fair` for what happens with the first one that has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import count
from math import ceil

from casque.state.fair import FairIndex
from casque.state.lane import Key, Lane, key_of
from casque.types import JobRecord, ZoneLease, ZoneRules


class ReadyIndex:
    """All lanes, and the best job over all of them for callers who take any."""

    __slots__ = (
        "_delayed", "_heads", "_jobs", "_lanes", "_listed", "_moved", "_promoted_to", "_stamps", "delayed", "fair",
    )  # fmt: skip

    def __init__(
        self,
        jobs: dict[str, JobRecord],
        rules: dict[str, ZoneRules] | None = None,
        leased: dict[str, ZoneLease] | None = None,
    ) -> None:
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
        self.fair = FairIndex(
            jobs, self._lanes, self._stamps, {} if rules is None else rules, {} if leased is None else leased
        )

    def push(self, record: JobRecord) -> None:
        """A job that is due now takes its place."""
        if record.spec.zone is not None:
            self.fair.push(record)
            return
        name = record.spec.entrypoint
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane()
        lane.push(record, next(self._stamps))
        self._moved.add(name)
        if self.fair.on:
            self.fair.pushed_plain(name, lane, record)

    def push_run(self, records: list[JobRecord]) -> None:
        """Jobs of one entrypoint and one priority that are due now, in their order."""
        if any(record.spec.zone is not None for record in records):
            for record in records:
                self.push(record)
            return
        self.push(records[0])
        if len(records) > 1:
            self._lanes[records[0].spec.entrypoint].push_rest(records, self._stamps)

    def push_delayed(self, record: JobRecord) -> None:
        if record.due_ms <= self._promoted_to:
            self.push(record)
        else:
            heappush(self._delayed, (record.due_ms, next(self._stamps), record))
            self.delayed += 1
            if record.spec.fifo:
                self.fair.hold(record, 1)

    def forget(self, record: JobRecord, *, was_delayed: bool) -> None:
        """A waiting job was taken out other than by `pop`."""
        if was_delayed and record.due_ms > self._promoted_to:
            self.delayed -= 1
            if record.spec.fifo:
                self.fair.hold(record, -1)
            if len(self._delayed) > 2 * self.delayed + 64:
                self._delayed = [e for e in self._delayed if self._jobs.get(e[2].spec.id) is e[2]]
                heapify(self._delayed)
        elif record.spec.zone is not None:
            self.fair.forget(record)
        else:
            self._lanes[record.spec.entrypoint].forget(self._jobs)

    def promote(self, now_ms: int) -> None:
        """Jobs whose time has come join their lanes."""
        if now_ms <= self._promoted_to:
            if now_ms < self._promoted_to:
                self.fair.promote(now_ms)  # the clock was set back, and rates go by it
            return
        self._promoted_to = now_ms
        self.fair.promote(now_ms)
        delayed, jobs = self._delayed, self._jobs
        joined: set[str] = set()
        while delayed and delayed[0][0] <= now_ms:
            record = heappop(delayed)[2]
            # One that left and came back, by a batch that was undone, is listed twice: both times for the same moment.
            if jobs.get(record.spec.id) is record and record.spec.id not in joined:
                joined.add(record.spec.id)
                self.delayed -= 1
                if record.spec.fifo:
                    self.fair.hold(record, -1)
                self.push(record)

    def next_due_ms(self) -> int | None:
        """When the next delayed job becomes due, or a zone that waits because of its rate may go on."""
        delayed = self._delayed
        while delayed and self._jobs.get(delayed[0][2].spec.id) is not delayed[0][2]:
            heappop(delayed)
        paced_ms = self.fair.limits.next_ms()
        if paced_ms is None or (delayed and delayed[0][0] <= paced_ms):
            return delayed[0][0] if delayed else None
        return ceil(paced_ms)

    def upcoming(self) -> Iterator[JobRecord]:
        """The delayed jobs by due time. Goes through the heap from its top and takes nothing out."""
        delayed = self._delayed
        front = [(delayed[0][0], delayed[0][1], 0)] if delayed else []
        while front:
            *_, place = heappop(front)
            record = delayed[place][2]
            if self._jobs.get(record.spec.id) is record:
                yield record
            for below in range(2 * place + 1, min(2 * place + 3, len(delayed))):
                heappush(front, (delayed[below][0], delayed[below][1], below))

    def takes_turns(self) -> bool:
        """Whether zones have anything waiting: then only `claims` knows who is next."""
        fair = self.fair
        if fair.on and fair.idle:
            fair.switch_off()
        return fair.on

    def take_many(self, entrypoints: tuple[str, ...] | None, most: int, now_ms: int) -> list[JobRecord] | None:
        """Many at once, if nothing depends on what becomes of each; None if something does."""
        records = self.fair.take_many(entrypoints, most, now_ms)
        if records and self._lanes:
            for name in {record.spec.entrypoint for record in records if record.spec.zone is None}:
                self._left(name, self._lanes[name])
        return records

    def claims(
        self, entrypoints: tuple[str, ...] | None, zones: tuple[str, ...] | None, now_ms: int, *, holds: bool = False
    ) -> Iterator[JobRecord]:
        """Take jobs out, best first; the caller changes the record of each before it asks for the next."""
        for record in self.fair.claims(entrypoints, zones, now_ms, holds=holds):
            if record.spec.zone is None:
                name = record.spec.entrypoint
                self._left(name, self._lanes[name])
            yield record

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
        """Take up to `most` out, best first. The caller changes their records before anything else happens, and asks
        again unless there are none."""
        lane = self._lanes.get(entrypoint)
        if lane is None:
            return []
        records = lane.take_many(self._jobs, most)
        self._left(entrypoint, lane)
        return records

    def names(self) -> Iterable[str]:
        """The entrypoints of all jobs that are due, and maybe of some that were."""
        return {**self._lanes, **self.fair.boards}

    def due_among(self, names: Mapping[str, object]) -> list[str]:
        """Those of these entrypoints that jobs are due of, and maybe some more."""
        lanes, boards = self._lanes, self.fair.boards
        if len(names) <= len(lanes) + len(boards):
            return [name for name in names if name in lanes or name in boards]
        return [name for name in {**lanes, **boards} if name in names]

    def due_zones_among(self, zones: Mapping[str, object]) -> list[str]:
        """The same of zones."""
        found: dict[str, None] = {}
        for board in self.fair.boards.values():
            fewer, more = (zones, board.lines) if len(zones) <= len(board.lines) else (board.lines, zones)
            found |= {zone: None for zone in fewer if zone in more}
        return list(found)

    def has_due(
        self,
        entrypoints: tuple[str, ...] | None,
        zones: tuple[str, ...] | None = None,
        now_ms: int = 0,
        *,
        holds: bool = False,
    ) -> bool:
        if self.takes_turns():
            return self.fair.has_due(entrypoints, zones, now_ms, holds=holds)
        if zones is not None:
            return False
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
