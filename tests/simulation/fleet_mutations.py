"""Mistakes of deployments: jobs that a worker does not understand, claims that are given back, leases taken by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from casque.client import verbs
from casque.engine.group import GroupCommit
from casque.engine.operation import Operation
from casque.errors import CasqueError
from casque.service import Outcome, OutcomeKind
from casque.service.requests import GiveBack
from casque.state import State, job_life, leases, settling
from casque.state.events import Declined, Died
from casque.types import Ending, JobRecord


def declined_jobs_get_a_backoff(patch: pytest.MonkeyPatch) -> None:
    """Whoever is behind a broker then cannot decline anything, nor tell of what it did in the same call."""
    whole = verbs._outcome

    def outcome(one: Outcome, parts: Any) -> Outcome:
        made = whole(one, parts)
        if made.kind is not OutcomeKind.DECLINED or made.delay_ms is not None:
            return made
        return msgspec.structs.replace(made, backoff=verbs._backoff(parts.settings, parts.rng))

    patch.setattr(verbs, "_outcome", outcome)


def declines_count_as_attempts(patch: pytest.MonkeyPatch) -> None:
    def apply_declined(state: State, event: Declined, at_ms: int) -> None:
        declined = state.jobs[event.job_id].declined + 1
        state.table.wait_again(event.job_id, event.due_ms, delayed=True, error=event.error, declined=declined)

    patch.setattr(job_life, "apply_declined", apply_declined)


def declines_without_end(patch: pytest.MonkeyPatch) -> None:
    decline = settling._decline

    def endless(job: JobRecord, outcome: Outcome, now_ms: int) -> Declined | Died:
        ended = decline(msgspec.structs.replace(job, declined=0), outcome, now_ms)
        assert isinstance(ended, Declined)
        return ended

    patch.setattr(settling, "_decline", endless)


def declined_jobs_are_dead_at_once(patch: pytest.MonkeyPatch) -> None:
    """As it was: the first worker that does not understand a job ends it."""

    def decline(_job: JobRecord, outcome: Outcome, _now_ms: int) -> Died:
        return Died(outcome.job_id, outcome.token, outcome.error, Ending.FAILED)

    patch.setattr(settling, "_decline", decline)


def stale_leases_taken_from_everybody(patch: pytest.MonkeyPatch) -> None:
    requeue = leases.requeue_stale

    def requeue_stale(state: State, c: Any, now_ms: int) -> int:
        return requeue(state, msgspec.structs.replace(c, entrypoint=None, zone=None), now_ms)

    patch.setattr(leases, "requeue_stale", requeue_stale)


def stale_leases_taken_again_when_it_is_asked_again(patch: pytest.MonkeyPatch) -> None:
    requeue = leases.requeue_stale

    def requeue_stale(state: State, c: Any, now_ms: int) -> int:
        return requeue(state, msgspec.structs.replace(c, request_id=None), now_ms)

    patch.setattr(leases, "requeue_stale", requeue_stale)


def claims_go_back_after_that_has_failed(patch: pytest.MonkeyPatch) -> None:
    """As it was: whoever was told that its claim could not be given back loses it later."""
    turn_failed = GroupCommit._turn_failed

    def persistent(self: GroupCommit, batch: list[Operation], error: CasqueError, *, asked: bool) -> None:
        turn_failed(self, batch, error, asked=asked)
        owed = [one for one in batch if type(one.command) is GiveBack and one not in self._owed]
        self._owed += owed

    patch.setattr(GroupCommit, "_turn_failed", persistent)
