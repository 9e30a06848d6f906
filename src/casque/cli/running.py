"""What every command that works on a queue shares: its store, and how it ends when something is wrong."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.text import Text

from casque.cli.place import Place, find_place
from casque.cli.terminal import Terminal
from casque.client.opening import as_store
from casque.client.queue import Queue
from casque.client.reaching import is_address
from casque.codec.head import KEY, RING, read_layout
from casque.codec.ring import shard_prefix
from casque.errors import (
    CASConflictError,
    CasqueError,
    CorruptQueueError,
    InvalidInputError,
    JobNotFoundError,
    JobStateError,
    LeaseLostError,
    QueueCopiedError,
    QueueDrainingError,
    QueueLedError,
    ScheduleNotFoundError,
    UnknownOutcomeError,
)
from casque.journal.discovery import find_leader
from casque.printable import printable
from casque.settings import SettingsChanges
from casque.storage.below import StoreBelow
from casque.storage.port import Store, Stored, locate
from casque.storage.url import open_store

R = TypeVar("R")

GARBAGE_AT_ONCE = 20_000
EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_CANNOT_TELL = 2
EXIT_NOTHING = 3
"""There was nothing to claim. For loops in a shell."""
EXIT_UNKNOWN = 4
"""It may have been done: look before it is repeated."""
EXIT_INTERRUPTED = 130

Url = Annotated[
    str,
    typer.Argument(help="Where the queue is: s3://bucket/prefix, gs://, az:// or file:///path", show_default=False),
]
OptionalBucket = Annotated[
    str | None,
    typer.Argument(
        metavar="URL",
        help="Where the queue is: s3://bucket/prefix, gs://, az:// or file:///path. May be left out if --queue, "
        "CASQUE_URL or casque.toml names it.",
        show_default=False,
    ),
]
OptionalUrl = Annotated[
    str | None,
    typer.Argument(
        metavar="URL",
        help="The queue's bucket (s3://bucket/prefix, file:///path) or brokers (grpc://host:port). May be left out if "
        "--queue, CASQUE_URL or casque.toml names it.",
        show_default=False,
    ),
]
StoreOptions = Annotated[
    list[str] | None, typer.Option("--option", "-o", help="NAME=VALUE for the store; may be repeated")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for a program.")]


def help_of(command: Callable[..., object]) -> str:
    """Its docstring, each paragraph on one line: a terminal breaks lines by itself."""
    text = inspect.getdoc(command) or ""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def on_store(
    url: str | None, option: list[str] | None, work: Callable[[Store], Awaitable[R]], *, queue: str | None = None
) -> R:
    """Do something with a queue's store, and end the command with a clear word if that fails: 1 for a queue that is
    damaged or a refusal, 2 if the store cannot be reached or the question makes no sense."""
    console = Terminal(stderr=True)

    async def run() -> R:
        place = find_place(url, queue, option)
        store = open_store(place.url, options=place.options)
        try:
            return await work(store)
        finally:
            await store.close()

    try:
        with until_read(), clear_ends(console):
            return asyncio.run(run())
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_DONE) from None


def on_queue(
    place: Place,
    work: Callable[[Queue[bytes]], Awaitable[R]],
    *,
    worker: str | None = None,
    makes: bool = False,
    looks: bool = False,
) -> R:
    """Do something with a queue, through the broker that leads it if one does, and end the command with a clear word if
    that fails: 1 if the queue refuses or is damaged, 2 if it cannot be asked, 4 if nobody knows whether it was done.

    `makes`: a queue that is not there is made; otherwise that is an error, since a wrong URL should not look like an
    empty queue. `looks`: nothing is changed, so that a reader who has seen enough, `| head`, is no failure.
    """
    console = Terminal(stderr=True)

    async def run() -> R:
        async with await _opened(place, worker, console, makes=makes) as queue:
            return await work(queue)

    try:
        with until_read(EXIT_DONE if looks else EXIT_FAILED), clear_ends(console):
            return asyncio.run(run())
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


async def _opened(place: Place, worker: str | None, console: Console, *, makes: bool) -> Queue[bytes]:
    # A command is there for a moment: whoever looks at a queue should not add jobs to it by that.
    settings: SettingsChanges = {"ticks": False, **place.changes()}
    if is_address(place.url):
        if place.options:
            raise InvalidInputError("store options are for a bucket, and the URL is that of a broker: leave them out")
        return Queue.open(place.url, tls=place.tls, worker=worker, **settings)
    store = as_store(place.url, place.options)
    try:
        leader = await find_leader(store)
        read = await store.get(KEY) if leader is None else None
        if isinstance(read, Stored) and read_layout(KEY, read.body, locate(store, KEY)).layout == RING:
            # Brokers lead all shards of a ring, or none.
            leader = await find_leader(StoreBelow(store, shard_prefix(0)))
        elif leader is None and not isinstance(read, Stored):
            if not makes:
                raise InvalidInputError(
                    f"there is no queue here: {KEY} is missing. Is {place.url} right? `casque queue create` makes one"
                )
            said = f"there was no queue at {place.url}: making one"
            console.print(said, markup=False, highlight=False, soft_wrap=True)
    finally:
        await store.close()
    if leader is None:
        return Queue.open(place.url, options=place.options, worker=worker, **settings)
    return Queue.open(place.url, via="broker", options=place.options, tls=place.tls, worker=worker, **settings)


def confirmed(question: str, *, yes: bool) -> None:
    """Go on only if somebody wants that; a program says so beforehand."""
    if yes:
        return
    try:
        wanted = typer.confirm(printable(question), err=True)
    except typer.Abort:
        raise InvalidInputError("nobody answered, and nothing was done: say --yes to go ahead") from None
    if not wanted:
        Terminal(stderr=True).print("nothing was done", highlight=False)
        raise typer.Exit(EXIT_FAILED)


@contextmanager
def until_read(ends: int = EXIT_DONE) -> Iterator[None]:
    """Whoever reads the output may have seen enough, `| head`: the command ends then, with this exit code."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Without this the interpreter complains about it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(ends) from None


@contextmanager
def clear_ends(console: Console | None = None) -> Iterator[None]:
    """Whatever goes wrong in here ends the command with a clear word and the exit code that says what it was."""
    console = console or Terminal(stderr=True)
    try:
        yield
    except CorruptQueueError as error:
        console.print(Text("damaged", "bold red"), printable(error.key), highlight=False, soft_wrap=True)
        console.print(error.problem, markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_FAILED) from None
    except UnknownOutcomeError as error:
        console.print(str(error), markup=False, style="red", highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_UNKNOWN) from None
    except (
        CASConflictError,
        QueueDrainingError,
        QueueLedError,
        QueueCopiedError,
        JobNotFoundError,
        LeaseLostError,
        JobStateError,
        ScheduleNotFoundError,
    ) as error:
        console.print(str(error), markup=False, style="red", highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_FAILED) from None
    except CasqueError as error:
        console.print(str(error), markup=False, style="red", highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_CANNOT_TELL) from None


def collect_rarely() -> None:
    """For commands that run for long and handle many small objects: what is loaded by now stays, so that the garbage
    collector need not look at it again; and it need not look after every few hundred objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_AT_ONCE, 20, 20)


def fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The event loop for commands that run for long: uvloop, where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
