"""Decides when the next snapshot is worth its bytes."""

from __future__ import annotations

from casque.codec.log import LogHead, SnapshotRef
from casque.environment import Environment

SNAPSHOT_SEGMENTS = 512
SNAPSHOT_BYTES = 4 * 1024 * 1024
SNAPSHOT_MS = 5 * 60 * 1000
BYTES_PER_SEGMENT = 64 * 1024
"""The assumed cost of one more segment to read when opening the queue, in bytes of snapshot.

A snapshot of a million jobs is hundreds of megabytes: written every 512 commits it would cost more than all commits
together, and save little for readers, who have to read those megabytes first.
"""


class Pace:
    """Measures the log since the last snapshot, of all writers."""

    def __init__(self, env: Environment) -> None:
        self._clock = env.clock
        self._rng = env.rng
        self._newest: SnapshotRef | None = None
        self.restart()

    def restart(self, position: int = 0) -> None:
        """A snapshot is being written, or the queue is being opened: measure from here."""
        self._from = position
        self._bytes = 0
        self._since_ms = self._clock.monotonic_ms()
        # Writers that share a queue count the same segments: they must not all start at once.
        self._slack = 1 + self._rng.random() / 4

    def opened(self, head: LogHead | None) -> None:
        """The queue was loaded from this head, and the segments after its snapshot have been counted."""
        self._newest = head.snapshot if head is not None else None
        self._from = self._newest.position if self._newest is not None else 0

    def grew(self, size: int) -> None:
        self._bytes += size

    def snapshot_is_due(self, position: int, head: LogHead) -> bool:
        last = head.snapshot
        if last is not None and last != self._newest:
            self._newest = last
            if last.position > self._from:
                self.restart(last.position)  # another writer's snapshot is as good as ours
        segments = position - self._from
        if not segments:
            return False
        size = last.bytes if last is not None else 0
        return (
            segments >= max(SNAPSHOT_SEGMENTS, size // BYTES_PER_SEGMENT) * self._slack
            or self._bytes >= max(SNAPSHOT_BYTES, size) * self._slack
            or (size <= SNAPSHOT_BYTES and self._clock.monotonic_ms() - self._since_ms >= SNAPSHOT_MS)
        )
