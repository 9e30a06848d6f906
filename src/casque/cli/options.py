"""Options and arguments that many commands have, and how their texts are read."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from casque import times
from casque.cli.formats import now
from casque.cli.logs import LogFormat
from casque.errors import InvalidInputError

Url = Annotated[
    str,
    typer.Argument(help="Where the queue is: s3://bucket/prefix, gs://, az:// or file:///path", show_default=False),
]
StoreOptions = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="NAME=VALUE", help="Option of the store, such as region; may be repeated."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most this many.")]
Entrypoint = Annotated[str | None, typer.Option("--entrypoint", "-e", help="Only jobs of this entrypoint.")]
Entrypoints = Annotated[
    list[str] | None, typer.Option("--entrypoint", "-e", help="Only jobs of this entrypoint; may be repeated.")
]
ClaimedZones = Annotated[
    list[str] | None,
    typer.Option("--zone", "-z", help="Only jobs of this zone; may be repeated. All take turns unless set."),
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Finished then or later: 2026-02-15T10:00, or 90m, 24h, 7d ago."),
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Finished before then.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--setting", "-s", metavar="NAME=VALUE", help="A setting of the queue; may be repeated."),
]
LogFormatOption = Annotated[LogFormat, typer.Option("--log-format", help="Text for people, or JSON for programs.")]


class Layout(StrEnum):
    """The layouts of a queue that is not a ring."""

    LOG = "log"
    DOCUMENT = "document"


def parse_options(pairs: Iterable[str] | None) -> dict[str, str]:
    """`["region=eu-west-1"]` as a mapping.

    Raises:
        InvalidInputError: not NAME=VALUE. Does not repeat the text, which may be a secret.
    """
    return parse_pairs(pairs, "an option is written NAME=VALUE, for example --option region=eu-west-1")


def parse_pairs(pairs: Iterable[str] | None, usage: str) -> dict[str, str]:
    """NAME=VALUE pairs as a mapping. Raises InvalidInputError with `usage`."""
    found = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InvalidInputError(usage.format(pair))
        found[name] = value
    return found


def parse_span(name: str, text: str) -> timedelta:
    """A span, or a number of seconds. Raises InvalidInputError."""
    with suppress(ValueError, OverflowError):
        return timedelta(seconds=float(text))
    return times.span(name, text)


def parse_moment(name: str, text: str | None) -> datetime | None:
    """A time, or how long ago. Raises InvalidInputError."""
    return None if text is None else times.moment_or_ago(name, text, now())


def read_payload(text: str | None) -> bytes:
    """The text itself, standard input for `-`, or the content of `@FILE`. Raises InvalidInputError."""
    if text is None:
        return b""
    if text == "-":
        return sys.stdin.buffer.read()
    if text.startswith("@"):
        try:
            return Path(text[1:]).read_bytes()
        except OSError as error:
            raise InvalidInputError(f"the payload {text}: {error.strerror}; to send a text with an @, use -") from error
    return text.encode(errors="surrogateescape")
