"""Jobs that expire: which of those that wait is next, and how it ends.

A job may have a time after which it is not wanted any more. Only a waiting job expires; one that is running may finish.
What is here costs jobs without such a time nothing.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, TypeAlias

from casque.state.commands import Lapse
from casque.state.events import Lapsed
from casque.state.facet import Methods
from casque.types import NOT_CLAIMED_IN_TIME, JobRecord, JobState

if TYPE_CHECKING:
    from casque.state.machine import State

HANDLERS: Methods = {Lapse: "lapse"}

Entry: TypeAlias = tuple[int, str]
"""When a job expires, and its id."""

_WAITING = (JobState.READY, JobState.DELAYED)
_SWEPT = 64


class LapseIndex:
    """The waiting jobs that expire, by time. Entries are never searched for: one that is out of date shows when it
    surfaces, because its job is gone, is running, or is another one."""

    __slots__ = ("_heap", "_jobs", "_room")

    def __init__(self, jobs: dict[str, JobRecord]) -> None:
        self._jobs = jobs
        self._heap: list[Entry] = []
        self._room = _SWEPT

    def push(self, job: JobRecord) -> None:
        """A job that expires begins to wait, or waits again."""
        expires_ms = job.expires_at_ms
        assert expires_ms is not None
        heappush(self._heap, (expires_ms, job.spec.id))
        if len(self._heap) > self._room:
            # Most jobs end long before they expire.
            self._heap = sorted({entry for entry in self._heap if self._is_current(entry)})
            self._room = 2 * len(self._heap) + _SWEPT

    def next_ms(self) -> int | None:
        """When the next job expires, if one does."""
        heap = self._heap
        while heap and not self._is_current(heap[0]):
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now_ms: int) -> str | None:
        """A job that has expired and waits, if there is one."""
        next_ms = self.next_ms() if self._heap else None
        return self._heap[0][1] if next_ms is not None and next_ms <= now_ms else None

    def _is_current(self, entry: Entry) -> bool:
        job = self._jobs.get(entry[1])
        return job is not None and job.state in _WAITING and job.expires_at_ms == entry[0]


def lapse(state: State, c: Lapse, now_ms: int) -> int:  # noqa: ARG001  one signature for all handlers
    """End every waiting job that has expired, by the clock of this writer. Answers how many those were."""
    lapses, ended = state.table.lapses, 0
    while (job_id := lapses.due(now_ms)) is not None:
        state.happen(Lapsed(job_id, NOT_CLAIMED_IN_TIME), now_ms)
        ended += 1
    return ended


def has_lapsed(job: JobRecord, now_ms: int) -> bool:
    """Whether it is not to be handed out any more."""
    expires_ms = job.expires_at_ms
    return expires_ms is not None and expires_ms <= now_ms
