"""`casque zones peek`: the top-level queue, as those who lease zones see it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from casque import checks
from casque.cli.place import QueueName, find_place
from casque.cli.running import Json, OptionalUrl, StoreOptions, clear_ends, on_queue
from casque.cli.shown import clock_time, length, now, print_table
from casque.cli.terminal import print_json, say
from casque.client.queue import Queue
from casque.types import PeekedZone

EXAMPLES_PEEK = """
[bold]Examples[/]

  casque zones peek

  casque zones peek s3://bucket/orders --entrypoint send --limit 10 --json
"""


class ShownPeek(msgspec.Struct, frozen=True):
    """A zone that has work for whoever leases it."""

    zone: str
    next_at: datetime
    """When the first of its waiting jobs became, or will become, due: its vesting time."""
    due: bool
    fifo: bool


def _waits(zone: ShownPeek) -> str:
    late = now() - zone.next_at
    return f"for {length(late)}" if late >= timedelta(0) else f"until in {length(-late)}"


COLUMNS: tuple[tuple[str, Callable[[Any], str | Text]], ...] = (
    ("zone", lambda zone: zone.zone),
    ("vests", lambda zone: clock_time(zone.next_at)),
    ("waits", _waits),
    ("order", lambda zone: "fifo" if zone.fifo else ""),
)


def peek(
    url: OptionalUrl = None,
    entrypoint: Annotated[
        list[str] | None, typer.Option("--entrypoint", "-e", help="Only zones with jobs of this one; may be repeated.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=checks.ZONES_SHOWN_MAX, help="At most so many.")
    ] = 100,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """Show the zones that a consumer would be given now: those with work that nobody has leased and that no rule holds
    back, those whose jobs have been due longest first. Zones whose jobs become due later follow, as far as they are
    next.

    A zone is not shown while somebody has leased it, while it is paused or as many of its jobs run as may, and of a
    FIFO zone while a job of it runs. `casque zones ls` shows all of them, and who has them.

    Exit code 0: shown. 1: the queue is damaged. 2: it cannot be asked.
    """
    with clear_ends():
        place = find_place(url, queue, option)

    async def work(q: Queue[bytes]) -> list[PeekedZone]:
        return await q.peek_zones(entrypoint or None, limit=limit)

    found = [ShownPeek(one.zone, one.next_at, one.due, one.fifo) for one in on_queue(place, work, looks=True)]
    if json:
        for zone in found:
            print_json(zone)
    elif found:
        print_table(COLUMNS, found)
    else:
        say("no zone has work that is to be had; `casque zones ls` shows those that there are", err=True)
