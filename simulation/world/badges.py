"""Tokens of a simulated queue: who was given which, what it is limited to, and when one is revoked."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from casque.clock import Clock
from casque.transport.access import TokenBook
from casque.transport.scopes import Principal, Scope
from casque.transport.tokenfile import StoredToken, hash_of
from casque.types import from_ms

if TYPE_CHECKING:
    from simulation.world.world import World

ALL = frozenset({Scope.PRODUCE, Scope.WORK, Scope.READ, Scope.ADMIN})
NOTICED_S = 1.5
"""A book of tokens looks at its file every second, by a clock that is a tenth wrong at most."""


class Badge(NamedTuple):
    """What somebody was given to come in with."""

    name: str
    zones: tuple[str, ...] | None = None
    entrypoints: tuple[str, ...] | None = None

    @property
    def token_id(self) -> str:
        """No secret: a stranger may know one."""
        name = STAFF.name if self is STRANGER else self.name
        return sha256(name.encode()).hexdigest()[:12]

    @property
    def token(self) -> str:
        return f"casque_{self.token_id}_{sha256(f'{self.name} secret'.encode()).hexdigest()}"

    @property
    def principal(self) -> Principal:
        return Principal(self.name, ALL, self.entrypoints, None if self.zones is None else frozenset(self.zones))

    def stored(self) -> StoredToken:
        secret = self.token.rpartition("_")[2]
        return StoredToken(
            self.token_id,
            self.name,
            hash_of(secret),
            tuple(sorted(ALL)),
            from_ms(0),
            None,
            self.entrypoints,
            self.zones,
        )


STAFF = Badge("staff")
INTERN = Badge("intern", zones=("initech",))
"""Whose token is revoked."""
TENANTS = (
    Badge("globex", zones=("globex",)),
    Badge("initech", zones=("initech",)),
    Badge("mailer", entrypoints=("mail",)),
    Badge("reporter", entrypoints=("report",)),
    Badge("clerk", zones=("globex", "initech"), entrypoints=("mail",)),
)
STRANGER = Badge("stranger")
"""Who has found out the id of somebody else's token, and not its secret."""


class Tokens:
    """Those that count now."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.version = 0
        self.stored = tuple(badge.stored() for badge in (STAFF, INTERN, *TENANTS))
        self.revoked_at: float | None = None
        self.last_shown: int | None = None
        """The position from which on the token that was revoked is shown nothing, once every broker knows of it."""

    def revoke(self) -> None:
        self.version += 1
        self.stored = tuple(one for one in self.stored if one.id != INTERN.token_id)
        self.revoked_at = self._world.loop.time()
        self._world.trace.note("world", "a token is revoked")
        self._world.loop.call_later(NOTICED_S, self._noticed)

    def _noticed(self) -> None:
        self.last_shown = self._world.history.position

    def may_come_in(self, badge: Badge, asked_at: float) -> bool:
        if badge is INTERN:
            return self.revoked_at is None or asked_at <= self.revoked_at + NOTICED_S
        return badge is not STRANGER


class Book(TokenBook):
    """The real one, without a file."""

    def __init__(self, tokens: Tokens, clock: Clock) -> None:
        self._tokens = tokens
        self._open(clock)

    def _version(self) -> tuple[int, int, int]:
        return self._tokens.version, 0, 0

    def _stored(self) -> tuple[StoredToken, ...]:
        return self._tokens.stored
