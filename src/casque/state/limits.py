"""How much a queue remembers beside its jobs."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """How much the queue remembers beside its jobs."""

    requests_max: int = 65_536
    """Behind a broker every call has an id: at ten thousand calls a second this is what callers who ask again after a
    failover have time for."""
    requests_min: int = 256
    """This many are kept whatever their age."""
    writers_max: int = 128
    sources_max: int = 4_096
    """Sources of admissions whose last batch is remembered. The one that was silent longest is forgotten first, and
    begins anew."""
    schedules_max: int = 1_000
    gates_max: int = 1_000
    """Entrypoints that have a gate of their own which is not open."""
    zones_max: int = 10_000
    """Zones with rules of their own. The number of zones without rules is not limited."""
    zone_leases_max: int = 10_000
    """Zones that are leased at a time."""
    finished: bool = False
    """Whether finished jobs are kept until they are archived."""
