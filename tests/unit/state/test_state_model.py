"""Every command against a slow, obvious model: answers, refusals, order, undo, replay and stored form agree."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from casque.codec.document import DocumentCodec
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
from casque.service import Outcome, OutcomeKind
from casque.service.requests import (
    Ack,
    Cancel,
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
    Reschedule,
    Retry,
    SetGate,
    Settle,
    SetZone,
)
from casque.state import (
    Admit,
    Admitted,
    Command,
    Event,
    Expire,
    Lapse,
    Limits,
    Observed,
    ObservedZone,
    PauseSchedule,
    SetSchedule,
    State,
    Tick,
)
from casque.state.admission import added_events
from casque.state.job_life import LEASE_RAN_OUT
from casque.state.settling import quarantined
from casque.types import (
    ALL_OPEN,
    Attempt,
    Backoff,
    Gate,
    JobRecord,
    JobSpec,
    JobState,
    Progress,
    Schedule,
    ScheduleSpec,
    ZoneRules,
)

WAITING = ("ready", "delayed")
ENTRYPOINTS = ("a", "b", "c")
REQUEST = st.sampled_from([None, "new", "old"])
ZONE = st.sampled_from([None, None, "x", "y", "z"])


def priority_of(job: ModelJob) -> int:
    return 0 if job.spec.fifo else job.spec.priority


@dataclass
class ModelJob:
    spec: JobSpec
    sequence: int
    state: str
    due: int
    token: int = 0
    attempts: int = 0
    beat: int | None = None
    progress: Progress | None = None
    claimed: int = 0
    crashes: int = 0
    created: int = 0
    tries: list[tuple[Any, ...]] = field(default_factory=list)

    def expired(self, at: int) -> bool:
        return self.spec.expires_ms is not None and self.created + self.spec.expires_ms <= at

    def tried(self, now: int, how: str, error: str | None) -> None:
        self.tries = [*self.tries, (self.claimed, now, how, self.token, error)]


@dataclass
class Model:
    """The rules again, as plainly as they can be written: one list, sorted whenever order matters."""

    jobs: dict[str, ModelJob] = field(default_factory=dict)
    enqueued: int = 0
    done: int = 0
    cancelled: int = 0
    purged: int = 0
    tokens: int = 0
    sequence: int = 0
    answers: dict[str, Any] = field(default_factory=dict)
    batches: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    gates: dict[str | None, Gate] = field(default_factory=dict)
    schedules: dict[str, Schedule] = field(default_factory=dict)
    rules: dict[str, ZoneRules] = field(default_factory=dict)
    zone_leases: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Token and last beat of each."""
    chosen: list[str] = field(default_factory=list)
    """What the queue itself has just claimed: whose turn it is among zones is the subject of other tests."""
    latest: int = 0
    """The latest time at which the queue was asked. A job that was due then stays so when the clock goes back."""

    def run(self, command: Command, now: int) -> Any:
        request_id = getattr(command, "request_id", None)
        if request_id is not None and request_id in self.answers:
            kind, answer = self.answers[request_id]
            if kind == "dequeue":
                return [p for p in answer if p[0] in self.jobs and self.holds(*p)]
            if kind == "leasezone":
                zone = getattr(command, "zone", "")
                return answer if answer == self.zone_leases.get(zone, (0,))[0] else None
            return answer
        answer, changed = self.act(command, now)
        if request_id is not None and changed:
            self.answers[request_id] = (type(command).__name__.lower(), answer)
        return answer

    def claimable(
        self,
        entrypoints: tuple[str, ...] | None,
        zones: tuple[str, ...] | None,
        now: int,
        *,
        own: str | None = None,
    ) -> list[ModelJob]:
        return [
            job
            for job in self.jobs.values()
            if (job.state == "ready" or (job.state == "delayed" and job.due <= max(now, self.latest)))
            and (entrypoints is None or job.spec.entrypoint in entrypoints)
            and (zones is None or job.spec.zone in zones)
            and not self.stands(Gate.PAUSED, job.spec.entrypoint)
            and not self.held_back(job, now)
            and (job.spec.zone not in self.zone_leases or job.spec.zone == own)
        ]

    def peek(self, entrypoints: tuple[str, ...] | None, now: int) -> list[tuple[int, str]]:
        """The zones that have a job which is due and may be had, by vesting time."""
        due: dict[str, int] = {}
        for job in self.claimable(entrypoints, None, now):
            if (zone := job.spec.zone) is not None:
                due[zone] = min(job.due, due.get(zone, job.due))
        return sorted((at, zone) for zone, at in due.items())

    def held_back(self, job: ModelJob, now: int) -> bool:
        """By the rules of its zone, or by those who come before it in a FIFO zone."""
        zone = [j for j in self.jobs.values() if j.spec.zone == job.spec.zone]
        running = sum(j.state == "running" for j in zone)
        rules = self.rules.get(job.spec.zone or "", ZoneRules())
        if rules.paused or (rules.running_max is not None and running >= rules.running_max):
            return True
        if not job.spec.fifo:
            return False
        later = any(j.state == "delayed" and j.due > max(now, self.latest) for j in zone)
        waiting = [j.sequence for j in zone if j.state in WAITING]
        return bool(running) or later or job.sequence != min(waiting)

    def stands(self, gate: Gate, entrypoint: str) -> bool:
        return gate in (self.gates.get(None), self.gates.get(entrypoint))

    def holds(self, job_id: str, token: int) -> bool:
        return self.jobs[job_id].token == token and self.jobs[job_id].state == "running"

    def holder_of(self, key: str | None) -> str | None:
        return next((i for i, j in self.jobs.items() if key and j.spec.key == key and j.state != "dead"), None)

    def check_zones(self, specs: list[JobSpec] | tuple[JobSpec, ...]) -> None:
        kinds = {(j.spec.zone, j.spec.fifo) for j in self.jobs.values()} | {(s.zone, s.fifo) for s in specs}
        if any(s.zone and {(s.zone, True), (s.zone, False)} <= kinds for s in specs):
            raise InvalidInputError("zone")
        if any(s.fifo and (s.zone is None or s.run_at_ms is not None) for s in specs):
            raise InvalidInputError("fifo")

    def act(self, command: Command, now: int) -> tuple[Any, bool]:
        match command:
            case Enqueue(specs=specs):
                ids = [s.id for s in specs]
                if len(set(ids)) != len(ids) or any(i in self.jobs for i in ids):
                    raise InvalidInputError("id")
                added = [s for s in specs if self.holder_of(s.key) is None]
                if any(self.stands(Gate.DRAINING, s.entrypoint) for s in added):
                    raise QueueDrainingError
                self.check_zones(specs)
                out = []
                for spec in specs:
                    holder = self.holder_of(spec.key)
                    if holder is None:
                        later = spec.run_at_ms is not None and spec.run_at_ms > now
                        self.sequence += 1
                        self.enqueued += 1
                        self.jobs[spec.id] = ModelJob(
                            spec,
                            self.sequence,
                            "delayed" if later else "ready",
                            (spec.run_at_ms or 0) if later else now,
                            created=now,
                        )
                        holder = spec.id
                    out.append(holder)
                return out, True
            case Admit(source=source, batch=batch, specs=specs, skip_known=skip_known):
                last, jobs, skipped = self.batches.get(source, (-1, 0, 0))
                if batch <= last:
                    return (jobs, skipped, True) if batch == last else (0, 0, True), False
                ids = [row.id for row in specs]
                if not skip_known and (len(set(ids)) < len(ids) or any(one in self.jobs for one in ids)):
                    raise InvalidInputError("id")
                left: list[JobSpec] = []
                for row in specs:
                    if row.id in self.jobs or row.id in [one.id for one in left]:
                        continue
                    if self.holder_of(row.key) is None and (row.key or "") not in [one.key for one in left]:
                        left.append(row)
                if any(self.stands(Gate.DRAINING, row.entrypoint) for row in left):
                    raise QueueDrainingError
                self.check_zones(specs)
                self.act(Enqueue(tuple(left)), now)
                self.batches[source] = batch, len(left), len(specs) - len(left)
                return (len(left), len(specs) - len(left), False), True
            case Dequeue(entrypoints=entrypoints, limit=limit, zones=zones, zone_lease=shown):
                own = None if shown is None else shown[0]
                if shown is not None:
                    if self.zone_leases.get(shown[0], (0,))[0] != shown[1]:
                        raise ZoneLeaseLostError(*shown)
                    zones = shown[:1]
                self.act(Lapse(), now)
                pairs = []
                for chosen in self.chosen:
                    ready = self.claimable(entrypoints, zones, now, own=own)
                    job = self.jobs[chosen]
                    assert job in ready, f"{chosen} may not be claimed now"
                    assert priority_of(job) == min(map(priority_of, ready)), "a better priority waits"
                    same = [j for j in ready if j.spec.zone == job.spec.zone and priority_of(j) == priority_of(job)]
                    assert job is min(same, key=lambda j: (j.due, j.sequence)), "another of its zone comes first"
                    self.tokens += 1
                    job.state, job.token, job.beat, job.claimed = "running", self.tokens, now, now
                    job.progress = None
                    job.attempts += 1
                    pairs.append((job.spec.id, job.token))
                assert len(pairs) == limit or not self.claimable(entrypoints, zones, now), "somebody waits in vain"
                return pairs, bool(pairs)
            case Ack(job_id=job_id, token=token):
                self.leased(job_id, token, any_holder=True)
                del self.jobs[job_id]
                self.done += 1
                return None, True
            case Nack(job_id=job_id, token=token, delay_ms=delay, backoff=backoff, error=error):
                job = self.leased(job_id, token, any_holder=True)
                if job.state != "running":
                    return None, False
                job.tried(now, "failed", error)
                if job.spec.max_attempts is not None and job.attempts >= job.spec.max_attempts:
                    job.state, job.beat = "dead", None
                else:
                    wait = delay if delay is not None else backoff.delay_ms(job.attempts) if backoff else 0
                    job.state, job.due, job.beat = ("delayed" if wait else "ready"), now + max(wait, 1), None
                return None, True
            case Settle(outcomes=outcomes):
                answers: list[type | None] = []
                for o in outcomes:
                    told = self.jobs.get(o.job_id)
                    before = [t for t in told.tries if t[3] == o.token] if told else []
                    if o.error and o.how != "cancelled" and any(map(was_told, before)):
                        answers.append(None)  # it was told before
                        continue
                    mine = told if told and self.holds(o.job_id, o.token) else None
                    if mine and o.how == "final":
                        mine.tried(now, "failed", o.error)
                        mine.state, mine.beat = "dead", None
                        answers.append(None)
                        continue
                    counted = mine and (o.how != "crashed" or mine.spec.max_crashes)
                    if mine and counted and o.how in ("snoozed", "cancelled", "crashed"):
                        if o.how == "cancelled":
                            del self.jobs[o.job_id]
                            self.cancelled += 1
                        elif o.how == "snoozed":
                            wait = o.delay_ms or 0
                            mine.state, mine.due = ("delayed" if wait else "ready"), now + max(wait, 1)
                            mine.beat, mine.attempts = None, mine.attempts - 1
                        else:
                            self.crash(mine, now, o.error or "", o.delay_ms or 0)
                        answers.append(None)
                        continue
                    failed = o.error and o.how != "cancelled"
                    one = Nack(o.job_id, o.token, o.delay_ms, o.backoff, o.error) if failed else Ack(o.job_id, o.token)
                    try:
                        self.act(one, now)
                        answers.append(None)
                    except CasqueError as error:
                        answers.append(type(error))
                return answers, None in answers
            case Heartbeat(job_id=job_id, token=token, progress=progress):
                job = self.leased(job_id, token, any_holder=False)
                job.beat = max(now, (job.beat or 0) + 1)
                job.progress = progress or job.progress
                return None, True
            case GiveBack(job_id=job_id, token=token):
                if job_id in self.jobs and self.holds(job_id, token):
                    job = self.jobs[job_id]
                    job.state, job.beat, job.attempts = "ready", None, job.attempts - 1
                return None, True
            case Cancel(job_id=job_id):
                job = self.there(job_id)
                if job.state == "dead":
                    raise JobStateError(job_id, "", "")
                del self.jobs[job_id]
                self.cancelled += 1
                return None, True
            case Retry(job_id=job_id):
                job = self.there(job_id)
                if job.state != "dead":
                    raise JobStateError(job_id, "", "")
                if job.expired(now):
                    raise InvalidInputError("expired")
                if self.holder_of(job.spec.key) is not None:
                    raise DuplicateKeyError("", "")
                job.state, job.due, job.attempts, job.crashes = "ready", now, 0, 0
                return None, True
            case Reschedule(job_id=job_id, run_at_ms=run_at, priority=priority):
                job = self.there(job_id)
                if job.state not in WAITING:
                    raise JobStateError(job_id, "", "")
                if run_at is not None and run_at > now and job.spec.fifo:
                    raise InvalidInputError("fifo")
                if run_at is not None and job.expired(max(run_at, now)):
                    raise InvalidInputError("expired")
                if run_at is not None:
                    job.state, job.due = ("delayed" if run_at > now else "ready"), max(run_at, now)
                    job.spec = msgspec.structs.replace(job.spec, run_at_ms=run_at)
                if priority is not None:
                    job.spec = msgspec.structs.replace(job.spec, priority=priority)
                return None, True
            case Purge(entrypoint=entrypoint):
                gone = [
                    i for i, j in self.jobs.items() if j.state == "dead" and entrypoint in (None, j.spec.entrypoint)
                ]
                for job_id in gone:
                    del self.jobs[job_id]
                self.purged += len(gone)
                return len(gone), bool(gone)
            case Lapse():
                gone = [i for i, j in self.jobs.items() if j.state in WAITING and j.expired(now)]
                for job_id in gone:
                    del self.jobs[job_id]
                self.cancelled += len(gone)
                return len(gone), bool(gone)
            case SetGate(gate=gate, entrypoint=entrypoint):
                changed = self.gates.get(entrypoint, Gate.OPEN) is not gate
                self.gates[entrypoint] = gate
                return None, changed
            case SetZone(zone=zone, rules=rules):
                changed = self.rules.get(zone, ZoneRules()) != rules
                self.rules[zone] = rules
                return None, changed
            case LeaseZone(zone=zone):
                if zone in self.zone_leases or not any(j.spec.zone == zone for j in self.jobs.values()):
                    return None, False
                self.tokens += 1
                self.zone_leases[zone] = self.tokens, now
                return self.tokens, True
            case HeartbeatZone(zone=zone, token=beaten):
                if self.zone_leases.get(zone, (0,))[0] != beaten:
                    raise ZoneLeaseLostError(zone, beaten)
                self.zone_leases[zone] = beaten, max(now, self.zone_leases[zone][1] + 1)
                return None, True
            case ReleaseZone(zone=zone, token=released):
                if self.zone_leases.get(zone, (0,))[0] == released:
                    del self.zone_leases[zone]
                return None, True
            case Expire(leases=leases):
                n = 0
                for seen in leases:
                    if isinstance(seen, ObservedZone):
                        if self.zone_leases.get(seen.zone) == (seen.token, seen.beat_ms):
                            del self.zone_leases[seen.zone]
                            n += 1
                        continue
                    held = self.jobs.get(seen.job_id)
                    if held and held.state == "running" and (held.token, held.beat) == (seen.token, seen.beat_ms):
                        keeps_place = all(tried[2] == "failed" for tried in held.tries)
                        if held.spec.max_crashes:
                            place = held.due
                            self.crash(held, now, LEASE_RAN_OUT, 0)
                            if keeps_place and held.state != "dead":
                                held.due = place
                            n += 1
                            continue
                        exhausted = held.spec.max_attempts is not None and held.attempts >= held.spec.max_attempts
                        held.tried(now, "expired", LEASE_RAN_OUT)
                        held.state, held.beat = ("dead" if exhausted else "ready"), None
                        if not exhausted and not keeps_place:
                            held.due = now + 1
                        n += 1
                return n, True
            case SetSchedule(spec=planned, next_ms=next_ms):
                there = self.schedules.get(planned.name)
                if there is None:
                    self.schedules[planned.name] = Schedule(planned, next_ms)
                elif there.spec.cron != planned.cron and next_ms <= (there.last_ms or 0):
                    return None, False
                elif there.spec != planned:
                    keeps = there.spec.cron == planned.cron
                    self.schedules[planned.name] = Schedule(
                        planned, there.next_ms if keeps else next_ms, there.paused, there.last_ms
                    )
                return self.schedules[planned.name], True
            case PauseSchedule(name=name, paused=paused, next_ms=next_ms):
                there = self.planned(name)
                if there.paused and not paused:
                    if next_ms <= (there.last_ms or 0):
                        return None, False
                    there = Schedule(there.spec, next_ms, False, there.last_ms)
                self.schedules[name] = msgspec.structs.replace(there, paused=paused)
                return self.schedules[name], True
            case DropSchedule(name=name):
                del self.schedules[self.planned(name).name]
                return None, True
            case Tick(name=name, tick_ms=tick_ms, next_ms=next_ms, job=new):
                there = self.schedules.get(name)
                if there is None or there.paused or there.next_ms != tick_ms:
                    return False, False
                adds = new is not None and new.id not in self.jobs and self.holder_of(new.key) is None
                adds = adds and not self.stands(Gate.DRAINING, "a")
                if new is not None and adds:
                    self.act(Enqueue((new,)), now)
                last_ms = tick_ms if adds else there.last_ms
                self.schedules[name] = Schedule(there.spec, next_ms, False, last_ms)
                return True, True
        raise AssertionError(command)

    def planned(self, name: str) -> Schedule:
        if name not in self.schedules:
            raise ScheduleNotFoundError(name)
        return self.schedules[name]

    def crash(self, job: ModelJob, now: int, error: str, wait: int) -> None:
        job.attempts, job.crashes, job.beat = job.attempts - 1, job.crashes + 1, None
        if job.crashes == job.spec.max_crashes:
            job.state = "dead"
            job.tried(now, "crashed", quarantined(job.crashes, error))
        else:
            job.state, job.due = ("delayed" if wait else "ready"), now + max(wait, 1)
            job.tried(now, "crashed", error)

    def there(self, job_id: str) -> ModelJob:
        if job_id not in self.jobs:
            raise JobNotFoundError(job_id)
        return self.jobs[job_id]

    def leased(self, job_id: str, token: int | None, *, any_holder: bool) -> ModelJob:
        job = self.there(job_id)
        if token is None and any_holder:
            if job.state == "dead":
                raise JobStateError(job_id, "", "")
        elif job.state != "running" or (token is not None and job.token != token):
            raise LeaseLostError(job_id, token)
        return job


class StateAgainstModel(RuleBasedStateMachine):
    """Commands in batches; each batch is committed or undone."""

    zoned = False

    @initialize()
    def start(self) -> None:
        self.state = State()
        self.replica = State()
        self.model = Model()
        self.before = copy.deepcopy(self.model)
        self.now = 1_000
        self.ids = 0
        self.batch = 0
        self.known: list[str] = []
        self.requests: dict[str, Command] = {}
        self.staged: dict[tuple[str, int], list[JobSpec]] = {}

    # --- Time and batches ---

    @precondition(lambda self: not self.state.events)  # a batch is decided at one moment
    @rule(ms=st.integers(-3, 40))
    def time_passes(self, ms: int) -> None:
        self.now += ms  # a writer's wall clock may well step back
        self.model.latest = self.before.latest = max(self.model.latest, self.now)

    @rule()
    def commit(self) -> None:
        events: list[Event] = []
        for event in self.state.stored_events():
            events.append(event)
            if isinstance(event, Admitted):  # as whoever reads it does
                events += added_events(event, self.staged[event.source, event.batch], self.now)
        self.batch += 1
        self.state.commit(writer="w", batch=self.batch, at_ms=self.now)
        self.replica.replay(events, writer="w", batch=self.batch, at_ms=self.now)
        self.before = copy.deepcopy(self.model)

    @rule()
    def lose_the_race(self) -> None:
        self.state.rollback()
        self.model = copy.deepcopy(self.before)
        assert not self.state.events

    # --- Commands ---

    @rule(
        entrypoints=st.lists(st.sampled_from(ENTRYPOINTS), min_size=1, max_size=3),
        priority=st.integers(-1, 2),
        delay=st.sampled_from([None, -5, 0, 10, 30]),
        attempts=st.sampled_from([None, 1, 2]),
        crashes=st.sampled_from([None, None, 1, 2]),
        expires=st.sampled_from([None, None, 1, 12, 40]),
        key=st.sampled_from([None, None, "k1", "k2"]),
        zone=ZONE,
        fifo=st.sampled_from([False, False, True]),
        repeat_id=st.booleans(),
        request=REQUEST,
    )
    def enqueue(
        self,
        entrypoints: list[str],
        priority: int,
        delay: int | None,
        attempts: int | None,
        crashes: int | None,
        expires: int | None,
        key: str | None,
        zone: str | None,
        fifo: bool,
        repeat_id: bool,
        request: str | None,
    ) -> None:
        zone, fifo = (zone, fifo) if self.zoned else (None, False)
        specs = []
        for name in entrypoints:
            self.ids += 1
            job_id = self.known[-1] if repeat_id and self.known and self.ids % 7 == 0 else f"j{self.ids}"
            run_at = None if delay is None else self.now + delay
            specs.append(
                JobSpec(
                    job_id,
                    name,
                    b"p",
                    priority,
                    run_at,
                    attempts,
                    key,
                    None,
                    zone,
                    max_crashes=crashes,
                    fifo=fifo,
                    tags=(name,) if self.ids % 2 else (),
                    expires_ms=expires,
                )
            )
        self.both(Enqueue(tuple(specs)), request)
        self.known.extend(spec.id for spec in specs)

    @rule(
        rows=st.lists(
            st.tuples(
                st.sampled_from(ENTRYPOINTS),
                st.sampled_from([None, -5, 10]),
                st.sampled_from([None, None, "k1", "k2"]),
                st.booleans(),
                ZONE,
            ),
            min_size=1,
            max_size=4,
        ),
        source=st.sampled_from(["s", "t"]),
        ahead=st.integers(-1, 2),
        skip_known=st.booleans(),
        fifo=st.sampled_from([False, False, True]),
        then=st.sampled_from(["seen", "commit", "lost"]),
    )
    def admit(
        self,
        rows: list[tuple[str, int | None, str | None, bool, str | None]],
        source: str,
        ahead: int,
        skip_known: bool,
        fifo: bool,
        then: str,
    ) -> None:
        specs = []
        fifo = fifo and self.zoned
        for name, delay, key, repeats, zone in rows:
            self.ids += 1
            job_id = self.known[-1] if repeats and self.known and self.ids % 3 == 0 else f"j{self.ids}"
            run_at = None if delay is None else self.now + delay
            place = zone if self.zoned else None
            expires = 15 if self.ids % 3 == 1 else None
            specs.append(JobSpec(job_id, name, b"p", 0, run_at, 2, key, zone=place, fifo=fifo, expires_ms=expires))
        batch = max(self.model.batches.get(source, (0, 0, 0))[0] + ahead, 0)
        if batch > self.model.batches.get(source, (-1, 0, 0))[0]:
            self.staged[source, batch] = specs
        ids = {spec.id for spec in specs}
        keyed = any(spec.key is not None for spec in specs)
        self.both(Admit(source, batch, (), specs, ids, keyed, skip_known, fifo=fifo), None)
        self.known.extend(spec.id for spec in specs)
        if then == "seen":
            self.state.carry_out(self.now)
        elif then == "commit":
            self.commit()
        else:
            self.lose_the_race()

    @rule(
        entrypoints=st.one_of(st.none(), st.lists(st.sampled_from(ENTRYPOINTS), min_size=1, max_size=2, unique=True)),
        limit=st.integers(1, 4),
        zones=st.sampled_from([None, None, None, ("y",), ("x", "y"), ("never",)]),
        request=REQUEST,
    )
    def dequeue(
        self, entrypoints: list[str] | None, limit: int, zones: tuple[str, ...] | None, request: str | None
    ) -> None:
        names = None if entrypoints is None else tuple(entrypoints)
        self.both(Dequeue(names, limit, 50, "worker", None, zones if self.zoned else None), request)

    @precondition(lambda self: self.zoned)
    @rule(
        zone=st.sampled_from(["x", "y", "z"]),
        rules=st.sampled_from(
            [ZoneRules(), ZoneRules(), ZoneRules(paused=True), ZoneRules(2.5, running_max=1), ZoneRules(0.5)]
        ),
        request=REQUEST,
    )
    def set_zone(self, zone: str, rules: ZoneRules, request: str | None) -> None:
        self.both(SetZone(zone, rules), request)

    @precondition(lambda self: self.zoned)
    @rule(
        zone=st.sampled_from(["x", "y", "z"]),
        verb=st.sampled_from(["lease", "lease", "beat", "release", "expire", "dequeue", "dequeue"]),
        wrong=st.sampled_from([0, 0, 0, 1]),
        limit=st.integers(1, 4),
        request=REQUEST,
    )
    def lease_of_a_zone(self, zone: str, verb: str, wrong: int, limit: int, request: str | None) -> None:
        token, beat_ms = self.model.zone_leases.get(zone, (1, 0))
        match verb:
            case "lease":
                self.both(LeaseZone(zone, 50, "worker"), request)
            case "beat":
                self.both(HeartbeatZone(zone, token + wrong), None)
            case "release":
                self.both(ReleaseZone(zone, token + wrong), None)
            case "expire":
                self.both(Expire((ObservedZone(zone, token, beat_ms + wrong),)), None)
            case "dequeue":
                command = Dequeue(None, limit, 50, "worker", zone_lease=(zone, token + wrong))
                if self.model.zone_leases.get(zone, (0,))[0] == token + wrong:
                    self.both(command, None)
                else:
                    with pytest.raises(ZoneLeaseLostError):
                        self.state.execute(command, self.now)

    @precondition(lambda self: self.zoned)
    @rule(entrypoints=st.sampled_from([None, ("a",), ("b", "c")]), limit=st.integers(1, 3), narrow=st.booleans())
    def peek(self, entrypoints: tuple[str, ...] | None, limit: int, narrow: bool) -> None:
        names = frozenset({"x", "z"}) if narrow else None
        seen = self.state.peek(entrypoints, names, limit, self.now)
        expected = [one for one in self.model.peek(entrypoints, self.now) if names is None or one[1] in names]
        assert [(one.next_ms, one.zone) for one in seen if one.due] == expected[:limit]
        later = [one for one in seen if not one.due]
        assert not later or len(expected) < limit
        for one in later:
            assert one.next_ms > self.now
            assert one.zone not in self.model.zone_leases
            assert any(
                j.spec.zone == one.zone and j.state == "delayed" and j.due == one.next_ms
                for j in self.model.jobs.values()
            )

    @precondition(lambda self: self.known)
    @rule(
        data=st.data(),
        verb=st.sampled_from(["ack", "nack", "beat", "back"]),
        request=REQUEST,
    )
    def lease_verb(self, data: st.DataObject, verb: str, request: str | None) -> None:
        job_id = data.draw(st.sampled_from(self.known))
        current = self.model.jobs[job_id].token if job_id in self.model.jobs else 1
        token = data.draw(st.sampled_from([None, current, current, max(current - 1, 0), current + 1]))
        command: Command
        if verb == "ack":
            command = Ack(job_id, token)
        elif verb == "nack":
            delay = data.draw(st.sampled_from([None, 0, 20]))
            backoff = data.draw(st.sampled_from([None, Backoff(10, 35, 0.5)]))
            command = Nack(job_id, token, delay, backoff, "boom")
        elif verb == "beat":
            progress = data.draw(st.sampled_from([None, Progress(1), Progress(2, 3, "of them")]))
            command, request = Heartbeat(job_id, token, progress), None
        else:
            command, request = GiveBack(job_id, token or 0), None
        self.both(command, request)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), count=st.integers(1, 4), request=REQUEST)
    def settle(self, data: st.DataObject, count: int, request: str | None) -> None:
        outcomes = []
        for _ in range(count):
            job_id = data.draw(st.sampled_from([*self.known, "never"]))
            current = self.model.jobs[job_id].token if job_id in self.model.jobs else 1
            token = data.draw(st.sampled_from([current, current, max(current - 1, 0)]))
            how = data.draw(st.sampled_from(["done", "done", "failed", "final", "crashed", "snoozed", "cancelled"]))
            error = None if how in ("done", "snoozed") else "boom"
            delay_ms = data.draw(st.sampled_from([None, 20])) if how not in ("done", "cancelled") else None
            said = None if how in ("done", "failed") and data.draw(st.booleans()) else OutcomeKind(how)
            outcomes.append(Outcome(job_id, token, error, delay_ms=delay_ms, how=said))
        self.both(Settle(tuple(outcomes)), request)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), verb=st.sampled_from(["cancel", "retry"]), request=REQUEST)
    def manage(self, data: st.DataObject, verb: str, request: str | None) -> None:
        job_id = data.draw(st.sampled_from([*self.known, "never"]))
        self.both(Cancel(job_id) if verb == "cancel" else Retry(job_id), request)

    @precondition(lambda self: self.known)
    @rule(
        data=st.data(),
        ahead=st.sampled_from([None, -5, 0, 10, 30]),
        priority=st.sampled_from([None, -1, 0, 2]),
        request=REQUEST,
    )
    def reschedule(self, data: st.DataObject, ahead: int | None, priority: int | None, request: str | None) -> None:
        job_id = data.draw(st.sampled_from([*self.known, "never"]))
        self.both(Reschedule(job_id, None if ahead is None else self.now + ahead, priority), request)

    @rule(entrypoint=st.sampled_from([None, "a"]), request=REQUEST)
    def purge(self, entrypoint: str | None, request: str | None) -> None:
        self.both(Purge(entrypoint), request)

    @rule(
        gate=st.sampled_from([Gate.OPEN, Gate.OPEN, Gate.PAUSED, Gate.DRAINING]),
        entrypoint=st.sampled_from([None, "a", "b"]),
        request=REQUEST,
    )
    def set_gate(self, gate: Gate, entrypoint: str | None, request: str | None) -> None:
        self.both(SetGate(gate, entrypoint), request)

    @rule()
    def lapse(self) -> None:
        self.both(Lapse(), None)

    @rule(wrong=st.booleans())
    def expire(self, wrong: bool) -> None:
        leases = [Observed(j.id, j.token + wrong, j.beat_ms) for j in self.state.leases()]
        self.both(Expire(tuple(leases)), None)

    @rule(
        verb=st.sampled_from(["set", "set", "pause", "resume", "drop"]),
        name=st.sampled_from(["s1", "s2"]),
        cron=st.sampled_from(["@daily", "@hourly"]),
        payload=st.sampled_from([b"", b"x"]),
        ahead=st.integers(-20, 40),
    )
    def schedule(self, verb: str, name: str, cron: str, payload: bytes, ahead: int) -> None:
        match verb:
            case "set":
                spec = ScheduleSpec(name, cron, JobSpec("", "a", payload, key="k1" if name == "s2" else None))
                self.both(SetSchedule(spec, self.now + ahead), None)
            case "drop":
                self.both(DropSchedule(name), None)
            case _:
                self.both(PauseSchedule(name, verb == "pause", self.now + ahead), None)

    @precondition(lambda self: self.state.schedules)
    @rule(data=st.data(), late=st.sampled_from([0, 0, 0, 1]), ahead=st.integers(1, 20), empty=st.booleans())
    def tick(self, data: st.DataObject, late: int, ahead: int, empty: bool) -> None:
        schedule = data.draw(st.sampled_from(sorted(self.state.schedules.values(), key=lambda one: one.name)))
        tick_ms = schedule.next_ms + late
        job = msgspec.structs.replace(schedule.spec.job, id=f"{schedule.name}@{tick_ms}")
        self.known.append(job.id)
        self.both(Tick(schedule.name, tick_ms, tick_ms + ahead, None if empty else job), None)

    # --- Both sides at once ---

    def both(self, command: Command, request: str | None) -> None:
        command = self.with_request(command, request)
        expected: Any
        untouched = copy.deepcopy(self.model)
        if isinstance(command, Dequeue):
            answer = self.state.execute(command, self.now)
            self.model.chosen = [job.id for job in answer]
            assert [(job.id, job.token) for job in answer] == self.model.run(command, self.now)
            return
        try:
            expected = self.model.run(command, self.now)
        except CasqueError as error:
            expected = error
            self.model = untouched
        events = len(self.state.events)
        try:
            answer = self.state.execute(command, self.now)
        except CasqueError as error:
            assert type(error) is type(expected), (error, expected)  # noqa: PT017
            assert len(self.state.events) == events, "a refused command left an event"
            return
        assert not isinstance(expected, CasqueError), (answer, expected)
        match command:
            case Enqueue():
                assert [job.id for job in answer] == expected
            case Admit():
                assert (answer.jobs, answer.skipped, answer.repeated) == expected
            case Settle():
                assert [None if one is None else type(one) for one in answer] == expected
            case Purge() | Expire() | Lapse() | SetSchedule() | PauseSchedule() | Tick():
                assert answer == expected
            case LeaseZone():
                assert (None if answer is None else answer.token) == expected

    def with_request(self, command: Command, request: str | None) -> Command:
        if request is None:
            return command
        kind = type(command).__name__
        old = [r for r, c in self.requests.items() if type(c).__name__ == kind and r in self.model.answers]
        if request == "old" and old:
            return self.requests[old[-1]]
        request_id = f"r{len(self.requests)}"
        fields = {name: getattr(command, name) for name in command.__struct_fields__}
        repeated: Command = type(command)(**{**fields, "request_id": request_id})
        self.requests[request_id] = repeated
        return repeated

    @invariant()
    def the_state_is_what_the_model_says(self) -> None:
        self.state.check()
        assert summary(self.state) == {
            i: (j.state, j.due, j.token, j.attempts, j.crashes, j.beat, j.beat and j.progress, j.sequence, j.tries)
            for i, j in self.model.jobs.items()
        }
        gates = self.model.gates
        assert self.state.gates.queue is gates.get(None, Gate.OPEN)
        assert self.state.gates.entrypoints == {
            name: gate for name, gate in gates.items() if name is not None and gate is not Gate.OPEN
        }
        assert self.state.schedules == self.model.schedules
        assert self.state.rules == {zone: rules for zone, rules in self.model.rules.items() if rules != ZoneRules()}
        assert self.state.zone_jobs == Counter(j.spec.zone for j in self.model.jobs.values() if j.spec.zone)
        leases = {zone: (one.token, one.beat_ms) for zone, one in self.state.zone_leases.items()}
        assert leases == self.model.zone_leases
        waiting = [j for j in self.model.jobs.values() if j.state in WAITING]
        lapses = [j.created + j.spec.expires_ms for j in waiting if j.spec.expires_ms is not None]
        assert self.state.next_lapse_ms() == min(lapses, default=None)
        awake = [one.next_ms for one in self.model.schedules.values() if not one.paused]
        assert self.state.next_tick_ms() == min(awake, default=None)
        t = self.state.totals(self.now)
        assert t.enqueued == t.ready + t.delayed + t.running + t.done + t.dead + t.cancelled + t.purged
        m = self.model
        assert (t.enqueued, t.done, t.cancelled, t.purged) == (m.enqueued, m.done, m.cancelled, m.purged)
        assert t.dead == sum(j.state == "dead" for j in m.jobs.values())
        assert t.running == sum(j.state == "running" for j in m.jobs.values())

    @invariant()
    def a_committed_state_survives_replay_and_storage(self) -> None:
        if self.state.events:
            return
        assert self.replica.jobs == self.state.jobs
        assert self.replica.counters == self.state.counters
        assert self.replica.keys == self.state.keys
        assert self.replica.gates == self.state.gates
        assert list(self.replica.admissions.items()) == list(self.state.admissions.items())
        assert list(self.replica.schedules.items()) == list(self.state.schedules.items())
        codec = DocumentCodec("queue.json", "q")
        codec.touch(self.state.jobs)
        body = codec.encode(self.state, version=self.state.position, writers=self.state.writers)
        again = DocumentCodec("queue.json", "other").decode(body, Limits())
        assert again.jobs == self.state.jobs
        assert again.counters == self.state.counters
        assert again.requests == self.state.requests
        assert again.admissions == self.state.admissions
        assert again.gates == self.state.gates
        assert again.schedules == self.state.schedules
        assert again.position == self.state.position
        assert again.rules == self.replica.rules == self.state.rules
        assert again.zone_jobs == self.replica.zone_jobs == self.state.zone_jobs
        assert again.zone_leases == self.replica.zone_leases == self.state.zone_leases
        again.facets.gates.restore(again, ALL_OPEN)
        again.facets.rules.restore(again, {})
        again.facets.zone_leases.restore(again, [])
        assert drained(again, self.now) == drained(copy_of(self.state), self.now)


def summary(state: State) -> dict[str, tuple[Any, ...]]:
    return {
        i: (
            j.state.value,
            j.due_ms,
            j.token,
            j.attempts,
            j.crashes,
            j.beat_ms,
            j.progress,
            j.sequence,
            list(map(told, j.tries)),
        )
        for i, j in state.jobs.items()
    }


def was_told(tried: tuple[Any, ...]) -> bool:
    """Whether a worker said so, or nobody did because it had fallen silent."""
    return tried[2] == "failed" or (tried[2] == "crashed" and not tried[4].endswith(LEASE_RAN_OUT))


def told(tried: Attempt) -> tuple[Any, ...]:
    return (tried.claimed_ms, tried.ended_ms, tried.how.value, tried.token, tried.error)


def copy_of(state: State) -> State:
    fresh = State()
    fresh.restore(list(state.jobs.values()), copy.deepcopy(state.counters), state.position)
    return fresh


def drained(state: State, now: int) -> list[str]:
    """The order in which everything due would be claimed."""
    claimed: list[JobRecord] = state.execute(Dequeue(None, 1000, 1), now)
    return [job.id for job in claimed]


def test_a_delayed_job_whose_cancellation_was_undone_is_counted_once() -> None:
    state = State()
    state.execute(Enqueue((JobSpec("1", "a", b"", run_at_ms=500),)), 100)
    state.commit(writer="w", batch=1, at_ms=100)
    state.execute(Cancel("1"), 100)
    state.rollback()
    assert (state.totals(100).ready, state.totals(100).delayed) == (0, 1)
    assert (state.totals(500).ready, state.totals(500).delayed) == (1, 0)
    assert len(state.execute(Dequeue(("a",), 10, 1), 500)) == 1


def test_a_state_restored_from_storage_counts_its_delayed_jobs() -> None:
    state = State()
    state.execute(Enqueue((JobSpec("1", "a", b"", run_at_ms=500), JobSpec("2", "a", b""))), 100)
    assert state.jobs["1"].state is JobState.DELAYED
    assert (state.totals(100).ready, state.totals(100).delayed) == (1, 1)
    assert (state.totals(500).ready, state.totals(500).delayed) == (2, 0)


StateAgainstModel.TestCase.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
TestStateAgainstModel = StateAgainstModel.TestCase


class ZonesAgainstModel(StateAgainstModel):
    """The same, with zones."""

    zoned = True


ZonesAgainstModel.TestCase.settings = StateAgainstModel.TestCase.settings
TestZonesAgainstModel = ZonesAgainstModel.TestCase
