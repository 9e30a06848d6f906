"""`casque zones list`."""

from __future__ import annotations

from rich.text import Text

from casque import checks
from casque.cli.command import command
from casque.cli.formats import count_of
from casque.cli.options import Json
from casque.cli.output import Columns, print_rows
from casque.cli.target import QueueTarget
from casque.cli.zones.view import ZonesLimit, ZoneView, describe_next, view_zone
from casque.client.queue import Queue

COLUMNS: Columns = (
    ("zone", lambda zone: zone.zone),
    *((name, count_of(name)) for name in ("ready", "delayed", "running", "dead")),
    ("next", describe_next),
    ("weight", lambda zone: f"{zone.weight:g}"),
    ("running max", lambda zone: "" if zone.running_max is None else f"{zone.running_max:,}"),
    ("per second", lambda zone: "" if zone.per_second is None else f"{zone.per_second:g}"),
    ("order", lambda zone: "fifo" if zone.fifo else ""),
    ("paused", lambda zone: Text("paused", "yellow") if zone.paused else ""),
    ("leased by", lambda zone: zone.leased_by or ""),
)


@command(
    "zones list",
    aliases=["ls"],
    examples=["casque zones list file:///var/lib/orders", "casque zones list --limit 1000 --json"],
    reads_only=True,
)
def ls(target: QueueTarget, limit: ZonesLimit = 50, json: Json = False) -> None:
    """Show the zones of a queue that have jobs or rules, those whose jobs have been due longest first.

    A zone is there from its first job on, and needs no setting up: `casque enqueue --zone acme`. Zones take turns, so
    that one with many jobs does not hold up the others; `casque zones set` changes their shares and limits. Jobs that
    were enqueued without a zone take turns with the zones too, and are not listed.

    Exit code 0: shown. 1: the queue is damaged. 2: it cannot be asked.
    """

    async def work(q: Queue[bytes]) -> list[ZoneView]:
        return [view_zone(one) for one in await q.zones(limit=min(limit + 1, checks.ZONES_SHOWN_MAX))]

    empty = "no zone has jobs or rules; `casque enqueue --zone NAME` makes one"
    print_rows(COLUMNS, target.run(work), json=json, empty=empty, limit=limit)
