"""Where the queue is that a command works on: its argument, `--queue`, CASQUE_URL, or a file that names it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from casque.cli.store_options import parse_options
from casque.client.place import Place, how_to_tell, known_names, known_place, place_named
from casque.errors import InvalidInputError

__all__ = ["Place", "QueueName", "apart", "find_place"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def queue_names(incomplete: str) -> list[str]:
    """For a shell that completes `--queue`. A file that is broken has no names; the command itself will say why."""
    try:
        return [name for name in known_names() if name.startswith(incomplete)]
    except InvalidInputError:
        return []


QueueName = Annotated[
    str | None,
    typer.Option(
        "--queue",
        "-q",
        metavar="NAME",
        help="A queue that casque.toml names, instead of a URL.",
        autocompletion=queue_names,
    ),
]


def find_place(url: str | None, queue: str | None, option: Sequence[str] | None) -> Place:
    """The queue that was meant. Store options of the command line win over those of a file.

    Raises:
        InvalidInputError: none was named, or a file is not as it must be.
    """
    place = _named(url, queue)
    return msgspec.structs.replace(place, options=place.options | parse_options(list(option or [])))


def apart(*given: str | None) -> tuple[str | None, list[str]]:
    """The URL, if the first argument is one, and the others: whoever has named the queue elsewhere leaves it out."""
    there = [one for one in given if one is not None]
    if there and _SCHEME.match(there[0]):
        return there[0], there[1:]
    return None, there


def _named(url: str | None, queue: str | None) -> Place:
    if url is not None and queue is not None:
        raise InvalidInputError("give a URL or --queue, not both")
    if url is not None:
        return Place(url)
    if queue is not None:
        return place_named(queue)
    if (known := known_place()) is not None:
        return known
    raise InvalidInputError(f"which queue? Give its URL as the first argument, {how_to_tell()}")
