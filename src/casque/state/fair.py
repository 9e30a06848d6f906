"""Whose turn it is: the zones that have jobs waiting, each with its share, within a priority.

Start-time fair queueing. Each priority has a clock that stands at the start of the turn given last; a turn of a zone
starts there or where the zone's last turn ended, whichever is later, lasts one over the zone's weight, and the earliest
start is next. So a zone that arrives waits for one round of the others at most, one that comes and goes gains nothing
by it, and one that is alone gets everything.

A zone with nothing waiting costs nothing here. Entries of the heaps are never searched for: one that is out of date is
recognised when it surfaces, because its zone's line names another one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeAlias

from casque.state.lane import Key, Lane, key_of
from casque.types import JobRecord, JobState, ZoneLease, ZoneRules

Turn: TypeAlias = tuple[int, float, int, int, str]
"""Priority, start, due time and enqueue order of the job that is first in its zone, and the zone."""
Vest: TypeAlias = tuple[int, str]
"""When the first job of a zone became due, and the zone."""
NO_ZONE = ""
"""Jobs without a zone take turns with the zones, as if this was theirs."""

FEW = 16
"""So many jobs of a zone lie in a plain list: a million zones with a job or two each are ordinary."""
LEVELS_MAX = 1_024
SWEPT = 64
FIFO_PRIORITY = 0
BOARDS_FEW = 16
"""Up to this many boards are looked through one by one; beyond that, heaps say which is next."""

First: TypeAlias = tuple[Key, str]
"""The order of a zone's first job on a board, and the board."""


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


class Board:
    """The zones that have jobs of one entrypoint waiting, whoever is next first."""

    __slots__ = ("heap", "lines", "name", "vested", "vests")

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: dict[str, Line] = {}
        self.heap: list[Turn] = []
        self.vests: list[Vest] = []
        """The same zones by vesting time, each at least once, unless it has to wait. Not all before somebody peeks."""
        self.vested = False
        """Whether they are all there."""


class FairIndex:
    """All boards, the clocks, and what holds zones back."""

    def __init__(
        self,
        jobs: dict[str, JobRecord],
        lanes: dict[str, Lane],
        stamps: Iterator[int],
        rules: dict[str, ZoneRules],
        leased: dict[str, ZoneLease],
    ) -> None:
        self._jobs = jobs
        self._lanes = lanes
        self._stamps = stamps
        self._rules = rules
        """Of the zones that have any; see `limit`."""
        self._leased = leased
        """Zones that one worker has for itself; see `relist`."""
        self.on = False
        """Whether turns are kept at all: since a job with a zone waits, and until somebody asks when none does."""
        self.boards: dict[str, Board] = {}
        self.fifos: dict[str, FifoLine] = {}
        """The FIFO zones that have jobs, dead ones included."""
        self.running: dict[str, int] = {}
        """Jobs at work, of the zones whose rules limit them; see `limit`."""
        self._curbed = False
        """Whether any zone has rules or is leased, and might have to wait."""
        self._peeked = False
        """Whether zones are kept by vesting time too: since somebody asked for that, and as long as turns are kept."""
        self._zoned = 0
        """Lines of zones on all boards."""
        self._levels: dict[int, Level] = {}
        self._parked: dict[str, set[str]] = {}
        """Zones that have to wait, and the boards that would list them."""
        self._paced_ms: dict[str, float] = {}
        """When a zone with a rate may have its next job."""
        self._timers: list[tuple[float, str]] = []
        self._timed: set[str] = set()
        self._promoted_to = 0
        self._levels_max = LEVELS_MAX
        self._spread: dict[str, dict[str, None]] | None = None
        """On which boards each zone has a line. None until there are many boards, and somebody asks."""
        self._tops: list[tuple[Turn, str]] | None = None
        """The boards by the turn that is next on each: of every board with a turn at least one entry that is not later
        than it. None until there are many boards, and somebody takes from any."""
        self._firsts: dict[str, list[First]] = {}
        """The same of zones that have jobs on many boards, by the order of their first jobs."""

    @property
    def idle(self) -> bool:
        """No zone has anything waiting."""
        return not self._zoned

    # --- What comes and goes ---

    def push(self, record: JobRecord) -> None:
        """A job of a zone is due."""
        zone = record.spec.zone
        assert zone is not None
        if record.spec.fifo and (fifo := self.fifos.get(zone)) is not None:
            fifo.push(record, self._jobs, self._stamps)
            self._list_fifo(zone, fifo)
            return
        board = self._board(record.spec.entrypoint)
        line = board.lines.get(zone)
        if line is not None:
            if self._peeked:
                self._vests_at(board, zone, line, record.due_ms)
            line.push(record, self._jobs, self._stamps)
            self._came(board, zone, line, record)
            self._is_first(board, zone, line, record)
            return
        # The first of its zone, as most are where there are many zones: without asking what is known.
        line = board.lines[zone] = Line()
        line.records = [record]
        if self._spread is not None:
            self._spread.setdefault(zone, {})[board.name] = None
            self._is_first(board, zone, line, record)
        self._one_more()
        priority = record.spec.priority
        level = self._levels.get(priority) or self._level(priority)
        line.turn = priority, level.start_of(zone), record.due_ms, record.sequence, zone
        line.listed = record
        self._enter(board, line.turn)
        if self._peeked:
            self._enter_vest(board, (record.due_ms, zone))

    def pushed_plain(self, name: str, lane: Lane, record: JobRecord) -> None:
        """A job without a zone came to its lane: those are a zone like others."""
        board = self._board(name)
        line = board.lines.get(NO_ZONE)
        if line is None or line.records is not lane:
            line = self._add(board, NO_ZONE, Line(lane))
        self._came(board, NO_ZONE, line, record)
        self._is_first(board, NO_ZONE, line, record)

    def forget(self, record: JobRecord) -> None:
        """A due job of a zone left without a turn."""
        zone, name = record.spec.zone, record.spec.entrypoint
        assert zone is not None
        if record.spec.fifo and (fifo := self.fifos.get(zone)) is not None:
            self._list_fifo(zone, fifo)
            return
        board = self.boards.get(name)
        line = board.lines.get(zone) if board is not None else None
        if board is None or line is None:
            return
        line.forget(self._jobs)
        if line.head(self._jobs) is None:
            self._drop(board, zone)

    def hold(self, record: JobRecord, by: int) -> None:
        """A job of a FIFO zone begins or ends to wait for its time."""
        if (fifo := self.fifos.get(record.spec.zone or "")) is not None:
            fifo.held += by
            self._list_fifo(record.spec.zone or "", fifo)

    def started(self, record: JobRecord, by: int = 1) -> None:
        """A job of a zone is at work, or by -1 no longer."""
        zone = record.spec.zone
        assert zone is not None
        # Counted by its zone's limit in any case: a zone that runs empty may come back as one of the other kind.
        if (running := self.running.get(zone)) is not None:
            self.running[zone] = running + by
        if record.spec.fifo and (fifo := self.fifos.get(zone)) is not None:
            fifo.running += by
            self._list_fifo(zone, fifo)
        elif by < 0 and running is not None and zone in self._parked:
            self.unpark(zone)

    def limit(self, zones: Collection[str]) -> None:
        """Their rules have changed: count their leases if those are limited now, and look whether they may go on."""
        uncounted: dict[str, int] = {}
        for zone in zones:
            rules = self._rules.get(zone)
            if rules is None or rules.running_max is None:
                self.running.pop(zone, None)
            elif zone not in self.running:
                uncounted[zone] = 0
        if uncounted:
            for job in self._jobs.values():
                if job.state is JobState.RUNNING and job.spec.zone in uncounted:
                    uncounted[job.spec.zone] += 1
            self.running |= uncounted
        self.relist(zones)

    def relist(self, zones: Iterable[str]) -> None:
        """They were leased, or are no longer, or have other rules."""
        self._curbed = bool(self._rules or self._leased)
        for zone in zones:
            self.unpark(zone)

    def promote(self, now_ms: int) -> None:
        """Zones whose rate lets them go on come back."""
        timers = self._timers
        if now_ms < self._promoted_to:
            # The clock was set back: what was worked out before may be far ahead of it.
            back = [zone for _, zone in timers]
            timers.clear()
            self._timed.clear()
            for zone in back:
                self.unpark(zone)
        self._promoted_to = now_ms
        while timers and timers[0][0] <= now_ms:
            zone = heappop(timers)[1]
            self._timed.discard(zone)
            self.unpark(zone)

    def next_ms(self) -> float | None:
        return self._timers[0][0] if self._timers else None

    def unpark(self, zone: str) -> None:
        """Whatever held it back may be over: look again."""
        if zone in self.fifos:
            self._list_fifo(zone, self.fifos[zone])
        for name in self._parked.pop(zone, ()):
            board = self.boards.get(name)
            line = board.lines.get(zone) if board is not None else None
            if board is not None and line is not None:
                if line.turn is None:
                    self._list(board, zone, line)
                self._list_vest(board, zone, line)

    def switch_off(self) -> None:
        """No zone has anything waiting: turns begin anew with the next one."""
        assert self.idle
        self.on = self._peeked = False
        self.boards.clear()
        self._levels.clear()
        self._parked.clear()
        self._spread = self._tops = None
        self._firsts.clear()

    # --- Whose turn it is ---

    def claims(
        self, entrypoints: Iterable[str] | None, zones: tuple[str, ...] | None, now_ms: int, *, holds: bool = False
    ) -> Iterator[JobRecord]:
        """Take jobs out, best first. The caller changes the record of each before it asks for the next. `holds`: the
        zones are leased, and the caller is who has them."""
        boards = self._boards(entrypoints)
        if zones is not None:
            yield from self._claims_of(boards, zones, now_ms, holds=holds)
            return
        if len(boards) == 1:
            [board] = boards.values()
            while (turn := self._top(board, now_ms)) is not None:
                yield self._take(board, board.lines[turn[4]], turn)
            return
        # What is known of all boards is kept from call to call; of some, it is for this call.
        firsts = self._firsts if entrypoints is None else {}
        tops = self._tops_of(boards, of_all=entrypoints is None)
        while (turn := self._next_top(boards, tops, now_ms)) is not None:
            yield self._take(*self._first_of(boards, turn, firsts))

    def _claims_of(
        self, boards: dict[str, Board], zones: tuple[str, ...], now_ms: int, *, holds: bool
    ) -> Iterator[JobRecord]:
        """The jobs of these zones. Turns only become later while jobs are taken, so that one that is out of date shows
        when it surfaces."""
        firsts: dict[str, list[First]] = {}
        turns = [turn for zone in zones if (turn := self._named(boards, zone, now_ms, firsts, holds=holds)) is not None]
        heapify(turns)
        while turns:
            turn = self._named(boards, turns[0][4], now_ms, firsts, holds=holds)
            if turn is None:
                heappop(turns)
            elif turn != turns[0]:
                heapreplace(turns, turn)
            else:
                yield self._take(*self._first_of(boards, turn, firsts))

    def take_many(self, entrypoints: Iterable[str] | None, most: int, now_ms: int) -> list[JobRecord] | None:
        """The same, many at once, if nothing depends on what becomes of each: no rules, no FIFO zones and one board.
        None if something does."""
        if self._rules or self.fifos or len(boards := self._boards(entrypoints)) != 1:
            return None
        [board] = boards.values()
        found: dict[str, JobRecord] = {}  # an undone batch lists again what may be listed still
        while len(found) < most and (turn := self._top(board, now_ms)) is not None:
            record = self._take(board, board.lines[turn[4]], turn)
            found[record.spec.id] = record
        return list(found.values())

    def has_due(
        self, entrypoints: Iterable[str] | None, zones: tuple[str, ...] | None, now_ms: int, *, holds: bool = False
    ) -> bool:
        boards = self._boards(entrypoints)
        if zones is not None:
            firsts: dict[str, list[First]] = {}
            return any(self._named(boards, zone, now_ms, firsts, holds=holds) is not None for zone in zones)
        if entrypoints is not None or len(boards) <= BOARDS_FEW:
            return any(self._top(board, now_ms) is not None for board in boards.values())
        return self._next_top(boards, self._tops_of(boards, of_all=True), now_ms) is not None

    # --- Who has waited longest ---

    def peek(
        self, entrypoints: Iterable[str] | None, names: Iterable[str] | None, limit: int, now_ms: int
    ) -> list[Vest]:
        """Zones that have a job which is due and may be had, by vesting time; of these names alone, if any are given.
        Takes as long as `limit` heap operations and a look at each entrypoint, but for the first time, which looks at
        every zone of these entrypoints."""
        boards = self._boards(entrypoints)
        if names is not None:
            vests = [vest for zone in names for vest in self._vests_of(boards, zone, now_ms)[:1]]
            return sorted(vests)[:limit]
        listed = list(boards.values())
        self._peeked = True
        for board in listed:
            if not board.vested:
                self._vest_all(board)
        found: dict[str, int] = {}
        passed: list[dict[str, Vest]] = [{} for _ in listed]
        tops = [
            (vest, n)
            for n, board in enumerate(listed)
            if (vest := self._top_vest(board, passed[n], now_ms)) is not None
        ]
        heapify(tops)
        while tops and len(found) < limit:
            (vesting_ms, zone), n = tops[0]
            found.setdefault(zone, vesting_ms)  # its first entrypoint tells
            passed[n][zone] = heappop(listed[n].vests)
            following = self._top_vest(listed[n], passed[n], now_ms)
            if following is None:
                heappop(tops)
            else:
                heapreplace(tops, (following, n))
        for board, some in zip(listed, passed, strict=True):
            for vest in some.values():
                heappush(board.vests, vest)
        return [(vesting_ms, zone) for zone, vesting_ms in found.items()]

    def may_be_had(self, zone: str, now_ms: int) -> bool:
        """Whether nobody has leased it and no rule holds it back."""
        return not (self._curbed and self._waits(zone, now_ms))

    def _vests_of(self, boards: dict[str, Board], zone: str, now_ms: int) -> list[Vest]:
        if not self.may_be_had(zone, now_ms):
            return []
        lines = [board.lines[zone] for board in self._boards_of(zone, boards)]
        return sorted((vesting_ms, zone) for line in lines if (vesting_ms := line.vesting_ms(self._jobs)) is not None)

    def _top_vest(self, board: Board, passed: dict[str, Vest], now_ms: int) -> Vest | None:
        """The zone that is next here, left in place, without those that were passed."""
        vests, lines = board.vests, board.lines
        while vests:
            listed_ms, zone = vests[0]
            line = lines.get(zone)
            vesting_ms = None if line is None or zone in passed else line.vesting_ms(self._jobs)
            if vesting_ms is None:
                heappop(vests)
            elif not self.may_be_had(zone, now_ms):
                heappop(vests)
                self._parked.setdefault(zone, set()).add(board.name)
            elif vesting_ms == listed_ms:
                return vests[0]
            else:
                heapreplace(vests, (vesting_ms, zone))
        return None

    def _vests_at(self, board: Board, zone: str, line: Line, due_ms: int) -> None:
        """Another job of it comes: listed, if that makes it earlier."""
        vesting_ms = line.vesting_ms(self._jobs)
        if vesting_ms is None or due_ms < vesting_ms:
            self._enter_vest(board, (due_ms, zone))

    def _list_vest(self, board: Board, zone: str, line: Line) -> None:
        if self._peeked and zone != NO_ZONE and (vesting_ms := line.vesting_ms(self._jobs)) is not None:
            self._enter_vest(board, (vesting_ms, zone))

    def _enter_vest(self, board: Board, vest: Vest) -> None:
        heappush(board.vests, vest)
        if len(board.vests) > 2 * len(board.lines) + 64:
            self._vest_all(board)

    def _vest_all(self, board: Board) -> None:
        board.vested = True
        board.vests = vests = []
        for zone, line in board.lines.items():
            records = line.records
            if type(line) is Line and type(records) is list and len(records) == 1:
                vests.append((records[0].due_ms, zone))  # whether it is true still shows when it surfaces
            elif zone != NO_ZONE and (vesting_ms := line.vesting_ms(self._jobs)) is not None:
                vests.append((vesting_ms, zone))
        heapify(vests)

    def _boards(self, entrypoints: Iterable[str] | None) -> dict[str, Board]:
        if entrypoints is None:
            return self.boards
        return {name: board for name in entrypoints if (board := self.boards.get(name)) is not None}

    def _boards_of(self, zone: str, boards: dict[str, Board]) -> list[Board]:
        """Those of them on which the zone has a line."""
        if len(boards) <= BOARDS_FEW:
            return [board for board in boards.values() if zone in board.lines]
        if self._spread is None:
            self._spread = {}
            for board in self.boards.values():
                for one in board.lines:
                    self._spread.setdefault(one, {})[board.name] = None
        return [boards[name] for name in self._spread.get(zone, ()) if name in boards]

    def _add(self, board: Board, zone: str, line: Line) -> Line:
        board.lines[zone] = line
        if self._spread is not None:
            self._spread.setdefault(zone, {})[board.name] = None
        return line

    def _remove(self, board: Board, zone: str) -> Line:
        if self._spread is not None and (names := self._spread.get(zone)) is not None:
            names.pop(board.name, None)
            if not names:
                del self._spread[zone]
                self._firsts.pop(zone, None)
        return board.lines.pop(zone)

    # --- Many boards ---

    def _tops_of(self, boards: dict[str, Board], *, of_all: bool) -> list[tuple[Turn, str]]:
        if of_all and self._tops is not None and len(self._tops) <= 2 * len(boards) + SWEPT:
            return self._tops
        # What is out of date in a heap of turns is never later than what is true.
        tops = [(board.heap[0], name) for name, board in boards.items() if board.heap]
        heapify(tops)
        if of_all and len(boards) > BOARDS_FEW:
            self._tops = tops
        return tops

    def _next_top(self, boards: dict[str, Board], tops: list[tuple[Turn, str]], now_ms: int) -> Turn | None:
        """The turn that is next on any board, left in place."""
        while tops:
            listed, name = tops[0]
            board = boards.get(name)
            turn = None if board is None else self._top(board, now_ms)
            if turn is None:
                heappop(tops)
            elif turn != listed:
                heapreplace(tops, (turn, name))
            else:
                return turn
        return None

    def _is_top(self, board: Board, turn: Turn) -> None:
        """It was listed just now: if it is the next one there, who looks at all boards has to know."""
        if self._tops is not None and board.heap[0] is turn:
            heappush(self._tops, (turn, board.name))

    def _is_first(self, board: Board, zone: str, line: Line, record: JobRecord) -> None:
        """A job came: if it is the first of its zone there, who looks at all boards of the zone has to know."""
        if not self._firsts or (firsts := self._firsts.get(zone)) is None or line.head(self._jobs) is not record:
            return
        heappush(firsts, (_order(line, record), board.name))
        if len(firsts) > 2 * len(self.boards) + SWEPT:
            del self._firsts[zone]

    def _top(self, board: Board, now_ms: int) -> Turn | None:
        """The turn that is next here, left in place."""
        heap, lines, jobs = board.heap, board.lines, self._jobs
        while heap:
            turn = heap[0]
            zone = turn[4]
            line = lines.get(zone)
            if line is None or line.turn is not turn:
                heappop(heap)
                continue
            if self._curbed and self._waits(zone, now_ms):
                heappop(heap)
                line.turn = None
                self._parked.setdefault(zone, set()).add(board.name)
                continue
            head = line.head(jobs)
            if head is None:
                heappop(heap)
                self._drop(board, zone)
                continue
            if line.listed is head and turn[1] >= self._level(turn[0]).end_of(zone):
                return turn
            line.turn, line.listed = self._turn(line, head, zone, turn), head
            heapreplace(heap, line.turn)
            if line.turn < turn:
                self._is_top(board, line.turn)
        return None

    def _first_of(
        self, boards: dict[str, Board], turn: Turn, firsts: dict[str, list[First]]
    ) -> tuple[Board, Line, Turn]:
        """The zone whose turn it is may have jobs on several of these boards, of which the first is to be had."""
        _, start, _, _, zone = turn
        first = self._first(boards, zone, firsts)
        assert first is not None
        (priority, due_ms, sequence), board = first
        return board, board.lines[zone], (priority, start, due_ms, sequence, zone)

    def _first(self, boards: dict[str, Board], zone: str, firsts: dict[str, list[First]]) -> tuple[Key, Board] | None:
        heap = firsts.get(zone)
        if heap is None:
            heap = []
            for board in self._boards_of(zone, boards):
                if (head := (line := board.lines[zone]).head(self._jobs)) is not None:
                    heap.append((_order(line, head), board.name))
            if len(heap) <= BOARDS_FEW:
                if not heap:
                    return None
                order, name = min(heap)
                return order, boards[name]
            heapify(heap)
            firsts[zone] = heap
        while heap:
            listed, name = heap[0]
            found = boards[name].lines.get(zone)
            head = None if found is None else found.head(self._jobs)
            if found is None or head is None:
                heappop(heap)
            elif (order := _order(found, head)) != listed:
                heapreplace(heap, (order, name))
            else:
                return order, boards[name]
        return None

    def _named(
        self, boards: dict[str, Board], zone: str, now_ms: int, firsts: dict[str, list[First]], *, holds: bool
    ) -> Turn | None:
        """The next turn of this zone on these boards; of one that has jobs on many, that of its first job."""
        if self._curbed and self._waits(zone, now_ms, holds=holds):
            return None
        on = self._boards_of(zone, boards) if zone not in firsts else []
        if zone in firsts or len(on) > BOARDS_FEW:
            first = self._first(boards, zone, firsts)
            on = [] if first is None else [first[1]]
        turns = [
            self._turn(line, head, zone, line.turn)
            for board in on
            if (head := (line := board.lines[zone]).head(self._jobs)) is not None
        ]
        return min(turns, default=None)

    def _take(self, board: Board, line: Line, turn: Turn) -> JobRecord:
        """The first job of the line, which was looked at just now."""
        zone = turn[4]
        rules = self._rules.get(zone) if self._rules else None
        cost = 1.0 if rules is None else 1.0 / rules.weight
        self._level(turn[0]).give(zone, turn[1], cost)
        if rules is not None and rules.per_second is not None:
            self._paced_ms[zone] = self._paced_ms.get(zone, 0.0) + 1000 / rules.per_second
        on_top = board.heap and board.heap[0] is line.turn
        if type(line.records) is list and len(line.records) == 1:
            # The only one of its zone, as most are where there are many zones.
            if on_top:
                heappop(board.heap)
            self._drop(board, zone)
            return line.records[0]
        record = line.take(self._jobs)
        assert record is not None
        head = None if isinstance(line, FifoLine) else line.head(self._jobs)
        if head is None:
            if on_top:
                heappop(board.heap)
            line.turn = None
            if not isinstance(line, FifoLine):
                self._drop(board, zone)
            return record
        following = self._turn(line, head, zone, None)
        line.turn, line.listed = following, head
        if on_top:
            heapreplace(board.heap, following)
            if following < turn:
                self._is_top(board, following)
        else:
            self._enter(board, following)
        return record

    def _waits(self, zone: str, now_ms: int, *, holds: bool = False) -> bool:
        """Whether it is somebody else's, or its rules hold it back just now."""
        if not holds and zone in self._leased:
            return True
        rules = self._rules.get(zone)
        if rules is None:
            return False
        if rules.paused:
            return True
        if rules.running_max is not None and self.running.get(zone, 0) >= rules.running_max:
            return True
        if rules.per_second is not None:
            # A tenth of a second may be taken at once: callers come in batches.
            spare_ms = max(100.0, 1000 / rules.per_second)
            next_ms = self._paced_ms.get(zone, 0.0)
            if next_ms < now_ms - spare_ms:
                self._paced_ms[zone] = next_ms = now_ms - spare_ms
            elif next_ms > now_ms + spare_ms:
                self._paced_ms[zone] = next_ms = now_ms + spare_ms  # the clock was set back
            if next_ms + 1000 / rules.per_second > now_ms:
                if zone not in self._timed:
                    self._timed.add(zone)
                    heappush(self._timers, (next_ms + 1000 / rules.per_second, zone))
                return True
        return False

    # --- Listing ---

    def _one_more(self) -> None:
        self._zoned += 1
        if not self.on:
            self.on = True
            for name, lane in self._lanes.items():
                board = self._board(name)
                line = self._add(board, NO_ZONE, Line(lane))
                self._list(board, NO_ZONE, line)

    def _board(self, name: str) -> Board:
        board = self.boards.get(name)
        if board is None:
            board = self.boards[name] = Board(name)
        return board

    def _came(self, board: Board, zone: str, line: Line, record: JobRecord) -> None:
        turn = line.turn
        if turn is None:
            if zone == NO_ZONE or board.name not in self._parked.get(zone, ()):
                self._list(board, zone, line)
        elif (record.spec.priority, record.due_ms, record.sequence) < (turn[0], turn[2], turn[3]):
            self._list(board, zone, line)  # it is first now

    def _list(self, board: Board, zone: str, line: Line) -> None:
        head = line.head(self._jobs)
        if head is not None:
            line.turn, line.listed = self._turn(line, head, zone, line.turn), head
            self._enter(board, line.turn)

    def _enter(self, board: Board, turn: Turn) -> None:
        heappush(board.heap, turn)
        if len(board.heap) > 2 * len(board.lines) + 64:
            board.heap = [line.turn for line in board.lines.values() if line.turn is not None]
            heapify(board.heap)
        if self._tops is not None:
            self._is_top(board, turn)

    def _turn(self, line: Line, head: JobRecord, zone: str, before: Turn | None) -> Turn:
        """How this job of it is listed. One that was listed with the same priority keeps its start."""
        priority = line.priority_of(head)
        level = self._levels.get(priority) or self._level(priority)
        if before is not None and before[0] == priority:
            start = max(before[1], level.end_of(zone))
        else:
            start = level.start_of(zone)
        return priority, start, head.due_ms, head.sequence, zone

    def _level(self, priority: int) -> Level:
        level = self._levels.get(priority)
        if level is None:
            if len(self._levels) >= self._levels_max:
                # A queue that counts its priorities up leaves most of them behind for good.
                used = {turn[0] for board in self.boards.values() for turn in board.heap}
                self._levels = {known: clock for known, clock in self._levels.items() if known in used}
                self._levels_max = max(LEVELS_MAX, 2 * len(used))
            level = self._levels[priority] = Level()
        return level

    def _list_fifo(self, zone: str, fifo: FifoLine) -> None:
        """It stands on the board of its first job, if that may be had."""
        head = fifo.head(self._jobs)
        name = None if head is None else head.spec.entrypoint
        if fifo.board is not None and fifo.board != name:
            self._remove(self.boards[fifo.board], zone)
            self._zoned -= 1
            fifo.board = fifo.turn = None
        if name is None or head is None:
            return
        board = self._board(name)
        if fifo.board is None:
            fifo.board = name
            self._add(board, zone, fifo)
            self._one_more()
        if fifo.turn is None or fifo.listed is not head:
            self._list(board, zone, fifo)
            self._list_vest(board, zone, fifo)

    def _drop(self, board: Board, zone: str) -> None:
        """Nothing of it waits here any more."""
        line = self._remove(board, zone)
        if isinstance(line, FifoLine):
            line.board = line.turn = None
        if zone != NO_ZONE:
            self._zoned -= 1
            if (parked := self._parked.get(zone)) is not None:
                parked.discard(board.name)
                if not parked:
                    del self._parked[zone]


def _order(line: Line, head: JobRecord) -> Key:
    return line.priority_of(head), head.due_ms, head.sequence
