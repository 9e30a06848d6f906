"""What somebody who calls may do, and with which jobs."""

from __future__ import annotations

import msgspec

from casque.service import Scope
from casque.types import Reach

__all__ = ["ANYBODY", "Principal", "Scope"]


class Principal(msgspec.Struct, frozen=True):
    """Somebody who calls, as the border knows them.

    >>> mailer = Principal("mailer", frozenset({Scope.WORK}), entrypoints=("mail.*", "fax"))
    >>> mailer.may(Scope.WORK), mailer.may(Scope.ADMIN)
    (True, False)
    >>> mailer.reaches("mail.welcome", None), mailer.reaches("mailing", None), mailer.reaches("fax", "acme")
    (True, False, True)
    """

    name: str
    scopes: frozenset[Scope]
    entrypoints: tuple[str, ...] | None = None
    """Names, or `prefix.*` for all that begin with `prefix.`. None: all."""
    zones: frozenset[str] | None = None
    """None: all, and jobs without a zone too, which a principal that is limited to zones does not reach."""
    token: str | None = None
    """The id of the token that said so, which is no secret."""

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes or (Scope.ADMIN in self.scopes and scope is not Scope.PEER)

    @property
    def limited(self) -> bool:
        """Not to what may be done, but to which jobs."""
        return self.entrypoints is not None or self.zones is not None

    def reaches(self, entrypoint: str, zone: str | None) -> bool:
        return self.reaches_entrypoint(entrypoint) and self.reaches_zone(zone)

    def reaches_zone(self, zone: str | None) -> bool:
        return self.reach.covers_zone(zone)

    def reaches_entrypoint(self, entrypoint: str) -> bool:
        return self.reach.covers_entrypoint(entrypoint)

    @property
    def reach(self) -> Reach:
        return Reach(self.entrypoints, self.zones)

    def exact(self) -> tuple[str, ...] | None:
        """Its entrypoints, if they can be listed: without a pattern among them."""
        if self.entrypoints is None or any(own.endswith(".*") for own in self.entrypoints):
            return None
        return self.entrypoints


ANYBODY = Principal("anybody", frozenset({Scope.ADMIN}))
"""Everybody who reaches a broker without tokens."""
