"""`casque queue verify URL`: is every object of this queue what it must be?"""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from casque.cli.place import QueueName
from casque.cli.running import Json, OptionalBucket, StoreOptions, on_store
from casque.cli.terminal import Terminal, print_json
from casque.clock import SystemClock, system_random
from casque.journal.verify import Verdict, Verifier
from casque.settings import QueueSettings
from casque.storage.port import Store

EXAMPLES = """
[bold]Examples[/]

  casque queue verify file:///var/lib/orders

  casque queue verify s3://bucket/orders -o region=eu-central-1 --json
"""


def verify(
    url: OptionalBucket = None, queue: QueueName = None, option: StoreOptions = None, json: Json = False
) -> None:
    """Read a whole queue and check that it is one.

    Replays the log from its oldest kept object to its end. Checks every checksum, every link of the chain, that every
    snapshot equals what the segments before it add up to, that no job appears or vanishes, and that every fence is
    there; of a ring, all of its shards. Names the first object that is wrong and says what to do. Never writes, and
    works beside a running queue.

    Exit code 0: the queue is whole. 1: it is damaged. 2: cannot tell.
    """

    async def work(store: Store) -> Verdict:
        columns = (TextColumn("{task.description:<20}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        console = Terminal(stderr=True)
        with Progress(*columns, console=console, transient=True, disable=json or not console.is_terminal) as bar:
            task = bar.add_task("starting", total=None)
            verifier = Verifier(
                store,
                settings=QueueSettings(),
                clock=SystemClock(),
                rng=system_random(),
                progress=lambda what, done, total: bar.update(task, description=what, completed=done, total=total),
            )
            return await verifier.verify()

    verdict = on_store(url, option, work, queue=queue)
    if json:
        print_json(verdict)
    else:
        _show(verdict, Terminal())


def _show(verdict: Verdict, console: Console) -> None:
    table = Table(box=None, show_header=False)
    table.add_row("layout", verdict.layout)
    table.add_row("position", f"{verdict.position:,}")
    table.add_row("jobs", f"{verdict.jobs:,}")
    if verdict.shards:
        table.add_row("shards", f"{verdict.shards}, all there")
    if verdict.layout != "document":
        table.add_row("segments", f"{verdict.segments:,} in an unbroken chain")
        table.add_row("snapshots", f"{verdict.snapshots}, of which {verdict.replayed} equal a replay of the segments")
        table.add_row("fences", f"{verdict.fences}, all there")
    if verdict.archived:
        table.add_row("archive", f"{verdict.archived:,} objects, no range twice")
    table.add_row("digest", verdict.digest)
    console.print(table)
    for note in verdict.notes:
        console.print(f"note: {note}", style="yellow", highlight=False, soft_wrap=True)
    console.print("whole: every object is what it must be", style="green")
