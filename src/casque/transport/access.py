"""Who is calling: a bearer token in, a `Principal` out."""

from __future__ import annotations

import hmac
import stat
from pathlib import Path
from typing import NamedTuple

from casque.clock import Clock, SystemClock
from casque.codec.stored import to_ms
from casque.errors import InvalidInputError, NotAuthenticatedError
from casque.telemetry import logger
from casque.transport import audit, tokenfile
from casque.transport.scopes import ANYBODY, Principal, Scope
from casque.transport.tokenfile import StoredToken, hash_of
from casque.types import from_ms

__all__ = ["ANYBODY", "Principal", "Scope", "TokenBook"]

LOOK_AGAIN_MS = 1000
AUTHORIZATION_MAX = 256

_log = logger("transport.access")


class _Entry(NamedTuple):
    hash: str
    principal: Principal
    expires_ms: int | None


_NO_HASH = "sha256:" + "0" * 64
"""What the secret of an id that is not in the book is compared with."""
_ID = slice(len("Bearer casque_"), len("Bearer casque_") + 2 * tokenfile.ID_BYTES)
"""Where the id stands in a header as everybody writes it."""


class TokenBook:
    """The tokens of a broker, from a file that `casque token` writes. A changed file is read again within a second.

    Raises:
        InvalidInputError: the file is not there, or not one of tokens. Only when the book is made: a file that breaks
            later is logged, and what it said before goes on being true.
    """

    def __init__(self, path: Path | str, *, clock: Clock | None = None) -> None:
        self._path = Path(path)
        self._open(clock or SystemClock())
        if self._path.stat().st_mode & stat.S_IWOTH:
            _log.warning("everybody on this machine can write %s, and let themselves in: chmod o-w", self._path)

    def _open(self, clock: Clock) -> None:
        self._clock = clock
        self._signature = self._version()
        self._entries: dict[str, _Entry] = {}
        self._headers: dict[str, tuple[str, _Entry]] = {}
        self._take(self._stored())
        self._looked_ms = clock.monotonic_ms()

    def principal_for(self, authorization: str | None) -> Principal:
        """Whose token this is: the value of an `Authorization` header.

        Raises:
            NotAuthenticatedError: no token, or none that counts. Never says any part of what was sent.
        """
        try:
            return self._entry_of(authorization).principal
        except NotAuthenticatedError as error:
            audit.refused("a call", error)
            raise

    def _entry_of(self, authorization: str | None) -> _Entry:
        self._look_again()
        entry = self._seen(authorization)
        if entry is None:
            entry = self._verified(authorization)
        if entry.expires_ms is not None and self._is_over(entry):
            when = from_ms(entry.expires_ms).isoformat(sep=" ", timespec="seconds")
            raise NotAuthenticatedError(
                f"the token {entry.principal.name!r} expired at {when}; `casque token new` makes another"
            )
        return entry

    def _seen(self, authorization: str | None) -> _Entry | None:
        """A worker sends the same header thousands of times a second: what was verified once is compared with what it
        was then, in constant time, instead of being taken apart and hashed again."""
        if authorization is None or not authorization.isascii():
            return None
        seen = self._headers.get(authorization[_ID])
        return seen[1] if seen is not None and hmac.compare_digest(seen[0], authorization) else None

    def _verified(self, authorization: str | None) -> _Entry:
        token_id, secret = _parsed(authorization)
        entry = self._entries.get(token_id)
        # An unknown id takes as long as a wrong secret, and is told the same.
        same = hmac.compare_digest(hash_of(secret), _NO_HASH if entry is None else entry.hash)
        if entry is None or not same:
            raise NotAuthenticatedError(
                "the broker does not know this token: it was revoked, mistyped, or made for another broker"
            )
        assert authorization is not None
        if authorization[_ID] == token_id:
            self._headers[token_id] = authorization, entry
        return entry

    def current(self, principal: Principal) -> Principal:
        """For sessions that go on for hours: what their token says now, if it still counts.

        Raises:
            NotAuthenticatedError: it was revoked, or has expired.
        """
        self._look_again()
        entry = self._entries.get(principal.token or "")
        if entry is None or self._is_over(entry):
            raise NotAuthenticatedError(f"the token {principal.name!r} was revoked or has expired")
        return entry.principal

    def _is_over(self, entry: _Entry) -> bool:
        return entry.expires_ms is not None and entry.expires_ms <= self._clock.wall_ms()

    def _look_again(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._looked_ms < LOOK_AGAIN_MS:
            return
        self._looked_ms = now_ms
        # One look at a local file each second, and a small read when it has changed: not worth a thread.
        signature = self._version()
        if signature == self._signature:
            return
        self._signature = signature  # whatever is wrong with it is logged once, not each second
        try:
            self._take(self._stored())
        except InvalidInputError as error:
            _log.error("tokens stay as they were: %s", error)
        else:
            _log.info("%d tokens were read anew", len(self._entries))

    def _version(self) -> tuple[int, int, int] | None:
        """Another one when the file has changed. The simulator has tokens without a file."""
        return _signature(self._path)

    def _stored(self) -> tuple[StoredToken, ...]:
        return tokenfile.read(self._path)

    def _take(self, tokens: tuple[StoredToken, ...]) -> None:
        # A token that did not change keeps its principal, and with it the border that was made for it.
        old = {entry.principal: entry.principal for entry in self._entries.values()}
        entries: dict[str, _Entry] = {}
        for token in tokens:
            principal = _principal(token)
            principal = old.get(principal, principal)
            entries[token.id] = _Entry(token.hash, principal, None if token.expires is None else to_ms(token.expires))
        self._entries = entries
        self._headers.clear()


def _parsed(authorization: str | None) -> tuple[str, str]:
    if not authorization:
        raise NotAuthenticatedError(
            "this broker wants a token: send `Authorization: Bearer casque_...`; `casque token new` makes one"
        )
    scheme, _, token = authorization[:AUTHORIZATION_MAX].partition(" ")
    if scheme.lower() != "bearer":
        raise NotAuthenticatedError("this broker takes bearer tokens: send `Authorization: Bearer casque_...`")
    found = tokenfile.TOKEN.fullmatch(token.strip())
    if found is None:
        raise NotAuthenticatedError(
            "what was sent as a token is none of casque's, or not the whole of one: they look like "
            "casque_<id>_<secret>, with 12 and 64 characters"
        )
    return found[1], found[2]


def _principal(token: StoredToken) -> Principal:
    zones = None if token.zones is None else frozenset(token.zones)
    return Principal(token.name, frozenset(token.scopes), token.entrypoints, zones, token.id)


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
