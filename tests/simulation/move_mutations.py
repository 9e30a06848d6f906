"""Mistakes in the rescheduling of jobs, each made in the real code for the length of a test."""

from __future__ import annotations

import msgspec
import pytest

from casque.service.requests import Reschedule
from casque.state import State
from casque.state.events import Rescheduled
from casque.types import JobRecord, JobState


def rescheduled_jobs_not_listed_again(patch: pytest.MonkeyPatch) -> None:
    """Its old place counts no longer, and it has no new one."""

    def apply(self: State, event: Rescheduled, _at_ms: int) -> None:
        old = self.jobs[event.job_id]
        spec = msgspec.structs.replace(old.spec, run_at_ms=event.run_at_ms, priority=event.priority)
        self._replace(event.job_id, spec=spec, due_ms=event.due_ms)
        self._forget_waiting(old)

    patch.setattr(State, "_apply_rescheduled", apply)


def running_jobs_rescheduled(patch: pytest.MonkeyPatch) -> None:
    reschedule = State._reschedule

    def any_job(self: State, c: Reschedule, now_ms: int) -> JobRecord | None:
        job = self.jobs.get(c.job_id)
        if job is None or job.state is not JobState.RUNNING:
            return reschedule(self, c, now_ms)
        priority = job.spec.priority if c.priority is None else c.priority
        spec = msgspec.structs.replace(job.spec, run_at_ms=c.run_at_ms, priority=priority)
        self._replace(c.job_id, spec=spec)
        self.events.append(Rescheduled(c.job_id, job.due_ms, False, c.run_at_ms, priority))
        return self.jobs[c.job_id]

    apply = State._apply_rescheduled

    def applied(self: State, event: Rescheduled, at_ms: int) -> None:
        job = self.jobs[event.job_id]
        if job.state is not JobState.RUNNING:
            apply(self, event, at_ms)
            return
        spec = msgspec.structs.replace(job.spec, run_at_ms=event.run_at_ms, priority=event.priority)
        self._replace(event.job_id, spec=spec)

    patch.setattr(State, "_reschedule", any_job)
    patch.setattr(State, "_apply_rescheduled", applied)


def repeated_reschedules_carried_out_again(patch: pytest.MonkeyPatch) -> None:
    """One that was overtaken by another brings the old time back."""
    reschedule = State._reschedule

    def again(self: State, c: Reschedule, now_ms: int) -> JobRecord | None:
        return reschedule(self, msgspec.structs.replace(c, request_id=None), now_ms)

    patch.setattr(State, "_reschedule", again)


def priorities_of_reschedules_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    reschedule = State._reschedule

    def without(self: State, c: Reschedule, now_ms: int) -> JobRecord | None:
        return reschedule(self, msgspec.structs.replace(c, priority=None), now_ms)

    patch.setattr(State, "_reschedule", without)


def reschedules_answered_and_not_carried_out(patch: pytest.MonkeyPatch) -> None:
    def found(self: State, c: Reschedule, _now_ms: int) -> JobRecord | None:
        return self._there(c.job_id, self._reach)

    patch.setattr(State, "_reschedule", found)
