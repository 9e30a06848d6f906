"""The state of a queue for display: filled once, then kept up to date by events."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from datetime import datetime
from heapq import heappop, heappush

import msgspec

from casque.cli.event_names import shown_name
from casque.service import EventKind, QueueEvent
from casque.types import (
    ALL_OPEN,
    Gate,
    Gates,
    JobRecord,
    JobState,
    Progress,
    Schedule,
    Totals,
    from_ms,
    moment_of,
    to_ms,
)

WINDOW_MS = 10_000
"""Rates are averages over this time."""
GRAIN_MS = 200
WORKER_MS = 60_000
"""An idle worker is shown for this long."""
COMMITS_MAX = 50
OTHERS = "(others)"
"""The entrypoint of jobs that were not read, because there were too many."""
IN_QUEUE = (JobState.READY, JobState.DELAYED, JobState.RUNNING, JobState.DEAD)
RATES = ("enqueued", "done", "failed")


class Rates(msgspec.Struct, frozen=True):
    """Recent jobs per second. None if they are unknown: only a log has events."""

    enqueued: float | None = None
    done: float | None = None
    failed: float | None = None
    """Attempts that failed."""


class Depth(msgspec.Struct, frozen=True):
    """The jobs of one entrypoint."""

    entrypoint: str
    ready: int
    delayed: int
    running: int
    dead: int
    oldest_due_at: datetime | None
    """When the job that has waited longest became due."""
    rates: Rates


class RunningJob(msgspec.Struct, frozen=True):
    """A job that a worker runs."""

    id: str
    entrypoint: str
    attempt: int
    worker: str | None
    claimed_at: datetime | None
    heartbeat_at: datetime | None
    progress: str | None = None
    """How far it has come, if its handler reports progress."""


class WorkerActivity(msgspec.Struct, frozen=True):
    """A worker that runs a job, or did recently."""

    name: str
    running: int
    done: int
    """Since the board was opened."""
    failed: int
    seen_at: datetime


class NextTick(msgspec.Struct, frozen=True):
    """A schedule, and when it ticks next."""

    name: str
    cron: str
    next_at: datetime
    paused: bool = False


class Commit(msgspec.Struct, frozen=True):
    """One commit: what happened in it, by kind."""

    position: int
    at: datetime
    events: dict[str, int]


class Picture(msgspec.Struct, frozen=True):
    """A queue at one moment."""

    url: str
    at: datetime
    layout: str | None
    leader: str | None
    position: int
    totals: Totals
    rates: Rates
    entrypoints: tuple[Depth, ...]
    running: tuple[RunningJob, ...]
    """Those that have run longest come first."""
    workers: tuple[WorkerActivity, ...]
    commits: tuple[Commit, ...]
    """The latest comes first."""
    schedules: tuple[NextTick, ...] = ()
    """Those that tick next come first, and paused ones last."""
    gates: Gates = ALL_OPEN
    """What is paused or draining."""
    problem: str | None = None
    """Why this may be out of date."""


class Contents(msgspec.Struct, frozen=True):
    """A whole queue, or as much of it as was read, as of a position or a little later."""

    position: int
    totals: Totals
    jobs: Iterable[JobRecord]
    schedules: Iterable[Schedule] = ()
    gates: Gates = ALL_OPEN


class _TrackedJob(msgspec.Struct):
    """What the board keeps of one job."""

    entrypoint: str
    state: JobState
    due_ms: int
    attempts: int = 0
    worker: str | None = None
    claimed_ms: int | None = None
    beat_ms: int | None = None
    progress: str | None = None


class _EntrypointJobs(msgspec.Struct):
    """The jobs of one entrypoint: counts by state, and the due times of ready ones, some of them stale."""

    counts: Counter[JobState] = msgspec.field(default_factory=Counter)
    due: list[tuple[int, str]] = []


class _WorkerCounts(msgspec.Struct):
    """What one worker did."""

    done: int = 0
    failed: int = 0
    seen_ms: int = 0


class Board:
    """Jobs by entrypoint and state, who runs what, and how fast.

    Events may repeat what the board knows: a queue that is read while it changes is read a little ahead of the events
    that follow. Once they have caught up, the board is right.
    """

    def __init__(self, read: Contents, *, now_ms: int) -> None:
        self.position = read.position
        self._totals = msgspec.structs.asdict(read.totals)
        self._since_ms = now_ms
        self._jobs: dict[str, _TrackedJob] = {}
        self._entrypoints: dict[str, _EntrypointJobs] = {}
        self._delayed: list[tuple[int, str]] = []
        self._running: dict[str, None] = {}
        self._seen_workers: dict[str, _WorkerCounts] = {}
        self._recent: deque[tuple[int, Counter[tuple[str, str]]]] = deque()
        """Counts by kind and entrypoint, with the time they were received."""
        self._commits: deque[Commit] = deque(maxlen=COMMITS_MAX)
        self._has_events = True
        """Without events the rates by entrypoint are unknown."""
        self._fill(read)

    def refill(self, read: Contents, *, now_ms: int) -> None:
        """Fill it again, because there are no events or some were missed."""
        for what in ("enqueued", "done"):
            self._count(what, "", now_ms, max(getattr(read.totals, what) - self._totals[what], 0))
        self._totals, self.position = msgspec.structs.asdict(read.totals), read.position
        for kept in (self._jobs, self._entrypoints, self._running):
            kept.clear()
        self._delayed.clear()
        self._fill(read)

    def without_events(self) -> None:
        """This queue has no events: the number of failed attempts is unknown."""
        self._has_events = False

    def _fill(self, read: Contents) -> None:
        self._schedules = {
            one.name: NextTick(one.name, one.spec.cron, one.next_at, one.paused) for one in read.schedules
        }
        self._gates = read.gates
        for record in read.jobs:
            seen = _TrackedJob(
                record.spec.entrypoint,
                record.state,
                record.due_ms,
                record.attempts,
                record.worker,
                record.claimed_ms,
                record.beat_ms,
                None if record.progress is None else str(record.progress),
            )
            self._jobs[record.spec.id] = seen
            self._enter(record.spec.id, seen)
        waiting = sum(self._totals[state] for state in ("ready", "delayed", "running"))
        known = sum(entry.counts.total() - entry.counts[JobState.DEAD] for entry in self._entrypoints.values())
        if waiting > known:
            self._entrypoint(OTHERS).counts[JobState.READY] += waiting - known

    # --- Events ---

    def take(self, event: QueueEvent, *, now_ms: int) -> None:
        """Apply one event. One of an unknown kind is only counted in its commit."""
        self._note(event)
        at_ms = to_ms(event.at)
        fields = event.fields
        match event.kind:
            case EventKind.ADDED:
                self._added(event, now_ms)
            case EventKind.CLAIMED:
                job = self._known(event)
                job.attempts += 1
                job.worker = fields["worker"]
                job.claimed_ms = job.beat_ms = at_ms
                job.progress = None
                self._move(event, job, JobState.RUNNING)
                self._worker(job, at_ms)
            case EventKind.BEATEN | EventKind.ADVANCED:
                job = self._known(event)
                job.beat_ms = at_ms
                if (far := fields.get("progress")) is not None:
                    job.progress = str(Progress(**far))
                self._worker(job, at_ms)
            case EventKind.ACKED:
                job = self._known(event)
                self._worker(job, at_ms).done += 1
                self._count("done", job.entrypoint, now_ms)
                self._totals["done"] += 1
                self._leave(event)
            case EventKind.NACKED | EventKind.EXPIRED | EventKind.CRASHED:
                self._waits(event, self._failed(event, at_ms, now_ms))
            case EventKind.DIED | EventKind.QUARANTINED:
                self._totals["dead"] += 1
                self._move(event, self._failed(event, at_ms, now_ms), JobState.DEAD)
            case EventKind.RETURNED | EventKind.SNOOZED | EventKind.DECLINED:
                job = self._known(event)
                job.attempts -= 1
                self._waits(event, job)
            case EventKind.REVIVED:
                job = self._known(event)
                job.attempts = 0
                self._totals["dead"] -= 1
                self._waits(event, job)
            case EventKind.CANCELLED | EventKind.WITHDRAWN | EventKind.LAPSED:
                self._totals["cancelled"] += 1
                self._leave(event)
            case EventKind.PURGED:
                self._totals["dead"] -= 1
                self._totals["purged"] += 1
                self._leave(event)
            case EventKind.SCHEDULED:
                due = NextTick(fields["name"], fields["cron"], from_ms(fields["next_ms"]), fields["paused"])
                self._schedules[due.name] = due
            case EventKind.TICKED:
                if (due_ := self._schedules.get(fields["name"])) is not None:
                    self._schedules[due_.name] = msgspec.structs.replace(due_, next_at=from_ms(fields["next_ms"]))
            case EventKind.GATED:
                self._gates = self._gates.with_gate(fields["entrypoint"], Gate(fields["gate"]))
            case EventKind.UNSCHEDULED:
                self._schedules.pop(fields["name"], None)
            case _ if event.job_id is not None and "due_ms" in fields:
                self._waits(event, self._known(event))  # whatever else became of it
            case _:
                pass

    def _note(self, event: QueueEvent) -> None:
        if not self._commits or self._commits[-1].position != event.position:
            self._commits.append(Commit(event.position, event.at, {}))
        counts = self._commits[-1].events
        name = shown_name(event.kind)
        counts[name] = counts.get(name, 0) + 1
        self.position = max(self.position, event.position)

    def _added(self, event: QueueEvent, now_ms: int) -> None:
        fields, job_id = event.fields, str(event.job_id)
        self._totals["enqueued"] += 1
        self._count("enqueued", fields["entrypoint"], now_ms)
        if job_id not in self._jobs:
            state = JobState.DELAYED if fields["delayed"] else JobState.READY
            self._jobs[job_id] = job = _TrackedJob(fields["entrypoint"], state, fields["due_ms"])
            self._enter(job_id, job)

    def _known(self, event: QueueEvent) -> _TrackedJob:
        job_id = str(event.job_id)
        if (job := self._jobs.get(job_id)) is None:
            # A job that was not read: those count as ready until an event names them.
            self._jobs[job_id] = job = _TrackedJob(OTHERS, JobState.READY, to_ms(event.at))
            if self._entrypoint(OTHERS).counts[JobState.READY] <= 0:
                self._enter(job_id, job)
        return job

    def _failed(self, event: QueueEvent, at_ms: int, now_ms: int) -> _TrackedJob:
        job = self._known(event)
        if job.state is JobState.RUNNING:
            by_worker = event.kind in (EventKind.NACKED, EventKind.DIED)
            self._worker(job, at_ms, is_alive=by_worker).failed += 1
            self._count("failed", job.entrypoint, now_ms)
        if event.kind in (EventKind.CRASHED, EventKind.QUARANTINED):
            job.attempts -= 1  # crashes are counted separately
        return job

    def _waits(self, event: QueueEvent, job: _TrackedJob) -> None:
        job.due_ms = event.fields.get("due_ms", job.due_ms)
        self._move(event, job, JobState.DELAYED if event.fields.get("delayed") else JobState.READY)

    def _move(self, event: QueueEvent, job: _TrackedJob, state: JobState) -> None:
        job_id = str(event.job_id)
        self._exit(job_id, job)
        job.state = state
        self._enter(job_id, job)

    def _leave(self, event: QueueEvent) -> None:
        job_id = str(event.job_id)
        self._exit(job_id, self._known(event))
        del self._jobs[job_id]

    def _enter(self, job_id: str, job: _TrackedJob) -> None:
        entry = self._entrypoint(job.entrypoint)
        entry.counts[job.state] += 1
        if job.state is JobState.RUNNING:
            self._running[job_id] = None
        elif job.state is JobState.READY:
            heappush(entry.due, (job.due_ms, job_id))
        elif job.state is JobState.DELAYED:
            heappush(self._delayed, (job.due_ms, job_id))

    def _exit(self, job_id: str, job: _TrackedJob) -> None:
        self._entrypoint(job.entrypoint).counts[job.state] -= 1
        self._running.pop(job_id, None)

    def _entrypoint(self, entrypoint: str) -> _EntrypointJobs:
        if (entry := self._entrypoints.get(entrypoint)) is None:
            entry = self._entrypoints[entrypoint] = _EntrypointJobs()
        return entry

    def _worker(self, job: _TrackedJob, at_ms: int, *, is_alive: bool = True) -> _WorkerCounts:
        """The worker that runs the job. An expired lease does not show that it is alive."""
        name = job.worker or "?"
        if (worker := self._seen_workers.get(name)) is None:
            worker = self._seen_workers[name] = _WorkerCounts(seen_ms=at_ms)
        if is_alive:
            worker.seen_ms = max(worker.seen_ms, at_ms)
        return worker

    def _count(self, what: str, entrypoint: str, now_ms: int, count: int = 1) -> None:
        if not self._recent or self._recent[-1][0] < now_ms - GRAIN_MS:
            self._recent.append((now_ms, Counter()))
        self._recent[-1][1][what, entrypoint] += count

    # --- Picture ---

    def picture(
        self, url: str, *, now_ms: int, layout: str | None, leader: str | None, problem: str | None = None
    ) -> Picture:
        self._promote(now_ms)
        while self._recent and self._recent[0][0] < now_ms - WINDOW_MS:
            self._recent.popleft()
        recent: Counter[tuple[str, str]] = Counter()
        for _, counted in self._recent:
            for (what, entrypoint), count in counted.items():
                recent[what, entrypoint] += count
                recent[what, ""] += count if entrypoint else 0
        seconds = max(min(now_ms - self._since_ms, WINDOW_MS), 1) / 1000
        return Picture(
            url,
            from_ms(now_ms),
            layout,
            leader,
            self.position,
            self._sums(),
            self._rates(recent, "", seconds),
            tuple(
                self._depth(name, self._rates(recent, name, seconds))
                for name in sorted(self._entrypoints)
                if self._entrypoints[name].counts.total() or any(recent[what, name] for what in RATES)
            ),
            self._running_jobs(),
            self._workers(now_ms),
            tuple(reversed(self._commits)),
            tuple(sorted(self._schedules.values(), key=lambda due: (due.paused, due.next_at, due.name))),
            self._gates,
            problem,
        )

    def _promote(self, now_ms: int) -> None:
        """Delayed jobs that are due become ready; there is no event for it."""
        while self._delayed and self._delayed[0][0] <= now_ms:
            due_ms, job_id = heappop(self._delayed)
            job = self._jobs.get(job_id)
            if job is not None and job.state is JobState.DELAYED and job.due_ms == due_ms:
                self._exit(job_id, job)
                job.state = JobState.READY
                self._enter(job_id, job)

    def _sums(self) -> Totals:
        counts: Counter[JobState] = Counter()
        for entry in self._entrypoints.values():
            counts.update(entry.counts)
        here = {state.value: counts[state] for state in (JobState.READY, JobState.DELAYED, JobState.RUNNING)}
        return Totals(**{**self._totals, **here})

    def _rates(self, recent: Counter[tuple[str, str]], entrypoint: str, seconds: float) -> Rates:
        if not self._has_events and entrypoint:
            return Rates()
        found = {what: round(recent[what, entrypoint] / seconds, 2) for what in RATES}
        return Rates(**found) if self._has_events else Rates(found["enqueued"], found["done"])

    def _depth(self, name: str, rates: Rates) -> Depth:
        entry = self._entrypoints[name]
        while entry.due and not self._is_due(*entry.due[0]):
            heappop(entry.due)
        oldest = from_ms(entry.due[0][0]) if entry.due else None
        ready, delayed, running, dead = (entry.counts[state] for state in IN_QUEUE)
        return Depth(name, ready, delayed, running, dead, oldest, rates)

    def _is_due(self, due_ms: int, job_id: str) -> bool:
        job = self._jobs.get(job_id)
        return job is not None and job.state is JobState.READY and job.due_ms == due_ms

    def _running_jobs(self) -> tuple[RunningJob, ...]:
        found = [(job_id, self._jobs[job_id]) for job_id in self._running]
        found.sort(key=lambda one: (one[1].claimed_ms or 0, one[0]))
        return tuple(
            RunningJob(
                job_id,
                job.entrypoint,
                job.attempts,
                job.worker,
                moment_of(job.claimed_ms),
                moment_of(job.beat_ms),
                job.progress,
            )
            for job_id, job in found
        )

    def _workers(self, now_ms: int) -> tuple[WorkerActivity, ...]:
        holding: Counter[str] = Counter()
        for job_id in self._running:
            job = self._jobs[job_id]
            holding[job.worker or "?"] += 1
            self._worker(job, job.beat_ms or job.claimed_ms or 0)
        for name, worker in list(self._seen_workers.items()):
            if not holding[name] and worker.seen_ms < now_ms - WORKER_MS:
                del self._seen_workers[name]
        return tuple(
            WorkerActivity(name, holding[name], worker.done, worker.failed, from_ms(worker.seen_ms))
            for name, worker in sorted(self._seen_workers.items())
        )
