"""Options of a consumer of zones, with QuiCK's names and defaults. Times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import ceil

from casque import checks


class Selection(StrEnum):
    """Which of the peeked zones are selected."""

    RANDOM = "random"
    """Any: consumers that scan at the same moment seldom collide."""
    SEQUENTIAL = "sequential"
    """Those that have waited longest: for a single consumer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """How a consumer goes from zone to zone.

    >>> options = ConsumerOptions(selection_frac=0.5, selection_max=4)
    >>> [options.selected(peeked) for peeked in (0, 1, 3, 100)]
    [0, 1, 2, 4]
    """

    managers: int = 4
    """Zones leased at once."""
    workers: int = 16
    """Jobs running at once."""
    selection: Selection = Selection.RANDOM
    peek_max: int = 100
    """Zones that a scan looks at."""
    selection_frac: float = 0.1
    """Share of the due zones that a scan selects, at least one..."""
    selection_max: int = 10
    """...and at most this many."""
    dequeue_max: int = 10
    """Jobs taken from a zone before other zones have their turn."""
    processing_bound: float | None = None
    """A job that takes longer has failed; None for the timeout of its handler."""
    zone_lease: float = 10.0
    """How soon another consumer gets its zones if this one dies."""
    job_lease: float = 60.0
    """How soon another consumer gets its jobs if this one dies."""
    min_inactive: float = 30.0
    """A zone that was not refused for this long is forgotten."""
    vesting_threshold: float = 0.25
    """A zone is not released and leased again within this time if no other zone waits: that would write two commits to
    move it by less than this."""
    scanner_interval: float = 0.1
    """Pause between scans while zones are due."""
    scanner_idle: float = 1.0
    """Longest pause between scans when nothing has been due for a while: a scan of a bucket is a request."""

    def __post_init__(self) -> None:
        checks.whole("managers", self.managers, 1, 1_000)
        checks.whole("workers", self.workers, 1, 10_000)
        checks.whole("peek_max", self.peek_max, 1, checks.ZONES_SHOWN_MAX)
        checks.number("selection_frac", self.selection_frac, 0, 1)
        checks.whole("selection_max", self.selection_max, 1, checks.ZONES_SHOWN_MAX)
        checks.whole("dequeue_max", self.dequeue_max, 1, checks.BATCH_MAX)
        if self.processing_bound is not None:
            checks.number("processing_bound", self.processing_bound, 0.001, 86_400 * 365)
        checks.number("zone_lease", self.zone_lease, 1, 86_400)
        checks.number("min_inactive", self.min_inactive, 0, 86_400)
        checks.number("vesting_threshold", self.vesting_threshold, 0, 86_400)
        checks.number("scanner_interval", self.scanner_interval, 0.001, 3_600)
        checks.number("scanner_idle", self.scanner_idle, self.scanner_interval, 3_600)

    def selected(self, peeked: int) -> int:
        """Number of zones to select when `peeked` zones are due."""
        return min(peeked, self.selection_max, max(1, ceil(peeked * self.selection_frac)))
