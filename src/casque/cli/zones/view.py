"""Zones as commands show them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
import typer

from casque import checks
from casque.cli.formats import clock_time, duration, now
from casque.cli.target import QueueTarget
from casque.types import PLAIN_RULES, ZoneRules, ZoneStanding, from_ms

UNNAMED = "an unnamed worker"
"""Shown for a worker that leased a zone without giving its name."""

Zone = Annotated[
    str | None,
    typer.Argument(metavar="ZONE", help="Which zone; `casque zones list` shows them.", show_default=False),
]
ZonesLimit = Annotated[
    int, typer.Option("--limit", "-n", min=1, max=checks.ZONES_SHOWN_MAX, help="Show at most this many.")
]


class ZoneView(msgspec.Struct, frozen=True):
    """A zone: its jobs, and its rules."""

    zone: str
    ready: int
    delayed: int
    running: int
    dead: int
    next_at: datetime | None
    """When the first of its waiting jobs became, or will become, due."""
    fifo: bool
    weight: float
    running_max: int | None
    per_second: float | None
    paused: bool
    leased_by: str | None = None
    """The worker that leased it: no other is given its jobs."""
    leased_at: datetime | None = None


def name_zone(target: QueueTarget, verb: str, zone: str | None) -> tuple[QueueTarget, str]:
    """The queue and the zone that a command was given.

    Raises:
        InvalidInputError: no zone was named, or several.
    """
    usage = f"which zone? casque zones {verb} [URL] ZONE; `casque zones list` shows them"
    target, [name] = target.separate(zone, count=1, usage=usage)
    return target, checks.zone(name)


def view_zone(standing: ZoneStanding) -> ZoneView:
    rules, lease = standing.rules, standing.lease
    return ZoneView(
        zone=standing.zone,
        ready=standing.ready,
        delayed=standing.delayed,
        running=standing.running,
        dead=standing.dead,
        next_at=standing.next_at,
        fifo=standing.fifo,
        weight=rules.weight,
        running_max=rules.running_max,
        per_second=rules.per_second,
        paused=rules.paused,
        leased_by=None if lease is None else lease.worker or UNNAMED,
        leased_at=None if lease is None else from_ms(lease.leased_ms),
    )


def count_jobs(standing: ZoneStanding) -> int:
    return standing.ready + standing.delayed + standing.running + standing.dead


def describe_next(zone: ZoneView) -> str:
    if zone.next_at is None:
        return ""
    late = now() - zone.next_at
    relative = f"{duration(late)} ago" if late.total_seconds() >= 0 else f"in {duration(-late)}"
    return f"{clock_time(zone.next_at)} ({relative})"


def describe_rules(rules: ZoneRules) -> str:
    if rules == PLAIN_RULES:
        return "weight 1, no limits"
    parts = [f"weight {rules.weight:g}"]
    if rules.running_max is not None:
        parts.append(f"at most {rules.running_max:,} running")
    if rules.per_second is not None:
        parts.append(f"at most {rules.per_second:g} a second")
    return ", ".join(parts) + ("; it is paused" if rules.paused else "")
