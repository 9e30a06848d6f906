"""How many jobs to claim at a time, if nobody says it: as many as take a few seconds.

Less, and what a Spark job costs by itself shows; more, and a crash repeats more work and results come later. A
handler's speed is not known before it has run, so the first batch is small.
"""

from __future__ import annotations

FIRST = 100
MOST = 50_000
AIM_S = 5.0
BYTES_AIM = 64 * 1024 * 1024
STEP = 10
"""How much faster or slower than before one batch may make the next."""


class Pace:
    def __init__(self, fixed: int | None) -> None:
        self._fixed = fixed
        self._size = FIRST
        self.known = fixed is not None
        """Whether anything is known about the handler's speed."""

    @property
    def learns(self) -> bool:
        """Whether it matters how large jobs are."""
        return self._fixed is None

    @property
    def size(self) -> int:
        return self._fixed or self._size

    def learn(self, *, jobs: int, payload_bytes: int, seconds: float) -> None:
        """So many took so long."""
        wanted = jobs / max(seconds, 0.001) * AIM_S
        fitting = jobs / max(payload_bytes, 1) * BYTES_AIM
        # A batch that was smaller than asked for says little about larger ones, but nothing against the present size.
        base = max(self._size, jobs)
        self._size = int(min(max(min(wanted, fitting), base / STEP, 1), base * STEP, MOST))
        self.known = True
