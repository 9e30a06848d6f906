"""Serves one zone at a time: leases it, takes some of its jobs, renews the lease meanwhile, and releases it."""

from __future__ import annotations

import asyncio

from casque.clock import Clock, Random
from casque.errors import CasqueError, ZoneLeaseLostError
from casque.telemetry import logger
from casque.types import PeekedZone, ZoneLease
from casque.worker.consumer.board import Board
from casque.worker.consumer.desk import Desk
from casque.worker.consumer.options import ConsumerOptions
from casque.worker.consumer.refusals import Refusals
from casque.worker.patience import Patience

log = logger("worker")

BEATS_PER_LEASE = 3
LINGER_S = 1.0
"""How long a manager stays with a FIFO zone while its job runs. A job that runs longer keeps the zone closed,
and the manager is more useful elsewhere."""
LEAVE_S = 5.0
"""Time limit of a release. After that the lease expires by itself."""


class Manager:
    def __init__(
        self, desk: Desk, board: Board, refusals: Refusals, options: ConsumerOptions, *, clock: Clock, rng: Random
    ) -> None:
        self._desk = desk
        self._board = board
        self._refusals = refusals
        self._options = options
        self._clock = clock
        self._rng = rng

    async def run(self) -> None:
        patience = Patience(self._clock, self._rng)
        while True:
            zone = await self._board.take()
            try:
                await self._visit(zone)
                patience = Patience(self._clock, self._rng)
            except ZoneLeaseLostError:
                log.warning("lost the lease of zone %s; its claimed jobs continue", zone.zone)
            except CasqueError as error:
                if patience.is_hopeless(error):
                    raise
                log.warning("could not process zone %s, trying again: %s", zone.zone, error)
                await patience.wait()
            finally:
                self._board.done(zone)

    async def _visit(self, zone: PeekedZone) -> None:
        lease = await self._desk.queue.lease_zone(zone.zone, lease=self._options.zone_lease)
        if lease is None:
            self._refusals.add(zone.zone)
            return
        self._refusals.forget(zone.zone)
        keeping = asyncio.create_task(self._keep(lease), name="casque zone lease")
        try:
            await self._serve(zone, lease)
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await self._release(lease)

    async def _serve(self, zone: PeekedZone, lease: ZoneLease) -> None:
        """Take at most `dequeue_max` jobs; of a FIFO zone one after the other."""
        began_ms, left = self._clock.monotonic_ms(), self._options.dequeue_max
        while True:
            # The next job takes the place of the one before it, so no further room is needed.
            lingers = zone.fifo and self._desk.holds(zone.zone)
            while not lingers and not self._desk.room():
                await self._desk.wait_for_room()
            asked = 1 if zone.fifo else min(left, self._desk.room())
            taken = await self._take(
                asked, lease, wait_s=LINGER_S if lingers else 0.0, reserved=0 if lingers else asked
            )
            left -= taken
            if taken < asked:
                return
            if not left:
                if not self._goes_on(began_ms):
                    return
                left = self._options.dequeue_max

    async def _take(self, asked: int, lease: ZoneLease, *, wait_s: float, reserved: int) -> int:
        """Claim jobs and return their number. Reserves places, because other managers claim at the same time."""
        desk = self._desk
        desk.reserved += reserved
        try:
            jobs = await desk.queue.dequeue(
                desk.names, batch_size=asked, wait=wait_s, lease=self._options.job_lease, zone_lease=lease
            )
        finally:
            desk.reserved -= reserved
        desk.take(jobs)
        return len(jobs)

    def _goes_on(self, began_ms: int) -> bool:
        """Whether to keep the zone, because releasing and leasing it again would cost more commits than it is worth."""
        since_ms = self._clock.monotonic_ms() - began_ms
        return self._board.is_empty and since_ms < self._options.vesting_threshold * 1000

    async def _keep(self, lease: ZoneLease) -> None:
        while True:
            await self._clock.sleep(self._options.zone_lease / BEATS_PER_LEASE)
            try:
                await self._desk.queue.heartbeat_zone(lease)
            except ZoneLeaseLostError:
                return  # the next claim with this lease raises
            except CasqueError as error:
                log.warning("the heartbeat of zone %s failed, trying again: %s", lease.zone, error)

    async def _release(self, lease: ZoneLease) -> None:
        """Release also while stopping: others should not have to wait until the lease expires."""
        releasing = asyncio.ensure_future(self._desk.queue.release_zone(lease))
        done, _ = await asyncio.wait({releasing}, timeout=LEAVE_S)
        if not done:
            releasing.cancel()
        elif isinstance(error := releasing.exception(), CasqueError):
            log.warning("could not release zone %s; its lease will expire: %s", lease.zone, error)
