"""`casque queue backup | restore | clone SOURCE TARGET`: a queue in another place, also while it is in use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from casque.cli.auditing import audited
from casque.cli.running import EXIT_INTERRUPTED, Json, clear_ends
from casque.cli.store_options import parse_options
from casque.cli.terminal import Terminal, print_json
from casque.client.copying import backup_queue, clone_queue, restore_queue
from casque.journal.copying import Copied

EXAMPLES_BACKUP = """
[bold]Examples[/]

  casque queue backup s3://bucket/orders s3://backups/orders-2026-11-17

  casque queue backup file:///var/lib/orders file:///mnt/backups/orders --json
"""
EXAMPLES_RESTORE = """
[bold]Examples[/]

  casque queue restore s3://backups/orders-2026-11-17 s3://bucket/orders-restored
"""
EXAMPLES_CLONE = """
[bold]Examples[/]

  casque queue clone s3://bucket/orders file:///tmp/orders-to-try-things
"""

Source = Annotated[str, typer.Argument(metavar="SOURCE", help="URL of the queue to read; it is never written.")]
Backup = Annotated[str, typer.Argument(metavar="BACKUP", help="URL of the backup; it is never written.")]
Target = Annotated[str, typer.Argument(metavar="TARGET", help="URL of a place where nothing is.")]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="NAME=VALUE", help="Option for the first store; may be repeated."),
]
TargetOptions = Annotated[
    list[str] | None,
    typer.Option("--target-option", metavar="NAME=VALUE", help="Option for the target's store; may be repeated."),
]


@audited("queue backup")
def backup(
    source: Source, target: Target, option: Options = None, target_option: TargetOptions = None, json: Json = False
) -> None:
    """Back up a queue to another place, also while it is in use, and check the backup.

    The backup is a queue as it was at one moment, with payloads and archive; of a ring, all shards. Nothing is written
    at the source. A backup that was interrupted is no queue.

    Exit code 0: done. 1: the queue is damaged. 2: it cannot be read, or the target is not empty.
    """
    _run(backup_queue, source, target, option, target_option, json)


@audited("queue restore")
def restore(
    backup: Backup, target: Target, option: Options = None, target_option: TargetOptions = None, json: Json = False
) -> None:
    """Check a backup and make a queue of it in another place. The backup stays as it is.

    Exit code 0: done. 1: the backup is damaged. 2: it cannot be read, or the target is not empty.
    """
    _run(restore_queue, backup, target, option, target_option, json)


@audited("queue clone")
def clone(
    source: Source, target: Target, option: Options = None, target_option: TargetOptions = None, json: Json = False
) -> None:
    """Copy a queue to another place, also while it is in use. The copy is a queue of its own.

    Exit code 0: done. 1: the queue is damaged. 2: it cannot be read, or the target is not empty.
    """
    _run(clone_queue, source, target, option, target_option, json)


def _run(
    work: Callable[..., Awaitable[Copied]],
    source: str,
    target: str,
    option: list[str] | None,
    target_option: list[str] | None,
    json: bool,
) -> None:
    console = Terminal(stderr=True)
    columns = (TextColumn("{task.description:<20}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())

    async def run() -> Copied:
        options: dict[str, Any] = {
            "options": parse_options(option or []) or None,
            "target_options": parse_options(target_option or []) or None,
        }
        with Bar(*columns, console=console, transient=True, disable=json or not console.is_terminal) as bar:
            task = bar.add_task("starting", total=None)

            def progress(what: str, done: int, total: int) -> None:
                bar.update(task, description=what, completed=done, total=total)

            return await work(source, target, progress=progress, **options)

    try:
        with clear_ends(console):
            copied = asyncio.run(run())
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if json:
        print_json(copied)
        return
    shards = f", {copied.shards} shards" if copied.shards else ""
    Terminal().print(
        f"{copied.jobs:,} jobs and {copied.objects:,} objects beside them are at {target}, as of position "
        f"{copied.position:,}{shards}",
        style="green",
        highlight=False,
        soft_wrap=True,
    )
