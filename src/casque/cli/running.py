"""What every command that works on a queue shares: its store, and how it ends when something is wrong."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, TypeVar

import typer
from rich.console import Console

from casque.cli.doctor import parse_options
from casque.errors import CASConflictError, CasqueError, CorruptQueueError, QueueLedError
from casque.storage.port import Store
from casque.storage.url import open_store

R = TypeVar("R")

EXIT_FAILED = 1
EXIT_CANNOT_TELL = 2

Url = Annotated[
    str,
    typer.Argument(help="Where the queue is: s3://bucket/prefix, gs://, az:// or file:///path", show_default=False),
]
StoreOptions = Annotated[
    list[str] | None, typer.Option("--option", "-o", help="NAME=VALUE for the store; may be repeated")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for a program.")]


def help_of(command: Callable[..., object]) -> str:
    """Its docstring, each paragraph on one line: a terminal breaks lines by itself."""
    text = inspect.getdoc(command) or ""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def on_store(url: str, option: list[str] | None, work: Callable[[Store], Awaitable[R]]) -> R:
    """Do something with a store, and end the command with a clear word if that fails: 1 for a queue that is damaged or
    a refusal, 2 if the store cannot be reached or the question makes no sense."""
    console = Console(stderr=True)

    async def run() -> R:
        store = open_store(url, options=parse_options(option or []))
        try:
            return await work(store)
        finally:
            await store.close()

    try:
        with clear_ends(console):
            return asyncio.run(run())
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


@contextmanager
def clear_ends(console: Console) -> Iterator[None]:
    """Whatever goes wrong in here ends the command with a clear word and the exit code that says what it was."""
    try:
        yield
    except CorruptQueueError as error:
        console.print("[bold red]damaged[/]", error.key, highlight=False, soft_wrap=True)
        console.print(error.problem, markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_FAILED) from None
    except (CASConflictError, QueueLedError) as error:
        console.print(str(error), markup=False, style="red", highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_FAILED) from None
    except CasqueError as error:
        console.print(str(error), markup=False, style="red", highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_CANNOT_TELL) from None
