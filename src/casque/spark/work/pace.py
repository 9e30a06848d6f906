"""The default batch size: as many jobs as take a few seconds.

With smaller batches the overhead of a Spark job shows; with larger ones a crash repeats more work and results come
later. A handler's speed is unknown before it has run, so the first batch is small.
"""

from __future__ import annotations

FIRST = 100
MOST = 50_000
AIM_S = 5.0
BYTES_AIM = 64 * 1024 * 1024
STEP = 10
"""Largest factor between the sizes of two consecutive batches."""


class Pace:
    def __init__(self, fixed: int | None) -> None:
        self._fixed = fixed
        self._size = FIRST
        self.known = fixed is not None
        """Whether the handler's speed is known."""

    @property
    def learns(self) -> bool:
        """Whether the size of payloads matters."""
        return self._fixed is None

    @property
    def size(self) -> int:
        return self._fixed or self._size

    def learn(self, *, jobs: int, payload_bytes: int, seconds: float) -> None:
        """Adapt to a finished batch."""
        wanted = jobs / max(seconds, 0.001) * AIM_S
        fitting = jobs / max(payload_bytes, 1) * BYTES_AIM
        # A batch that was smaller than requested says little about larger ones, but is no reason for a smaller size.
        base = max(self._size, jobs)
        self._size = int(min(max(min(wanted, fitting), base / STEP, 1), base * STEP, MOST))
        self.known = True
