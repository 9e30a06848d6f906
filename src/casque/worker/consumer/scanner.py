"""Reads the top-level queue and selects zones for the managers."""

from __future__ import annotations

from casque.clock import Clock, Random
from casque.errors import CasqueError
from casque.telemetry import logger
from casque.types import PeekedZone
from casque.worker.consumer.board import Board
from casque.worker.consumer.desk import Desk
from casque.worker.consumer.options import ConsumerOptions, Selection
from casque.worker.consumer.refusals import Refusals
from casque.worker.patience import Patience

log = logger("worker")


class Scanner:
    """One per consumer. On a ring each scan begins one shard further, starting at a random one."""

    def __init__(
        self, desk: Desk, board: Board, refusals: Refusals, options: ConsumerOptions, *, clock: Clock, rng: Random
    ) -> None:
        self._desk = desk
        self._board = board
        self._refusals = refusals
        self._options = options
        self._clock = clock
        self._rng = rng

    async def run(self, *, burst: bool) -> None:
        """Runs forever; with `burst` until nothing is due and every job has finished."""
        patience, pause_s = Patience(self._clock, self._rng), self._options.scanner_interval
        while True:
            try:
                due = await self._look()
            except CasqueError as error:
                if patience.is_hopeless(error):
                    raise
                log.warning("could not look for zones, trying again: %s", error)
                await patience.wait()
                continue
            patience = Patience(self._clock, self._rng)
            if burst and not due and self._board.is_clear and not self._desk.holds():
                return
            free = [zone for zone in due if zone.zone not in self._board and not self._refusals.passes_over(zone.zone)]
            selected = self._selected(free)
            self._board.put(selected)
            if len(selected) < len(free):
                # More zones are due than were selected: scan again as soon as a manager is free.
                await self._board.wait_until_wanted()
                continue
            pause_s = self._options.scanner_interval if due else min(2 * pause_s, self._options.scanner_idle)
            await self._clock.sleep(pause_s)

    async def _look(self) -> list[PeekedZone]:
        """The zones that are due."""
        self._refusals.sweep()
        desk = self._desk
        peeked = await desk.queue.peek_zones(desk.names, zone=desk.zones, limit=self._options.peek_max)
        return [zone for zone in peeked if zone.due]

    def _selected(self, free: list[PeekedZone]) -> list[PeekedZone]:
        most = self._options.selected(len(free))
        if self._options.selection is Selection.SEQUENTIAL:
            return free[:most]
        return self._rng.sample(free, most)
