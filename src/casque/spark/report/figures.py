"""The numbers of a report: frozen values, written to `--json` as they are.

Spans are milliseconds; a value that cannot be computed because nothing happened is None, never 0.
"""

from __future__ import annotations

import msgspec

from casque.spark.report.period import Period


class Spread(msgspec.Struct, frozen=True):
    """How long something took. Percentiles come from sketches: exact for a few hundred values, and within 2 % of the
    rank for more."""

    count: int = 0
    sum_ms: int = 0
    mean_ms: float | None = None
    p50_ms: int | None = None
    p90_ms: int | None = None
    p99_ms: int | None = None
    max_ms: int | None = None


class Tally(msgspec.Struct, frozen=True):
    """Counts of jobs: of all, of one entrypoint or zone, or of one span of time."""

    enqueued: int = 0
    finished: int = 0
    done: int = 0
    died: int = 0
    """Jobs that ran out of attempts in this time; some may have been retried or purged since."""
    cancelled: int = 0
    retried: int = 0
    attempts: int = 0
    failed: int = 0
    retry_rate: float | None = None
    """Share of the jobs done or died that took more than one attempt."""
    failure_rate: float | None = None
    """Share of the jobs done or died that died."""
    attempt_failure_rate: float | None = None
    """Share of the attempts that failed or whose lease expired."""
    wait: Spread = Spread()
    """From due to first claimed, of finished jobs."""
    run: Spread = Spread()
    """From claimed to ended, of attempts."""


class Named(msgspec.Struct, frozen=True):
    """The tally of one entrypoint or zone. Without a name: of jobs without a zone."""

    name: str | None
    tally: Tally


class Moment(msgspec.Struct, frozen=True):
    """The tally of one step, and when it begins."""

    at_ms: int
    tally: Tally


class Depth(msgspec.Struct, frozen=True):
    """Average number of jobs in the queue during one step."""

    at_ms: int
    scheduled: float
    waiting: float
    running: float
    waiting_max: int
    """Maximum over the ends of its minutes, or seconds if a step is shorter than a minute."""


class Standing(msgspec.Struct, frozen=True):
    """Number of jobs in the queue at one moment."""

    scheduled: int = 0
    waiting: int = 0
    running: int = 0


class WorkerUse(msgspec.Struct, frozen=True):
    """How busy a worker was."""

    worker: str | None
    busy_ms: int
    utilisation: float
    """Share of the period; above 1 if it runs several jobs at once."""
    attempts: int
    failed: int
    over_time: dict[int, float]
    """Utilisation by the start of the step; steps without jobs are left out."""


class DeadLetters(msgspec.Struct, frozen=True):
    """Jobs of one entrypoint that died of the same kind of error."""

    error_class: str | None
    entrypoint: str
    jobs: int
    sample_job: str
    sample_error: str | None
    first_ms: int
    last_ms: int


class Fairness(msgspec.Struct, frozen=True):
    """Comparison of all zones."""

    zones: int = 0
    jain_service: float | None = None
    jain_wait: float | None = None
    large_zones: int = 0
    large_wait_ms: float | None = None
    small_wait_ms: float | None = None
    small_to_large: float | None = None


class FairHour(msgspec.Struct, frozen=True):
    at_ms: int
    fairness: Fairness


class Cost(msgspec.Struct, frozen=True):
    """The store's cost of one zone's operations."""

    zone: str | None
    operations: int
    commits: float
    bytes: int
    dollars: float
    zones: int = 1


class Figures(msgspec.Struct, frozen=True):
    """All numbers of a report about one period."""

    period: Period
    total: Tally
    wait_histogram: dict[int, int]
    """Waits counted by length: those of at most this many milliseconds that the entry before does not count."""
    run_histogram: dict[int, int]
    over_time: tuple[Moment, ...]
    """By step; steps without events are left out."""
    hours: tuple[Moment, ...]
    entrypoints: tuple[Named, ...]
    """Most finished jobs first."""
    zones: tuple[Named, ...]
    depth: tuple[Depth, ...]
    """Every step of the period."""
    standing: Standing
    """At the end of the period."""
    workers: tuple[WorkerUse, ...]
    """The busiest first."""
    dead_letters: tuple[DeadLetters, ...]
    fairness: Fairness
    fair_hours: tuple[FairHour, ...]
    costs: tuple[Cost, ...]
    """Most expensive first. By whole hours that overlap the period."""
    other_zones: Tally | None = None
    """All zones after the first 200."""
    other_costs: Cost | None = None

    @property
    def empty(self) -> bool:
        return not (self.total.enqueued or self.total.finished or self.total.attempts or self.depth_max)

    @property
    def depth_max(self) -> int:
        return max((point.waiting_max for point in self.depth), default=0)

    @property
    def throughput(self) -> float:
        """Finished jobs per second."""
        return self.total.finished / (self.period.span_ms / 1000)

    @property
    def dollars(self) -> float:
        return sum(cost.dollars for cost in (*self.costs, self.other_costs) if cost is not None)

    @property
    def commits(self) -> float:
        return sum(cost.commits for cost in (*self.costs, self.other_costs) if cost is not None)
