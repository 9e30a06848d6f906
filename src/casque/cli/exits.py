"""How commands end: exit codes, and which error has which."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer
from rich.text import Text

from casque.cli.output import Terminal
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
from casque.printable import printable

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_CANNOT_TELL = 2
EXIT_NOTHING = 3
"""There was nothing to claim. For loops in a shell."""
EXIT_UNKNOWN = 4
"""It may have been done: look before you repeat it."""
EXIT_INTERRUPTED = 130

REFUSALS = (
    CASConflictError,
    QueueDrainingError,
    QueueLedError,
    QueueCopiedError,
    JobNotFoundError,
    LeaseLostError,
    JobStateError,
    ScheduleNotFoundError,
)
"""The queue was asked, and its answer is no."""


@contextmanager
def handle_exits(*, closed: int, interrupted: int) -> Iterator[None]:
    """End the command with a message and an exit code if it fails, is interrupted, or its output is closed."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Without this the interpreter complains when it flushes standard output at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(closed) from None
    except KeyboardInterrupt:
        raise typer.Exit(interrupted) from None
    except CorruptQueueError as error:
        console = Terminal(stderr=True)
        console.print(Text("damaged", "bold red"), printable(error.key), highlight=False, soft_wrap=True)
        console.print(error.problem, highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_FAILED) from None
    except UnknownOutcomeError as error:
        fail(error, EXIT_UNKNOWN)
    except REFUSALS as error:
        fail(error, EXIT_FAILED)
    except CasqueError as error:
        fail(error, EXIT_CANNOT_TELL)


def fail(message: object, code: int) -> NoReturn:
    """End the command with this message on standard error."""
    print_error(message)
    raise typer.Exit(code) from None


def print_error(message: object) -> None:
    Terminal(stderr=True).print(str(message), style="red", highlight=False, soft_wrap=True)


def confirm(question: str, *, yes: bool) -> None:
    """Go on only if the user agrees, or has agreed with --yes."""
    if yes:
        return
    try:
        wanted = typer.confirm(printable(question), err=True)
    except typer.Abort:
        raise InvalidInputError("no answer, so nothing was done; add --yes to go ahead without asking") from None
    if not wanted:
        Terminal(stderr=True).print("nothing was done", highlight=False)
        raise typer.Exit(EXIT_FAILED)
