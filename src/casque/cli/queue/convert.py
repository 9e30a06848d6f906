"""`casque queue convert`: give a queue the other layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from casque.cli.command import command
from casque.cli.options import Json, Layout
from casque.cli.output import Terminal, answer, say
from casque.cli.target import BucketTarget
from casque.storage.port import Store

if TYPE_CHECKING:
    from casque.client.maintenance import Converted


@command(
    "queue convert",
    examples=[
        "casque queue convert file:///var/lib/orders --to log",
        "casque queue convert s3://bucket/orders --to document -o region=eu-central-1",
    ],
    audited=True,
)
def convert(
    target: BucketTarget,
    to: Annotated[Layout, typer.Option("--to", help="The layout that the queue is to have.", show_default=False)],
    json: Json = False,
) -> None:
    """Give a queue the other layout, with everything in it: jobs, leases, counters, remembered requests.

    Stop every process that uses the queue first. One that still runs gets an error at its next call and loses nothing
    that was acknowledged; and if it writes during the conversion, the conversion is refused. The new objects are read
    back and compared before any old one is removed. It may be interrupted at any point: the queue is then whole in one
    layout or the other, and the command can be run again. jqueue's documents convert too.

    Exit code 0: the queue has this layout now. 1: another process wrote meanwhile, nothing was changed. 2: it cannot be
    done.
    """
    from casque.client.maintenance import convert_queue

    console = Terminal(stderr=True, quiet=not Terminal(stderr=True).is_terminal)

    async def work(store: Store) -> Converted:
        with console.status("starting") as status:
            return await convert_queue(store, to.value, say=status.update)

    done = target.run_on_store(work)
    answer(done, lambda: _print_converted(done), json=json)


def _print_converted(done: Converted) -> None:
    verb = "is now a" if done.changed else "was already a"
    say(f"the queue {verb} {done.layout}: {done.jobs:,} jobs at position {done.position:,}")
    say(f"digest of everything in it: {done.digest}")
    if done.removed:
        say(f"{done.removed:,} objects of the old log removed")


ALIAS = msgspec.structs.replace(convert, path=("convert",), hidden=True)
"""`casque convert`, as it was called at first."""
