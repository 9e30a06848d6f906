"""Deletes orphaned objects: large payloads without a job, because an enqueue ended in between, and staged jobs that no
commit names, because they were never admitted or the commit can no longer be replayed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from casque.clock import Clock, yield_once
from casque.codec.archive import hour_of
from casque.codec.blobs import BLOBS, blob_hour
from casque.codec.staged import STAGED, staged_hour
from casque.state import State
from casque.storage.port import Store

AGE_MS = 24 * 3600 * 1000
"""Twice as long as staged jobs may wait to be admitted: an object that may still be named is younger, and stays."""
SEEN_MS = 13 * 3600 * 1000
"""How long an object must be an orphan by the monotonic clock of one process. The age in its name compares the wall
clocks of two machines: where one of them is a day ahead, it says nothing. Longer than staged jobs may wait."""
LOOK_MS = 10 * 60 * 1000
"""Until the first sweep, so that short-lived processes do none."""
REST_MS = 6 * 3600 * 1000
"""Between sweeps, at most."""
CHUNK_JOBS = 5_000
DELETED_AT_ONCE = 16


class Suspects:
    """Orphans, and since when this process has seen each of them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_ms: dict[str, int] = {}

    def convicted(self, orphans: Iterable[str]) -> list[str]:
        """Those that have been orphans for long enough. Objects that are no longer orphans are forgotten."""
        now_ms = self._clock.monotonic_ms()
        self._since_ms = {key: self._since_ms.get(key, now_ms) for key in orphans}
        return sorted(key for key, since_ms in self._since_ms.items() if now_ms - since_ms >= SEEN_MS)

    def next_ms(self) -> int:
        """When the next sweep is worthwhile."""
        rest_ms = self._clock.monotonic_ms() + REST_MS
        return min(rest_ms, min(self._since_ms.values(), default=rest_ms) + SEEN_MS)


class Sweeper:
    """Sweeps rarely, and never in a short-lived process."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._suspects = Suspects(clock)
        self._look_at_ms = clock.monotonic_ms() + LOOK_MS

    @property
    def is_due(self) -> bool:
        return self._clock.monotonic_ms() >= self._look_at_ms

    async def apply(self, state: State) -> None:
        """
        Raises:
            StorageError: the store failed. What is left is for the next time.
        """
        if not self.is_due:
            return
        self._look_at_ms = self._clock.monotonic_ms() + LOOK_MS
        doomed = self._suspects.convicted(await self._payloads(state) | await self._staged(state))
        self._look_at_ms = max(self._suspects.next_ms(), self._look_at_ms)
        for start in range(0, len(doomed), DELETED_AT_ONCE):
            await asyncio.gather(*map(self._store.delete, doomed[start : start + DELETED_AT_ONCE]))

    async def _payloads(self, state: State) -> set[str]:
        begins = hour_of(self._clock.wall_ms() - AGE_MS)
        found: set[str] = set()
        async for key in self._store.list(BLOBS):
            if blob_hour(key) >= begins:
                break
            found.add(key)
        jobs = list(state.jobs.values()) if found else []
        for start in range(0, len(jobs), CHUNK_JOBS):
            found.difference_update({job.spec.blob for job in jobs[start : start + CHUNK_JOBS] if job.spec.blob})
            await yield_once()
        return found

    async def _staged(self, state: State) -> set[str]:
        begins = hour_of(self._clock.wall_ms() - AGE_MS)
        found: set[str] = set()
        async for key in self._store.list(STAGED):
            if staged_hour(key) >= begins:
                break
            found.add(key)
        # Last, with the current state: an object that is named now was named by a commit of more than half a day ago.
        return found - {one.key for one in state.staged}
