"""Turns staged columns into jobs without blocking other tasks."""

from __future__ import annotations

from casque.clock import yield_once
from casque.codec.staged import StagedJobs
from casque.types import JobSpec

ROWS_AT_ONCE = 20_000
"""About ten milliseconds."""


async def specs_of(jobs: StagedJobs) -> list[JobSpec]:
    specs: list[JobSpec] = []
    for start in range(0, len(jobs), ROWS_AT_ONCE):
        await yield_once()
        specs += jobs.specs(start, start + ROWS_AT_ONCE)
    return specs
