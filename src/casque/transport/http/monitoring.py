"""Endpoints for operators and their tools: liveness, readiness and metrics."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from casque.clock import Clock
from casque.errors import CasqueError
from casque.request_budget import RequestBudget
from casque.service import Host, RingHost, Role, Standing, Stats
from casque.telemetry.metrics import Metrics
from casque.transport.http.entrypoint_numbers import EntrypointNumbers
from casque.transport.http.led_states import Depths

OF_RINGS = ("shards", "led", "members")
STATS_LIMIT_S = 2.0
"""How long a scrape waits for a queue on slow storage; after that it omits the queue's numbers."""


def is_ready(standing: Standing) -> bool:
    if standing.problem is not None:
        return False
    return standing.role is Role.LEADER or (standing.role is Role.STANDBY and standing.leader is not None)


def readiness(standing: Standing) -> dict[str, Any]:
    """The body of `/readyz`; it mentions shards only if there are any."""
    fields = msgspec.structs.asdict(standing)
    return fields if standing.shards else {name: fields[name] for name in fields if name not in OF_RINGS}


class Gauges:
    """Gauges about the broker and its queue, set at the moment of a scrape.

    `entrypoints` knows the states that this process leads. Without it, as in front of a queue that is led elsewhere,
    there are only the numbers that `stats` has.
    """

    def __init__(
        self,
        host: Host,
        metrics: Metrics,
        version: str,
        entrypoints: EntrypointNumbers | None,
        clock: Clock,
        budget: RequestBudget | None = None,
    ) -> None:
        self._budget = budget
        self._host = host
        self._metrics = metrics
        self._entrypoints = entrypoints
        self._clock = clock
        self.depths: Depths | None = None
        """What was counted for this scrape; None if this broker does not lead."""
        metrics.gauge("casque_build_info", "1, with the version of casque as a label.", ("version",)).of(
            version
        ).value = 1
        self._role = metrics.gauge("casque_broker_role", "1 for the role that this broker has.", ("role",))
        self._ready = metrics.gauge("casque_broker_ready", "1 if /readyz says so.")
        self._epoch = metrics.gauge("casque_broker_epoch", "The number of the leadership that this broker knows.")
        self._position = metrics.gauge("casque_commit_position", "The number of the last commit that is known here.")
        self._readable = metrics.gauge("casque_queue_readable", "1 if the jobs could be counted. Only a leader counts.")
        self._jobs = metrics.gauge("casque_jobs", "Jobs in the queue by state.", ("state",))
        self._finished = metrics.counter(
            "casque_jobs_finished_total", "Jobs that left the queue, since it was made, by state.", ("state",)
        )
        self._enqueued = metrics.counter("casque_jobs_enqueued_total", "Jobs added to the queue since it was made.")
        self._led = _LedGauges(metrics)

    async def take(self) -> Stats | None:
        """The queue's stats; None if this broker does not lead it, or it did not answer in time."""
        standing = self._host.standing()
        for role in Role:
            self._role.of(role.value).value = role is standing.role
        self._ready.of().value = is_ready(standing)
        self._epoch.of().value = standing.epoch
        if standing.shards:
            self._share(standing)
        if self._budget is not None:
            self._spent(self._budget)
        stats = await self._stats(of_ring=standing.shards > 0)
        self._position.of().value = standing.position if stats is None else max(standing.position, stats.position)
        self._readable.of().value = stats is not None
        self._count(stats)
        await self._look_inside(stats)
        return stats

    def _share(self, standing: Standing) -> None:
        """Gauges of a ring only: a queue without shards does not have these."""
        gauge = self._metrics.gauge
        gauge("casque_ring_shards", "Shards that the ring has.").of().value = standing.shards
        gauge("casque_ring_shards_led", "Shards that this broker leads.").of().value = standing.led
        gauge("casque_ring_brokers", "Brokers that share the shards, this one included.").of().value = standing.members

    def _spent(self, budget: RequestBudget) -> None:
        """Gauges of a broker with a budget only."""
        for window, limit, used in budget.usage():
            self._metrics.gauge(
                "casque_store_requests_budget", "Requests that this broker should make to the store.", ("window",)
            ).of(window).value = limit
            self._metrics.gauge(
                "casque_store_requests_budget_used", "Requests since the minute or the day began.", ("window",)
            ).of(window).value = used

    async def _stats(self, *, of_ring: bool) -> Stats | None:
        try:
            async with asyncio.timeout(STATS_LIMIT_S):
                if of_ring and isinstance(self._host, RingHost):
                    return await self._host.led_stats()
                return await self._host.service().stats()
        except (CasqueError, TimeoutError):
            return None

    def _count(self, stats: Stats | None) -> None:
        if stats is None:
            for family in (self._jobs, self._finished, self._enqueued):
                family.forget()
            return
        totals = stats.totals
        for state in ("ready", "delayed", "running", "dead"):
            self._jobs.of(state).value = getattr(totals, state)
        for state in ("done", "cancelled", "purged"):
            self._finished.of(state).value = getattr(totals, state)
        self._enqueued.of().value = totals.enqueued

    async def _look_inside(self, stats: Stats | None) -> None:
        self.depths = None
        if stats is None or self._entrypoints is None:
            self._led.forget()
            return
        self.depths = await self._entrypoints.states.depths()
        self._led.take(self._entrypoints, self.depths, self._clock.wall_ms())


class _LedGauges:
    """Gauges of the queue that only its leader knows."""

    def __init__(self, metrics: Metrics) -> None:
        self._oldest = metrics.gauge(
            "casque_oldest_due_seconds", "How long the job that has waited longest has been due; 0 if none is."
        )
        self._workers = metrics.gauge(
            "casque_workers", "Workers that hold jobs, and workers that asked for some in the last minute.", ("state",)
        )
        self._unarchived = metrics.gauge(
            "casque_archive_pending_jobs", "Finished jobs that are not in the archive yet."
        )
        self._behind = metrics.gauge(
            "casque_archive_pending_seconds", "How long ago the first of them finished; 0 if there is none."
        )

    def forget(self) -> None:
        for family in (self._oldest, self._workers, self._unarchived, self._behind):
            family.forget()

    def take(self, entrypoints: EntrypointNumbers, depths: Depths, now_ms: int) -> None:
        self._oldest.of().value = _age_s(depths.oldest_due_ms, now_ms)
        busy, idle = entrypoints.workers(depths)
        self._workers.of("busy").value = busy
        self._workers.of("idle").value = idle
        self._unarchived.of().value = entrypoints.states.unarchived
        self._behind.of().value = _age_s(entrypoints.states.unarchived_since_ms, now_ms)


def _age_s(since_ms: int | None, now_ms: int) -> float:
    return 0.0 if since_ms is None else max(now_ms - since_ms, 0) / 1000
