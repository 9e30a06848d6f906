"""Somebody who follows every job from claim to claim by the events alone, and so knows its tries without the rules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from casque.codec.log import Segment
from casque.state import (
    Acked,
    Cancelled,
    Claimed,
    Crashed,
    Declined,
    Died,
    Expired,
    Lapsed,
    Nacked,
    Purged,
    Quarantined,
    Returned,
    Snoozed,
    Withdrawn,
)
from casque.state.job_life import LEASE_RAN_OUT
from casque.types import TRIES_MAX, Attempt, Ending, JobRecord, JobState

Tries: TypeAlias = tuple[Attempt, ...]


def go_on(before: Tries, after: Tries) -> bool:
    """Whether these are the same tries with some more at the end, and the oldest forgotten for them."""
    more = range(len(after) + 1)
    return any((*before, *after[len(after) - new :])[-TRIES_MAX:] == after for new in more)


class Stories:
    """The attempts of every job that came to nothing."""

    def __init__(self) -> None:
        self._claims: dict[str, tuple[int, Claimed]] = {}
        self.tries: dict[str, Tries] = {}
        """Of jobs that were claimed at least once, and are still there."""
        self.lapsed_at_work = False
        """Whether a job has expired while somebody was at work on it."""

    def begin(self, jobs: Iterable[JobRecord]) -> None:
        """With these, of which nobody has told before."""
        for job in jobs:
            self.tries[job.id] = job.tries
            if job.state is JobState.RUNNING:
                claim = Claimed(job.id, job.token, job.lease_ms, job.worker)
                self._claims[job.id] = (job.claimed_ms or 0, claim)

    def follow(self, segment: Segment) -> list[Tries]:
        """A commit. The tries of those that it finished, in its order, as they were before their last attempt."""
        finished: list[Tries] = []
        for event in segment.events:
            match event:
                case Claimed(job_id=job_id):
                    self._claims[job_id] = (segment.at, event)
                    self.tries.setdefault(job_id, ())
                case Nacked(job_id=job_id, error=error):
                    self._ended(job_id, segment.at, Ending.FAILED, error)
                case Expired(job_id=job_id):
                    self._ended(job_id, segment.at, Ending.EXPIRED, LEASE_RAN_OUT)
                case Crashed(job_id=job_id, error=error):
                    self._ended(job_id, segment.at, Ending.CRASHED, error)
                case Died(job_id=job_id, error=error, how=how):
                    finished.append(self.tries[job_id])
                    assert how is not None, "every writer here says it"
                    self._ended(job_id, segment.at, how, error)
                case Quarantined(job_id=job_id, error=error):
                    finished.append(self.tries[job_id])
                    self._ended(job_id, segment.at, Ending.CRASHED, error)
                case Returned(job_id=job_id) | Snoozed(job_id=job_id) | Declined(job_id=job_id):
                    del self._claims[job_id]
                case Acked(job_id=job_id) | Cancelled(job_id=job_id) | Withdrawn(job_id=job_id):
                    finished.append(self._over(job_id))
                case Lapsed(job_id=job_id):
                    self.lapsed_at_work |= job_id in self._claims
                    finished.append(self._over(job_id))
                case Purged(job_id=job_id):
                    self._over(job_id)
                case _:
                    pass
        return finished

    def _ended(self, job_id: str, at_ms: int, how: Ending, error: str | None) -> None:
        claimed_ms, claim = self._claims.pop(job_id)
        ended = Attempt(claimed_ms, at_ms, how, claim.worker, claim.token, error)
        self.tries[job_id] = (*self.tries[job_id], ended)[-TRIES_MAX:]

    def _over(self, job_id: str) -> Tries:
        self._claims.pop(job_id, None)
        return self.tries.pop(job_id, ())
