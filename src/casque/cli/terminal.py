"""Where commands write: standard output and error, with everything made printable on its way there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from casque.printable import printable_json, printable_lines

CONTINUED = "\n  "
"""A line of a message that is not its first: none can pretend to be a message of its own."""


class Terminal(Console):
    """Rich's console for texts that others wrote. What looks like markup is shown as it is, unless `markup=True` asks
    for it; control characters are shown as escapes, and colours are only those of the command."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, **options})

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(_continued(one) if isinstance(one, str) else one for one in objects), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable_lines(segment.text), segment.style)


def say(text: str, *, err: bool = False) -> None:
    """One message."""
    typer.echo(printable_lines(_continued(text)), err=err)


def print_json(value: Any) -> None:
    """One line of JSON, there at once for whoever reads along."""
    typer.echo(printable_json(msgspec.json.encode(value)))


def _continued(text: str) -> str:
    return text.replace("\n", CONTINUED) if "\n" in text else text
