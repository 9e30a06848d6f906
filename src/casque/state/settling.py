"""What workers say of the jobs they hold: `ack`, `nack`, `settle`, `heartbeat` and `give_back`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, assert_never

from casque.errors import CasqueError, InvalidInputError, JobNotFoundError, LeaseLostError
from casque.service import FAILURES, Outcome
from casque.service import outcomes as kinds
from casque.service.requests import Ack, GiveBack, Heartbeat, Nack, Settle
from casque.state.commands import ReturnUnseen
from casque.state.events import (
    Acked,
    Advanced,
    Beaten,
    Crashed,
    Declined,
    Died,
    Nacked,
    Quarantined,
    Returned,
    Snoozed,
    Withdrawn,
)
from casque.state.facet import Methods
from casque.state.job_life import LEASE_RAN_OUT, ack_run, apply_acked, apply_advanced, apply_beaten
from casque.state.request_ids import shown_id
from casque.state.request_memory import Answered
from casque.types import Attempt, Backoff, Ending, JobRecord, JobState, Reach

if TYPE_CHECKING:
    from casque.state.machine import State

HANDLERS: Methods = {
    Ack: "ack",
    Nack: "nack",
    Settle: "settle",
    Heartbeat: "heartbeat",
    GiveBack: "give_back",
    ReturnUnseen: "give_back",
}

RUNNING = JobState.RUNNING

DECLINES_MAX = 20
"""A job that this many claims gave back without understanding it is dead: no worker does."""
DECLINED_BACKOFF = Backoff(1_000, 300_000)
"""What it waits for a worker that does: all in all about an hour, which a deployment may take."""

DONE_SO, LOST, MISSING = "settled", "lost", "missing"

Ended = Snoozed | Declined | Withdrawn | Died | Quarantined | Crashed | Nacked


def ack(state: State, c: Ack, now_ms: int) -> None:
    if state.answers.seen(c, "ack") is not None:
        return
    job = state.table.held(c.job_id, c.token, state.reach)
    event = Acked(c.job_id, job.token, c.result)
    state.events.append(event)
    apply_acked(state, event, now_ms)
    if c.request_id is not None:
        state.answers.remember(state, c, "ack", now_ms)


def nack(state: State, c: Nack, now_ms: int) -> JobRecord | None:
    if state.answers.seen(c, "nack") is not None:
        return state.jobs.get(c.job_id)
    job = state.table.held(c.job_id, c.token, state.reach)
    if job.state is not RUNNING:
        return job  # it waits already, as the caller wishes
    state.happen(_failure(job, c.error, c.delay_ms, c.backoff, now_ms), now_ms)
    if c.request_id is not None:
        state.answers.remember(state, c, "nack", now_ms)
    return state.jobs[c.job_id]


def heartbeat(state: State, c: Heartbeat, now_ms: int) -> JobRecord:
    job = state.table.there(c.job_id, state.reach)
    if job.state is not RUNNING or (c.token is not None and job.token != c.token):
        raise LeaseLostError(c.job_id, c.token)
    if c.progress is not None and c.progress != job.progress:
        further = Advanced(c.job_id, job.token, c.progress)
        state.events.append(further)
        return apply_advanced(state, further, now_ms)
    event = Beaten(c.job_id, job.token)
    state.events.append(event)
    return apply_beaten(state, event, now_ms)


def give_back(state: State, c: GiveBack | ReturnUnseen, now_ms: int) -> None:
    job = state.jobs.get(c.job_id)
    if job is None or (state.reach is not None and not state.reach.has(job.spec)):
        return
    if job.state is RUNNING and job.token == c.token:
        state.happen(Returned(c.job_id, c.token), now_ms)


# --- Many at once ---


def settle(state: State, c: Settle, now_ms: int) -> list[CasqueError | None]:
    if (seen := state.answers.seen(c, "settle")) is not None:
        return _settled_before(c, seen)
    before = len(state.events)
    answers: list[CasqueError | None]
    if (done := _all_done(state, c.outcomes, state.reach)) is not None:
        state.events += [Acked(outcome.job_id, outcome.token, outcome.result) for outcome in c.outcomes]
        ack_run(state, c.outcomes, done, now_ms)
        answers = [None] * len(done)
    else:
        answers = _settle_each(state, c.outcomes, state.reach, now_ms)
    # Also outcomes that another call settled before, so that nothing was done: a repeat gets the same answer.
    if c.request_id is not None and (len(state.events) > before or None in answers):
        state.answers.remember(state, c, "settle", now_ms, jobs=_fates(answers), count=len(answers))
    return answers


def _all_done(state: State, outcomes: Sequence[Outcome], reach: Reach | None) -> list[JobRecord] | None:
    """The jobs, if all outcomes are that they are done, each once and by the holder of its lease."""
    ids = [outcome.job_id for outcome in outcomes]
    done: list[JobRecord] = []
    for job, outcome in zip(map(state.jobs.get, ids), outcomes, strict=True):
        if job is None or job.token != outcome.token or job.state is not RUNNING:
            return None
        if outcome.error is not None or outcome.how is not None:
            return None
        if reach is not None and not reach.has(job.spec):
            return None
        done.append(job)
    return done if len(set(ids)) == len(ids) else None


def _settle_each(
    state: State, outcomes: Sequence[Outcome], reach: Reach | None, now_ms: int
) -> list[CasqueError | None]:
    answers: list[CasqueError | None] = []
    for outcome in outcomes:
        job = state.jobs.get(outcome.job_id)
        if job is None or (reach is not None and not reach.has(job.spec)):
            answers.append(JobNotFoundError(outcome.job_id))
        elif job.token != outcome.token or job.state is not RUNNING:
            answers.append(None if _failed_so(job, outcome) else LeaseLostError(outcome.job_id, outcome.token))
        else:
            state.happen(_end(job, outcome, now_ms), now_ms)
            answers.append(None)
    return answers


def _end(job: JobRecord, outcome: Outcome, now_ms: int) -> Acked | Ended:
    match outcome.kind:
        case kinds.DONE:
            return Acked(outcome.job_id, outcome.token, outcome.result)
        case kinds.FAILED:
            return _failure(job, outcome.error, outcome.delay_ms, outcome.backoff, now_ms)
        case kinds.FINAL:
            return Died(outcome.job_id, outcome.token, outcome.error, Ending.FAILED)
        case kinds.CRASHED:
            counts = crash if job.spec.max_crashes is not None else _failure
            return counts(job, outcome.error, outcome.delay_ms, outcome.backoff, now_ms)
        case kinds.SNOOZED:
            delay_ms = outcome.delay_ms or 0
            return Snoozed(outcome.job_id, outcome.token, now_ms + max(delay_ms, 1), delay_ms > 0)
        case kinds.CANCELLED:
            return Withdrawn(outcome.job_id, outcome.token, outcome.error)
        case kinds.DECLINED:
            return _decline(job, outcome, now_ms)
        case never:
            assert_never(never)


# --- What an attempt comes to that did not finish its job ---


def _failure(
    job: JobRecord, error: str | None, delay_ms: int | None, backoff: Backoff | None, now_ms: int
) -> Died | Nacked:
    if is_exhausted(job):
        return Died(job.spec.id, job.token, error, Ending.FAILED)
    if delay_ms is None:
        delay_ms = backoff.delay_ms(job.attempts) if backoff is not None else 0
    # Without a delay it is due a millisecond from now: behind what is due already, and still at once.
    return Nacked(job.spec.id, job.token, now_ms + max(delay_ms, 1), delay_ms > 0, error)


def crash(
    job: JobRecord, error: str | None, delay_ms: int | None, backoff: Backoff | None, now_ms: int
) -> Quarantined | Crashed:
    crashes, most = job.crashes + 1, job.spec.max_crashes
    assert most is not None
    if crashes >= most:
        return Quarantined(job.spec.id, job.token, quarantined(crashes, error))
    if delay_ms is None:
        delay_ms = backoff.delay_ms(crashes) if backoff is not None else 0
    return Crashed(job.spec.id, job.token, now_ms + max(delay_ms, 1), delay_ms > 0, error)


def _decline(job: JobRecord, outcome: Outcome, now_ms: int) -> Declined | Died:
    declines = job.declined + 1
    if declines >= DECLINES_MAX:
        why = f"no worker understood it: {declines} claims were given back; the last time: {outcome.error}"
        return Died(outcome.job_id, outcome.token, why, Ending.FAILED)
    delay_ms = outcome.delay_ms if outcome.delay_ms is not None else DECLINED_BACKOFF.delay_ms(declines)
    return Declined(outcome.job_id, outcome.token, now_ms + max(delay_ms, 1), outcome.error)


def quarantined(crashes: int, error: str | None) -> str:
    times = "once" if crashes == 1 else f"{crashes} times"
    return f"quarantined: its worker died {times} while it worked on this job; the last time: {error}"


def is_exhausted(job: JobRecord) -> bool:
    return job.spec.max_attempts is not None and job.attempts >= job.spec.max_attempts


# --- Asked again ---


def _failed_so(job: JobRecord, outcome: Outcome) -> bool:
    """True if this failure was already recorded: the repeat is a no-op."""
    if outcome.kind not in FAILURES and outcome.kind is not kinds.DECLINED:
        return False
    return any(
        tried.token == outcome.token and (tried.how is Ending.FAILED or _was_reported(tried)) for tried in job.tries
    )


def _was_reported(tried: Attempt) -> bool:
    """Whether a worker reported that it crashed. A lease that ran out is a crash without a report."""
    return tried.how is Ending.CRASHED and not (tried.error or "").endswith(LEASE_RAN_OUT)


def _fates(answers: list[CasqueError | None]) -> tuple[tuple[str, int], ...]:
    """The answers in a few words: each with how many of them follow one another. Leases that were taken together are
    lost together, so these are few however many the answers are."""
    if answers and not any(answers):
        return ((DONE_SO, len(answers)),)
    fates = [DONE_SO if a is None else LOST if isinstance(a, LeaseLostError) else MISSING for a in answers]
    return tuple([(fate, len(list(run))) for fate, run in groupby(fates)])


def _settled_before(c: Settle, seen: Answered) -> list[CasqueError | None]:
    if len(c.outcomes) != seen.count:
        raise InvalidInputError(f"request_id {shown_id(c.request_id)!r} was used before, to settle {seen.count} jobs")
    fates = [fate for fate, length in seen.jobs for _ in range(length)]
    return [
        None
        if fate == DONE_SO
        else LeaseLostError(outcome.job_id, outcome.token)
        if fate == LOST
        else JobNotFoundError(outcome.job_id)
        for outcome, fate in zip(c.outcomes, fates, strict=True)
    ]
