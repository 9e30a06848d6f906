"""Counts of a worker's jobs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Summary:
    """Counts of a worker's jobs by outcome."""

    claimed: int = 0
    done: int = 0
    failed: int = 0
    """Attempts that failed, timeouts included."""
    crashed: int = 0
    """Jobs whose process died."""
    snoozed: int = 0
    cancelled: int = 0
    """Cancelled by their own handlers."""
    declined: int = 0
    """Given back for other workers, because this one's version of a function does not take their arguments."""
    lost: int = 0
    """Cancelled by a caller, or gone to another worker: the outcome of the handler does not count."""
    given_back: int = 0
    """Claimed and not started, or stopped with the worker: they wait again, and it was not an attempt."""
    left: int = 0
    """Handlers that did not stop when asked to. `casque worker` gives their jobs back when its process is replaced; in
    a program of your own their leases expire."""

    def count(self, how: str) -> None:
        """Count a job that durably is `done`, `failed`, `crashed`, `snoozed`, `cancelled` or `declined`."""
        setattr(self, how, getattr(self, how) + 1)
