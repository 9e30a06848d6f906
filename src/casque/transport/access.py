"""Authentication: maps a bearer token to a `Principal`."""

from __future__ import annotations

import hmac
import stat
from pathlib import Path
from typing import NamedTuple

from casque.clock import Clock, SystemClock
from casque.errors import InvalidInputError, NotAuthenticatedError
from casque.telemetry import logger
from casque.transport import audit, tokenfile
from casque.transport.scopes import ANYBODY, Principal, Scope
from casque.transport.tokenfile import StoredToken, hash_of
from casque.types import from_ms, to_ms

__all__ = ["ANYBODY", "Principal", "Scope", "TokenBook"]

LOOK_AGAIN_MS = 1000
AUTHORIZATION_MAX = 256

_log = logger("transport.access")


class _Entry(NamedTuple):
    hash: str
    principal: Principal
    expires_ms: int | None


_NO_HASH = "sha256:" + "0" * 64
"""Compared with the secret when the token id is unknown, so that both cases take the same time."""
_ID = slice(len("Bearer casque_"), len("Bearer casque_") + 2 * tokenfile.ID_BYTES)
"""Position of the id in a header of the usual form."""


class TokenBook:
    """The tokens of a broker, from a file that `casque token` writes. A changed file is reloaded within a second.

    Raises:
        InvalidInputError: the file is missing or malformed. Raised only by the constructor: if the file breaks later,
            the error is logged and the tokens loaded before stay valid.
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
        """The principal for the value of an `Authorization` header.

        Raises:
            NotAuthenticatedError: no valid token. The message contains no part of the header.
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
        """The entry of a header that was verified before. A worker sends the same header thousands of times a second: a
        constant-time comparison replaces parsing and hashing it again."""
        if authorization is None or not authorization.isascii():
            return None
        seen = self._headers.get(authorization[_ID])
        return seen[1] if seen is not None and hmac.compare_digest(seen[0], authorization) else None

    def _verified(self, authorization: str | None) -> _Entry:
        token_id, secret = _parsed(authorization)
        entry = self._entries.get(token_id)
        # An unknown id takes as long as a wrong secret, and gets the same answer.
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
        """The current principal of a token, for sessions that last for hours.

        Raises:
            NotAuthenticatedError: the token was revoked or has expired.
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
        # One stat of a local file per second, and a small read when it has changed: not worth a thread.
        signature = self._version()
        if signature == self._signature:
            return
        self._signature = signature  # an error in it is logged once, not each second
        try:
            self._take(self._stored())
        except InvalidInputError as error:
            _log.error("tokens stay as they were: %s", error)
        else:
            _log.info("%d tokens were read anew", len(self._entries))

    def _version(self) -> tuple[int, int, int] | None:
        """Changes whenever the file changes. None in the simulator, which has tokens without a file."""
        return _signature(self._path)

    def _stored(self) -> tuple[StoredToken, ...]:
        return tokenfile.read(self._path)

    def _take(self, tokens: tuple[StoredToken, ...]) -> None:
        # An unchanged token keeps its principal, and with it the border that was made for it.
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
            "this broker requires a token: set the variable CASQUE_TOKEN, or over HTTP send `Authorization: Bearer "
            "casque_...`; `casque token new` makes one"
        )
    scheme, _, token = authorization[:AUTHORIZATION_MAX].partition(" ")
    if scheme.lower() != "bearer":
        raise NotAuthenticatedError("this broker takes bearer tokens: send `Authorization: Bearer casque_...`")
    found = tokenfile.TOKEN.fullmatch(token.strip())
    if found is None:
        raise NotAuthenticatedError(
            "this is not a token of casque, or only a part of one: they look like casque_<id>_<secret>, with 12 and 64 "
            "characters. Check CASQUE_TOKEN"
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
