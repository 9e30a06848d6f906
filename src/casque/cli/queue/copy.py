"""`casque queue backup|restore|clone`: copy a queue to another place, also while it is in use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any

import typer

from casque.cli.command import Options, command
from casque.cli.options import Json, parse_options
from casque.cli.output import answer, counted_steps
from casque.cli.target import BucketTarget, QueueName
from casque.client.config import QueueConfig
from casque.errors import InvalidInputError

if TYPE_CHECKING:
    from casque import Copied

Source = Annotated[
    str | None,
    typer.Argument(
        metavar="SOURCE",
        help="URL of the queue to read; it is never written. May be left out if --queue, CASQUE_URL or casque.toml "
        "names it.",
        show_default=False,
    ),
]
Backup = Annotated[str, typer.Argument(metavar="BACKUP", help="URL of the backup; it is never written.")]
Target = Annotated[str | None, typer.Argument(metavar="TARGET", help="URL of an empty place.", show_default=False)]
RestoreTarget = Annotated[str, typer.Argument(metavar="TARGET", help="URL of an empty place.")]


class CopyOptions(Options, frozen=True, kw_only=True):
    """Options of every copy."""

    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", metavar="NAME=VALUE", help="Option for the first store; may be repeated."),
    ] = None
    target_option: Annotated[
        list[str] | None,
        typer.Option("--target-option", metavar="NAME=VALUE", help="Option for the target's store; may be repeated."),
    ] = None
    json: Json = False


class NamedCopyOptions(CopyOptions, frozen=True, kw_only=True):
    """Options of a copy whose source may have a name."""

    queue: QueueName = None

    def place(self, source: str | None, target: str | None, verb: str) -> tuple[QueueConfig, str]:
        """The source and the target. With one URL it is the target."""
        usage = f"casque queue {verb} [SOURCE] TARGET: needs the URL of an empty place"
        named, into = BucketTarget(url=source, queue=self.queue, option=self.option).followed_by(target, usage)
        try:
            return named.resolve(), into
        except InvalidInputError as error:
            if target is not None or self.queue is not None:
                raise
            raise InvalidInputError(
                f"casque queue {verb} SOURCE TARGET: {into} is taken for the target; {error}"
            ) from error


@command(
    "queue backup",
    examples=[
        "casque queue backup s3://bucket/orders s3://backups/orders-2026-11-17",
        "casque queue backup file:///var/lib/orders file:///mnt/backups/orders --json",
        "casque queue backup -q mail file:///mnt/backups/mail",
    ],
    audited=True,
)
def backup(source: Source = None, target: Target = None, *, options: NamedCopyOptions) -> None:
    """Back up a queue to another place, also while it is in use, and check the backup.

    The backup is a queue as it was at one moment, with payloads and archive; of a ring, all shards. Nothing is written
    at the source. A backup that was interrupted is no queue.

    Exit code 0: done. 1: the queue is damaged. 2: it cannot be read, or the target is not empty.
    """
    from casque.client.copying import backup_queue

    place, into = options.place(source, target, "backup")
    _copy(backup_queue, place, into, options)


@command(
    "queue restore",
    examples=["casque queue restore s3://backups/orders-2026-11-17 s3://bucket/orders-restored"],
    audited=True,
)
def restore(backup: Backup, target: RestoreTarget, options: CopyOptions) -> None:
    """Check a backup and make a queue of it in another place. The backup stays as it is.

    Exit code 0: done. 1: the backup is damaged. 2: it cannot be read, or the target is not empty.
    """
    from casque.client.copying import restore_queue

    _copy(restore_queue, QueueConfig(backup, parse_options(options.option)), target, options)


@command(
    "queue clone",
    examples=["casque queue clone s3://bucket/orders file:///tmp/orders-to-try-things"],
    audited=True,
)
def clone(source: Source = None, target: Target = None, *, options: NamedCopyOptions) -> None:
    """Copy a queue to another place, also while it is in use. The copy is a queue of its own.

    Exit code 0: done. 1: the queue is damaged. 2: it cannot be read, or the target is not empty.
    """
    from casque.client.copying import clone_queue

    place, into = options.place(source, target, "clone")
    _copy(clone_queue, place, into, options)


def _copy(
    copy: Callable[..., Coroutine[Any, Any, Copied]], source: QueueConfig, target: str, options: CopyOptions
) -> None:
    with counted_steps(wanted=not options.json) as progress:
        copied = asyncio.run(
            copy(
                source.url,
                target,
                progress=progress,
                options=source.options or None,
                target_options=parse_options(options.target_option) or None,
            )
        )
    shards = f", {copied.shards} shards" if copied.shards else ""
    text = (
        f"{copied.jobs:,} jobs and {copied.objects:,} objects beside them are at {target}, as of position "
        f"{copied.position:,}{shards}"
    )
    answer(copied, text, json=options.json)
