"""Counts and timings of a run."""

from __future__ import annotations

import msgspec


class Summary(msgspec.Struct, frozen=True):
    """The figures of one run. Every claimed job is counted in one of `done`, `failed`, `snoozed`, `cancelled`,
    `declined`, `lost`, `given_back`, `left` and, during the run, `running`."""

    worker: str
    """The name under which the jobs were claimed; new for each run."""
    jobs: int = 0
    """Claimed jobs. A job that failed and was claimed again counts again."""
    done: int = 0
    failed: int = 0
    """Failed attempts: the job is retried later, or dead if that was the last attempt."""
    snoozed: int = 0
    """Postponed by their own functions, in an app."""
    cancelled: int = 0
    """Cancelled by their own functions."""
    declined: int = 0
    """Given back for other workers, because this version of a function does not take their arguments."""
    lost: int = 0
    """Ended after the lease was lost: the outcome did not count, and the job was cancelled or claimed by another
    worker."""
    given_back: int = 0
    """Claimed and not started: back in the queue, not counted as an attempt."""
    left: int = 0
    """Left to their leases: they ran longer than the timeout, or Spark failed."""
    running: int = 0
    batches: int = 0
    seconds: float = 0.0
    claim_s: float = 0.0
    run_s: float = 0.0
    """From sending to the executors until all outcomes are back, summed over all batches, which overlap."""
    settle_s: float = 0.0

    @property
    def rate(self) -> float:
        """Jobs settled per second."""
        settled = self.done + self.failed + self.snoozed + self.cancelled + self.declined
        return settled / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, str | int | float]:
        """The figures as a dict, for programs."""
        figures: dict[str, str | int | float] = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: round(value, 3) if isinstance(value, float) else value for name, value in figures.items()} | {
            "rate": round(self.rate, 1)
        }
