"""`casque spark replay`: enqueue finished jobs again."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.table import Table

from casque.cli.command import command
from casque.cli.options import Json, Since, Until, parse_moment, parse_options
from casque.cli.output import Terminal, print_json
from casque.cli.spark.session import SparkOptions, Via, ViaOption
from casque.cli.target import BucketTarget


@command(
    "spark replay",
    examples=[
        (
            """casque spark replay s3://bucket/orders --where "state = 'dead' AND entrypoint = 'mail'" --since 24h """
            "--dry-run"
        ),
        (
            """casque spark replay s3://bucket/orders --where "state = 'dead' AND error LIKE 'TimeoutError%'" """
            "--txn-id outage-7"
        ),
    ],
)
def replay(
    target: BucketTarget,
    where: Annotated[
        str, typer.Option("--where", metavar="SQL", help="Which finished jobs, by the columns of the archive.")
    ],
    since: Since = None,
    until: Until = None,
    into: Annotated[str | None, typer.Option("--into", metavar="URL", help="Another queue to enqueue them in.")] = None,
    entrypoint: Annotated[
        str | None, typer.Option("--entrypoint", "-e", help="Enqueue them for this entrypoint, not for their own.")
    ] = None,
    max_attempts: Annotated[int | None, typer.Option("--max-attempts", help="How often each may be tried now.")] = None,
    txn_id: Annotated[
        str | None,
        typer.Option("--txn-id", metavar="NAME", help="The replay's name: the same one again enqueues nothing."),
    ] = None,
    skip_missing_payloads: Annotated[
        bool, typer.Option("--skip-missing-payloads", help="Go on without jobs whose large payload was deleted.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show which jobs would be enqueued.")] = False,
    via: ViaOption = Via.AUTO,
    into_option: Annotated[
        list[str] | None,
        typer.Option("--into-option", metavar="NAME=VALUE", help="Option of the other queue's store; may be repeated."),
    ] = None,
    *,
    spark: SparkOptions,
    json: Json = False,
) -> None:
    """Enqueue again the jobs that an SQL condition selects from the archive, in one commit.

    The same call again enqueues nothing: a replay has a name, which follows from the arguments if none is given. Times
    without a zone are in UTC. "24h ago" is another time at each call: give --txn-id with it.

    Exit code 0: done. 1: the archive is damaged. 2: the question makes no sense, payloads are gone, or no access.
    """
    first, last = parse_moment("--since", since), parse_moment("--until", until)
    place, others = target.resolve(), parse_options(into_option)
    with spark.session("casque spark replay") as session:
        from casque.spark.replaying import replay as run

        found = run(
            session,
            place.url,
            where,
            since=first,
            until=last,
            into=into,
            entrypoint=entrypoint,
            max_attempts=max_attempts,
            txn_id=txn_id,
            skip_missing_payloads=skip_missing_payloads,
            dry_run=dry_run,
            via=via.value,
            options=place.options,
            into_options=others,
        )
    if json:
        whole = {**msgspec.to_builtins(found), "jobs": found.jobs, "without_payload": found.without_payload}
        print_json(whole)
        return
    table = Table("entrypoint", "ended", "jobs", "without payload", box=None)
    for one in found.selected:
        table.add_row(one.entrypoint, one.state, f"{one.jobs:,}", f"{one.without_payload:,}")
    out = Terminal(highlight=False)
    out.print(table)
    done = "enqueued, unless that had been done before" if found.written else "selected, nothing enqueued"
    out.print(f"{found.jobs:,} jobs {done}; replay {found.txn_id}", soft_wrap=True)
