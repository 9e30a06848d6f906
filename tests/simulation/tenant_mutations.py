"""Plausible mistakes at the border between tenants, each made in the real code for the length of a test."""

from __future__ import annotations

import msgspec
import pytest

from casque.transport.border import Border
from casque.transport.tenants import Naming
from casque.types import JobSpec


def tenants_share_their_ids(patch: pytest.MonkeyPatch) -> None:
    """Keys are told apart, and ids are not: the second tenant is told that its new name is taken."""
    scoped = Naming.scoped_spec

    def careless(self: Naming, spec: JobSpec) -> JobSpec:
        return msgspec.structs.replace(scoped(self, spec), id=spec.id)

    patch.setattr(Naming, "scoped_spec", careless)


def tenants_share_their_keys(patch: pytest.MonkeyPatch) -> None:
    """Whoever comes second gets the job of another tenant in the place of its own."""
    scoped = Naming.scoped_spec

    def careless(self: Naming, spec: JobSpec) -> JobSpec:
        return msgspec.structs.replace(scoped(self, spec), key=spec.key)

    patch.setattr(Naming, "scoped_spec", careless)


def tenants_find_what_they_can_name(patch: pytest.MonkeyPatch) -> None:
    """An id is taken for a secret."""
    patch.setattr(Border, "_own_or_none", lambda self, job: job)
    patch.setattr(Border, "_own", property(lambda self: self.service))


def tenants_watch_whatever_is_added(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Border, "_reaches_fields", lambda self, event: True)
