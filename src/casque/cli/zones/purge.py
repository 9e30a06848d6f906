"""`casque zones purge`: cancel a zone's waiting jobs and remove its dead ones."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from casque.cli.command import command
from casque.cli.exits import confirm
from casque.cli.formats import jobs_noun
from casque.cli.jobs.change import change_each
from casque.cli.jobs.select import WAITING, JobFilter
from casque.cli.options import Json, Yes
from casque.cli.output import answer, say
from casque.cli.target import QueueTarget
from casque.cli.zones.view import Zone, name_zone
from casque.client.queue import Queue
from casque.types import ZoneStanding


class ZonePurged(msgspec.Struct, frozen=True):
    """What a purge did to the jobs of a zone."""

    zone: str
    cancelled: int
    purged: int
    """Dead ones that were removed."""
    kept: int
    """Jobs that could not be cancelled, because they finished meanwhile."""
    running: int
    """Jobs that were running, and go on."""


@command(
    "zones purge",
    examples=[
        "casque zones pause acme && casque zones purge acme --yes",
        "casque zones purge s3://bucket/orders acme --dead-only",
    ],
    audited=True,
)
def purge(
    target: QueueTarget,
    zone: Zone = None,
    dead_only: Annotated[bool, typer.Option("--dead-only", help="Leave waiting jobs alone.")] = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Cancel all waiting jobs of a zone and remove its dead ones for good. Asks first.

    Running jobs go on: `casque jobs cancel --all --zone ZONE --state running` ends them too. Jobs may be added and
    claimed meanwhile; of a paused zone none are claimed. The archive keeps what it has, with the cancelled ones, and
    the rules of the zone stay.

    Exit code 0: they are gone, or there were none. 1: the question was answered with no, or the queue is damaged. 2: it
    cannot be done. 4: the outcome is unknown.
    """
    target, name = name_zone(target, "purge", zone)

    async def work(q: Queue[bytes]) -> ZonePurged:
        found = await q.zones(name)
        standing = found[0] if found else ZoneStanding(name)
        waiting = 0 if dead_only else standing.ready + standing.delayed
        if waiting or standing.dead:
            confirm(_question(name, waiting, standing.dead), yes=yes)
        ids = await JobFilter(WAITING, zone=name).find_ids(q, waiting) if waiting else []
        cancelled = 0
        async for _, error in change_each(ids, q.cancel):
            cancelled += error is None
        purged = await q.purge(zone=name) if standing.dead else 0
        return ZonePurged(name, cancelled, purged, len(ids) - cancelled, standing.running)

    done = target.run(work)
    removed = f"{done.purged:,} dead {jobs_noun(done.purged)} removed"
    cancelled = f"{done.cancelled:,} waiting {jobs_noun(done.cancelled)} cancelled, "
    answer(done, removed if dead_only else cancelled + removed, json=json)
    if done.running and not json:
        say(f"being worked on, and left alone: {done.running:,}", err=True)


def _question(zone: str, waiting: int, dead: int) -> str:
    parts = [f"cancel {waiting:,} waiting {jobs_noun(waiting)}"] if waiting else []
    parts += [f"remove {dead:,} dead {jobs_noun(dead)} for good"] if dead else []
    return f"The zone {zone}: {' and '.join(parts)}?"
