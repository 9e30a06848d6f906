"""How zones stand: the top-level queue, for whoever wants to look at it."""

from __future__ import annotations

from casque.state.machine import State
from casque.types import PLAIN_RULES, JobState, ZoneStanding


def zone_standings(state: State, now_ms: int, names: frozenset[str] | None, limit: int) -> list[ZoneStanding]:
    """Zones with jobs or rules, by vesting time: those that have nothing waiting last. Looks at every job,
    until it has seen all of these zones."""
    known = state.zone_jobs.keys() | state.rules.keys() | state.zone_leases.keys()
    wanted = known if names is None else known & names
    counts: dict[str, list[int]] = {zone: [0, 0, 0, 0] for zone in wanted}
    due_ms: dict[str, int] = {}
    left = sum(state.zone_jobs.get(zone, 0) for zone in wanted)
    for job in state.jobs.values():
        if not left:
            break
        zone = job.spec.zone
        if zone is None or (count := counts.get(zone)) is None:
            continue
        left -= 1
        if job.state is JobState.RUNNING:
            count[2] += 1
        elif job.state is JobState.DEAD:
            count[3] += 1
        else:
            count[0 if job.state is JobState.READY or job.due_ms <= now_ms else 1] += 1
            due_ms[zone] = min(due_ms.get(zone, job.due_ms), job.due_ms)
    order = sorted(wanted, key=lambda zone: (zone not in due_ms, due_ms.get(zone, 0), zone))
    standings: list[ZoneStanding] = []
    for zone in order[:limit]:
        ready, delayed, running, dead = counts[zone]
        rules = state.rules.get(zone, PLAIN_RULES)
        standings.append(
            ZoneStanding(
                zone,
                ready,
                delayed,
                running,
                dead,
                due_ms.get(zone),
                state.is_fifo(zone),
                rules,
                state.zone_leases.get(zone),
            )
        )
    return standings
