"""`casque queue convert URL --to log|document`: the same queue in the other layout."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from casque.cli.auditing import audited
from casque.cli.place import QueueName
from casque.cli.running import Json, OptionalBucket, StoreOptions, on_store
from casque.cli.terminal import Terminal, print_json
from casque.clock import SystemClock, system_random
from casque.journal.convert import Converted, Converter
from casque.settings import QueueSettings
from casque.storage.port import Store

EXAMPLES = """
[bold]Examples[/]

  casque queue convert file:///var/lib/orders --to log

  casque queue convert s3://bucket/orders --to document -o region=eu-central-1
"""


class Layout(StrEnum):
    """What a queue can be converted to."""

    LOG = "log"
    DOCUMENT = "document"


@audited("queue convert")
def convert(
    to: Annotated[Layout, typer.Option("--to", help="The layout that the queue is to have.", show_default=False)],
    url: OptionalBucket = None,
    queue: QueueName = None,
    option: StoreOptions = None,
    json: Json = False,
) -> None:
    """Give a queue the other layout, with everything in it: jobs, leases, counters, remembered requests.

    Stop every process that uses the queue first. One that still runs gets an error at its next call and loses nothing
    that it was told is done; and if it writes while the queue is being converted, the conversion is refused. What is
    written is read back and compared before anything old is removed. It may be interrupted at any point: the queue is
    then whole in one layout or the other, and the command can be run again. jqueue's documents convert too.

    Exit code 0: the queue has this layout now. 1: somebody wrote meanwhile, nothing was changed. 2: it cannot be done.
    """
    console = Terminal(stderr=True)

    async def work(store: Store) -> Converted:
        settings, clock, rng = QueueSettings(), SystemClock(), system_random()
        if not console.is_terminal:
            return await Converter(store, settings=settings, clock=clock, rng=rng, say=lambda _: None).convert(to.value)
        with console.status("starting") as status:
            return await Converter(store, settings=settings, clock=clock, rng=rng, say=status.update).convert(to.value)

    done = on_store(url, option, work, queue=queue)
    if json:
        print_json(done)
        return
    said = "is now a" if done.changed else "was already a"
    out = Terminal()
    out.print(f"the queue {said} {done.layout}: {done.jobs:,} jobs at position {done.position:,}", highlight=False)
    out.print(f"digest of everything in it: {done.digest}", highlight=False, soft_wrap=True)
    if done.removed:
        out.print(f"{done.removed:,} objects of the old log removed", highlight=False)
