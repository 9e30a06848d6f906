"""Mistakes in the rescheduling of jobs, each made in the real code for the length of a test."""

from __future__ import annotations

import msgspec
import pytest

from casque.service.requests import Reschedule
from casque.state import State, interventions, job_life
from casque.state.events import Rescheduled
from casque.types import JobRecord, JobState


def rescheduled_jobs_not_listed_again(patch: pytest.MonkeyPatch) -> None:
    """Its old place counts no longer, and it has no new one."""

    def apply(state: State, event: Rescheduled, _at_ms: int) -> None:
        old = state.jobs[event.job_id]
        spec = msgspec.structs.replace(old.spec, run_at_ms=event.run_at_ms, priority=event.priority)
        state.table.replace(event.job_id, spec=spec, due_ms=event.due_ms)
        state.table.forget_waiting(old)

    patch.setattr(job_life, "apply_rescheduled", apply)


def running_jobs_rescheduled(patch: pytest.MonkeyPatch) -> None:
    reschedule, apply = interventions.reschedule, job_life.apply_rescheduled

    def any_job(state: State, c: Reschedule, now_ms: int) -> JobRecord | None:
        job = state.jobs.get(c.job_id)
        if job is None or job.state is not JobState.RUNNING:
            return reschedule(state, c, now_ms)
        priority = job.spec.priority if c.priority is None else c.priority
        state.happen(Rescheduled(c.job_id, job.due_ms, False, c.run_at_ms, priority), now_ms)
        return state.jobs[c.job_id]

    def applied(state: State, event: Rescheduled, at_ms: int) -> None:
        job = state.jobs[event.job_id]
        if job.state is not JobState.RUNNING:
            apply(state, event, at_ms)
            return
        spec = msgspec.structs.replace(job.spec, run_at_ms=event.run_at_ms, priority=event.priority)
        state.table.replace(event.job_id, spec=spec)

    patch.setattr(interventions, "reschedule", any_job)
    patch.setattr(job_life, "apply_rescheduled", applied)


def repeated_reschedules_carried_out_again(patch: pytest.MonkeyPatch) -> None:
    """One that was overtaken by another brings the old time back."""
    reschedule = interventions.reschedule

    def again(state: State, c: Reschedule, now_ms: int) -> JobRecord | None:
        return reschedule(state, msgspec.structs.replace(c, request_id=None), now_ms)

    patch.setattr(interventions, "reschedule", again)


def priorities_of_reschedules_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    reschedule = interventions.reschedule

    def without(state: State, c: Reschedule, now_ms: int) -> JobRecord | None:
        return reschedule(state, msgspec.structs.replace(c, priority=None), now_ms)

    patch.setattr(interventions, "reschedule", without)


def reschedules_answered_and_not_carried_out(patch: pytest.MonkeyPatch) -> None:
    def found(state: State, c: Reschedule, _now_ms: int) -> JobRecord | None:
        return state.table.there(c.job_id, state.reach)

    patch.setattr(interventions, "reschedule", found)
