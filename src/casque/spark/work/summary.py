"""What a run has done so far, and where its time went."""

from __future__ import annotations

import msgspec


class Summary(msgspec.Struct, frozen=True):
    """The figures of one run. Every job that was claimed is in one of `done`, `failed`, `snoozed`, `cancelled`,
    `declined`, `lost`, `given_back`, `left` and, while the run goes on, `running`."""

    worker: str
    """The name under which the jobs were claimed; new for each run."""
    jobs: int = 0
    """Claimed. A job that failed and was claimed again counts again."""
    done: int = 0
    failed: int = 0
    """Given back with an error: again later, or dead if that was the last attempt."""
    snoozed: int = 0
    """Put off by their own functions, which an app's may do."""
    cancelled: int = 0
    """Called off by their own functions."""
    declined: int = 0
    """Given back for others, because this version of a function does not take their arguments."""
    lost: int = 0
    """Ended after the lease was lost: the outcome did not count, and somebody else has the job, or had it."""
    given_back: int = 0
    """Claimed and not begun: back in the queue, not counted as an attempt."""
    left: int = 0
    """Left to their leases: their batch ran longer than the timeout, or Spark failed."""
    running: int = 0
    batches: int = 0
    seconds: float = 0.0
    claim_s: float = 0.0
    run_s: float = 0.0
    """From sending to the executors until all is back, over all batches; they overlap."""
    settle_s: float = 0.0

    @property
    def rate(self) -> float:
        """Jobs settled per second."""
        settled = self.done + self.failed + self.snoozed + self.cancelled + self.declined
        return settled / self.seconds if self.seconds else 0.0

    def told(self) -> dict[str, str | int | float]:
        """For programs."""
        figures: dict[str, str | int | float] = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: round(value, 3) if isinstance(value, float) else value for name, value in figures.items()} | {
            "rate": round(self.rate, 1)
        }
