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

from casque.state.lane import Key, Lane
from casque.state.vesting import VestingOrder
from casque.state.zone_limits import ZoneLimits
from casque.state.zone_lines import NO_ZONE, SWEPT, Board, FifoLine, Levels, Line, Turn, Vest, order_of
from casque.types import JobRecord, JobState, ZoneLease, ZoneRules

BOARDS_FEW = 16
"""Up to this many boards are looked through one by one; beyond that, heaps say which is next."""

First: TypeAlias = tuple[Key, str]
"""The order of a zone's first job on a board, and the board."""


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
        self.limits = ZoneLimits(rules, leased)
        """What holds zones back; see `limit` and `relist`."""
        self.on = False
        """Whether turns are kept at all: since a job with a zone waits, and until the first question when none does."""
        self.boards: dict[str, Board] = {}
        self.fifos: dict[str, FifoLine] = {}
        """The FIFO zones that have jobs, dead ones included."""
        self._zoned = 0
        """Lines of zones on all boards."""
        self._levels = Levels()
        self._parked: dict[str, set[str]] = {}
        """Zones that have to wait, and the boards that would list them."""
        self._vesting = VestingOrder(jobs, self.limits, self._parked)
        self._spread: dict[str, dict[str, None]] | None = None
        """On which boards each zone has a line. None until there are many boards, and a call needs it."""
        self._tops: list[tuple[Turn, str]] | None = None
        """The boards by the turn that is next on each: of every board with a turn at least one entry that is not later
        than it. None until there are many boards, and a claim takes from any."""
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
            if self._vesting.kept:
                self._vesting.comes(board, zone, line, record.due_ms)
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
        level = self._levels.known.get(priority) or self._levels.at(priority, self.boards)
        line.turn = priority, level.start_of(zone), record.due_ms, record.sequence, zone
        line.listed = record
        self._enter(board, line.turn)
        if self._vesting.kept:
            self._vesting.enter(board, (record.due_ms, zone))

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
        counted = self.limits.count(zone, by)
        if record.spec.fifo and (fifo := self.fifos.get(zone)) is not None:
            fifo.running += by
            self._list_fifo(zone, fifo)
        elif by < 0 and counted and zone in self._parked:
            self.unpark(zone)

    def limit(self, zones: Collection[str]) -> None:
        """Their rules have changed: count their leases if those are limited now, and look whether they may go on."""
        if uncounted := self.limits.begin(zones):
            for job in self._jobs.values():
                if job.state is JobState.RUNNING and job.spec.zone in uncounted:
                    self.limits.count(job.spec.zone, 1)
        self.relist(zones)

    def relist(self, zones: Iterable[str]) -> None:
        """They were leased, or are no longer, or have other rules."""
        self.limits.refresh()
        for zone in zones:
            self.unpark(zone)

    def promote(self, now_ms: int) -> None:
        """Zones whose rate lets them go on come back."""
        for zone in self.limits.passed(now_ms):
            self.unpark(zone)

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
                self._vesting.list(board, zone, line)

    def switch_off(self) -> None:
        """No zone has anything waiting: turns begin anew with the next one."""
        assert self.idle
        self.on = self._vesting.kept = False
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
        if self.limits.rules or self.fifos or len(boards := self._boards(entrypoints)) != 1:
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
        return self._vesting.first(list(boards.values()), limit, now_ms)

    def _vests_of(self, boards: dict[str, Board], zone: str, now_ms: int) -> list[Vest]:
        if self.limits.waits(zone, now_ms):
            return []
        lines = [board.lines[zone] for board in self._boards_of(zone, boards)]
        return sorted((vesting_ms, zone) for line in lines if (vesting_ms := line.vesting_ms(self._jobs)) is not None)

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
        heappush(firsts, (order_of(line, record), board.name))
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
            if self.limits.any and self.limits.waits(zone, now_ms):
                heappop(heap)
                line.turn = None
                self._parked.setdefault(zone, set()).add(board.name)
                continue
            head = line.head(jobs)
            if head is None:
                heappop(heap)
                self._drop(board, zone)
                continue
            if line.listed is head and turn[1] >= self._levels.at(turn[0], self.boards).end_of(zone):
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
                    heap.append((order_of(line, head), board.name))
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
            elif (order := order_of(found, head)) != listed:
                heapreplace(heap, (order, name))
            else:
                return order, boards[name]
        return None

    def _named(
        self, boards: dict[str, Board], zone: str, now_ms: int, firsts: dict[str, list[First]], *, holds: bool
    ) -> Turn | None:
        """The next turn of this zone on these boards; of one that has jobs on many, that of its first job."""
        if self.limits.waits(zone, now_ms, holds=holds):
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
        cost = self.limits.charge(zone) if self.limits.rules else 1.0
        self._levels.at(turn[0], self.boards).give(zone, turn[1], cost)
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
        level = self._levels.known.get(priority) or self._levels.at(priority, self.boards)
        if before is not None and before[0] == priority:
            start = max(before[1], level.end_of(zone))
        else:
            start = level.start_of(zone)
        return priority, start, head.due_ms, head.sequence, zone

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
            self._vesting.list(board, zone, fifo)

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
