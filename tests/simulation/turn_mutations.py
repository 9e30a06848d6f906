"""Turns of zones recognised by what an undone batch gives back, for the length of a test."""

from __future__ import annotations

import pytest

from casque.state.fair import FairIndex
from casque.state.zone_lines import Board, FifoLine, Line, Turn
from casque.types import JobRecord


def stale_turns_recognised_by_number(patch: pytest.MonkeyPatch) -> None:
    """As it was: a turn counts as current if it has the enqueue number and the due time of the first job. A batch that
    is undone gives both back, and the next job of the same moment gets them, maybe with another priority. That
    priority then has no clock yet, and the claim meets a KeyError."""
    top, take, list_fifo = FairIndex._top, FairIndex._take, FairIndex._list_fifo

    def by_number(self: FairIndex, line: Line) -> None:
        head = line.head(self._jobs)
        if head is not None and line.turn is not None and line.turn[2:4] == (head.due_ms, head.sequence):
            line.listed = head

    def old_top(self: FairIndex, board: Board, now_ms: int) -> Turn | None:
        for line in board.lines.values():
            by_number(self, line)
        return top(self, board, now_ms)

    def old_take(self: FairIndex, board: Board, line: Line, turn: Turn) -> JobRecord:
        assert self._levels.known[turn[0]] is not None
        return take(self, board, line, turn)

    def old_list_fifo(self: FairIndex, zone: str, fifo: FifoLine) -> None:
        by_number(self, fifo)
        list_fifo(self, zone, fifo)

    patch.setattr(FairIndex, "_top", old_top)
    patch.setattr(FairIndex, "_take", old_take)
    patch.setattr(FairIndex, "_list_fifo", old_list_fifo)
