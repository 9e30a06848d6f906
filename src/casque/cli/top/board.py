"""What is known about a queue just now: filled once, then kept up to date by its events."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from datetime import datetime
from heapq import heappop, heappush

import msgspec

from casque.codec.stored import to_ms
from casque.service import EventKind, QueueEvent
from casque.types import ALL_OPEN, Gate, Gates, JobRecord, JobState, Progress, Schedule, Totals, from_ms

WINDOW_MS = 10_000
"""Rates are those of so long."""
GRAIN_MS = 200
WORKER_MS = 60_000
"""A worker that has done nothing for so long is not shown any more."""
COMMITS_MAX = 50
OTHERS = "(others)"
"""The entrypoint of jobs that were not looked at, because there were too many."""
IN_QUEUE = (JobState.READY, JobState.DELAYED, JobState.RUNNING, JobState.DEAD)
RATES = ("enqueued", "done", "failed")


class Rates(msgspec.Struct, frozen=True):
    """Jobs per second, of late. None if nobody can tell: only a log says what has happened."""

    enqueued: float | None = None
    done: float | None = None
    failed: float | None = None
    """Attempts that came to nothing."""


class Depth(msgspec.Struct, frozen=True):
    """The jobs of one entrypoint."""

    entrypoint: str
    ready: int
    delayed: int
    running: int
    dead: int
    oldest_due_at: datetime | None
    """Since when the one that has waited longest is due."""
    rates: Rates


class Running(msgspec.Struct, frozen=True):
    """A job that somebody is at."""

    id: str
    entrypoint: str
    attempt: int
    worker: str | None
    claimed_at: datetime | None
    heartbeat_at: datetime | None
    progress: str | None = None
    """How far it has come, if its handler says so."""


class AtWork(msgspec.Struct, frozen=True):
    """A worker that has a job, or had one a moment ago."""

    name: str
    running: int
    done: int
    """Since this began to look."""
    failed: int
    seen_at: datetime


class Due(msgspec.Struct, frozen=True):
    """A schedule."""

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
    running: tuple[Running, ...]
    """Those that have been at it longest come first."""
    workers: tuple[AtWork, ...]
    commits: tuple[Commit, ...]
    """The latest comes first."""
    schedules: tuple[Due, ...] = ()
    """Those that are due next come first, and paused ones last."""
    gates: Gates = ALL_OPEN
    """What is paused or draining."""
    problem: str | None = None
    """Why this may be out of date."""


class Contents(msgspec.Struct, frozen=True):
    """A whole queue, or as much of it as was looked at, as of a position or a little later."""

    position: int
    totals: Totals
    jobs: Iterable[JobRecord]
    schedules: Iterable[Schedule] = ()
    gates: Gates = ALL_OPEN


class _Seen(msgspec.Struct):
    """What has to be known about one job."""

    entrypoint: str
    state: JobState
    due_ms: int
    attempts: int = 0
    worker: str | None = None
    claimed_ms: int | None = None
    beat_ms: int | None = None
    progress: str | None = None


class _Lane(msgspec.Struct):
    """The jobs of one entrypoint, counted; and the dates of those that are due, some of them no longer true."""

    counts: Counter[JobState] = msgspec.field(default_factory=Counter)
    due: list[tuple[int, str]] = []


class _Hand(msgspec.Struct):
    """One worker."""

    done: int = 0
    failed: int = 0
    seen_ms: int = 0


class Board:
    """Jobs by entrypoint and state, who runs what, and how fast.

    Events may come twice or tell what is known already: a queue that is read while it changes is read a little ahead
    of the events that follow. Once they have caught up, the board is right.
    """

    def __init__(self, read: Contents, *, now_ms: int) -> None:
        self.position = read.position
        self._totals = msgspec.structs.asdict(read.totals)
        self._since_ms = now_ms
        self._jobs: dict[str, _Seen] = {}
        self._lanes: dict[str, _Lane] = {}
        self._delayed: list[tuple[int, str]] = []
        self._running: dict[str, None] = {}
        self._hands: dict[str, _Hand] = {}
        self._lately: deque[tuple[int, Counter[tuple[str, str]]]] = deque()
        """How often what has happened to jobs of which entrypoint, by when it was heard of."""
        self._commits: deque[Commit] = deque(maxlen=COMMITS_MAX)
        self._told = True
        """Whether events come, so that rates can be told."""
        self._fill(read)

    def refill(self, read: Contents, *, now_ms: int) -> None:
        """The queue was read anew, for want of events or because they were missed."""
        for what in ("enqueued", "done"):
            self._count(what, "", now_ms, max(getattr(read.totals, what) - self._totals[what], 0))
        self._totals, self.position = msgspec.structs.asdict(read.totals), read.position
        for kept in (self._jobs, self._lanes, self._running):
            kept.clear()
        self._delayed.clear()
        self._fill(read)

    def without_events(self) -> None:
        """This queue tells no events: how many attempts fail cannot be known."""
        self._told = False

    def _fill(self, read: Contents) -> None:
        self._schedules = {one.name: Due(one.name, one.spec.cron, one.next_at, one.paused) for one in read.schedules}
        self._gates = read.gates
        for record in read.jobs:
            seen = _Seen(
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
        known = sum(lane.counts.total() - lane.counts[JobState.DEAD] for lane in self._lanes.values())
        if waiting > known:
            self._lane(OTHERS).counts[JobState.READY] += waiting - known

    # --- What happens ---

    def take(self, event: QueueEvent, *, now_ms: int) -> None:
        """One event; of a kind that is not known, only that it happened."""
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
                self._hand(job, at_ms)
            case EventKind.BEATEN | EventKind.ADVANCED:
                job = self._known(event)
                job.beat_ms = at_ms
                if (far := fields.get("progress")) is not None:
                    job.progress = str(Progress(**far))
                self._hand(job, at_ms)
            case EventKind.ACKED:
                job = self._known(event)
                self._hand(job, at_ms).done += 1
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
            case EventKind.CANCELLED | EventKind.WITHDRAWN:
                self._totals["cancelled"] += 1
                self._leave(event)
            case EventKind.PURGED:
                self._leave(event)
            case EventKind.SCHEDULED:
                due = Due(fields["name"], fields["cron"], from_ms(fields["next_ms"]), fields["paused"])
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
        counts[event.kind.value] = counts.get(event.kind.value, 0) + 1
        self.position = max(self.position, event.position)

    def _added(self, event: QueueEvent, now_ms: int) -> None:
        fields, job_id = event.fields, str(event.job_id)
        self._totals["enqueued"] += 1
        self._count("enqueued", fields["entrypoint"], now_ms)
        if job_id not in self._jobs:
            state = JobState.DELAYED if fields["delayed"] else JobState.READY
            self._jobs[job_id] = job = _Seen(fields["entrypoint"], state, fields["due_ms"])
            self._enter(job_id, job)

    def _known(self, event: QueueEvent) -> _Seen:
        job_id = str(event.job_id)
        if (job := self._jobs.get(job_id)) is None:
            # One of those that were too many to be looked at: they count as ready until they are met.
            self._jobs[job_id] = job = _Seen(OTHERS, JobState.READY, to_ms(event.at))
            if self._lane(OTHERS).counts[JobState.READY] <= 0:
                self._enter(job_id, job)
        return job

    def _failed(self, event: QueueEvent, at_ms: int, now_ms: int) -> _Seen:
        job = self._known(event)
        if job.state is JobState.RUNNING:
            told = event.kind in (EventKind.NACKED, EventKind.DIED)  # by the worker itself, which is alive
            self._hand(job, at_ms, sign=told).failed += 1
            self._count("failed", job.entrypoint, now_ms)
        if event.kind in (EventKind.CRASHED, EventKind.QUARANTINED):
            job.attempts -= 1  # crashes are counted apart
        return job

    def _waits(self, event: QueueEvent, job: _Seen) -> None:
        job.due_ms = event.fields.get("due_ms", job.due_ms)
        self._move(event, job, JobState.DELAYED if event.fields.get("delayed") else JobState.READY)

    def _move(self, event: QueueEvent, job: _Seen, state: JobState) -> None:
        job_id = str(event.job_id)
        self._exit(job_id, job)
        job.state = state
        self._enter(job_id, job)

    def _leave(self, event: QueueEvent) -> None:
        job_id = str(event.job_id)
        self._exit(job_id, self._known(event))
        del self._jobs[job_id]

    def _enter(self, job_id: str, job: _Seen) -> None:
        lane = self._lane(job.entrypoint)
        lane.counts[job.state] += 1
        if job.state is JobState.RUNNING:
            self._running[job_id] = None
        elif job.state is JobState.READY:
            heappush(lane.due, (job.due_ms, job_id))
        elif job.state is JobState.DELAYED:
            heappush(self._delayed, (job.due_ms, job_id))

    def _exit(self, job_id: str, job: _Seen) -> None:
        self._lane(job.entrypoint).counts[job.state] -= 1
        self._running.pop(job_id, None)

    def _lane(self, entrypoint: str) -> _Lane:
        if (lane := self._lanes.get(entrypoint)) is None:
            lane = self._lanes[entrypoint] = _Lane()
        return lane

    def _hand(self, job: _Seen, at_ms: int, *, sign: bool = True) -> _Hand:
        """Whoever is at it. An expired lease is no sign of life."""
        name = job.worker or "?"
        if (hand := self._hands.get(name)) is None:
            hand = self._hands[name] = _Hand(seen_ms=at_ms)
        if sign:
            hand.seen_ms = max(hand.seen_ms, at_ms)
        return hand

    def _count(self, what: str, entrypoint: str, now_ms: int, many: int = 1) -> None:
        if not self._lately or self._lately[-1][0] < now_ms - GRAIN_MS:
            self._lately.append((now_ms, Counter()))
        self._lately[-1][1][what, entrypoint] += many

    # --- How it looks ---

    def picture(
        self, url: str, *, now_ms: int, layout: str | None, leader: str | None, problem: str | None = None
    ) -> Picture:
        self._promote(now_ms)
        while self._lately and self._lately[0][0] < now_ms - WINDOW_MS:
            self._lately.popleft()
        lately: Counter[tuple[str, str]] = Counter()
        for _, counted in self._lately:
            for (what, entrypoint), many in counted.items():
                lately[what, entrypoint] += many
                lately[what, ""] += many if entrypoint else 0
        seconds = max(min(now_ms - self._since_ms, WINDOW_MS), 1) / 1000
        return Picture(
            url,
            from_ms(now_ms),
            layout,
            leader,
            self.position,
            self._sums(),
            self._rates(lately, "", seconds),
            tuple(
                self._depth(name, self._rates(lately, name, seconds))
                for name in sorted(self._lanes)
                if self._lanes[name].counts.total() or any(lately[what, name] for what in RATES)
            ),
            self._at_work(),
            self._workers(now_ms),
            tuple(reversed(self._commits)),
            tuple(sorted(self._schedules.values(), key=lambda due: (due.paused, due.next_at, due.name))),
            self._gates,
            problem,
        )

    def _promote(self, now_ms: int) -> None:
        """Jobs whose time has come are ready, though nothing is written about it."""
        while self._delayed and self._delayed[0][0] <= now_ms:
            due_ms, job_id = heappop(self._delayed)
            job = self._jobs.get(job_id)
            if job is not None and job.state is JobState.DELAYED and job.due_ms == due_ms:
                self._exit(job_id, job)
                job.state = JobState.READY
                self._enter(job_id, job)

    def _sums(self) -> Totals:
        counts: Counter[JobState] = Counter()
        for lane in self._lanes.values():
            counts.update(lane.counts)
        here = {state.value: counts[state] for state in (JobState.READY, JobState.DELAYED, JobState.RUNNING)}
        return Totals(**{**self._totals, **here})

    def _rates(self, lately: Counter[tuple[str, str]], entrypoint: str, seconds: float) -> Rates:
        if not self._told and entrypoint:
            return Rates()
        found = {what: round(lately[what, entrypoint] / seconds, 2) for what in RATES}
        return Rates(**found) if self._told else Rates(found["enqueued"], found["done"])

    def _depth(self, name: str, rates: Rates) -> Depth:
        lane = self._lanes[name]
        while lane.due and not self._is_due(*lane.due[0]):
            heappop(lane.due)
        oldest = from_ms(lane.due[0][0]) if lane.due else None
        ready, delayed, running, dead = (lane.counts[state] for state in IN_QUEUE)
        return Depth(name, ready, delayed, running, dead, oldest, rates)

    def _is_due(self, due_ms: int, job_id: str) -> bool:
        job = self._jobs.get(job_id)
        return job is not None and job.state is JobState.READY and job.due_ms == due_ms

    def _at_work(self) -> tuple[Running, ...]:
        found = [(job_id, self._jobs[job_id]) for job_id in self._running]
        found.sort(key=lambda one: (one[1].claimed_ms or 0, one[0]))
        return tuple(
            Running(
                job_id,
                job.entrypoint,
                job.attempts,
                job.worker,
                _time(job.claimed_ms),
                _time(job.beat_ms),
                job.progress,
            )
            for job_id, job in found
        )

    def _workers(self, now_ms: int) -> tuple[AtWork, ...]:
        holding: Counter[str] = Counter()
        for job_id in self._running:
            job = self._jobs[job_id]
            holding[job.worker or "?"] += 1
            self._hand(job, job.beat_ms or job.claimed_ms or 0)
        for name, hand in list(self._hands.items()):
            if not holding[name] and hand.seen_ms < now_ms - WORKER_MS:
                del self._hands[name]
        return tuple(
            AtWork(name, holding[name], hand.done, hand.failed, from_ms(hand.seen_ms))
            for name, hand in sorted(self._hands.items())
        )


def _time(ms: int | None) -> datetime | None:
    return None if ms is None else from_ms(ms)
