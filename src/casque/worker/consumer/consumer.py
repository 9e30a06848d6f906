"""A scanner and its managers, claiming for a worker."""

from __future__ import annotations

import asyncio

from casque.clock import Clock, Random
from casque.worker.consumer.board import Board
from casque.worker.consumer.desk import Desk
from casque.worker.consumer.manager import Manager
from casque.worker.consumer.options import ConsumerOptions
from casque.worker.consumer.refusals import Refusals
from casque.worker.consumer.scanner import Scanner


class Consumer:
    def __init__(self, desk: Desk, options: ConsumerOptions, *, clock: Clock, rng: Random) -> None:
        board, refusals = Board(), Refusals(options, clock)
        self._scanner = Scanner(desk, board, refusals, options, clock=clock, rng=rng)
        self._managers = [
            Manager(desk, board, refusals, options, clock=clock, rng=rng) for _ in range(options.managers)
        ]

    async def run(self, *, burst: bool) -> None:
        """Runs until it is cancelled, or with `burst` until nothing is due; then releases its zones.

        Raises:
            CasqueError: the queue cannot be used, and a retry does not help.
        """
        scanning = asyncio.create_task(self._scanner.run(burst=burst), name="casque scanner")
        managing = [asyncio.create_task(manager.run(), name="casque manager") for manager in self._managers]
        tasks = [scanning, *managing]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(end, asyncio.CancelledError):
                raise end
