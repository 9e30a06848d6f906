"""Plausible mistakes at the border between tenants, each made in the real code for the length of a test."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from casque.errors import JobNotFoundError
from casque.service.requests import Find
from casque.transport import access
from casque.transport.access import Principal, TokenBook
from casque.transport.border import Border
from casque.transport.long_answers import LongAnswers
from casque.transport.tenants import Naming
from casque.transport.tokenfile import StoredToken
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
    patch.setattr(LongAnswers, "_reaches_fields", lambda self, event: True)


def one_tenants_requests_push_out_anothers(patch: pytest.MonkeyPatch) -> None:
    """The oldest of all goes, whoever has the most."""
    patch.setattr("casque.state.request_memory.scope_of", lambda _request_id: "")


def tenants_are_let_through_before_their_call_is_carried_out(patch: pytest.MonkeyPatch) -> None:
    """Whose a job is, is looked up first. By the time of the call it may be another's."""

    class Looked:
        def __init__(self, border: Border) -> None:
            self._border = border

        async def call(self, request: Any) -> Any:
            job_id = getattr(request, "job_id", None)
            job = None if job_id is None else await self._border.service.call(Find(job_id))
            if job is not None and not self._border.principal.reaches(job.spec.entrypoint, job.spec.zone):
                raise JobNotFoundError(job.id)
            return await self._border.service.call(request)

    patch.setattr(Border, "_own", property(Looked))


# --- Tokens at the door ---


def sessions_outlive_their_tokens(patch: pytest.MonkeyPatch) -> None:
    """A token is looked at when a session begins."""
    patch.setattr(TokenBook, "current", lambda self, principal: principal)
    patch.setattr(TokenBook, "_entry_of", _of_every_token_there_was(TokenBook._entry_of))


def _of_every_token_there_was(entry_of: Any) -> Any:
    def found(self: TokenBook, authorization: str | None) -> Any:
        kept = self.__dict__.setdefault("kept", {})
        if authorization not in kept:
            kept[authorization] = entry_of(self, authorization)
        return kept[authorization]

    return found


def streams_outlive_their_tokens(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LongAnswers, "_while_valid", lambda self, answers: answers)


def tokens_known_by_their_ids(patch: pytest.MonkeyPatch) -> None:
    """What was verified once is not compared again."""

    def seen(self: TokenBook, authorization: str | None) -> Any:
        known = self._headers.get((authorization or "")[access._ID])
        return None if known is None else known[1]

    patch.setattr(TokenBook, "_seen", seen)


def entrypoints_of_tokens_not_read(patch: pytest.MonkeyPatch) -> None:
    principal = access._principal

    def unlimited(token: StoredToken) -> Principal:
        return msgspec.structs.replace(principal(token), entrypoints=None)

    patch.setattr(access, "_principal", unlimited)


def archives_shown_to_every_tenant(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LongAnswers, "_own_archive", lambda self, naming, kept: kept)


def request_ids_shared_by_all_tokens(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Border, "_with_own_id", lambda self, request: request)
