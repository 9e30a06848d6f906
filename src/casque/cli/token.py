"""`casque token new|list|revoke`: who may call a broker, and what for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from casque import times
from casque.cli.command import command
from casque.cli.options import Json
from casque.cli.output import Columns, answer, print_table, say
from casque.clock import SystemClock
from casque.errors import InvalidInputError
from casque.transport import tokenfile
from casque.transport.scopes import Scope
from casque.transport.tokenfile import StoredToken

FOREVER_DAYS = 365 * 100

File = Annotated[
    Path, typer.Option("--file", "-f", help="The token file, as in `casque serve --tokens FILE`.", show_default=False)
]


class TokenView(msgspec.Struct, frozen=True):
    """A token as it is listed: everything but its hash."""

    id: str
    name: str
    scopes: tuple[Scope, ...]
    entrypoints: tuple[str, ...] | None
    zones: tuple[str, ...] | None
    created: datetime
    expires: datetime | None
    expired: bool


def _expiry(token: TokenView) -> str:
    return "never" if token.expires is None else f"{token.expires:%Y-%m-%d %H:%M}{' (over)' * token.expired}"


COLUMNS: Columns = (
    ("name", lambda token: token.name),
    ("id", lambda token: token.id),
    ("scopes", lambda token: " ".join(token.scopes)),
    ("entrypoints", lambda token: " ".join(token.entrypoints or ["all"])),
    ("zones", lambda token: " ".join(token.zones or ["all"])),
    ("created", lambda token: f"{token.created:%Y-%m-%d %H:%M}"),
    ("expires", _expiry),
)


@command(
    "token new",
    examples=[
        "casque token new --file tokens.json --name billing --scope produce --entrypoint 'mail.*'",
        "casque token new --file tokens.json --name mailer --scope work --scope read --expires 90d",
        "casque token new --file tokens.json --name acme --scope produce --scope work --zone acme",
    ],
    audited=True,
)
def new(
    file: File,
    name: Annotated[
        str, typer.Option("--name", "-n", help="Name of its owner, for lists and logs.", show_default=False)
    ],
    scope: Annotated[list[Scope], typer.Option("--scope", "-s", help="What it allows; may be repeated.")],
    entrypoint: Annotated[
        list[str] | None,
        typer.Option("--entrypoint", "-e", help="Only jobs of this entrypoint, or of prefix.*; may be repeated."),
    ] = None,
    zone: Annotated[
        list[str] | None, typer.Option("--zone", "-z", help="Only jobs of this zone; may be repeated.")
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="90d|12h|DATE", help="When it ends: after a time, or on a day (UTC)."),
    ] = None,
    json: Json = False,
) -> None:
    """Make a token and print it. This is the only time that it is shown: the file keeps a hash.

    A running broker knows it within a second. Scopes: produce (enqueue), work (dequeue, ack, nack, heartbeat), read
    (look, list, count, watch), admin (all of that, and cancel, retry, purge), peer (for the brokers of a ring among
    themselves, and nothing else). With --zone, work is to claim jobs of these zones only.

    Exit code 0: made. 2: nothing was changed.
    """
    now = _now()
    token = tokenfile.add(
        file,
        name=name,
        scopes=scope,
        entrypoints=entrypoint or None,
        zones=zone or None,
        created=now,
        expires=None if expires is None else _moment(expires, now),
    )
    if not json:
        say(f"The token {name!r}. Keep it now: it is not shown again.", err=True)
    answer({"name": name, "token": token}, token, json=json)


@command("token list", aliases=["ls"])
def list_(file: File, json: Json = False) -> None:
    """Show every token in a file: name, id, what it is for and when it ends. Never a secret; the file has none.

    Exit code 0: shown. 2: there is no such file, or it is broken.
    """
    now = _now()
    tokens = [_view(token, now) for token in tokenfile.read(file)]
    answer(tokens, lambda: print_table(COLUMNS, tokens), json=json)


@command("token revoke", audited=True)
def revoke(
    file: File,
    name: Annotated[str, typer.Option("--name", "-n", help="The name of the token, or its id.", show_default=False)],
    json: Json = False,
) -> None:
    """Revoke a token. A running broker refuses it within a second, and ends what it is watching.

    Exit code 0: revoked. 2: there is no such token, nothing was changed.
    """
    gone = tokenfile.revoke(file, name)
    answer({"name": gone.name, "id": gone.id}, f"revoked {gone.name!r} ({gone.id})", json=json)


def _view(token: StoredToken, now: datetime) -> TokenView:
    expired = token.expires is not None and token.expires <= now
    return TokenView(
        token.id, token.name, token.scopes, token.entrypoints, token.zones, token.created, token.expires, expired
    )


def _moment(text: str, now: datetime) -> datetime:
    """`90d` from now, a day, or a moment with its time zone."""
    if times.is_span(text):
        length = times.span("--expires", text)
        if not timedelta(0) < length <= timedelta(days=FOREVER_DAYS):
            raise InvalidInputError("--expires must be more than nothing and at most a hundred years")
        return now + length
    try:
        moment = times.moment("--expires", text).astimezone(UTC)
    except InvalidInputError:
        raise InvalidInputError(
            f"--expires takes a time from now (30m, 12h, 90d, 4w), a day (2027-01-31) or a moment "
            f"(2027-01-31T18:00:00+01:00), not {text!r}"
        ) from None
    if moment <= now:
        raise InvalidInputError(f"--expires {text} is in the past")
    return moment


def _now() -> datetime:
    return datetime.fromtimestamp(SystemClock().wall_ms() // 1000, UTC)
