"""What a worker has done so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Summary:
    """Counts of a worker's jobs, by what became of them."""

    claimed: int = 0
    done: int = 0
    failed: int = 0
    """Attempts that failed, timeouts included."""
    crashed: int = 0
    """Jobs whose process died."""
    snoozed: int = 0
    cancelled: int = 0
    """By their own handlers."""
    declined: int = 0
    """Given back for others, because this worker's version of a function does not take their arguments."""
    lost: int = 0
    """Cancelled by somebody, or gone to another worker: whatever their handlers did does not count."""
    given_back: int = 0
    """Claimed and not started, or stopped because the worker did: they wait again, and it was no attempt."""
    left: int = 0
    """Handlers that did not stop when they were asked to. `casque worker` gives their jobs back when its process is
    replaced; in a program of your own their leases run out."""

    def count(self, how: str) -> None:
        """One more that is `done`, `failed`, `crashed`, `snoozed`, `cancelled` or `declined`, and durably so."""
        setattr(self, how, getattr(self, how) + 1)
