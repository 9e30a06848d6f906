"""`casque zones peek`: the zones that have work, as consumers see them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
import typer

from casque.cli.command import command
from casque.cli.formats import clock_time, duration, now
from casque.cli.options import Json
from casque.cli.output import Columns, print_rows
from casque.cli.target import QueueTarget
from casque.cli.zones.view import ZonesLimit
from casque.client.queue import Queue


class PeekView(msgspec.Struct, frozen=True):
    """A zone that has work and can be leased."""

    zone: str
    next_at: datetime
    """When the first of its waiting jobs became, or will become, due: its vesting time."""
    due: bool
    fifo: bool


def _waits(zone: PeekView) -> str:
    late = now() - zone.next_at
    return f"for {duration(late)}" if late.total_seconds() >= 0 else f"until in {duration(-late)}"


COLUMNS: Columns = (
    ("zone", lambda zone: zone.zone),
    ("vests", lambda zone: clock_time(zone.next_at)),
    ("waits", _waits),
    ("order", lambda zone: "fifo" if zone.fifo else ""),
)


@command(
    "zones peek",
    examples=["casque zones peek", "casque zones peek s3://bucket/orders --entrypoint send --limit 10 --json"],
    reads_only=True,
)
def peek(
    target: QueueTarget,
    entrypoint: Annotated[
        list[str] | None, typer.Option("--entrypoint", "-e", help="Only zones with jobs of this one; may be repeated.")
    ] = None,
    limit: ZonesLimit = 100,
    json: Json = False,
) -> None:
    """Show the zones that a consumer would be given now: those with work that are not leased and that no rule holds
    back, those whose jobs have been due longest first. Zones whose jobs become due later follow, as far as they are
    next.

    A zone is not shown while it is leased or paused, while as many of its jobs run as may, and if it is FIFO while one
    of its jobs runs. `casque zones list` shows all of them, and who has them.

    Exit code 0: shown. 1: the queue is damaged. 2: it cannot be asked.
    """

    async def work(q: Queue[bytes]) -> list[PeekView]:
        found = await q.peek_zones(entrypoint or None, limit=limit)
        return [PeekView(one.zone, one.next_at, one.due, one.fifo) for one in found]

    empty = "no zone has jobs to claim now; `casque zones list` shows all zones"
    print_rows(COLUMNS, target.run(work), json=json, empty=empty)
