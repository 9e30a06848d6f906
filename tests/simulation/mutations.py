"""Plausible mistakes, each made in the real code for the length of a test."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from heapq import heappush
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import pytest

from casque.codec.archive import Range
from casque.engine import embedded, ticker
from casque.engine.committer import Committer
from casque.engine.direct import DirectCommit
from casque.engine.group import GroupCommit
from casque.engine.operation import Operation
from casque.engine.reaper import Reaper
from casque.engine.request_watch import RequestWatch
from casque.errors import CasqueError
from casque.journal.document import DocumentJournal
from casque.journal.port import Appended, Batch, Work
from casque.journal.tries import Tries
from casque.service.requests import Ack, Dequeue, GiveBack, Settle
from casque.state import (
    Beaten,
    Crashed,
    Died,
    Observed,
    ObservedZone,
    Returned,
    State,
    Tick,
    Watched,
    Watching,
    adding,
    answers,
    job_life,
    job_table,
    lapses,
    leases,
    schedules,
    settling,
    vigils,
    writers,
)
from casque.state.answers import AnswerFacet
from casque.state.events import subject
from casque.state.gates import GateFacet
from casque.state.lane import Lane
from casque.state.lapses import LapseIndex
from casque.state.schedules import ScheduleFacet
from casque.state.sources import SourceFacet
from casque.state.vigils import VigilFacet
from casque.state.writers import WriterFacet
from casque.storage.port import LOST, Outcome, Read, Stored, Unknown
from casque.types import Admission, Ending, JobRecord, JobState, Missed, Schedule, Totals
from simulation.world.bucket import Bucket
from simulation.world.life import Life
from simulation.world.line import Line

Mutation = Callable[[pytest.MonkeyPatch], None]


def full_disks_believed_after_an_attempt_without_an_answer(patch: pytest.MonkeyPatch) -> None:
    """A refusal for want of room counts as "nothing was written", though an earlier attempt may have landed."""
    attempt = Tries.attempt

    async def forgetting(self: Tries, send: Callable[[], Any]) -> Any:
        sent, self.sent = self.sent, False
        try:
            return await attempt(self, send)
        finally:
            self.sent = self.sent or sent

    patch.setattr(Tries, "attempt", forgetting)


def writes_believed_before_they_are_synced(patch: pytest.MonkeyPatch) -> None:
    """What is seen counts as stored, though the sync of it failed: sent again it is lost to itself, and read back."""
    get, create = Bucket.get, Bucket.create

    def seeing(self: Bucket, key: str, unless: str | None) -> Read:
        if (pending := self.unsynced.get(key)) is not None:
            return Stored(pending[0], hashlib.blake2b(pending[0], digest_size=8).hexdigest())
        return get(self, key, unless)

    def losing(self: Bucket, key: str, body: bytes, sender: Life, *, synced: bool = True) -> Outcome:
        return LOST if key in self.unsynced else create(self, key, body, sender, synced=synced)

    patch.setattr(Line, "_settled", lambda *_: None)
    patch.setattr(Bucket, "get", seeing)
    patch.setattr(Bucket, "create", losing)


def ack_without_token_check(patch: pytest.MonkeyPatch) -> None:
    ack = settling.ack

    def trusting(state: State, c: Ack, now_ms: int) -> None:
        ack(state, msgspec.structs.replace(c, token=None), now_ms)

    patch.setattr(settling, "ack", trusting)


def settle_without_token_check(patch: pytest.MonkeyPatch) -> None:
    settle = settling.settle

    def trusting(state: State, c: Settle, now_ms: int) -> list[CasqueError | None]:
        current = [
            msgspec.structs.replace(o, token=state.jobs[o.job_id].token if o.job_id in state.jobs else o.token)
            for o in c.outcomes
        ]
        return settle(state, msgspec.structs.replace(c, outcomes=tuple(current)), now_ms)

    patch.setattr(settling, "settle", trusting)


def settled_outcomes_not_remembered(patch: pytest.MonkeyPatch) -> None:
    """Whoever asks again hears of what is there now, not of what was done."""
    settle = settling.settle

    def forgetful(state: State, c: Settle, now_ms: int) -> list[CasqueError | None]:
        return settle(state, msgspec.structs.replace(c, request_id=None), now_ms)

    patch.setattr(settling, "settle", forgetful)


def one_refused_outcome_refuses_the_rest(patch: pytest.MonkeyPatch) -> None:
    """The answers say so, and what came before it has happened."""
    settle = settling.settle

    def strict(state: State, c: Settle, now_ms: int) -> list[CasqueError | None]:
        answers = settle(state, c, now_ms)
        refused = next((one for one in answers if one is not None), None)
        return [refused] * len(answers)

    patch.setattr(settling, "settle", strict)


def ticks_not_undone_with_their_batch(patch: pytest.MonkeyPatch) -> None:
    """A batch that lost its race takes its jobs back, and the schedule stays where it had moved to."""

    def careless(self: ScheduleFacet, _state: State) -> None:
        self._next_tick = None

    patch.setattr(ScheduleFacet, "changing", careless)


def late_ticks_skipped(patch: pytest.MonkeyPatch) -> None:
    ticks = ticker._ticks

    def punctual(schedule: Schedule, now_ms: int) -> Iterator[Tick]:
        spec = msgspec.structs.replace(schedule.spec, missed=Missed.SKIP)
        return ticks(msgspec.structs.replace(schedule, spec=spec), now_ms)

    patch.setattr(ticker, "_ticks", punctual)


def schedules_set_by_whatever_the_clock_says(patch: pytest.MonkeyPatch) -> None:
    """One that is changed or resumed on a machine whose clock is behind comes by its last ticks again."""
    patch.setattr(schedules, "_is_ahead", lambda _schedule, _next_ms: True)
    patch.setattr(embedded, "_since_ms", lambda _name, _state, now_ms: now_ms)


def ticks_moved_without_a_look_at_the_schedule(patch: pytest.MonkeyPatch) -> None:
    """Due is what was due when this process looked last: it fires what another one has fired since."""
    due = ticker.Ticker.due
    seen: WeakKeyDictionary[ticker.Ticker, list[Tick]] = WeakKeyDictionary()

    def hasty(self: ticker.Ticker, state: State, now_ms: int) -> list[Tick]:
        kept = seen.get(self) or due(self, state, now_ms)
        seen[self] = [] if kept is seen.get(self) else kept
        for tick in kept:
            schedule = state.schedules[tick.name]
            state.schedules[tick.name] = msgspec.structs.replace(schedule, next_ms=tick.tick_ms)
        return kept

    patch.setattr(ticker.Ticker, "due", hasty)


def purged_jobs_counted_as_dead(patch: pytest.MonkeyPatch) -> None:
    """`totals` says how many jobs have died, and not how many are dead."""
    totals = State.totals

    def all_deaths(self: State, now_ms: int) -> Totals:
        found = totals(self, now_ms)
        return msgspec.structs.replace(found, dead=found.dead + found.purged, purged=0)

    patch.setattr(State, "totals", all_deaths)


def tries_lost_by_the_next_claim(patch: pytest.MonkeyPatch) -> None:
    claimed = job_table._claimed

    def forgetful(job: JobRecord, *rest: Any) -> JobRecord:
        return msgspec.structs.replace(claimed(job, *rest), tries=())

    patch.setattr(job_table, "_claimed", forgetful)


def claims_that_are_given_back_counted_as_tries(patch: pytest.MonkeyPatch) -> None:
    returned = job_life.apply_returned

    def counting(state: State, event: Returned, at_ms: int) -> None:
        tries = job_life.with_try(state.jobs[event.job_id], at_ms, Ending.FAILED, None)
        returned(state, event, at_ms)
        state.jobs[event.job_id] = msgspec.structs.replace(state.jobs[event.job_id], tries=tries)

    patch.setattr(job_life, "apply_returned", counting)


def last_leases_that_ran_out_told_as_failures(patch: pytest.MonkeyPatch) -> None:
    def died(job_id: str, token: int, error: str | None, _how: Ending) -> Died:
        return Died(job_id, token, error, Ending.FAILED)

    patch.setattr(leases, "Died", died)


def gates_not_heeded_by_whoever_claims(patch: pytest.MonkeyPatch) -> None:
    def everything(_self: GateFacet, state: State, entrypoints: tuple[str, ...] | None) -> tuple[str, ...]:
        return tuple(state.ready.names()) if entrypoints is None else entrypoints

    patch.setattr(GateFacet, "let_through", everything)


def gates_not_heeded_by_whoever_adds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GateFacet, "check_not_draining", lambda self, state, specs: None)


def crashes_counted_as_attempts(patch: pytest.MonkeyPatch) -> None:
    crashed = job_life.apply_crashed

    def counting(state: State, event: Crashed, at_ms: int) -> None:
        crashed(state, event, at_ms)
        job = state.jobs[event.job_id]
        state.jobs[event.job_id] = msgspec.structs.replace(job, attempts=job.attempts + 1)

    patch.setattr(job_life, "apply_crashed", counting)


def first_write_overwrites(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Bucket, "create", lambda self, key, body, sender, **_: self._write(key, body, sender))


def request_ids_not_remembered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AnswerFacet, "remember", lambda self, state, c, verb, now_ms, **answer: None)


def batches_not_remembered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SourceFacet, "admitted", lambda self, source, batch: None)


def only_the_last_batch_counts_as_repeated(patch: pytest.MonkeyPatch) -> None:
    """A batch that is asked for again after a later one is taken for a new one."""
    admitted = SourceFacet.admitted

    def forgiving(self: SourceFacet, source: str, batch: int) -> Admission | None:
        last = self.last.get(source)
        return admitted(self, source, batch) if last is not None and last.batch == batch else None

    patch.setattr(SourceFacet, "admitted", forgiving)


def leases_judged_by_wall_clocks(patch: pytest.MonkeyPatch) -> None:
    due = Reaper.due

    def hasty(self: Reaper, state: State | None) -> tuple[Observed | ObservedZone, ...]:
        run_out, clock = due(self, state), self._clock
        if state is None:
            return run_out
        self._sweep(state)
        watched = ((seen.length, state.jobs[lease.job_id]) for seen in self._all() for lease in seen.leases)
        early = [
            Observed(job.spec.id, job.token, job.beat_ms)
            for length, job in watched
            if clock.wall_ms() - (job.beat_ms or 0) >= length
        ]
        return tuple(dict.fromkeys((*run_out, *early)))

    patch.setattr(Reaper, "due", hasty)


class Blind(dict[str, int]):
    """A table of writers in which nobody looks for oneself."""

    def get(self, key: object, default: object = None) -> Any:
        return default


def own_writes_not_recognised(patch: pytest.MonkeyPatch) -> None:
    read = DocumentJournal._read

    async def blind(self: DocumentJournal, known: State | None) -> State:
        state = await read(self, known)
        state.facets.writers.last = Blind(state.writers)
        return state

    patch.setattr(DocumentJournal, "_read", blind)


def unknown_taken_for_failed(patch: pytest.MonkeyPatch) -> None:
    own_writes_not_recognised(patch)
    write = DocumentJournal._write

    async def hasty(self: DocumentJournal, body: bytes) -> Outcome:
        outcome = await write(self, body)
        return LOST if isinstance(outcome, Unknown) else outcome

    patch.setattr(DocumentJournal, "_write", hasty)


def failed_batches_not_rolled_back(patch: pytest.MonkeyPatch) -> None:
    async def append(self: Committer, state: State, now_ms: int, **_: Any) -> Appended:
        self._batches += 1
        return await self._journal.append(state, Batch(writer=self.writer, number=self._batches, at_ms=now_ms))

    patch.setattr(Committer, "_append", append)


def claims_not_given_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupCommit, "_return_claims", lambda self, operation: None)


def claims_of_a_repeated_request_given_back(patch: pytest.MonkeyPatch) -> None:
    def give_back(self: GroupCommit, operation: Operation) -> None:
        for job in operation.answer:
            self._pending.append(Operation(None, GiveBack(job.spec.id, job.token)))
        self._wake.set()

    patch.setattr(GroupCommit, "_return_claims", give_back)


def answer_lost_to_a_cancellation(patch: pytest.MonkeyPatch) -> None:
    async def carry_out(self: GroupCommit, operation: Operation) -> Any:
        if self._is_full():
            await self._wait_for_room()
        return await self._admit(operation)

    patch.setattr(GroupCommit, "_carry_out", carry_out)


def failed_give_back_forgotten(patch: pytest.MonkeyPatch) -> None:
    turn_failed = GroupCommit._turn_failed

    def forgetful(self: GroupCommit, batch: list[Operation], error: CasqueError, *, asked: bool) -> None:
        turn_failed(self, batch, error, asked=asked)
        self._owed.clear()

    patch.setattr(GroupCommit, "_turn_failed", forgetful)


def direct_claims_not_given_back(patch: pytest.MonkeyPatch) -> None:
    async def give_back(self: DirectCommit, claim: asyncio.Future[Any], command: Dequeue) -> None:
        await asyncio.wait({claim})

    patch.setattr(DirectCommit, "_give_back", give_back)


def loss_believed_without_reading(patch: pytest.MonkeyPatch) -> None:
    """A lost race may have been one's own success; where that cannot be read, it is reported as a failure."""

    async def refresh(self: Committer) -> bool:
        await self.refresh()
        return True

    patch.setattr(Committer, "_refresh_after_loss", refresh)


def requests_forgotten_by_a_fast_clock(patch: pytest.MonkeyPatch) -> None:
    """However few there are; and after a minute by that clock, so that most jumps are far enough."""
    commit = State.commit

    def forgetful(self: State, *, at_ms: int, **about: Any) -> None:
        commit(self, at_ms=at_ms, **about)
        recent = [(i, seen) for i, seen in self.requests.items() if seen.at_ms >= at_ms - 60_000]
        self.answers.restore(self, recent)

    patch.setattr(State, "commit", forgetful)


def upkeep_that_fails_fails_the_call(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("casque.engine.committer._logged", lambda work: work())


def answered_before_it_landed(patch: pytest.MonkeyPatch) -> None:
    decide = Operation.decide

    def hasty(self: Operation, state: State, now_ms: int) -> None:
        decide(self, state, now_ms)
        self.settle()

    patch.setattr(Operation, "decide", hasty)


def leases_never_run_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reaper, "due", lambda self, state: ())


def jobs_go_to_the_back_with_their_first_worker(patch: pytest.MonkeyPatch) -> None:
    """As it was: a thousand waiting jobs come before one whose worker was killed."""
    patch.setattr(leases, "keeps_place", lambda job: False)


def jobs_keep_their_place_whatever_they_kill(patch: pytest.MonkeyPatch) -> None:
    """One that kills its worker is handed to the next worker at once, until none is left."""
    patch.setattr(leases, "keeps_place", lambda job: True)


def jobs_handed_out_after_their_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LapseIndex, "next_ms", lambda self: None)


def running_jobs_expire(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lapses, "_WAITING", (JobState.READY, JobState.DELAYED, JobState.RUNNING))


def restored_jobs_never_expire(patch: pytest.MonkeyPatch) -> None:
    """What is derived from the jobs is built anew without those that expire."""

    def forgetful(self: job_table.JobTable, job: JobRecord) -> None:
        if job.state is JobState.READY:
            self.ready.push(job)
        elif job.state is JobState.DELAYED:
            self.ready.push_delayed(job)

    patch.setattr(job_table.JobTable, "_list", forgetful)


def priorities_ignored(patch: pytest.MonkeyPatch) -> None:
    def push(self: Lane, record: JobRecord, stamp: int) -> None:
        self.live += 1
        heappush(self.heap, (0, record.due_ms, record.sequence, stamp, record))

    patch.setattr(Lane, "push", push)


def heartbeats_not_written(patch: pytest.MonkeyPatch) -> None:
    def touch(self: DocumentJournal, state: State) -> None:
        changed = [event for event in state.events if not isinstance(event, Beaten)]
        self._codec.touch([job_id for event in changed if (job_id := subject(event)) is not None])

    patch.setattr(DocumentJournal, "_touch", touch)


def document_archived_without_claiming_the_range(patch: pytest.MonkeyPatch) -> None:
    """The objects of whatever is there are written, and dropped by the next commit."""

    def maintenance(self: DocumentJournal, state: State, writer: str) -> Work | None:
        self._pace.observe(state)
        if not self._pace.is_due:
            return None
        self._pace.restart()
        range_ = Range(state.archived + 1, state.position)
        return partial(self._write_range, range_, tuple(state.finished))

    def marks(self: DocumentJournal, state: State) -> tuple[int, int | None]:
        written = self._written
        mine = written is not None and written.first == state.archived + 1
        return (written.last if mine and written is not None else state.archived), None

    patch.setattr(DocumentJournal, "maintenance", maintenance)
    patch.setattr(DocumentJournal, "_marks", marks)


def document_removes_first_and_archives_then(patch: pytest.MonkeyPatch) -> None:
    marks = DocumentJournal._marks

    def hasty(self: DocumentJournal, state: State) -> tuple[int, int | None]:
        self._written = Range(state.archived + 1, state.archiving) if state.archiving is not None else None
        return marks(self, state)

    patch.setattr(DocumentJournal, "_marks", hasty)


def document_archives_what_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    """The objects are written before the commit that claims them has landed, and again after each lost race."""
    append = DocumentJournal._append

    async def hasty(self: DocumentJournal, state: State, batch: Batch) -> Appended:
        archived, archiving = self._marks(state)
        if archiving is not None and archiving != state.archiving:
            await self._write_range(Range(archived + 1, archiving), tuple(state.finished))
        return await append(self, state, batch)

    patch.setattr(DocumentJournal, "_append", hasty)


def forgotten_batches_taken_for_lost(patch: pytest.MonkeyPatch) -> None:
    """A writer that is not in the table is taken for one that never wrote."""

    def fate(self: WriterFacet, writer: str, batch: int, *, tried: int) -> bool | None:
        return self.last.get(writer, 0) >= batch

    patch.setattr(WriterFacet, "fate", fate)


def forgotten_writers_not_accounted_for(patch: pytest.MonkeyPatch) -> None:
    """The table drops writers without a trace."""
    patch.setattr(writers, "forgotten_before", lambda position, writers: 0)


def repeated_requests_not_compared(patch: pytest.MonkeyPatch) -> None:
    """An id is enough: whatever is asked with it is taken for what was asked before."""
    patch.setattr(answers, "fingerprint", lambda command: "0")


def requests_forgotten_by_whoever_comes_new(patch: pytest.MonkeyPatch) -> None:
    """A process takes what it finds for old, instead of watching it for as long as requests are remembered."""

    def old(self: RequestWatch, state: State) -> str | None:
        return next(reversed(state.requests), None)

    patch.setattr(RequestWatch, "old", old)


def visits_that_overlap_counted_twice(patch: pytest.MonkeyPatch) -> None:
    """Every process that leaves adds what it saw, whoever watched at the same time."""
    visited = VigilFacet.visited

    def added(self: VigilFacet, state: State, seen: Watching, now_ms: int) -> Watched | None:
        told = visited(self, state, seen, now_ms)
        return None if told is None else msgspec.structs.replace(told, watched_ms=seen.watched_ms)

    patch.setattr(VigilFacet, "visited", added)


def written_times_believed_at_once(patch: pytest.MonkeyPatch) -> None:
    """A lease is over when it is old by the clock of one process that comes by."""
    patch.setattr(vigils, "DATED_FACTOR", 1)
    patch.setattr(vigils, "DATED_VISITS", 1)


def holders_of_keys_shown_as_asked_for(patch: pytest.MonkeyPatch) -> None:
    """Whoever asks again is shown the job that held the key, when it is over, with the payload of its own job."""
    patch.setattr(adding, "_holder", adding._asked)


def jobs_beside_large_ones_shown_as_asked_for(patch: pytest.MonkeyPatch) -> None:
    """A small job has no object of its own, and neither has the one that holds its key: so they are taken for one."""
    patch.setattr(embedded, "_is_what_was_put", lambda job, named: job.spec.blob == named.blob or not job.sequence)
