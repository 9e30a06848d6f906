"""Principals: what a caller may do, and with which jobs."""

from __future__ import annotations

import msgspec

from casque.service import Scope
from casque.types import Reach

__all__ = ["ANYBODY", "Principal", "Scope"]


class Principal(msgspec.Struct, frozen=True):
    """A caller, as the border knows it.

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
    """None: all zones, and jobs without a zone, which a principal limited to zones does not reach."""
    token: str | None = None
    """The id of the token behind this principal. Not a secret."""

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes or (Scope.ADMIN in self.scopes and scope is not Scope.PEER)

    @property
    def limited(self) -> bool:
        """True if restricted to some jobs, whatever the scopes are."""
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
        """The entrypoints if none of them is a pattern."""
        if self.entrypoints is None or any(own.endswith(".*") for own in self.entrypoints):
            return None
        return self.entrypoints


ANYBODY = Principal("anybody", frozenset({Scope.ADMIN}))
"""The principal of every caller of a broker without tokens."""
