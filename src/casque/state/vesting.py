"""Who has waited longest: zones by the moment at which their first job became due.

Kept only since the first peek, and as long as turns are kept.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace

from casque.state.zone_limits import ZoneLimits
from casque.state.zone_lines import NO_ZONE, SWEPT, Board, Line, Vest
from casque.types import JobRecord


class VestingOrder:
    """The zones of every board by vesting time, beside the turns that `FairIndex` keeps."""

    def __init__(self, jobs: dict[str, JobRecord], limits: ZoneLimits, parked: dict[str, set[str]]) -> None:
        self._jobs = jobs
        self._limits = limits
        self._parked = parked
        self.kept = False

    def first(self, boards: list[Board], limit: int, now_ms: int) -> list[Vest]:
        """Zones of these boards that have a job which is due and may be had, by vesting time."""
        self.kept = True
        for board in boards:
            if not board.vested:
                self._list_all(board)
        found: dict[str, int] = {}
        passed: list[dict[str, Vest]] = [{} for _ in boards]
        tops = [
            (vest, n) for n, board in enumerate(boards) if (vest := self._top(board, passed[n], now_ms)) is not None
        ]
        heapify(tops)
        while tops and len(found) < limit:
            (vesting_ms, zone), n = tops[0]
            found.setdefault(zone, vesting_ms)  # its first entrypoint tells
            passed[n][zone] = heappop(boards[n].vests)
            following = self._top(boards[n], passed[n], now_ms)
            if following is None:
                heappop(tops)
            else:
                heapreplace(tops, (following, n))
        for board, some in zip(boards, passed, strict=True):
            for vest in some.values():
                heappush(board.vests, vest)
        return [(vesting_ms, zone) for zone, vesting_ms in found.items()]

    def _top(self, board: Board, passed: dict[str, Vest], now_ms: int) -> Vest | None:
        """The zone that is next here, left in place, without those that were passed."""
        vests, lines = board.vests, board.lines
        while vests:
            listed_ms, zone = vests[0]
            line = lines.get(zone)
            vesting_ms = None if line is None or zone in passed else line.vesting_ms(self._jobs)
            if vesting_ms is None:
                heappop(vests)
            elif self._limits.waits(zone, now_ms):
                heappop(vests)
                self._parked.setdefault(zone, set()).add(board.name)
            elif vesting_ms == listed_ms:
                return vests[0]
            else:
                heapreplace(vests, (vesting_ms, zone))
        return None

    def comes(self, board: Board, zone: str, line: Line, due_ms: int) -> None:
        """Another job of it comes: listed, if that makes it earlier."""
        vesting_ms = line.vesting_ms(self._jobs)
        if vesting_ms is None or due_ms < vesting_ms:
            self.enter(board, (due_ms, zone))

    def list(self, board: Board, zone: str, line: Line) -> None:
        if self.kept and zone != NO_ZONE and (vesting_ms := line.vesting_ms(self._jobs)) is not None:
            self.enter(board, (vesting_ms, zone))

    def enter(self, board: Board, vest: Vest) -> None:
        heappush(board.vests, vest)
        if len(board.vests) > 2 * len(board.lines) + SWEPT:
            self._list_all(board)

    def _list_all(self, board: Board) -> None:
        board.vested = True
        board.vests = vests = []
        for zone, line in board.lines.items():
            records = line.records
            if type(line) is Line and type(records) is list and len(records) == 1:
                vests.append((records[0].due_ms, zone))  # whether it is true still shows when it surfaces
            elif zone != NO_ZONE and (vesting_ms := line.vesting_ms(self._jobs)) is not None:
                vests.append((vesting_ms, zone))
        heapify(vests)
