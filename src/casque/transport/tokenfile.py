"""The file that holds a broker's tokens, and how tokens are made and revoked.

A token is `casque_<id>_<secret>`. The id is not secret: it finds the line in the file. The file keeps a hash of the
secret, so reading the file, or a backup of it, does not let anyone in.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec

from casque import checks
from casque.errors import InvalidInputError
from casque.transport.scopes import Scope

ID_BYTES = 6
SECRET_BYTES = 32
TOKEN = re.compile(r"casque_([0-9a-f]{12})_([0-9a-f]{64})")
FILE_BYTES_MAX = 16 * 1024 * 1024

Entropy: TypeAlias = Callable[[int], bytes]
_Hex: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{12}$")]
_Hash: TypeAlias = Annotated[str, msgspec.Meta(pattern="^sha256:[0-9a-f]{64}$")]


class StoredToken(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One token in the file. A field that this release does not know may be a limit that it would not enforce, so a
    file with one is refused."""

    id: _Hex
    name: str
    hash: _Hash
    scopes: tuple[Scope, ...]
    created: datetime
    expires: datetime | None = None
    entrypoints: tuple[str, ...] | None = None
    zones: tuple[str, ...] | None = None

    def check(self) -> None:
        """Raises InvalidInputError for an invalid value."""
        checks.name("name", self.name, checks.NAME_MAX)
        if not self.scopes:
            raise InvalidInputError(f"the token {self.name!r} needs a scope: {', '.join(Scope)}")
        for entrypoint in self.entrypoints or ():
            _check_entrypoint(entrypoint)
        for zone in self.zones or ():
            checks.name("zone", zone, checks.NAME_MAX)
        if self.entrypoints == () or self.zones == ():
            raise InvalidInputError(
                f"the token {self.name!r} is limited to no entrypoint or zone at all; leave the field out to allow all"
            )
        for moment in (self.created, self.expires):
            if moment is not None and moment.tzinfo is None:
                raise InvalidInputError(f"the token {self.name!r}: times must name their time zone")


class _Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    tokens: tuple[StoredToken, ...] = ()


def hash_of(secret: str) -> str:
    """Plain SHA-256, without salt and stretching, is right here: those slow down guessing, and 256 random bits cannot
    be guessed. A slow hash would cost every call what it costs an attacker."""
    return "sha256:" + sha256(secret.encode("ascii")).hexdigest()


def read(path: Path) -> tuple[StoredToken, ...]:
    """Every token in the file.

    Raises:
        InvalidInputError: the file is missing or malformed; says what is wrong.
    """
    try:
        with path.open("rb") as file:
            body = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise InvalidInputError(
            f"there is no token file {path}; `casque token new --file {path} --name NAME --scope SCOPE` makes one"
        ) from None
    except OSError as error:
        raise InvalidInputError(f"the token file {path} cannot be read: {error.strerror or error}") from error
    return _decode(path, body)


def _decode(path: Path, body: bytes) -> tuple[StoredToken, ...]:
    if len(body) > FILE_BYTES_MAX:
        raise InvalidInputError(f"{path} is larger than any token file: more than {FILE_BYTES_MAX:,} bytes")
    try:
        stored = msgspec.json.decode(body, type=_Stored)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path} is not a token file: {error}") from None
    if stored.version != 1:
        raise InvalidInputError(f"the token file {path} has version {stored.version}; this release of casque reads 1")
    ids, names = set[str](), set[str]()
    for token in stored.tokens:
        try:
            token.check()
        except InvalidInputError as error:
            raise InvalidInputError(f"the token file {path}: {error}") from None
        if token.id in ids or token.name in names:
            raise InvalidInputError(f"the token file {path} has two tokens named {token.name!r}, or of one id")
        ids.add(token.id)
        names.add(token.name)
    return stored.tokens


def add(
    path: Path,
    *,
    name: str,
    scopes: Sequence[Scope],
    entrypoints: Sequence[str] | None = None,
    zones: Sequence[str] | None = None,
    created: datetime,
    expires: datetime | None = None,
    entropy: Entropy = secrets.token_bytes,
) -> str:
    """Create a token and store its hash. The returned token is never shown again.

    The randomness is the operating system's: unlike ids and jitter, a token must be impossible to guess.
    """
    with _editing(path) as tokens:
        if any(token.name == name for token in tokens):
            raise InvalidInputError(f"there is a token named {name!r} already; revoke it first, or choose another name")
        known = {token.id for token in tokens}
        while (token_id := entropy(ID_BYTES).hex()) in known:
            pass
        secret = entropy(SECRET_BYTES).hex()
        new = StoredToken(
            token_id,
            name,
            hash_of(secret),
            tuple(dict.fromkeys(scopes)),
            created,
            expires,
            None if entrypoints is None else tuple(dict.fromkeys(entrypoints)),
            None if zones is None else tuple(dict.fromkeys(zones)),
        )
        new.check()
        tokens.append(new)
    return f"casque_{token_id}_{secret}"


def revoke(path: Path, name: str) -> StoredToken:
    """Revoke a token by its name or id. Raises InvalidInputError if there is none."""
    with _editing(path) as tokens:
        for token in tokens:
            if name in (token.name, token.id):
                tokens.remove(token)
                return token
        known = ", ".join(token.name for token in tokens) or "none at all"
        raise InvalidInputError(f"there is no token named {name!r} in {path}; there is {known}")


@contextmanager
def _editing(path: Path) -> Iterator[list[StoredToken]]:
    """Edit the tokens in place. They are written back as a whole, or not at all if the block raises."""
    path = path.resolve()  # keep a symbolic link
    try:
        directory = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise InvalidInputError(f"the token file {path} cannot be written: {error.strerror or error}") from error
    try:
        # Without the lock, two commands at once would each write what they read, and one token would be lost.
        fcntl.flock(directory, fcntl.LOCK_EX)
        tokens = list(read(path)) if path.exists() else []
        yield tokens
        try:
            _write(path, tokens)
            os.fsync(directory)
        except OSError as error:
            raise InvalidInputError(f"the token file {path} cannot be written: {error.strerror or error}") from error
    finally:
        os.close(directory)


def _write(path: Path, tokens: list[StoredToken]) -> None:
    """Write atomically: a broker that reads the file at the same time sees the old one or the new one."""
    body = msgspec.json.format(msgspec.json.encode(_Stored(1, tuple(tokens))), indent=2) + b"\n"
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:  # noqa: PTH123
            os.fchmod(file.fileno(), mode)
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _check_entrypoint(value: Any) -> None:
    checks.entrypoint(value)
    if value in ("*", ".*"):
        raise InvalidInputError("an entrypoint of a token is a name or `prefix.*`; leave it out to allow all")
