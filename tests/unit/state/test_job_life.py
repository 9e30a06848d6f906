"""The table of a job's life: the docs tell it, and commands take all of its steps and no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import msgspec

from casque.clock import Random
from casque.errors import CasqueError
from casque.service import Outcome, OutcomeKind
from casque.service.requests import (
    Ack,
    Cancel,
    Dequeue,
    Enqueue,
    GiveBack,
    Heartbeat,
    Nack,
    Purge,
    Request,
    Reschedule,
    Retry,
    Settle,
)
from casque.state import Command, Event, Expire, Lapse, Limits, Observed, State
from casque.state.events import Acked, Cancelled, Lapsed, Withdrawn, subject
from casque.state.job_life import FINISHING, LIFE
from casque.types import JobRecord, JobSpec, JobState, Progress

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "the-life-of-a-job.md"

Taken: TypeAlias = tuple[type[msgspec.Struct], JobState | None, JobState | None]


def test_the_docs_tell_the_life_that_the_code_runs_by() -> None:
    rows = [row.strip("|\n").split("|") for row in PAGE.read_text().splitlines() if row.startswith("| `")]
    told = {event.strip(" `"): (before.strip(), after.strip()) for event, before, after, _ in rows}
    assert told == {
        event.__struct_config__.tag: (_words(step.before), _words(step.after)) for event, step in LIFE.items()
    }


def _words(states: tuple[JobState | None, ...]) -> str:
    return ", ".join("absent" if state is None else state.value for state in states)


def test_every_event_about_a_job_is_in_the_table() -> None:
    about_jobs = {event for event in Event.__args__ if "job_id" in event.__struct_fields__}
    assert {event for event in LIFE if "job_id" in event.__struct_fields__} == about_jobs


def test_commands_take_every_step_of_the_table_and_no_other() -> None:
    taken: set[Taken] = set()
    for seed in range(40):
        taken |= Wanderer(seed).live(commands=300)
    assert taken == {
        (event, before, after) for event, step in LIFE.items() for before in step.before for after in step.after
    }


def test_the_events_that_finish_a_job_are_those_after_which_it_goes_to_the_archive() -> None:
    finished: set[type[msgspec.Struct]] = set()
    others: set[type[msgspec.Struct]] = set()
    for seed in range(40):
        wanderer = Wanderer(seed, Limits(finished=True))
        for event in wanderer.events(commands=300):
            before = len(wanderer.replica.finished)
            wanderer.replayed(event)
            (finished if len(wanderer.replica.finished) > before else others).add(type(event))
    assert finished == set(FINISHING)
    assert not finished & others
    assert finished | others >= set(LIFE)


class Wanderer:
    """Leads jobs through a random life. A replica replays it event by event, and shows each step."""

    def __init__(self, seed: int, limits: Limits | None = None) -> None:
        self.rng = Random(seed)
        self.state, self.replica = State(), State(limits=limits or Limits())
        self.now_ms = 1_000
        self.added = 0

    def live(self, commands: int) -> set[Taken]:
        return {step for event in self.events(commands) if (step := self.replayed(event)) is not None}

    def events(self, commands: int) -> Iterator[Event]:
        for number in range(1, commands + 1):
            try:
                self.state.execute(self.command(), self.now_ms)
            except CasqueError:
                continue
            events = list(self.state.events)
            self.state.commit(writer="w", batch=number, at_ms=self.now_ms)
            yield from events
            self.now_ms += self.rng.choice((0, 1, 5))

    def replayed(self, event: Event) -> Taken | None:
        job_id = subject(event)
        before = self.where(job_id)
        self.replica.replay([event], writer="w", batch=self.replica.position + 1, at_ms=self.now_ms)
        if job_id is None:
            return None
        if isinstance(event, Acked):
            return type(event), before, JobState.DONE
        if isinstance(event, Cancelled | Withdrawn | Lapsed):
            return type(event), before, JobState.CANCELLED
        return type(event), before, self.where(job_id)

    def where(self, job_id: str | None) -> JobState | None:
        job = self.replica.jobs.get(job_id or "")
        return None if job is None else job.state

    def command(self) -> Command | Request[object]:
        rng, jobs = self.rng, list(self.state.jobs.values())
        if not jobs or rng.random() < 0.25:
            return Enqueue((self.spec(),))
        if rng.random() < 0.3:
            return Dequeue(None, rng.choice((1, 2)), 60_000)
        running = [one for one in jobs if one.state is JobState.RUNNING]
        if running and rng.random() < 0.6:
            return self.about_a_lease(rng.choice(running))
        job_id = rng.choice(jobs).spec.id
        at_ms = self.now_ms + rng.choice((0, 4))
        return rng.choice((Ack(job_id), Cancel(job_id), Retry(job_id), Reschedule(job_id, at_ms, 3), Purge(), Lapse()))

    def about_a_lease(self, job: JobRecord) -> Command | Request[object]:
        rng, job_id, token = self.rng, job.spec.id, job.token
        delay_ms = rng.choice((0, 3))
        return rng.choice(
            (
                Heartbeat(job_id, token),
                Heartbeat(job_id, token, Progress(rng.random())),
                GiveBack(job_id, token),
                Ack(job_id, token),
                Nack(job_id, token, error="failed", delay_ms=delay_ms),
                Expire((Observed(job_id, token, job.beat_ms),)),
                Settle((Outcome(job_id, token, "failed", how=OutcomeKind.FINAL),)),
                Settle((Outcome(job_id, token, "crashed", delay_ms=delay_ms, how=OutcomeKind.CRASHED),)),
                Settle((Outcome(job_id, token, delay_ms=delay_ms, how=OutcomeKind.SNOOZED),)),
                Settle((Outcome(job_id, token, "not needed", how=OutcomeKind.CANCELLED),)),
                Settle((Outcome(job_id, token, "not understood", how=OutcomeKind.DECLINED),)),
            )
        )

    def spec(self) -> JobSpec:
        self.added += 1
        rng = self.rng
        run_at_ms = self.now_ms + 3 if rng.random() < 0.3 else None
        return JobSpec(
            f"{self.added}",
            "work",
            b"",
            run_at_ms=run_at_ms,
            max_attempts=2,
            max_crashes=rng.choice((None, 2)),
            expires_ms=rng.choice((None, None, 2, 30)),
        )
