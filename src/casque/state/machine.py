"""The one place where a job changes state.

Each command handler checks first, then makes events and applies them; replay applies the same events through the same
functions. Applying an event replaces a job's frozen record and notes the old one, which is all that `rollback` needs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any

import msgspec

from casque.errors import (
    CasqueError,
    DuplicateKeyError,
    InvalidInputError,
    JobNotFoundError,
    JobStateError,
    LeaseLostError,
    QueueDrainingError,
    ScheduleNotFoundError,
    ZoneLeaseLostError,
)
from casque.service import Outcome
from casque.service.requests import (
    Ack,
    Cancel,
    CopyGate,
    CopyZone,
    Dequeue,
    DropSchedule,
    Enqueue,
    GiveBack,
    Heartbeat,
    HeartbeatZone,
    LeaseZone,
    Nack,
    Purge,
    ReleaseZone,
    RequeueStale,
    Reschedule,
    Retry,
    SetGate,
    Settle,
    SetZone,
)
from casque.state.admission import added_run, admitted_specs, runs_of
from casque.state.commands import (
    Admit,
    AdoptRing,
    Command,
    Expire,
    ObservedZone,
    PauseSchedule,
    ReturnUnseen,
    SetSchedule,
    Tick,
    Watch,
    Watching,
)
from casque.state.events import (
    Acked,
    Added,
    Admitted,
    Advanced,
    Beaten,
    Cancelled,
    Claimed,
    Crashed,
    Declined,
    Died,
    Event,
    Expired,
    Gated,
    Nacked,
    Purged,
    Quarantined,
    Remembered,
    Rescheduled,
    Returned,
    Revived,
    Ringed,
    Scheduled,
    Snoozed,
    Ticked,
    Unscheduled,
    Watched,
    Withdrawn,
    ZoneBeaten,
    Zoned,
    ZoneExpired,
    ZoneLeased,
    ZoneReleased,
)
from casque.state.fair import FifoLine
from casque.state.fingerprints import Repeatable, fingerprint
from casque.state.ready import ReadyIndex
from casque.state.request_ids import shown_id
from casque.state.request_memory import Answered, RequestMemory
from casque.state.ring import Places, RingView
from casque.types import (
    ALL_OPEN,
    PLAIN_RULES,
    TRIES_MAX,
    Admission,
    Attempt,
    Backoff,
    Ending,
    Finished,
    Gate,
    Gates,
    JobRecord,
    JobSpec,
    JobState,
    LastBatch,
    PeekedZone,
    Reach,
    Schedule,
    Totals,
    Vigil,
    ZoneLease,
    ZoneRules,
)

# Module globals are cheaper to reach than enum attributes, and these are compared on every command.
READY, DELAYED, RUNNING, DEAD = JobState.READY, JobState.DELAYED, JobState.RUNNING, JobState.DEAD
DONE, CANCELLED = JobState.DONE, JobState.CANCELLED

NEVER_MS = 2**62
NEW, HELD = 0, -1
"""In the remembered answer of an enqueue, where others have a token: the job was added, or it held the unique key."""
LEASE_RAN_OUT = "the lease ran out: its worker stopped sending heartbeats"


LOOKED_AHEAD = 1_000
"""So many delayed jobs are looked at for zones whose time has not come yet."""

DATED_FACTOR = 10
"""Time between visits, which only written times tell of, counts for a tenth of what they say."""
DATED_VISITS = 4
"""And no visit adds more of it than the fourth part of a lease: one clock that is wrong does not end any."""
VIGILS_MAX = 256
"""Leases of which visits are recorded at a time. When these have ended there is room for others."""

DECLINES_MAX = 20
"""A job that so many claims gave back without understanding it is dead: no worker does."""
DECLINED_BACKOFF = Backoff(1_000, 300_000)
"""What it waits for a worker that does: all in all about an hour, which a deployment may take."""

CARRIED_OUT_AT_ONCE = 10_000
"""Jobs of an admission, which take some ten milliseconds."""


class Counters(msgspec.Struct):
    """Numbers that only grow (`dead_purged` included); with the jobs themselves they make the conservation law."""

    enqueued: int = 0
    done: int = 0
    cancelled: int = 0
    dead_purged: int = 0
    sequence: int = 0
    """The last enqueue number given out."""
    tokens: int = 0
    """The last lease token given out."""


class Limits(msgspec.Struct, frozen=True):
    """How much the queue remembers beside its jobs."""

    requests_max: int = 65_536
    """Behind a broker every call has an id: at ten thousand calls a second this is what callers who ask again after a
    failover have time for."""
    requests_min: int = 256
    """This many are kept whatever their age."""
    writers_max: int = 128
    sources_max: int = 4_096
    """Sources of admissions whose last batch is remembered. One that nobody has heard of for so many others begins
    anew."""
    schedules_max: int = 1_000
    gates_max: int = 1_000
    """Entrypoints that have a gate of their own which is not open."""
    zones_max: int = 10_000
    """Zones that have rules of their own. Of zones without, there may be any number."""
    zone_leases_max: int = 10_000
    """Zones that are leased at a time."""
    finished: bool = False
    """Whether jobs that are over are kept until they are archived."""


class Named(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A staged object that a commit names: whoever replays that commit needs it."""

    position: int
    key: str
    bytes: int


_HANDLERS: dict[type, str] = {
    Enqueue: "_enqueue",
    Admit: "_admit",
    Dequeue: "_dequeue",
    Ack: "_ack",
    Nack: "_nack",
    Settle: "_settle",
    Heartbeat: "_heartbeat",
    GiveBack: "_give_back",
    ReturnUnseen: "_give_back",
    Cancel: "_cancel",
    Retry: "_retry",
    Purge: "_purge",
    Reschedule: "_reschedule",
    SetGate: "_set_gate",
    SetZone: "_set_zone",
    CopyGate: "_copy_gate",
    CopyZone: "_copy_zone",
    LeaseZone: "_lease_zone",
    HeartbeatZone: "_beat_zone",
    ReleaseZone: "_release_zone",
    AdoptRing: "_adopt_ring",
    Expire: "_expire",
    Watch: "_watch",
    RequeueStale: "_requeue_stale",
    SetSchedule: "_set_schedule",
    PauseSchedule: "_pause_schedule",
    DropSchedule: "_drop_schedule",
    Tick: "_tick",
}
_APPLIERS: dict[type, str] = {
    Added: "_apply_added",
    Admitted: "_apply_admitted",
    Claimed: "_apply_claimed",
    Beaten: "_apply_beaten",
    Advanced: "_apply_advanced",
    Acked: "_apply_acked",
    Nacked: "_apply_nacked",
    Returned: "_apply_returned",
    Snoozed: "_apply_snoozed",
    Declined: "_apply_declined",
    Expired: "_apply_expired",
    Crashed: "_apply_crashed",
    Died: "_apply_died",
    Quarantined: "_apply_quarantined",
    Cancelled: "_apply_cancelled",
    Withdrawn: "_apply_withdrawn",
    Revived: "_apply_revived",
    Rescheduled: "_apply_rescheduled",
    Purged: "_apply_purged",
    Gated: "_apply_gated",
    Zoned: "_apply_zoned",
    ZoneLeased: "_apply_zone_leased",
    ZoneBeaten: "_apply_zone_beaten",
    ZoneReleased: "_apply_zone_left",
    ZoneExpired: "_apply_zone_left",
    Watched: "_apply_watched",
    Ringed: "_apply_ringed",
    Remembered: "_apply_remembered",
    Scheduled: "_apply_scheduled",
    Unscheduled: "_apply_unscheduled",
    Ticked: "_apply_ticked",
}


class State:
    """All jobs of one queue and the rules for changing them.

    >>> from casque.types import JobSpec
    >>> state = State()
    >>> [job] = state.execute(Enqueue((JobSpec("1", "send", b"hello"),)), now_ms=1000)
    >>> [claimed] = state.execute(Dequeue(("send",), limit=1, lease_ms=60_000), now_ms=1001)
    >>> claimed.token, claimed.state.value
    (1, 'running')
    >>> state.execute(Ack("1", token=1), now_ms=1002)
    >>> [type(event).__name__ for event in state.events]
    ['Added', 'Claimed', 'Acked']
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.jobs: dict[str, JobRecord] = {}
        """Every job that is not finished, and the dead ones, by id."""
        self.position = 0
        """The last commit that this state includes."""
        self.counters = Counters()
        self.running = 0
        self.waiting = 0
        self.dead: dict[str, None] = {}
        self.keys: dict[str, str] = {}
        self._memory = RequestMemory()
        self.writers: dict[str, int] = {}
        """The last batch of each recent writer that landed: how a writer learns the fate of an unanswered write."""
        self.writers_forgotten = 0
        """No batch of a writer that was dropped from the table landed at a higher position; see `fate`."""
        self.admissions: dict[str, LastBatch] = {}
        """The last batch of each recent source, the one heard of longest ago first."""
        self.schedules: dict[str, Schedule] = {}
        """By name, in the order in which they were set first."""
        self.gates = ALL_OPEN
        """What is paused or being drained."""
        self.zone_jobs: dict[str, int] = {}
        """How many jobs each zone has here, dead ones included; those without any are forgotten."""
        self.ring: RingView | None = None
        """The ring that this queue is a shard of, if it is one."""
        self.staged: list[Named] = []
        """What the commits name that can still be replayed, in order; see `unname`."""
        self.vigils: dict[int, Vigil] = {}
        """What visits have seen of leases, by token. Some may be of leases that are over: see `watched`."""
        self.events: list[Event] = []
        """What happened since the last commit."""
        self.finished: list[Finished] = []
        """What is over and yet to be archived, in order; always empty unless the limits say that it is kept."""
        self.archived = 0
        """What was over up to this position is kept no longer."""
        self.archiving: int | None = None
        """Up to here somebody has begun to archive. Only used where the state itself is stored with every commit."""
        self._keeps_finished = self.limits.finished
        self._ready = ReadyIndex(self.jobs)
        self.places = Places(self.zone_jobs, self._ready.fair.leased)
        """What is at home in this shard, if it is one."""
        self._undo: list[str | JobRecord] = []
        """What to put back, oldest first: a record that was replaced or removed, or the id of a job that was added."""
        self._saved: Counters | None = None
        self._in_order = True
        self._admitting: tuple[Admitted, list[JobSpec]] | None = None
        """What was decided last and is yet to be carried out; see `carry_out`."""
        self._sources_before: dict[str, LastBatch] | None = None
        self._schedules_before: dict[str, Schedule] | None = None
        self._next_tick: int | None = None
        """None when it has to be looked for again."""
        self._gates_before: Gates | None = None
        self._rules_before: dict[str, ZoneRules] | None = None
        self._zone_leases_before: dict[str, ZoneLease] | None = None
        self._vigils_before: dict[int, Vigil] | None = None
        self._ring_before: tuple[RingView | None] | None = None
        self._reach: Reach | None = None
        """Of the caller whose command is being carried out."""
        # Functions and not bound methods: those would make a state hold itself, and leave it to the garbage collector.
        kind = type(self)
        self._handlers: dict[type, Callable[..., Any]] = {what: getattr(kind, name) for what, name in _HANDLERS.items()}
        self._appliers: dict[type, Callable[..., Any]] = {what: getattr(kind, name) for what, name in _APPLIERS.items()}

    # --- Commands, commits, replay ---

    def execute(self, command: Command, now_ms: int, reach: Reach | None = None) -> Any:
        """Carry out one command; its events join the batch, its answer is returned.

        All commands of a batch get the same time, which is then the commit's. `reach`: what its caller may name, if not
        everything: a job or a schedule beyond it is not there. That is judged here, because a name may be another's by
        now.

        Raises:
            CasqueError: the command was refused and changed nothing.
        """
        if self._saved is None:
            self._saved = msgspec.structs.replace(self.counters)
        if self._admitting is not None:
            self.carry_out(now_ms)
        self._reach = reach
        return self._handlers[type(command)](self, command, now_ms)

    def commit(self, *, writer: str, batch: int, at_ms: int, forgets: str | None = None) -> None:
        """The batch has landed: it is part of history now.

        `forgets`: the request of this id and those before it are old, as the writer knows by its monotonic clock.
        """
        if self._admitting is not None:
            for _ in self.carrying_out(at_ms):
                pass
        self.position += 1
        self.events = []
        self._undo.clear()
        self._sources_before = None
        self._schedules_before = None
        self._gates_before = None
        self._rules_before = None
        self._zone_leases_before = None
        self._vigils_before = None
        self._ring_before = None
        self._saved = None
        self.writers_forgotten = self._with_writer(self.writers, writer, batch, self.position)
        if self._memory.answers:
            self._memory.trim(forgets, least=self.limits.requests_min, most=self.limits.requests_max)
        self.check()

    def rollback(self) -> None:
        """The batch did not land: everything is as it was before it."""
        self._admitting = None
        if self._sources_before is not None:
            self.admissions, self._sources_before = self._sources_before, None
        if self._schedules_before is not None:
            self.schedules, self._schedules_before = self._schedules_before, None
            self._next_tick = None
        if self._gates_before is not None:
            self.gates, self._gates_before = self._gates_before, None
        if self._rules_before is not None:
            self.set_rules(self._rules_before)
            self._rules_before = None
        if self._zone_leases_before is not None:
            self.set_zone_leases(self._zone_leases_before.values())
            self._zone_leases_before = None
        if self._vigils_before is not None:
            self.vigils, self._vigils_before = self._vigils_before, None
        if self._ring_before is not None:
            [self.ring], self._ring_before = self._ring_before, None
            if self.ring is None:
                self.places.keys.clear()
        while self.staged and self.staged[-1].position > self.position:
            self.staged.pop()
        for undo in reversed(self._undo):
            job_id, old = (undo, None) if isinstance(undo, str) else (undo.spec.id, undo)
            current = self.jobs.get(job_id)
            if current is not None and current.spec.key is not None and current.state is not DEAD:
                del self.keys[current.spec.key]
            self._uncount(current)
            if old is None:
                assert current is not None
                del self.jobs[job_id]
                self._forget_waiting(current)
                if current.spec.zone is not None:
                    self._leave_zone(current.spec)
                if self.ring is not None:
                    self.places.drop(current.spec)
                continue
            self.jobs[job_id] = old
            if current is None:
                self._in_order = False  # it was taken out, and came back at the end
                if old.spec.zone is not None:
                    self._join_zone(old.spec)
                if self.ring is not None:
                    self.places.add(old.spec)
            else:
                self._forget_waiting(current)
            self._count(old)
            if old.spec.key is not None and old.state is not DEAD:
                self.keys[old.spec.key] = job_id
            if old.state is READY:
                self._ready.push(old)
            elif old.state is DELAYED:
                self._ready.push_delayed(old)
        self._memory.take_back(event.request_id for event in reversed(self.events) if type(event) is Remembered)
        while self.finished and self.finished[-1].position > self.position:
            self.finished.pop()
        if self._saved is not None:
            self.counters = self._saved
        self._saved = None
        self._undo.clear()
        self.events = []

    def replay(
        self, events: Iterable[Event], *, writer: str, batch: int, at_ms: int, forgets: str | None = None
    ) -> None:
        """Apply somebody's commit."""
        assert not self.events, "roll the batch back before applying another writer's commit"
        left = iter(events)
        for event in left:
            self._appliers[type(event)](self, event, at_ms)
            if type(event) is Admitted:
                self._apply_added_all(_added(left, event), at_ms)
        self.commit(writer=writer, batch=batch, at_ms=at_ms, forgets=forgets)

    def fence(self) -> None:
        """Somebody took the lead here: a commit without events."""
        assert not self.events, "roll the batch back before applying another writer's commit"
        self.position += 1

    def shed(self, archived: int) -> None:
        """What was over up to this position is in the archive: nobody needs it here."""
        self.archived = max(self.archived, archived)
        finished = self.finished
        # Looked at also if the mark is where it was: what was replayed since may lie below it.
        if finished and finished[0].position <= self.archived:
            del finished[: bisect_right(finished, self.archived, key=position_of)]

    def unname(self, floor: int) -> None:
        """Nobody replays commits up to here any more, so nobody needs what they name."""
        staged = self.staged
        if staged and staged[0].position <= floor:
            del staged[: bisect_right(staged, floor, key=position_of)]

    def check(self) -> None:
        assert self.violation() is None, self.violation()

    def violation(self) -> str | None:
        """The conservation law: no job comes from nowhere and none vanishes. What breaks it, if anything does."""
        c = self.counters
        if len(self.jobs) != self.waiting + self.running + len(self.dead):
            return "a job is in no state, or in two"
        if c.enqueued != len(self.jobs) + c.done + c.cancelled + c.dead_purged:
            return "jobs appeared or vanished"
        return None

    # --- Looking ---

    def totals(self, now_ms: int) -> Totals:
        self._ready.promote(now_ms)
        c = self.counters
        return Totals(
            enqueued=c.enqueued,
            ready=self.waiting - self._ready.delayed,
            delayed=self._ready.delayed,
            running=self.running,
            done=c.done,
            dead=len(self.dead) + c.dead_purged,
            cancelled=c.cancelled,
        )

    def next_due_ms(self) -> int | None:
        """When the next delayed job becomes due, if there is one."""
        return self._ready.next_due_ms()

    def next_tick_ms(self) -> int | None:
        """When the next tick of a schedule is due, if there is one."""
        if not self.schedules:
            return None
        if self._next_tick is None:
            self._next_tick = min((s.next_ms for s in self.schedules.values() if not s.paused), default=NEVER_MS)
        return None if self._next_tick == NEVER_MS else self._next_tick

    def has_due(
        self,
        entrypoints: tuple[str, ...] | None,
        now_ms: int,
        zones: tuple[str, ...] | None = None,
        zone_lease: tuple[str, int] | None = None,
    ) -> bool:
        """Whether a dequeue like this has an answer. One whose lease is lost has: a refusal."""
        self._ready.promote(now_ms)
        if zone_lease is not None:
            if not self._has_zone(*zone_lease):
                return True
            zones = zone_lease[:1]
        through = self._let_through(entrypoints) if self.gates else entrypoints
        return self._ready.has_due(through, zones, now_ms, holds=zone_lease is not None)

    def due_among(self, entrypoints: Mapping[str, object], now_ms: int) -> list[str]:
        """Those of them that `has_due` may be true of: it need not be asked about the others. As fast as the smaller
        of two: these, and the entrypoints that have jobs due."""
        self._ready.promote(now_ms)
        return self._ready.due_among(entrypoints)

    def due_names(self, now_ms: int) -> tuple[str, ...]:
        """The entrypoints that have jobs due, and maybe some that had."""
        self._ready.promote(now_ms)
        return tuple(self._ready.names())

    def due_zones_among(self, zones: Mapping[str, object], now_ms: int) -> list[str]:
        """The same of zones."""
        self._ready.promote(now_ms)
        return self._ready.due_zones_among(zones)

    def peek(
        self, entrypoints: tuple[str, ...] | None, names: frozenset[str] | None, limit: int, now_ms: int
    ) -> list[PeekedZone]:
        """The top-level queue: zones with work that nobody has leased and no rule or gate holds back, by vesting time.
        Those whose time has not come yet are found as far as a look at the next delayed jobs tells of them."""
        ready = self._ready
        ready.promote(now_ms)
        through = self._let_through(entrypoints) if self.gates else entrypoints
        due = ready.fair.peek(through, names, limit, now_ms) if ready.takes_turns() else []
        found = {zone: PeekedZone(zone, due_ms, True, self.is_fifo(zone)) for due_ms, zone in due}
        self._peek_ahead(found, through, names, limit, now_ms)
        return sorted(found.values(), key=lambda one: (one.next_ms, one.zone))

    def peek_delayed(self, names: frozenset[str] | None, limit: int, now_ms: int) -> list[PeekedZone]:
        """Only those whose next delayed job is near, of whatever entrypoint."""
        found: dict[str, PeekedZone] = {}
        self._ready.promote(now_ms)
        self._peek_ahead(found, self._let_through(None) if self.gates else None, names, limit, now_ms)
        return list(found.values())

    def _peek_ahead(
        self,
        found: dict[str, PeekedZone],
        through: tuple[str, ...] | None,
        names: frozenset[str] | None,
        limit: int,
        now_ms: int,
    ) -> None:
        for job in islice(self._ready.upcoming(), LOOKED_AHEAD if len(found) < limit else 0):
            zone = job.spec.zone
            if zone is None or zone in found or (names is not None and zone not in names):
                continue
            if (through is None or job.spec.entrypoint in through) and self._ready.fair.may_be_had(zone, now_ms):
                found[zone] = PeekedZone(zone, job.due_ms, False, self.is_fifo(zone))
                if len(found) == limit:
                    return

    def _let_through(self, entrypoints: tuple[str, ...] | None) -> tuple[str, ...]:
        """Those of them whose jobs may be claimed. Asked only where something is not open: then whoever takes any
        names all of them, which takes longer."""
        names = tuple(self._ready.names()) if entrypoints is None else entrypoints
        return tuple([name for name in names if not self.gates.pauses(name)])

    def admitted(self, source: str, batch: int) -> Admission | None:
        """What became of this batch, if it or a later one of its source was admitted."""
        last = self.admissions.get(source)
        if last is None or batch > last.batch:
            return None
        same = batch == last.batch
        return Admission(last.jobs if same else 0, last.skipped if same else 0, True, last.position)

    def leases(self) -> Iterator[JobRecord]:
        """The running jobs."""
        return (job for job in self.jobs.values() if job.state is RUNNING)

    def watched(self) -> list[Vigil]:
        """What visits have seen of leases that are still as they were then."""
        return [self.vigils[token] for token in sorted(self.vigils) if self._is_live(self.vigils[token])]

    def _is_live(self, vigil: Vigil) -> bool:
        found = self._leased(vigil.subject, is_zone=vigil.is_zone)
        return found is not None and (found.token, found.beat_ms) == (vigil.token, vigil.beat_ms)

    def _leased(self, subject: str, *, is_zone: bool) -> JobRecord | ZoneLease | None:
        """The lease of this job or zone, if it has one."""
        if is_zone:
            return self.zone_leases.get(subject)
        job = self.jobs.get(subject)
        return job if job is not None and job.state is RUNNING else None

    @property
    def rules(self) -> dict[str, ZoneRules]:
        """Of the zones that have any; see `set_rules`."""
        return self._ready.fair.rules

    def set_rules(self, rules: dict[str, ZoneRules]) -> None:
        """As a journal kept them."""
        before, self._ready.fair.rules = self._ready.fair.rules, rules
        self._ready.fair.limit({**before, **rules})

    @property
    def zone_leases(self) -> dict[str, ZoneLease]:
        """Of the zones that somebody has; see `set_zone_leases`."""
        return self._ready.fair.leased

    def set_zone_leases(self, leases: Iterable[ZoneLease]) -> None:
        """As a journal kept them."""
        fair = self._ready.fair
        concerned = set(fair.leased)
        after = {lease.zone: lease for lease in leases}
        fair.leased.clear()
        fair.leased.update(after)
        fair.relist(concerned | after.keys())

    def is_fifo(self, zone: str) -> bool:
        """Whether it has jobs, and hands them out strictly in enqueue order."""
        return zone in self._ready.fair.fifos

    def listed(self) -> Iterable[JobRecord]:
        """Every job in enqueue order."""
        if not self._in_order:
            in_order = sorted(self.jobs.items(), key=lambda item: item[1].sequence)
            self.jobs.clear()
            self.jobs.update(in_order)
            self._in_order = True
        return self.jobs.values()

    def restore(self, records: Iterable[JobRecord], counters: Counters, position: int) -> None:
        """Fill an empty state from what a journal kept. Derived indexes are built here, never stored."""
        assert not self.jobs
        assert not self.position
        for job in sorted(records, key=lambda job: job.sequence):
            self.jobs[job.spec.id] = job
            if job.spec.zone is not None:
                self._join_zone(job.spec)
            self._count(job)
            if job.state is DEAD:
                continue
            if job.spec.key is not None:
                self.keys[job.spec.key] = job.spec.id
            if job.state is READY:
                self._ready.push(job)
            elif job.state is DELAYED:
                self._ready.push_delayed(job)
        self.counters = counters
        self.position = position

    def reindex(self) -> None:
        """Build whatever is derived from the jobs anew: for a batch that was undone after it had failed half way, so
        that the indexes cannot be trusted. Takes as long as there are jobs."""
        assert not self.events, "roll the batch back first"
        records, rules, leases = list(self.jobs.values()), self.rules, list(self.zone_leases.values())
        counters, position = self.counters, self.position
        for derived in (self.jobs, self.dead, self.keys, self.zone_jobs):
            derived.clear()
        self.running = self.waiting = self.position = 0
        self._next_tick = None
        self._in_order = True
        self._ready = ReadyIndex(self.jobs)
        self.places = Places(self.zone_jobs, self._ready.fair.leased)
        self.restore(records, counters, position)
        self.set_rules(rules)
        self.set_zone_leases(leases)
        self.join(self.ring)
        self.check()

    def join(self, ring: RingView | None) -> None:
        """The same for the ring that it belongs to."""
        self.ring = ring
        self.places.keys.clear()
        if ring is not None:
            for job in self.jobs.values():
                self.places.add(job.spec)

    # --- Handlers: check, then make events ---

    def _enqueue(self, c: Enqueue, now_ms: int) -> tuple[JobRecord, ...]:
        if (seen := self._answered(c, "enqueue")) is not None:
            return self._enqueued_before(c, seen, now_ms)
        if self.ring is not None:
            self.places.check(self.ring, c.specs, request_id=c.request_id, generation=c.generation)
        self._check_new(c.specs)
        if self.gates:
            self._check_not_draining(c.specs)
        if any(spec.zone is not None or spec.fifo for spec in c.specs):
            self._check_zones(c.specs)
        added = tuple(
            self._add_run(c.specs, now_ms)
            if len(c.specs) > 1 and _alike(c.specs)
            else [self._add(spec, now_ms) for spec in c.specs]
        )
        if c.request_id is not None:
            jobs = [(job.spec.id, NEW if job.spec is spec else HELD) for job, spec in zip(added, c.specs, strict=True)]
            self._remember(c, "enqueue", now_ms, jobs=tuple(jobs))
        return added

    def _check_new(self, specs: tuple[JobSpec, ...]) -> None:
        jobs = self.jobs
        if len(specs) > 1 and jobs.keys().isdisjoint(ids := {spec.id for spec in specs}):
            if len(ids) != len(specs):
                raise InvalidInputError("two jobs of one enqueue have the same id")
            return
        for spec in specs:
            if spec.id in jobs:
                raise InvalidInputError(f"a job with the id {spec.id!r} is already in the queue")

    def _check_not_draining(self, specs: Iterable[JobSpec]) -> None:
        """A spec whose key is held adds nothing, so it may come."""
        for spec in specs:
            if self.gates.drains(spec.entrypoint) and (spec.key is None or spec.key not in self.keys):
                raise QueueDrainingError(None if self.gates.queue is Gate.DRAINING else spec.entrypoint)

    def _check_zones(self, specs: Iterable[JobSpec]) -> None:
        """Whether a zone is FIFO is decided by its first job: the others must agree."""
        asked: dict[str, bool] = {}
        for spec in specs:
            zone = spec.zone
            if zone is None:
                if spec.fifo:
                    raise InvalidInputError("fifo=True is about the order within a zone: say which zone")
                continue
            if spec.fifo and spec.run_at_ms is not None:
                raise _fifo_has_no_delay(zone)
            fifo = self.is_fifo(zone) if zone in self.zone_jobs else asked.setdefault(zone, spec.fifo)
            if fifo is not spec.fifo:
                now, wanted = ("FIFO", "fifo=True") if fifo else ("not FIFO", "fifo left out")
                raise InvalidInputError(
                    f"the zone {zone!r} has jobs and is {now}: enqueue with {wanted}, or use another zone. It can "
                    "change when it is empty, without dead jobs"
                )

    def _add(self, spec: JobSpec, now_ms: int) -> JobRecord:
        if spec.key is not None and (holder := self.keys.get(spec.key)) is not None:
            return self.jobs[holder]
        run_at = spec.run_at_ms
        if run_at is None or run_at <= now_ms:
            event = Added(spec, self.counters.sequence + 1, now_ms)
        else:
            event = Added(spec, self.counters.sequence + 1, run_at, True)
        self.events.append(event)
        return self._apply_added(event, now_ms)

    def _add_run(self, specs: tuple[JobSpec, ...], now_ms: int) -> list[JobRecord]:
        """The same for many jobs that are alike and due at once."""
        events = [Added(spec, sequence, now_ms) for sequence, spec in enumerate(specs, self.counters.sequence + 1)]
        self.events += events
        return self._apply_added_run(events, now_ms)

    def _admit(self, c: Admit, now_ms: int) -> Admission:  # noqa: ARG002  one signature for all handlers
        if (repeated := self.admitted(c.source, c.batch)) is not None:
            return repeated
        if self.ring is not None:
            self.places.check(self.ring, c.specs, request_id=None, generation=c.generation)
        skipped = self._not_admitted(c)
        if self.gates:
            passed_over = set(skipped)
            self._check_not_draining(spec for row, spec in enumerate(c.specs) if row not in passed_over)
        if self._ready.fair.fifos:
            self._check_zones(c.specs)
        added = len(c.specs) - len(skipped)
        event = Admitted(c.source, c.batch, c.parts, added, self.counters.sequence + 1, runs_of(skipped))
        self.events.append(event)
        # A batch that has to be decided again, because another writer was faster, should not have added and taken back
        # a million jobs each time: they are added when the commit has landed, or when somebody else of the same batch
        # wants to see them.
        self._admitting = event, c.specs
        return Admission(added, len(skipped), False, self.position + 1)

    def _not_admitted(self, c: Admit) -> list[int]:
        """The rows that are skipped, in order."""
        jobs, keys = self.jobs, self.keys
        known = not jobs.keys().isdisjoint(c.ids)
        twice = len(c.ids) != len(c.specs)
        if (known or twice) and not c.skip_known:
            seen: set[str] = set()
            for spec in c.specs:
                if spec.id in jobs:
                    raise InvalidInputError(
                        f"a job with the id {spec.id!r} is already in the queue; nothing was admitted. With "
                        "skip_known=True such jobs are passed over"
                    )
                if spec.id in seen:
                    raise InvalidInputError(f"two jobs of one admission have the id {spec.id!r}; nothing was admitted")
                seen.add(spec.id)
        if not known and not twice and not c.keyed:
            return []
        skipped: list[int] = []
        ids: set[str] = set()
        held: set[str] = set()
        for row, spec in enumerate(c.specs):
            if spec.id in jobs or spec.id in ids or (spec.key is not None and (spec.key in keys or spec.key in held)):
                skipped.append(row)
                continue
            ids.add(spec.id)
            if spec.key is not None:
                held.add(spec.key)
        return skipped

    def carry_out(self, now_ms: int) -> None:
        """Add the jobs of an admission that was decided, for whoever needs them before the commit lands: other commands
        of the same batch, and a commit that writes the whole queue."""
        for added in self.carrying_out(now_ms):
            self.events += added

    def carrying_out(self, at_ms: int) -> Iterator[list[Added]]:
        """The same for whoever has something else to do in between: some jobs at a time. Nothing at all if no admission
        was decided. Once begun it is finished, or rolled back."""
        if self._admitting is None:
            return
        (event, specs), self._admitting = self._admitting, None
        self._apply_admitted(event, at_ms)
        kept = admitted_specs(event, specs)
        for start in range(0, len(kept), CARRIED_OUT_AT_ONCE):
            added = added_run(kept[start : start + CARRIED_OUT_AT_ONCE], event.first + start, at_ms)
            self._apply_added_all(added, at_ms)
            yield added

    def stored_events(self) -> list[Event]:
        """What happened since the last commit, without what staged objects tell."""
        if self._sources_before is None:
            return self.events
        pending = self._admitting[0] if self._admitting is not None else None
        left = iter(self.events)
        stored: list[Event] = []
        for event in left:
            stored.append(event)
            if type(event) is Admitted and event is not pending:
                _added(left, event)
        return stored

    def _enqueued_before(self, c: Enqueue, seen: Answered, now_ms: int) -> tuple[JobRecord, ...]:
        if len(c.specs) != len(seen.jobs):
            raise InvalidInputError(
                f"request_id {shown_id(c.request_id)!r} was used before, to enqueue {len(seen.jobs)} jobs"
            )
        # A job that has been finished since is shown as it was asked for: the caller needs its id. One that held the
        # unique key is another's job: its payload is not known any more, and it is not this caller's.
        return tuple(
            self.jobs.get(job_id)
            or JobRecord(_holder(spec, job_id) if what == HELD else _asked(spec, job_id), 0, seen.at_ms, READY, now_ms)
            for spec, (job_id, what) in zip(c.specs, seen.jobs, strict=True)
        )

    def _dequeue(self, c: Dequeue, now_ms: int) -> list[JobRecord]:
        if (seen := self._answered(c, "dequeue")) is not None:
            return [
                job
                for job_id, token in seen.jobs
                if (job := self.jobs.get(job_id)) is not None and job.token == token and job.state is RUNNING
            ]
        zones = c.zones
        if c.zone_lease is not None:
            if not self._has_zone(*c.zone_lease):
                raise ZoneLeaseLostError(*c.zone_lease)
            zones = c.zone_lease[:1]
        ready = self._ready
        ready.promote(now_ms)
        entrypoints = self._let_through(c.entrypoints) if self.gates else c.entrypoints
        claimed: list[JobRecord] = []
        if zones is None and ready.takes_turns() and c.limit > 1:
            # Jobs of several zones at once, where no rule has to be asked in between.
            claimed += self._claim_run(c, ready.take_many(entrypoints, c.limit, now_ms) or [], now_ms)
        if len(claimed) < c.limit and ready.takes_turns():
            claims = ready.claims(entrypoints, zones, now_ms, holds=c.zone_lease is not None)
            for job in islice(claims, c.limit - len(claimed)):
                event = Claimed(job.spec.id, self.counters.tokens + 1, _lease_ms(c), c.worker)
                self.events.append(event)
                claimed.append(self._claim(job, event, now_ms))
        # Without zones it is simpler, and faster.
        while len(claimed) < c.limit and not ready.takes_turns() and zones is None:
            most = c.limit - len(claimed)
            if most > 1 and (lane := ready.only_lane(entrypoints)) is not None:
                if not (some := ready.pop_many(lane, most)):
                    break
                claimed += self._claim_run(c, some, now_ms)
                continue
            job = ready.pop(entrypoints)
            if job is None:
                break
            event = Claimed(job.spec.id, self.counters.tokens + 1, _lease_ms(c), c.worker)
            self.events.append(event)
            claimed.append(self._claim(job, event, now_ms))
        if c.request_id is not None and claimed:
            # An empty answer is not remembered: it changed nothing, and asking again may find something.
            self._remember(c, "dequeue", now_ms, jobs=tuple([(j.spec.id, j.token) for j in claimed]))
        return claimed

    def _ack(self, c: Ack, now_ms: int) -> None:
        if self._answered(c, "ack") is not None:
            return
        job = self._held(c.job_id, c.token, self._reach)
        event = Acked(c.job_id, job.token, c.result)
        self.events.append(event)
        self._apply_acked(event, now_ms)
        if c.request_id is not None:
            self._remember(c, "ack", now_ms)

    def _nack(self, c: Nack, now_ms: int) -> JobRecord | None:
        if self._answered(c, "nack") is not None:
            return self.jobs.get(c.job_id)
        job = self._held(c.job_id, c.token, self._reach)
        if job.state is not RUNNING:
            return job  # it waits already, as the caller wishes
        self._happen(self._failure(job, c.error, c.delay_ms, c.backoff, now_ms), now_ms)
        if c.request_id is not None:
            self._remember(c, "nack", now_ms)
        return self.jobs[c.job_id]

    def _failure(
        self, job: JobRecord, error: str | None, delay_ms: int | None, backoff: Backoff | None, now_ms: int
    ) -> Died | Nacked:
        if _exhausted(job):
            return Died(job.spec.id, job.token, error)
        if delay_ms is None:
            delay_ms = backoff.delay_ms(job.attempts) if backoff is not None else 0
        # Without a delay it is due a millisecond from now: behind what is due already, and still at once.
        return Nacked(job.spec.id, job.token, now_ms + max(delay_ms, 1), delay_ms > 0, error)

    def _settle(self, c: Settle, now_ms: int) -> list[CasqueError | None]:
        if (seen := self._answered(c, "settle")) is not None:
            return _settled_before(c, seen)
        before = len(self.events)
        answers: list[CasqueError | None]
        if (done := self._all_done(c.outcomes, self._reach)) is not None:
            self._ack_run(c.outcomes, done, now_ms)
            answers = [None] * len(done)
        else:
            answers = self._settle_each(c.outcomes, self._reach, now_ms)
        # Also what was told by another call before, and needed nothing done: whoever asks again is to hear the same.
        if c.request_id is not None and (len(self.events) > before or None in answers):
            self._remember(c, "settle", now_ms, jobs=_fates(answers), count=len(answers))
        return answers

    def _all_done(self, outcomes: Sequence[Outcome], reach: Reach | None) -> list[JobRecord] | None:
        """The jobs, if nothing is told of them but that they are done, each once and by whoever holds its lease."""
        ids = [outcome.job_id for outcome in outcomes]
        done: list[JobRecord] = []
        for job, outcome in zip(map(self.jobs.get, ids), outcomes, strict=True):
            if job is None or job.token != outcome.token or job.state is not RUNNING:
                return None
            if outcome.error is not None or not outcome.plain:
                return None
            if reach is not None and not reach.has(job.spec):
                return None
            done.append(job)
        return done if len(set(ids)) == len(ids) else None

    def _ack_run(self, outcomes: Sequence[Outcome], jobs: list[JobRecord], now_ms: int) -> None:
        """Ack all of these: in half the time that one by one would take."""
        self.events += [Acked(outcome.job_id, outcome.token, outcome.result) for outcome in outcomes]
        self._undo += jobs
        for outcome in outcomes:
            del self.jobs[outcome.job_id]
        self.running -= len(jobs)
        self.counters.done += len(jobs)
        if self.keys or self.zone_jobs or self.ring is not None:
            for job in jobs:
                if job.spec.zone is not None:
                    self._ready.fair.started(job, -1)
                self._give_up_place(job.spec)
        if self._keeps_finished:
            position = self.position + 1
            self.finished += [
                Finished(position, now_ms, job, DONE, job.error, outcome.result)
                for job, outcome in zip(jobs, outcomes, strict=True)
            ]

    def _settle_each(self, outcomes: Sequence[Outcome], reach: Reach | None, now_ms: int) -> list[CasqueError | None]:
        answers: list[CasqueError | None] = []
        jobs, events = self.jobs, self.events
        for outcome in outcomes:
            job = jobs.get(outcome.job_id)
            if job is None or (reach is not None and not reach.has(job.spec)):
                answers.append(JobNotFoundError(outcome.job_id))
            elif job.token != outcome.token or job.state is not RUNNING:
                answers.append(None if _failed_so(job, outcome) else LeaseLostError(outcome.job_id, outcome.token))
            elif outcome.error is None and outcome.plain:
                acked = Acked(outcome.job_id, outcome.token, outcome.result)
                events.append(acked)
                self._apply_acked(acked, now_ms)
                answers.append(None)
            else:
                event: Snoozed | Declined | Withdrawn | Died | Quarantined | Crashed | Nacked
                if not outcome.plain:
                    event = self._other_end(job, outcome, now_ms)
                elif outcome.final:
                    event = Died(outcome.job_id, outcome.token, outcome.error)
                else:
                    event = self._failure(job, outcome.error, outcome.delay_ms, outcome.backoff, now_ms)
                events.append(event)
                self._appliers[type(event)](self, event, now_ms)
                answers.append(None)
        return answers

    def _other_end(
        self, job: JobRecord, outcome: Outcome, now_ms: int
    ) -> Snoozed | Declined | Withdrawn | Died | Quarantined | Crashed | Nacked:
        """Neither done nor simply failed."""
        if outcome.declined:
            return _decline(job, outcome, now_ms)
        if outcome.snoozed:
            delay_ms = outcome.delay_ms or 0
            return Snoozed(outcome.job_id, outcome.token, now_ms + max(delay_ms, 1), delay_ms > 0)
        if outcome.cancelled:
            return Withdrawn(outcome.job_id, outcome.token, outcome.error)
        if outcome.final:
            return Died(outcome.job_id, outcome.token, outcome.error)
        if job.spec.max_crashes is None:
            return self._failure(job, outcome.error, outcome.delay_ms, outcome.backoff, now_ms)
        return self._crash(job, outcome.error, outcome.delay_ms, outcome.backoff, now_ms)

    def _crash(
        self, job: JobRecord, error: str | None, delay_ms: int | None, backoff: Backoff | None, now_ms: int
    ) -> Quarantined | Crashed:
        crashes, most = job.crashes + 1, job.spec.max_crashes
        assert most is not None
        if crashes >= most:
            return Quarantined(job.spec.id, job.token, _quarantined(crashes, error))
        if delay_ms is None:
            delay_ms = backoff.delay_ms(crashes) if backoff is not None else 0
        return Crashed(job.spec.id, job.token, now_ms + max(delay_ms, 1), delay_ms > 0, error)

    def _heartbeat(self, c: Heartbeat, now_ms: int) -> JobRecord:
        job = self._there(c.job_id, self._reach)
        if job.state is not RUNNING or (c.token is not None and job.token != c.token):
            raise LeaseLostError(c.job_id, c.token)
        if c.progress is not None and c.progress != job.progress:
            further = Advanced(c.job_id, job.token, c.progress)
            self.events.append(further)
            return self._apply_advanced(further, now_ms)
        event = Beaten(c.job_id, job.token)
        self.events.append(event)
        return self._apply_beaten(event, now_ms)

    def _give_back(self, c: GiveBack | ReturnUnseen, now_ms: int) -> None:
        job = self.jobs.get(c.job_id)
        if job is None or (self._reach is not None and not self._reach.has(job.spec)):
            return
        if job.state is RUNNING and job.token == c.token:
            self._happen(Returned(c.job_id, c.token), now_ms)

    def _cancel(self, c: Cancel, now_ms: int) -> None:
        if self._answered(c, "cancel") is not None:
            return
        job = self._there(c.job_id, self._reach)
        if job.state is DEAD:
            raise JobStateError(c.job_id, "dead", "waiting or running")
        self._happen(Cancelled(c.job_id), now_ms)
        if c.request_id is not None:
            self._remember(c, "cancel", now_ms)

    def _retry(self, c: Retry, now_ms: int) -> JobRecord | None:
        if self._answered(c, "retry") is not None:
            return self.jobs.get(c.job_id)
        job = self._there(c.job_id, self._reach)
        if job.state is not DEAD:
            raise JobStateError(c.job_id, job.state.value, "dead")
        if job.spec.key is not None and (holder := self.keys.get(job.spec.key)) is not None:
            raise DuplicateKeyError(job.spec.key, holder)
        self._happen(Revived(c.job_id, now_ms), now_ms)
        if c.request_id is not None:
            self._remember(c, "retry", now_ms)
        return self.jobs[c.job_id]

    def _reschedule(self, c: Reschedule, now_ms: int) -> JobRecord | None:
        if self._answered(c, "reschedule") is not None:
            return self.jobs.get(c.job_id)
        job = self._there(c.job_id, self._reach)
        spec = job.spec
        if job.state is not READY and job.state is not DELAYED:
            raise JobStateError(c.job_id, job.state.value, "waiting")
        if spec.fifo and c.run_at_ms is not None and c.run_at_ms > now_ms:
            raise _fifo_has_no_delay(spec.zone)
        due_ms, delayed, run_at_ms = job.due_ms, job.state is DELAYED, spec.run_at_ms
        if c.run_at_ms is not None:
            due_ms, delayed, run_at_ms = max(c.run_at_ms, now_ms), c.run_at_ms > now_ms, c.run_at_ms
        priority = spec.priority if c.priority is None else c.priority
        if (due_ms, delayed, run_at_ms, priority) != (job.due_ms, job.state is DELAYED, spec.run_at_ms, spec.priority):
            self._happen(Rescheduled(c.job_id, due_ms, delayed, run_at_ms, priority), now_ms)
        if c.request_id is not None:
            self._remember(c, "reschedule", now_ms)
        return self.jobs[c.job_id]

    def _purge(self, c: Purge, now_ms: int) -> int:
        if (seen := self._answered(c, "purge")) is not None:
            return seen.count
        doomed = [job_id for job_id in self.dead if c.takes(self.jobs[job_id].spec)]
        for job_id in doomed:
            self._happen(Purged(job_id), now_ms)
        # A ring asks all its shards: which of them had nothing to purge has to stay so when it asks again.
        if c.request_id is not None and (doomed or self.ring is not None):
            self._remember(c, "purge", now_ms, count=len(doomed))
        return len(doomed)

    def _set_gate(self, c: SetGate, now_ms: int) -> None:
        if self._answered(c, "gate") is not None or self.gates.of(c.entrypoint) is c.gate:
            return
        closes = c.entrypoint is not None and c.entrypoint not in self.gates.entrypoints
        if closes and len(self.gates.entrypoints) >= self.limits.gates_max:
            raise InvalidInputError(f"{self.limits.gates_max} entrypoints are paused or draining already: resume some")
        self._happen(Gated(c.gate, c.entrypoint), now_ms)
        if c.request_id is not None:
            self._remember(c, "gate", now_ms)

    def _set_zone(self, c: SetZone, now_ms: int) -> None:
        if self._answered(c, "zone") is not None or self.rules.get(c.zone, PLAIN_RULES) == c.rules:
            return
        if c.zone not in self.rules and len(self.rules) >= self.limits.zones_max:
            raise InvalidInputError(f"{self.limits.zones_max} zones have rules of their own already: reset some")
        self._happen(Zoned(c.zone, c.rules), now_ms)
        if c.request_id is not None:
            self._remember(c, "zone", now_ms)

    def _copy_gate(self, c: CopyGate, now_ms: int) -> None:
        if self.gates.of(c.entrypoint) is c.expected:
            self._set_gate(SetGate(c.gate, c.entrypoint), now_ms)

    def _copy_zone(self, c: CopyZone, now_ms: int) -> None:
        if self.rules.get(c.zone, PLAIN_RULES) == c.expected:
            self._set_zone(SetZone(c.zone, c.rules), now_ms)

    def _lease_zone(self, c: LeaseZone, now_ms: int) -> ZoneLease | None:
        held = self.zone_leases.get(c.zone)
        if (seen := self._answered(c, "lease_zone")) is not None:
            return held if held is not None and (c.zone, held.token) in seen.jobs else None
        if held is not None or c.zone not in self.zone_jobs:
            return None
        if len(self.zone_leases) >= self.limits.zone_leases_max:
            raise InvalidInputError(f"{self.limits.zone_leases_max} zones are leased already: release some")
        event = ZoneLeased(c.zone, self.counters.tokens + 1, _lease_ms(c), c.worker)
        self._happen(event, now_ms)
        if c.request_id is not None:
            self._remember(c, "lease_zone", now_ms, jobs=((c.zone, event.token),))
        return self.zone_leases[c.zone]

    def _beat_zone(self, c: HeartbeatZone, now_ms: int) -> ZoneLease:
        if not self._has_zone(c.zone, c.token):
            raise ZoneLeaseLostError(c.zone, c.token)
        self._happen(ZoneBeaten(c.zone, c.token), now_ms)
        return self.zone_leases[c.zone]

    def _release_zone(self, c: ReleaseZone, now_ms: int) -> None:
        if self._has_zone(c.zone, c.token):
            self._happen(ZoneReleased(c.zone, c.token), now_ms)

    def _has_zone(self, zone: str, token: int) -> bool:
        lease = self.zone_leases.get(zone)
        return lease is not None and lease.token == token

    def _adopt_ring(self, c: AdoptRing, now_ms: int) -> RingView:
        if self.ring is not None and self.ring.token != c.token:
            raise InvalidInputError(
                f"this is shard {self.ring.token} of its ring, not {c.token}: it was moved or copied"
            )
        if self.ring is None or c.generation > self.ring.generation:
            self._happen(Ringed(c.generation, c.size, c.token), now_ms)
        assert self.ring is not None
        return self.ring

    def _expire(self, c: Expire, now_ms: int) -> int:
        expired = 0
        for seen in c.leases:
            if isinstance(seen, ObservedZone):
                lease = self.zone_leases.get(seen.zone)
                if lease is not None and (lease.token, lease.beat_ms) == (seen.token, seen.beat_ms):
                    self._happen(ZoneExpired(seen.zone, seen.token), now_ms)
                    expired += 1
                continue
            job = self.jobs.get(seen.job_id)
            if job is None or job.state is not RUNNING or (job.token, job.beat_ms) != (seen.token, seen.beat_ms):
                continue
            self._end_lease(job, now_ms)
            expired += 1
        return expired

    def _end_lease(self, job: JobRecord, now_ms: int) -> None:
        if job.spec.max_crashes is not None:
            self._happen(self._crash(job, LEASE_RAN_OUT, None, None, now_ms), now_ms)
        elif _exhausted(job):
            self._happen(Died(job.spec.id, job.token, LEASE_RAN_OUT), now_ms)
        else:
            self._happen(Expired(job.spec.id, job.token, now_ms + 1), now_ms)

    def _requeue_stale(self, c: RequeueStale, now_ms: int) -> int:
        if (seen := self._answered(c, "requeue")) is not None:
            return seen.count
        before_ms = now_ms - c.older_ms
        stale = [
            job
            for job in self.leases()
            if (job.beat_ms is None or job.beat_ms <= before_ms)
            and c.entrypoint in (None, job.spec.entrypoint)
            and c.zone in (None, job.spec.zone)
        ]
        for job in stale:
            self._end_lease(job, now_ms)
        # As with purge: which shards of a ring had none has to stay so when it is asked again.
        if c.request_id is not None and (stale or self.ring is not None):
            self._remember(c, "requeue", now_ms, count=len(stale))
        return len(stale)

    def _watch(self, c: Watch, now_ms: int) -> int:
        ended = 0
        room = VIGILS_MAX - len(self.watched())
        for seen in c.leases:
            if (event := self.visited(seen, now_ms)) is None:
                continue
            known = self._vigil(seen)
            if known is None and room <= 0:
                continue
            room -= known is None
            self._happen(event, now_ms)
            vigil = self.vigils[event.token]
            lease = self._leased(event.subject, is_zone=event.is_zone)
            assert lease is not None
            if max(vigil.watched_ms, vigil.dated_ms) < lease.lease_ms:
                continue
            if isinstance(seen.lease, ObservedZone):
                self._happen(ZoneExpired(seen.lease.zone, seen.lease.token), now_ms)
            else:
                self._end_lease(self.jobs[seen.lease.job_id], now_ms)
            ended += 1
        return ended

    def visited(self, seen: Watching, now_ms: int) -> Watched | None:
        """What this visit adds to those before it; None if the lease was renewed meanwhile, or has ended."""
        lease = seen.lease
        subject, is_zone = (lease.zone, True) if isinstance(lease, ObservedZone) else (lease.job_id, False)
        found = self._leased(subject, is_zone=is_zone)
        if found is None or (found.token, found.beat_ms) != (lease.token, lease.beat_ms):
            return None
        if not found.lease_ms:
            return None  # a claim of jqueue's, which knows no leases
        known = self._vigil(seen)
        visits, until_ms = (0, found.beat_ms or 0) if known is None else (known.visits, known.until_ms)
        # A visit begins with a look that shows all visits before it. If another one was recorded since, the two may
        # have watched at the same time, and no moment may count twice.
        alone = seen.visits == visits
        watched_ms = seen.watched_ms if alone else 0
        # Only clocks that are ahead of all before them add anything here: going to and fro between clocks that differ
        # does not make time. Nor do several that leave at once: each came while the others were there.
        dated_ms = min(max(0, now_ms - until_ms) // DATED_FACTOR, -(-found.lease_ms // DATED_VISITS)) if alone else 0
        return Watched(subject, lease.token, watched_ms, dated_ms, is_zone)

    def _vigil(self, seen: Watching) -> Vigil | None:
        known = self.vigils.get(seen.lease.token)
        return known if known is not None and known.beat_ms == seen.lease.beat_ms else None

    def _set_schedule(self, c: SetSchedule, now_ms: int) -> Schedule | None:
        spec, old = c.spec, self.schedules.get(c.spec.name)
        if self.ring is not None and (self.ring.token or spec.job.zone is not None or spec.job.key is not None):
            raise InvalidInputError(
                "schedules of a ring are in its first shard, and their jobs have no zone and no unique key: open the "
                "ring by its own URL, and let the job enqueue, when it runs, what has one"
            )
        if self._reach is not None:
            self._check_schedules_of(self._reach, spec.name, old)
        if old is None:
            if len(self.schedules) >= self.limits.schedules_max:
                raise InvalidInputError(
                    f"this queue has {len(self.schedules)} schedules already, and more there cannot be; drop some, or "
                    "let one job enqueue the others"
                )
            self._happen(Scheduled(spec, c.next_ms), now_ms)
        elif old.spec != spec:
            same_times = (old.spec.cron, old.spec.tz) == (spec.cron, spec.tz)
            if not same_times and not _is_ahead(old, c.next_ms):
                return None
            self._happen(Scheduled(spec, old.next_ms if same_times else c.next_ms, old.paused), now_ms)
        return self.schedules[spec.name]

    def _check_schedules_of(self, reach: Reach, name: str, old: Schedule | None) -> None:
        """That this caller may set the schedule: it is its own, or new and not one too many."""
        if old is not None:
            if not reach.has(old.spec.job):
                raise ScheduleNotFoundError(name)
        elif reach.schedules_max is not None:
            jobs = (one.spec.job for one in self.schedules.values())
            if sum(reach.has(job) for job in jobs) >= reach.schedules_max:
                raise InvalidInputError(
                    f"a token that is limited to zones or entrypoints may have {reach.schedules_max} schedules; drop "
                    "some"
                )

    def _pause_schedule(self, c: PauseSchedule, now_ms: int) -> Schedule | None:
        old = self._schedule(c.name, self._reach)
        if old.paused is not c.paused:
            if not c.paused and not _is_ahead(old, c.next_ms):
                return None
            self._happen(Scheduled(old.spec, old.next_ms if c.paused else c.next_ms, c.paused), now_ms)
        return self.schedules[c.name]

    def _drop_schedule(self, c: DropSchedule, now_ms: int) -> None:
        self._schedule(c.name, self._reach)
        self._happen(Unscheduled(c.name), now_ms)

    def _tick(self, c: Tick, now_ms: int) -> bool:
        assert c.next_ms > c.tick_ms, "a schedule only moves forward"
        schedule = self.schedules.get(c.name)
        if schedule is None or schedule.paused or schedule.next_ms != c.tick_ms:
            return False
        tick_ms = c.tick_ms if c.at_ms is None else c.at_ms
        job, added = c.job, False
        if job is not None and job.zone in self.zone_jobs and self.is_fifo(job.zone) is not job.fifo:
            # The zone was emptied and used in the other way since the schedule was set. Jobs of both kinds in one zone
            # would stand in each other's way for good, and a tick is not left out: the zone decides.
            job = msgspec.structs.replace(job, fifo=not job.fifo)
        # Its id tells the tick: one that is there is this very job, of a schedule that was dropped and set again. And
        # with a unique key there is none while the one before it is unfinished. Nor while nothing may be added.
        free = job is not None and job.id not in self.jobs and (job.key is None or job.key not in self.keys)
        if job is not None and self.ring is not None:
            free = free and self.places.may_tick(self.ring, job)
        if job is not None and free and not self.gates.drains(job.entrypoint):
            self._add(job, now_ms)
            added = True
        self._happen(Ticked(c.name, tick_ms, c.next_ms, job.id if job is not None and added else None), now_ms)
        return True

    def _schedule(self, name: str, reach: Reach | None) -> Schedule:
        schedule = self.schedules.get(name)
        if schedule is None or (reach is not None and not reach.has(schedule.spec.job)):
            raise ScheduleNotFoundError(name)
        return schedule

    def _there(self, job_id: str, reach: Reach | None) -> JobRecord:
        job = self.jobs.get(job_id)
        if job is None or (reach is not None and not reach.has(job.spec)):
            raise JobNotFoundError(job_id)
        return job

    def _held(self, job_id: str, token: int | None, reach: Reach | None) -> JobRecord:
        """The job, if this token is its lease; without a token, if it is not over yet."""
        job = self._there(job_id, reach)
        if token is None:
            if job.state is DEAD:
                raise JobStateError(job_id, "dead", "unfinished")
        elif job.token != token or job.state is not RUNNING:
            raise LeaseLostError(job_id, token)
        return job

    def _happen(self, event: Event, now_ms: int) -> None:
        self.events.append(event)
        self._appliers[type(event)](self, event, now_ms)

    def _answered(
        self,
        c: Repeatable,
        verb: str,
    ) -> Answered | None:
        """What this very request was answered before, if it was."""
        if c.request_id is None or (seen := self.requests.get(c.request_id)) is None:
            return None
        before, _, what = seen.verb.partition(" ")
        if before != verb:
            raise InvalidInputError(
                f"request_id {shown_id(c.request_id)!r} was used before, to {before} and not to {verb}; "
                "use another id for another request"
            )
        if what and what != fingerprint(c):
            raise InvalidInputError(
                f"request_id {shown_id(c.request_id)!r} was used before, to {verb} something else; repeat the request "
                "as it was, or use another id"
            )
        return seen

    def _remember(
        self,
        c: Repeatable,
        verb: str,
        now_ms: int,
        *,
        jobs: tuple[tuple[str, int], ...] = (),
        count: int = 0,
    ) -> None:
        assert c.request_id is not None
        self._happen(Remembered(c.request_id, f"{verb} {fingerprint(c)}", jobs, count), now_ms)

    # --- Appliers: no checks, no choices ---

    def _apply_added(self, event: Added, at_ms: int) -> JobRecord:
        spec, sequence, counters = event.spec, event.sequence, self.counters
        job_id = spec.id
        job = JobRecord(spec, sequence, at_ms, DELAYED if event.delayed else READY, event.due_ms)
        self.jobs[job_id] = job
        self._undo.append(job_id)
        self.waiting += 1
        counters.enqueued += 1
        counters.sequence = sequence
        if spec.key is not None:
            self.keys[spec.key] = job_id
        if spec.zone is not None:
            self._join_zone(spec)
        if event.delayed:
            self._ready.push_delayed(job)
        else:
            self._ready.push(job)
        if self.ring is not None:
            self.places.add(spec)
        return job

    def _apply_added_run(self, events: list[Added], at_ms: int) -> list[JobRecord]:
        """What `_apply_added` does with each of them, for jobs that are alike: in a third of the time."""
        added = [JobRecord(event.spec, event.sequence, at_ms, READY, event.due_ms) for event in events]
        ids = [event.spec.id for event in events]
        self.jobs.update(zip(ids, added, strict=True))
        self._undo += ids
        self.waiting += len(added)
        self.counters.enqueued += len(added)
        self.counters.sequence = added[-1].sequence
        for job in added:
            if job.spec.zone is not None:
                self._join_zone(job.spec)
        self._ready.push_run(added)
        if self.ring is not None:
            for job in added:
                self.places.add(job.spec)
        return added

    def _apply_added_all(self, events: list[Added], at_ms: int) -> None:
        """The same for any that come in their order and are new together: a run for each kind of them."""
        if not events:
            return
        records = [
            JobRecord(event.spec, event.sequence, at_ms, DELAYED if event.delayed else READY, event.due_ms)
            for event in events
        ]
        ids = [event.spec.id for event in events]
        self.jobs.update(zip(ids, records, strict=True))
        self._undo += ids
        self.waiting += len(records)
        self.counters.enqueued += len(records)
        self.counters.sequence = records[-1].sequence
        runs: dict[tuple[str, int], list[JobRecord]] = {}
        keys = self.keys
        for job in records:
            spec = job.spec
            if spec.key is not None:
                keys[spec.key] = spec.id
            if spec.zone is not None:
                self._join_zone(spec)
            if job.state is DELAYED:
                self._ready.push_delayed(job)
                continue
            kind = spec.entrypoint, spec.priority
            if (run := runs.get(kind)) is None:
                run = runs[kind] = []
            run.append(job)
        for run in runs.values():
            self._ready.push_run(run)
        if self.ring is not None:
            for job in records:
                self.places.add(job.spec)

    def _apply_admitted(self, event: Admitted, at_ms: int) -> None:  # noqa: ARG002
        if self._sources_before is None:
            self._sources_before = dict(self.admissions)
        position, sources = self.position + 1, self.admissions
        sources.pop(event.source, None)  # whoever is heard of goes to the end
        if len(sources) >= self.limits.sources_max:
            del sources[next(iter(sources))]
        skipped = sum(length for _, length in event.skipped)
        sources[event.source] = LastBatch(event.batch, position, event.added, skipped)
        self.staged += [Named(position, part.key, part.bytes) for part in event.parts]

    def _claim(self, job: JobRecord, event: Claimed, at_ms: int) -> JobRecord:
        """The job has left the ready index already."""
        claimed = _claimed(job, event.token, event.worker, event.lease_ms, at_ms)
        self.jobs[event.job_id] = claimed
        self._undo.append(job)
        self.waiting -= 1
        self.running += 1
        self.counters.tokens = event.token
        if claimed.spec.zone is not None:
            self._ready.fair.started(claimed)
        return claimed

    def _claim_run(self, c: Dequeue, jobs: list[JobRecord], now_ms: int) -> list[JobRecord]:
        """Claim all of these, which have left the ready index already: in half the time that one by one would take."""
        lease_ms, worker, first = _lease_ms(c), c.worker, self.counters.tokens + 1
        claimed = [_claimed(job, token, worker, lease_ms, now_ms) for token, job in enumerate(jobs, first)]
        ids = [job.spec.id for job in jobs]
        self.events += [Claimed(job_id, token, lease_ms, worker) for token, job_id in enumerate(ids, first)]
        self.jobs.update(zip(ids, claimed, strict=True))
        self._undo += jobs
        self.waiting -= len(jobs)
        self.running += len(jobs)
        self.counters.tokens += len(jobs)
        if self._ready.fair.on:
            for job in claimed:
                if job.spec.zone is not None:
                    self._ready.fair.started(job)
        return claimed

    def _apply_claimed(self, event: Claimed, at_ms: int) -> None:
        job = self.jobs[event.job_id]
        self._claim(job, event, at_ms)
        self._forget_waiting(job)

    def _apply_beaten(self, event: Beaten, at_ms: int) -> JobRecord:
        return self._replace(event.job_id, beat_ms=self._next_beat_ms(event.job_id, at_ms))

    def _apply_advanced(self, event: Advanced, at_ms: int) -> JobRecord:
        return self._replace(event.job_id, beat_ms=self._next_beat_ms(event.job_id, at_ms), progress=event.progress)

    def _next_beat_ms(self, job_id: str, at_ms: int) -> int:
        # Every beat differs from the one before, also when the writer's clock stands still or steps back: whoever
        # watches the lease recognises a renewal by that alone.
        return max(at_ms, (self.jobs[job_id].beat_ms or 0) + 1)

    def _apply_acked(self, event: Acked, at_ms: int) -> None:
        job = self._remove(event.job_id)
        self.counters.done += 1
        if self._keeps_finished:
            self.finished.append(Finished(self.position + 1, at_ms, job, DONE, job.error, event.result))

    def _apply_nacked(self, event: Nacked, at_ms: int) -> None:
        tries = _with_try(self.jobs[event.job_id], at_ms, Ending.FAILED, event.error)
        self._wait_again(event.job_id, event.due_ms, delayed=event.delayed, error=event.error, tries=tries)

    def _apply_returned(self, event: Returned, at_ms: int) -> None:  # noqa: ARG002  one signature for all appliers
        job = self.jobs[event.job_id]
        self._wait_again(event.job_id, job.due_ms, attempts=job.attempts - 1)

    def _apply_snoozed(self, event: Snoozed, at_ms: int) -> None:  # noqa: ARG002
        attempts = self.jobs[event.job_id].attempts - 1
        self._wait_again(event.job_id, event.due_ms, delayed=event.delayed, attempts=attempts)

    def _apply_declined(self, event: Declined, at_ms: int) -> None:  # noqa: ARG002
        job = self.jobs[event.job_id]
        self._wait_again(
            event.job_id,
            event.due_ms,
            delayed=True,
            attempts=job.attempts - 1,
            error=event.error,
            declined=job.declined + 1,
        )

    def _apply_crashed(self, event: Crashed, at_ms: int) -> None:
        job = self.jobs[event.job_id]
        tries = _with_try(job, at_ms, Ending.CRASHED, event.error)
        self._wait_again(
            event.job_id,
            event.due_ms,
            delayed=event.delayed,
            attempts=job.attempts - 1,
            error=event.error,
            tries=tries,
            crashes=job.crashes + 1,
        )

    def _apply_expired(self, event: Expired, at_ms: int) -> None:
        tries = _with_try(self.jobs[event.job_id], at_ms, Ending.EXPIRED, LEASE_RAN_OUT)
        self._wait_again(event.job_id, event.due_ms, error=LEASE_RAN_OUT, tries=tries)

    def _apply_died(self, event: Died, at_ms: int) -> None:
        # Nothing but the text tells a last lease that ran out from a last attempt that failed.
        how = Ending.EXPIRED if event.error == LEASE_RAN_OUT else Ending.FAILED
        self._die(self.jobs[event.job_id], how, event.error, at_ms)

    def _apply_quarantined(self, event: Quarantined, at_ms: int) -> None:
        job = self.jobs[event.job_id]
        crashed = self._replace(event.job_id, attempts=job.attempts - 1, crashes=job.crashes + 1)
        self._die(crashed, Ending.CRASHED, event.error, at_ms)

    def _die(self, job: JobRecord, how: Ending, last_error: str | None, at_ms: int) -> None:
        self._uncount(job)
        if job.spec.key is not None:
            del self.keys[job.spec.key]
        error = last_error or job.error
        tries = _with_try(job, at_ms, how, last_error)
        self._count(
            self._replace(job.spec.id, state=DEAD, worker=None, error=error, beat_ms=None, tries=tries, progress=None)
        )
        if self._keeps_finished:
            self.finished.append(Finished(self.position + 1, at_ms, job, DEAD, error))

    def _apply_cancelled(self, event: Cancelled, at_ms: int) -> None:
        self._leave_cancelled(event.job_id, None, at_ms)

    def _apply_withdrawn(self, event: Withdrawn, at_ms: int) -> None:
        self._leave_cancelled(event.job_id, event.error, at_ms)

    def _leave_cancelled(self, job_id: str, why: str | None, at_ms: int) -> None:
        job = self._remove(job_id)
        self.counters.cancelled += 1
        if self._keeps_finished:
            self.finished.append(Finished(self.position + 1, at_ms, job, CANCELLED, why or job.error))

    def _apply_revived(self, event: Revived, at_ms: int) -> None:  # noqa: ARG002
        job = self.jobs[event.job_id]
        if job.spec.key is not None:
            self.keys[job.spec.key] = job.spec.id
        self._wait_again(event.job_id, event.due_ms, attempts=0, crashes=0, declined=0)

    def _apply_rescheduled(self, event: Rescheduled, at_ms: int) -> None:  # noqa: ARG002
        old = self.jobs[event.job_id]
        spec = msgspec.structs.replace(old.spec, run_at_ms=event.run_at_ms, priority=event.priority)
        state = DELAYED if event.delayed else READY
        new = self._replace(event.job_id, spec=spec, state=state, due_ms=event.due_ms)
        self._forget_waiting(old)
        if event.delayed:
            self._ready.push_delayed(new)
        else:
            self._ready.push(new)

    def _apply_purged(self, event: Purged, at_ms: int) -> None:  # noqa: ARG002
        job = self.jobs.pop(event.job_id)
        self._undo.append(job)
        self._uncount(job)
        self.counters.dead_purged += 1
        if job.spec.zone is not None:
            self._leave_zone(job.spec)
        if self.ring is not None:
            self.places.drop(job.spec)

    def _apply_gated(self, event: Gated, at_ms: int) -> None:  # noqa: ARG002
        if self._gates_before is None:
            self._gates_before = self.gates
        self.gates = self.gates.with_gate(event.entrypoint, event.gate)

    def _apply_zoned(self, event: Zoned, at_ms: int) -> None:  # noqa: ARG002
        if self._rules_before is None:
            self._rules_before = dict(self.rules)
        if event.rules == PLAIN_RULES:
            self.rules.pop(event.zone, None)
        else:
            self.rules[event.zone] = event.rules
        self._ready.fair.limit((event.zone,))

    def _apply_zone_leased(self, event: ZoneLeased, at_ms: int) -> None:
        self.counters.tokens = event.token
        lease = ZoneLease(event.zone, event.token, event.lease_ms, event.worker, at_ms, at_ms)
        self._changing_zone_leases()[event.zone] = lease
        self._ready.fair.relist((event.zone,))

    def _apply_zone_beaten(self, event: ZoneBeaten, at_ms: int) -> None:
        lease = self._changing_zone_leases()[event.zone]
        # Every beat differs from the one before, as those of jobs do.
        beat_ms = max(at_ms, lease.beat_ms + 1)
        self.zone_leases[event.zone] = msgspec.structs.replace(lease, beat_ms=beat_ms)

    def _apply_zone_left(self, event: ZoneReleased | ZoneExpired, at_ms: int) -> None:  # noqa: ARG002
        del self._changing_zone_leases()[event.zone]
        self._ready.fair.relist((event.zone,))

    def _apply_watched(self, event: Watched, at_ms: int) -> None:
        if self._vigils_before is None:
            self._vigils_before = dict(self.vigils)
        lease = self._leased(event.subject, is_zone=event.is_zone)
        assert lease is not None, "a visit of a lease that nobody has"
        old = self.vigils.get(event.token)
        if old is None or old.beat_ms != lease.beat_ms:
            old = Vigil(event.subject, event.token, lease.beat_ms, until_ms=lease.beat_ms or 0, is_zone=event.is_zone)
        self.vigils[event.token] = Vigil(
            event.subject,
            event.token,
            old.beat_ms,
            old.visits + 1,
            old.watched_ms + event.watched_ms,
            old.dated_ms + event.dated_ms,
            max(old.until_ms, at_ms),
            event.is_zone,
        )
        if len(self.vigils) > 2 * VIGILS_MAX:
            self.vigils = {vigil.token: vigil for vigil in self.watched()}

    def _changing_zone_leases(self) -> dict[str, ZoneLease]:
        if self._zone_leases_before is None:
            self._zone_leases_before = dict(self.zone_leases)
        return self.zone_leases

    def _apply_ringed(self, event: Ringed, at_ms: int) -> None:  # noqa: ARG002
        if self._ring_before is None:
            self._ring_before = (self.ring,)
        ring = RingView(event.generation, event.size, event.token)
        if self.ring is None:
            self.join(ring)
        else:
            self.ring = ring

    def _apply_remembered(self, event: Remembered, at_ms: int) -> None:
        self._memory.add(event.request_id, Answered(at_ms, event.verb, event.jobs, event.count))

    def _apply_scheduled(self, event: Scheduled, at_ms: int) -> None:  # noqa: ARG002
        name = event.spec.name
        old = self._changing_schedules().get(name)
        last_ms = None if old is None else old.last_ms
        self.schedules[name] = Schedule(event.spec, event.next_ms, event.paused, last_ms)

    def _apply_unscheduled(self, event: Unscheduled, at_ms: int) -> None:  # noqa: ARG002
        del self._changing_schedules()[event.name]

    def _apply_ticked(self, event: Ticked, at_ms: int) -> None:  # noqa: ARG002
        old = self._changing_schedules()[event.name]
        last_ms = old.last_ms if event.job is None else event.tick_ms
        self.schedules[event.name] = Schedule(old.spec, event.next_ms, old.paused, last_ms)

    def _changing_schedules(self) -> dict[str, Schedule]:
        if self._schedules_before is None:
            self._schedules_before = dict(self.schedules)
        self._next_tick = None
        return self.schedules

    # --- Moving records; every change notes the record it replaces ---

    def _replace(self, job_id: str, **changes: Any) -> JobRecord:
        old = self.jobs[job_id]
        new = msgspec.structs.replace(old, **changes)
        self.jobs[job_id] = new
        self._undo.append(old)
        return new

    def _wait_again(
        self,
        job_id: str,
        due_ms: int,
        *,
        delayed: bool = False,
        attempts: int | None = None,
        error: str | None = None,
        tries: tuple[Attempt, ...] | None = None,
        crashes: int | None = None,
        declined: int | None = None,
    ) -> None:
        old = self.jobs[job_id]
        # Field by field: to name what changes takes three times as long, and jobs may fail by the thousand.
        new = JobRecord(
            old.spec,
            old.sequence,
            old.created_ms,
            DELAYED if delayed else READY,
            due_ms,
            old.token,
            old.attempts if attempts is None else attempts,
            None,
            old.lease_ms,
            old.claimed_ms,
            None,
            old.error if error is None else error,
            old.tries if tries is None else tries,
            old.crashes if crashes is None else crashes,
            None,
            old.declined if declined is None else declined,
        )
        self._uncount(old)
        self.jobs[job_id] = new
        self._undo.append(old)
        self.waiting += 1
        if delayed:
            self._ready.push_delayed(new)
        else:
            self._ready.push(new)

    def _remove(self, job_id: str) -> JobRecord:
        job = self.jobs.pop(job_id)
        self._undo.append(job)
        if job.state is RUNNING:
            self.running -= 1
            if job.spec.zone is not None:
                self._ready.fair.started(job, -1)
        else:
            self.waiting -= 1
            self._forget_waiting(job)
        self._give_up_place(job.spec)
        return job

    def _give_up_place(self, spec: JobSpec) -> None:
        """It has left: its key is free, and its zone holds one less."""
        if spec.key is not None:
            del self.keys[spec.key]
        if spec.zone is not None:
            self._leave_zone(spec)
        if self.ring is not None:
            self.places.drop(spec)

    def _join_zone(self, spec: JobSpec) -> None:
        zone = spec.zone
        assert zone is not None
        self.zone_jobs[zone] = self.zone_jobs.get(zone, 0) + 1
        if spec.fifo and zone not in self._ready.fair.fifos:
            self._ready.fair.fifos[zone] = FifoLine()

    def _leave_zone(self, spec: JobSpec) -> None:
        zone = spec.zone
        assert zone is not None
        left = self.zone_jobs[zone] - 1
        if left:
            self.zone_jobs[zone] = left
        else:
            del self.zone_jobs[zone]
            self._ready.fair.fifos.pop(zone, None)

    def _forget_waiting(self, job: JobRecord) -> None:
        if job.state is READY or job.state is DELAYED:
            self._ready.forget(job, was_delayed=job.state is DELAYED)

    def _count(self, job: JobRecord) -> None:
        if job.state is RUNNING:
            self.running += 1
            if job.spec.zone is not None:
                self._ready.fair.started(job)
        elif job.state is DEAD:
            self.dead[job.spec.id] = None
        else:
            self.waiting += 1

    def _uncount(self, job: JobRecord | None) -> None:
        if job is None:
            return
        if job.state is RUNNING:
            self.running -= 1
            if job.spec.zone is not None:
                self._ready.fair.started(job, -1)
        elif job.state is DEAD:
            del self.dead[job.spec.id]
        else:
            self.waiting -= 1

    # --- What is kept beside the jobs, trimmed at commits so that every replica trims alike ---

    def fate(self, writer: str, batch: int, *, tried: int) -> bool | None:
        """Whether this batch of a writer, or a later one, has landed; None if that may have been forgotten.

        `tried` is the first position at which it was tried: had it landed there or later, and were its writer not in
        the table, then that position would be among the forgotten ones.
        """
        last = self.writers.get(writer)
        if last is not None:
            return last >= batch
        return None if self.writers_forgotten >= tried else False

    def writers_with(self, writer: str, batch: int) -> tuple[dict[str, int], int]:
        """The table of writers after this batch, the one that has been silent longest first, and what it forgot."""
        writers = dict(self.writers)
        return writers, self._with_writer(writers, writer, batch, self.position + 1)

    def _with_writer(self, writers: dict[str, int], writer: str, batch: int, position: int) -> int:
        """Adds to the table; returns up to which position its writers may have been forgotten."""
        writers.pop(writer, None)  # whoever writes goes to the end
        full = len(writers) >= self.limits.writers_max
        if full:
            del writers[next(iter(writers))]
        writers[writer] = batch
        return max(self.writers_forgotten, forgotten_before(position, writers)) if full else self.writers_forgotten

    @property
    def requests(self) -> dict[str, Answered]:
        """Answers by request id, the oldest first."""
        return self._memory.answers

    def set_requests(self, answers: Iterable[tuple[str, Answered]]) -> None:
        """As they were stored."""
        self._memory = RequestMemory(answers)

    def requests_after(self, forgets: str | None) -> dict[str, Answered]:
        """Those that a commit leaves."""
        return self._memory.after(forgets, least=self.limits.requests_min, most=self.limits.requests_max)


def forgotten_before(position: int, writers: dict[str, int]) -> int:
    """The highest position that a writer dropped from this table can have: each of those in it wrote later."""
    return max(position - len(writers), 0)


def kept_forgotten(forgotten: int, writers: dict[str, int], limits: Limits) -> int | None:
    """What is stored of it; None while the table has room, so that a table which never was full is stored as ever."""
    return forgotten if forgotten or len(writers) >= limits.writers_max else None


def _is_ahead(schedule: Schedule, next_ms: int) -> bool:
    """Whether a schedule that goes on there would not come by a tick that has become a job."""
    return schedule.last_ms is None or next_ms > schedule.last_ms


def _fifo_has_no_delay(zone: str | None) -> InvalidInputError:
    return InvalidInputError(
        f"the zone {zone!r} is FIFO: its jobs come one after the other, so none of them can be delayed. "
        "Leave delay and run_at out, or use another zone"
    )


def _alike(specs: tuple[JobSpec, ...]) -> bool:
    """Whether they go to one place in the order they come: one entrypoint, one priority, no delay and no key."""
    entrypoint, priority = specs[0].entrypoint, specs[0].priority
    for spec in specs:
        if (
            spec.key is not None
            or spec.run_at_ms is not None
            or spec.priority != priority
            or spec.entrypoint != entrypoint
        ):
            return False
    return True


def _added(left: Iterator[Event], admitted: Admitted) -> list[Added]:
    """The events that follow an admission and belong to it."""
    added = list(islice(left, admitted.added))
    assert len(added) == admitted.added, "an admission without its jobs"
    assert all(type(event) is Added for event in added), "an admission without its jobs"
    return added  # type: ignore[return-value]


def position_of(one: Finished | Named) -> int:
    return one.position


def _asked(spec: JobSpec, job_id: str) -> JobSpec:
    """A job that is over, as it is asked for again. Where its payload lies this time says nothing about it; its size
    says that whoever asks has it."""
    return msgspec.structs.replace(spec, id=job_id, blob=None)


def _holder(spec: JobSpec, job_id: str) -> JobSpec:
    """The job that held the key of this one, and is over: all that is still known of it."""
    return JobSpec(job_id, spec.entrypoint, b"", key=spec.key, zone=spec.zone)


def _claimed(job: JobRecord, token: int, worker: str | None, lease_ms: int, at_ms: int) -> JobRecord:
    return JobRecord(
        job.spec,
        job.sequence,
        job.created_ms,
        RUNNING,
        job.due_ms,
        token,
        job.attempts + 1,
        worker,
        lease_ms,
        at_ms,
        at_ms,
        job.error,
        job.tries,
        job.crashes,
        None,
        job.declined,
    )


def _decline(job: JobRecord, outcome: Outcome, now_ms: int) -> Declined | Died:
    declines = job.declined + 1
    if declines >= DECLINES_MAX:
        why = f"no worker understood it: {declines} claims were given back; the last time: {outcome.error}"
        return Died(outcome.job_id, outcome.token, why)
    delay_ms = outcome.delay_ms if outcome.delay_ms is not None else DECLINED_BACKOFF.delay_ms(declines)
    return Declined(outcome.job_id, outcome.token, now_ms + max(delay_ms, 1), outcome.error)


def _quarantined(crashes: int, error: str | None) -> str:
    times = "once" if crashes == 1 else f"{crashes} times"
    return f"quarantined: its worker died {times} while it worked on this job; the last time: {error}"


def _with_try(job: JobRecord, at_ms: int, how: Ending, error: str | None) -> tuple[Attempt, ...]:
    """What came to nothing so far, with the attempt that ends here."""
    ended = Attempt(job.claimed_ms, at_ms, how, job.worker, job.token, error)
    return (*job.tries[-(TRIES_MAX - 1) :], ended) if job.tries else (ended,)


def _failed_so(job: JobRecord, outcome: Outcome) -> bool:
    """Whether this very failure was told before: whoever repeats it, because it heard no answer, has its wish."""
    if outcome.error is None or outcome.cancelled:
        return False
    return any(tried.token == outcome.token and (tried.how is Ending.FAILED or _was_told(tried)) for tried in job.tries)


def _was_told(tried: Attempt) -> bool:
    """Whether somebody said that it crashed: nobody did of a lease that ran out."""
    return tried.how is Ending.CRASHED and not (tried.error or "").endswith(LEASE_RAN_OUT)


DONE_SO, LOST, MISSING = "settled", "lost", "missing"


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


def _lease_ms(c: Dequeue | LeaseZone) -> int:
    assert c.lease_ms is not None, "the engine fills in what its settings say"
    return c.lease_ms


def _exhausted(job: JobRecord) -> bool:
    return job.spec.attempts_max is not None and job.attempts >= job.spec.attempts_max
