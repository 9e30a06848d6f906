"""From one version of the queue to the next: every difference has a cause, and every cause was allowed to have it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from casque.codec.blobs import missing_blob
from casque.codec.log import replay
from casque.engine.ticker import SCHEDULE_HEADER, TICK_HEADER
from casque.errors import CorruptQueueError
from casque.state import State
from casque.state.job_life import LEASE_RAN_OUT
from casque.state.request_ids import scope_of
from casque.storage.port import Stored
from casque.types import PLAIN_RULES, Ending, Gate, JobRecord, JobSpec, JobState, Schedule, ZoneRules, to_ms
from simulation.world.asked import FIFO_ZONES, IN_A_COPY, NOT_THEIRS, Request, Told, Verb
from simulation.world.broker import ANYBODY
from simulation.world.calendar import STEADY, ticks_between
from simulation.world.history import Claim, Fate, History, Key, Line, order
from simulation.world.invariants import Invariant
from simulation.world.layout import Layout
from simulation.world.limits import DECLINES_MAX, REQUESTS_MAX
from simulation.world.onlooker import Effect
from simulation.world.past_state import AnyState, PastState
from simulation.world.settings import last_asked
from simulation.world.shelves import Shelves
from simulation.world.stories import go_on
from simulation.world.tenancies import check_tenancies
from simulation.world.tenants import PASSED_ON, RENAMED
from simulation.world.vigils import length_s

if TYPE_CHECKING:
    from simulation.world.life import Life

WAITING = (JobState.READY, JobState.DELAYED)
CLOCK_GRAIN_S = 0.005
UNREAD = (Effect.SNAPSHOT, Effect.ARCHIVED, Effect.STAGED)
UNREAD_TRIED = 8
"""After one in so many of these a fresh reader looks whether the queue is still the same."""
RECOVERED = 8
"""One in so many commits is read by a fresh reader, even if nothing but the log has changed."""


TIME = Request(-1, Verb.CANCEL, lambda _: None)  # type: ignore[arg-type, return-value]  # nobody sends it
"""What ends a job that has expired."""


class Steps:
    """Run after every write and every deletion that lands."""

    def __init__(self, history: History, layout: Layout) -> None:
        self._history = history
        self._layout = layout
        self._onlooker = layout.onlooker(history)
        self._bodies: set[tuple[str, str]] = set()
        self._emptied: set[str] = set()
        self._recovered = False
        self.effects: Counter[Effect] = Counter()

    def landed(self, objects: Mapping[str, Stored], key: str, sender: Life) -> None:
        h = self._history
        version = (key, objects[key].etag)
        h.demand(
            version not in self._bodies or key in self._emptied,
            Invariant.ONE_HISTORY,
            lambda: f"{key} was written twice with the same bytes",
        )
        self._bodies.add(version)
        effect = self._onlooker.landed(objects, key)
        self.effects[effect] += 1
        if effect is Effect.BLOB:
            h.blobs[key] = objects[key].body
            return
        if effect in UNREAD and (self._layout.ring or self.effects[effect] % UNREAD_TRIED):
            return  # nobody reads these yet; that it is so is tried often enough
        old, new = self._follow() if self._may_follow(effect) else (h.state, self._recover(objects))
        if effect is Effect.CONVERTED:
            self._check_converted(new)
        elif effect is Effect.COMMIT:
            _Step(h, old, new, sender).check()
            self._check_payloads(objects, new)
        else:
            self._check_unchanged(old, new, f"the write of {key}", further=effect is Effect.FENCE)
        if effect in (Effect.COMMIT, Effect.CONVERTED):
            h.changed = new.position
        h.keep(new)

    def deleted(self, key: str) -> None:
        """What may be deleted is nothing that a recovery reads: there is no need to try one."""
        self._emptied.add(key)
        h = self._history
        if key in h.blobs:
            h.demand(
                all(job.spec.blob != key for job in h.state.jobs.values()),
                Invariant.PAYLOADS,
                lambda: f"{key} was deleted, and a job needs it",
            )
        self.effects[Effect.DELETION] += 1
        self._onlooker.deleted(key)

    @property
    def shelves(self) -> Shelves:
        return self._onlooker.shelves

    def archive_is_complete(self, objects: Mapping[str, Stored]) -> bool:
        return self._onlooker.archive_is_complete(objects)

    def _check_payloads(self, objects: Mapping[str, Stored], new: State) -> None:
        for job in new.jobs.values():
            self._history.demand(
                job.spec.blob is None or job.spec.blob in objects,
                Invariant.PAYLOADS,
                lambda: f"job {job.id[:8]} names {job.spec.blob}, which is not there",  # noqa: B023
            )

    def _may_follow(self, effect: Effect) -> bool:
        """Whether the state of a fresh reader is the one before it and this segment: nothing else has changed that it
        reads. Every few commits it begins anew all the same."""
        following = self._layout.follows and self._recovered and effect in (Effect.COMMIT, Effect.FENCE)
        return following and self._history.state.position % RECOVERED != 0

    def _follow(self) -> tuple[PastState, State]:
        """The state before the segment that has just landed, and after it."""
        h, new = self._history, self._history.state
        old = h.states[new.position] = PastState(new)
        replay(new, h.segments[new.position + 1])
        h.demand(new.violation() is None, Invariant.CONSERVED, lambda: str(new.violation()))
        return old, new

    def _recover(self, objects: Mapping[str, Stored]) -> State:
        h = self._history
        try:
            new = self._layout.recover(objects)
        except CorruptQueueError as error:
            h.broken(Invariant.CONSERVED, str(error))
        h.demand(new.violation() is None, Invariant.CONSERVED, lambda: str(new.violation()))
        self._onlooker.recovered(objects, new)
        self._recovered = True
        return new

    def _check_unchanged(self, old: AnyState, new: State, by: str, *, further: bool = False) -> None:
        self._history.demand(
            same_content(old, new) and new.position == old.position + further,
            Invariant.SAME_STATE,
            lambda: f"{by} changed the state without being a commit",
        )

    def _check_converted(self, new: State) -> None:
        old = self._history.state
        self._history.demand(
            same_content(old, new) and new.position >= old.position,
            Invariant.CONVERTED,
            lambda: f"the conversion changed the state of {old.position}, and is at {new.position}",
        )


class _Step:
    """One commit: the state before it, the state after it, and who sent it."""

    def __init__(self, history: History, old: AnyState, new: State, sender: Life) -> None:
        self._h = history
        self._old = old
        self._new = new
        self._sender = sender
        self._writer, self._number = next(reversed(new.writers.items()), ("nobody", 0))
        self._claimed: list[JobRecord] = []
        self._added = 0
        self._expired = 0
        self._admitted: Counter[int] = Counter()
        """How many rows of each admission came, by the number of its request."""
        self._ticked: dict[str, list[int]] = {}
        """The ticks that became jobs, by schedule."""

    def check(self) -> None:
        self._check_descent()
        old, new, h = self._old.jobs, self._new.jobs, self._h
        removed = [record for job_id, record in old.items() if job_id not in new]
        self._check_counts(removed)
        for record in removed:
            self._check_removed(record)
        for job_id, record in new.items():
            before = old.get(job_id)
            if before is None:
                self._check_added(record)
            elif before != record:
                self._check_changed(before, record)
        h.demand(
            self._added == self._new.counters.enqueued - self._old.counters.enqueued,
            Invariant.CONSERVED,
            lambda: f"{self._added} jobs appeared, and the counter says otherwise",
        )
        for request_id in self._new.requests:
            if request_id not in self._old.requests:
                h.remember(request_id)
        h.forget()
        if self._may_have_forgotten_at_once():
            h.crowded_at = h.now()
        self._check_admitted()
        self._check_schedules()
        self._check_gates()
        self._check_rules()
        check_tenancies(h, self._old, self._new, self._sender)
        if self._claimed:
            self._check_claims()
        if self._expired or any(record.state is JobState.RUNNING for record in removed):
            # One that died of it and was purged in the same commit has left no other trace.
            h.expired.append((h.now(), self._sender, self._expired + len(removed)))

    # --- The commit as a whole ---

    def _check_descent(self) -> None:
        old, new, h = self._old, self._new, self._h
        h.demand(
            new.position == old.position + 1,
            Invariant.ONE_HISTORY,
            lambda: f"position {new.position} was written over position {old.position}",
        )
        writer, number = self._writer, self._number
        expected, forgotten = old.writers_with(writer, number)
        h.demand(
            writer in self._sender.writers
            and number > old.writers.get(writer, 0)
            and (list(new.writers.items()), new.writers_forgotten) == (list(expected.items()), forgotten),
            Invariant.ONE_HISTORY,
            lambda: f"position {new.position}: the table of writers does not follow from the one before",
        )

    def _check_counts(self, removed: list[JobRecord]) -> None:
        a, b, h = self._old.counters, self._new.counters, self._h
        grown = (b.done - a.done, b.cancelled - a.cancelled, b.dead_purged - a.dead_purged)
        h.demand(
            min(*grown, b.sequence - a.sequence, b.tokens - a.tokens) >= 0 and sum(grown) == len(removed),
            Invariant.CONSERVED,
            lambda: f"{len(removed)} jobs left, the counters grew by {grown}",
        )
        found = self._new.totals(0)
        dead = sum(job.state is JobState.DEAD for job in self._new.jobs.values())
        rest = (found.ready, found.delayed, found.running, found.done, found.cancelled, found.purged)
        h.demand(
            found.dead == dead and found.enqueued == dead + sum(rest),
            Invariant.CONSERVED,
            lambda: f"{dead} jobs are dead, and the totals are {found}",
        )
        if grown[2]:
            h.purged.append((h.now(), self._sender, grown[2]))

    def _may_have_forgotten_at_once(self) -> bool:
        """Whether this commit brought so many requests of one caller that some of them pushed others out, which then
        were in no version of the queue."""
        old, new = self._old.requests, self._new.requests
        kept = {scope_of(one) for one in new if one in old}
        return len(new) >= REQUESTS_MAX and any(scope_of(one) not in kept for one in new)

    # --- A job that came ---

    def _check_added(self, record: JobRecord) -> None:
        self._added += 1
        if record.spec.headers and TICK_HEADER in record.spec.headers:
            tick = datetime.fromisoformat(record.spec.headers[TICK_HEADER])
            self._ticked.setdefault(record.spec.headers[SCHEDULE_HEADER], []).append(to_ms(tick))
        else:
            self._check_asked_for(record)
        self._check_new(record)

    def _check_asked_for(self, record: JobRecord) -> None:
        h = self._h
        blob = record.spec.blob
        if blob is not None and blob not in h.blobs:
            h.broken(Invariant.PAYLOADS, f"job {record.id[:8]} names {blob}, which was never stored")
        payload = record.spec.payload if blob is None else h.blobs[blob]
        h.payloads[record.id] = payload
        h.demand(
            payload != IN_A_COPY, Invariant.COPIED, lambda: f"job {record.id[:8]} was added to a copy, and came here"
        )
        h.demand(payload != NOT_THEIRS, Invariant.TENANTS, lambda: f"job {record.id} was added by somebody who may not")
        number, item = payload.decode().split(":")[:2]
        request = h.requests[int(number)]
        index = int(item)
        h.demand(
            request.possible,
            Invariant.ABSENT,
            lambda: f"{request} was reported as failed, and added job {record.id[:8]}",
        )
        h.demand(
            index not in request.effects or not (request.verb is Verb.ADMIT or h.must_remember(request)),
            Invariant.ONE_EFFECT,
            lambda: f"{request} added {request.effects[index][:8]} and again {record.id[:8]}",
        )
        request.effects[index] = record.id
        if request.verb is Verb.ADMIT:
            self._admitted[request.number] += 1

    def _check_new(self, record: JobRecord) -> None:
        h = self._h
        if record.spec.zone in RENAMED and (fate := h.fates.get(record.id)) is not None and fate.endings is not None:
            # A tenant chose this id. Its request was sent twice, and the second copy arrived after the queue forgot the
            # first: that is another job of the same name. `_check_asked_for` judges whether it may.
            del h.fates[record.id]
            h.by_job.pop(record.id, None)
        h.demand(record.id not in h.fates, Invariant.CONSERVED, lambda: f"job {record.id[:8]} came back from its end")
        h.demand(
            self._old.counters.sequence < record.sequence <= self._new.counters.sequence,
            Invariant.ORDER,
            lambda: f"job {record.id[:8]} got the sequence {record.sequence}",
        )
        h.demand(
            record.spec.fifo or record.spec.zone not in FIFO_ZONES,
            Invariant.FIFO,
            lambda: f"job {record.id[:8]} of {record.spec.zone} came without its place in the line",
        )
        name = record.spec.entrypoint
        self._demand_open(record, Gate.DRAINING, self._old.gates.drains(name) and self._new.gates.drains(name))
        h.fates[record.id] = Fate(record.id)
        if record.spec.expires_ms is not None:
            h.expiring.add(record.id)
        h.reached[record.id] = record.spec.entrypoint, record.spec.zone
        if record.state is JobState.RUNNING:
            self._note_claim(record, None)

    def _check_admitted(self) -> None:
        """Its rows came with this very commit, which says so; and what the commit says is what came."""
        h, old, new = self._h, self._old.admissions, self._new.admissions
        for source, last in new.items():
            if old.get(source) == last:
                continue
            request = h.requests[last.batch]
            before = old.get(source)
            # A shard of a ring admits its share of the rows, or says that it never will.
            whole = h.in_ring or (last.jobs == len(request.effects) and last.jobs + last.skipped == request.items)
            h.demand(
                (_source(source, h), last.position) == (request.source, self._new.position)
                and (before is None or before.batch < last.batch)
                and whole
                and (last.batch in self._admitted or not last.jobs),
                Invariant.ADMITTED,
                lambda: f"{request} was admitted as {last}, and brought {request.effects}",  # noqa: B023  called at once
            )
        for number, rows in self._admitted.items():
            request = h.requests[number]
            told = [
                last
                for source, last in new.items()
                if last.batch == number and _source(source, h) == request.source and old.get(source) != last
            ]
            h.demand(
                sum(last.jobs for last in told) == rows,
                Invariant.ADMITTED,
                lambda: f"{rows} jobs of {request} came, and the queue knows of the batch: {told}",  # noqa: B023
            )

    # --- Schedules ---

    def _check_schedules(self) -> None:
        """They change because somebody wanted it, and move over ticks that came with this very commit. That no tick
        becomes a job twice, in all commits together, the ids of the jobs tell."""
        h, old, new = self._h, self._old.schedules, self._new.schedules
        for name, after in new.items():
            before = old.get(name)
            ticked = sorted(self._ticked.pop(name, []))
            if before == after:
                self._demand_ticks(not ticked, name, before, after, ticked)
            elif before is None or (before.spec, before.paused) != (after.spec, after.paused):
                h.demand(
                    any(request.possible for request in h.schedulings.get(name, ())),
                    Invariant.CAUSED,
                    lambda: f"the schedule {name} changed from {before} to {after}, and nobody asked for it",  # noqa: B023
                )
            elif name == STEADY:
                expected = ticks_between(after, before.next_ms, after.next_ms)
                if self._drains(after.spec.job.entrypoint):
                    expected = [tick for tick in expected if tick in ticked]
                self._demand_ticks(ticked == expected, name, before, after, ticked)
            else:
                h.demand(
                    not ticked or (before.next_ms <= ticked[0] and ticked[-1] < after.next_ms),
                    Invariant.TICKED,
                    lambda: f"the schedule {name} went from {before} to {after}, and {ticked} became jobs",  # noqa: B023
                )
        h.demand(
            not self._ticked and not (old.keys() - new.keys()),
            Invariant.CAUSED,
            lambda: f"there are jobs of schedules that are not there, or schedules vanished: {self._ticked}",
        )

    def _drains(self, entrypoint: str) -> bool:
        """Whether nothing may have been added: ticks pass by then."""
        return self._old.gates.drains(entrypoint) or self._new.gates.drains(entrypoint)

    def _demand_ticks(
        self, holds: bool, name: str, before: Schedule | None, after: Schedule, ticked: list[int]
    ) -> None:
        self._h.demand(
            holds,
            Invariant.TICKED,
            lambda: f"the schedule {name} went from {before} to {after}, and {ticked} became jobs",
        )

    def _check_gates(self) -> None:
        h, old, new = self._h, self._old.gates, self._new.gates
        for request in h.gates:
            if request.open_ended and request.gate is new.of(request.scope):
                h.gated[request.scope] = h.now()  # perhaps after another in this very commit, where nobody sees it
        for scope in (None, *old.entrypoints.keys() | new.entrypoints.keys()):
            if old.of(scope) is new.of(scope):
                continue
            h.gated[scope] = h.now()
            h.demand(
                any(r.possible and (r.scope, r.gate) == (scope, new.of(scope)) for r in h.gates),
                Invariant.CAUSED,
                lambda: f"the gate of {scope or 'the queue'} is {new.of(scope)}, and nobody asked for it",  # noqa: B023
            )
            last = last_asked([request for request in h.gates if request.scope == scope])
            h.demand(
                last is None or new.of(scope) is last.gate,
                Invariant.GATES,
                lambda: f"the gate of {scope or 'the queue'} became {new.of(scope)} after {last} was answered",  # noqa: B023
            )

    def _demand_open(self, record: JobRecord, gate: Gate, closed: bool) -> None:
        """`closed`: it stood like this before the commit and after it."""
        self._h.demand(
            not closed or self._h.may_open(record.spec.entrypoint, gate),
            Invariant.GATES,
            lambda: f"{record.spec.entrypoint} is {gate.value}, and job {record.id[:8]} was let through",
        )

    # --- Zones ---

    def _check_rules(self) -> None:
        h, old, new = self._h, self._old.rules, self._new.rules
        for zone in old.keys() | new.keys():
            before, after = old.get(zone, PLAIN_RULES), new.get(zone, PLAIN_RULES)
            if before == after:
                continue
            h.zoned[zone] = h.now()
            h.demand(
                any(request.possible and request.rules == after for request in h.zonings.get(zone, ())),
                Invariant.CAUSED,
                lambda: f"the rules of {zone} are {after}, and nobody asked for it",  # noqa: B023  called at once
            )
            last = last_asked(h.zonings[zone])
            h.demand(
                last is None or after == last.rules,
                Invariant.ZONES,
                lambda: f"the rules of {zone} became {after} after {last} was answered",  # noqa: B023
            )
        for zone, requests in h.zonings.items():
            if any(one.open_ended and one.rules == new.get(zone, PLAIN_RULES) for one in requests):
                h.zoned[zone] = h.now()  # perhaps after another in this very commit, where nobody sees it

    def _rules(self, zone: str) -> list[ZoneRules]:
        """Those that may have held at some moment of this commit."""
        asked = [one.rules for one in self._h.zonings.get(zone, ()) if one.open_ended and one.rules is not None]
        return [self._old.rules.get(zone, PLAIN_RULES), self._new.rules.get(zone, PLAIN_RULES), *asked]

    def _check_zones(self) -> None:
        """Of every zone that something was claimed from."""
        h = self._h
        for zone in sorted({record.spec.zone for record in self._claimed if record.spec.zone is not None}):
            rules = self._rules(zone)
            running = sum(job.spec.zone == zone for job in self._new.leases())
            limits = [one.running_max for one in rules]
            most = None if None in limits else max(limit for limit in limits if limit is not None)
            h.demand(
                (most is None or running <= most) and not all(one.paused for one in rules),
                Invariant.ZONES,
                lambda: f"{running} jobs of {zone} run, and its rules are {rules}",  # noqa: B023  called at once
            )

    def _check_fifo(self, record: JobRecord) -> None:
        """Nothing that came before it is still there, but for what is dead, or was and has been revived since."""
        h = self._h
        for job_id, other in self._new.jobs.items():
            if other.spec.zone != record.spec.zone or other is record or other.state is JobState.DEAD:
                continue
            before = self._old.jobs.get(job_id)
            revived = (before is not None and before.state is JobState.DEAD) or any(
                request.open_ended for request in h.concerning(job_id, Verb.RETRY)
            )
            h.demand(
                other.state is not JobState.RUNNING and (record.sequence < other.sequence or revived),
                Invariant.FIFO,
                lambda: (
                    f"job {record.id[:8]} of {record.spec.zone} was claimed ({record.sequence}), and {other.id[:8]} "  # noqa: B023
                    f"({other.sequence}) is {other.state}"  # noqa: B023
                ),
            )

    def _held_throughout(self, zone: str | None) -> int | None:
        """The token of the lease that this zone had before the commit and has after it."""
        before, after = self._old.zone_leases.get(zone or ""), self._new.zone_leases.get(zone or "")
        return before.token if before is not None and after is not None and before.token == after.token else None

    def _may_be_held_back(self, record: JobRecord) -> bool:
        """Whether its zone may have to wait, so that others come first."""
        zone = record.spec.zone
        return zone is not None and (
            record.spec.fifo
            or zone in self._old.zone_leases
            or zone in self._new.zone_leases
            or any((r.paused, r.running_max, r.per_second) != (False, None, None) for r in self._rules(zone))
        )

    # --- A job that left ---

    def _check_removed(self, record: JobRecord) -> None:
        h, a, b = self._h, self._old.counters, self._new.counters
        fate = h.fates[record.id]
        endings: list[Request] = []
        if b.done > a.done:
            endings += [r for r in h.concerning(record.id, Verb.ACK) if self._may_act(r, record)]
        if b.cancelled > a.cancelled:
            endings += h.concerning(record.id, Verb.CANCEL)
            endings += [r for r in h.concerning(record.id, Verb.WITHDRAW) if self._may_act(r, record)]
            endings += [TIME] if self._may_have_lapsed(record) else []
        if b.dead_purged > a.dead_purged:
            endings += [request for request in h.purges if request.open_ended]
        if not endings:
            others = any(request.verb in (Verb.ACK, Verb.WITHDRAW) for request in h.by_job.get(record.id, ()))
            h.broken(
                PASSED_ON.get(record.spec.zone or "", Invariant.TOKENS if others else Invariant.CAUSED),
                f"job {record.id[:8]} (token {record.token}, {record.state}) left, and nobody who might asked for it",
            )
        h.checked[Invariant.CAUSED] += 1
        fate.endings = endings
        fate.hidden = range(a.tokens + 1, b.tokens + 1)
        for verb in (Verb.NACK, Verb.SNOOZE, Verb.DECLINE, Verb.RETRY, Verb.RESCHEDULE, Verb.HEARTBEAT):
            for request in h.concerning(record.id, verb):
                request.may_have_acted = True

    def _may_have_lapsed(self, record: JobRecord) -> bool:
        """Whether its time was up by the clock of who wrote this. If it was running, its lease has ended before in the
        same commit; of a log, the events tell that."""
        expires_ms = record.expires_at_ms
        if expires_ms is None or expires_ms > self._sender.node.clock.highest_wall_ms:
            return False
        ends = (Verb.NACK, Verb.SNOOZE, Verb.DECLINE, Verb.GIVE_BACK)
        return (
            record.state in WAITING
            or self._h.claims[record.token].holder is None
            or any(self._h.concerning(record.id, verb, record.token) for verb in ends)
            or self._has_run_out(record)
            or self._taken_back_on_request(record, self._sender.node.clock.highest_wall_ms)
        )

    def _has_run_out(self, record: JobRecord) -> bool:
        lasted_s = self._h.now() - self._h.fates[record.id].touched_at
        return lasted_s >= length_s(self._old, record, self._sender) - CLOCK_GRAIN_S

    def _may_act(self, ack: Request, record: JobRecord) -> bool:
        """Without a token it acts on whatever there is; with one, on that lease only."""
        return ack.token is None or (ack.token == record.token and record.state is JobState.RUNNING)

    # --- A job that changed ---

    def _check_changed(self, old: JobRecord, new: JobRecord) -> None:
        h = self._h
        waited = old.state in WAITING and new.state in WAITING
        # One that was forgotten and arrives again asks for the same time: in the past, that is another moment now.
        moved = old.spec.run_at_ms != new.spec.run_at_ms or (waited and new.token == old.token)
        spec = self._check_moved(old, new) if moved else old.spec
        fixed = (spec, old.sequence, old.created_ms) == (new.spec, new.sequence, new.created_ms)
        h.demand(fixed, Invariant.CONSERVED, lambda: f"job {old.id[:8]} is another one now")
        h.demand(new.token >= old.token, Invariant.TOKENS, lambda: f"the token of job {old.id[:8]} fell")
        h.demand(
            go_on(old.tries, new.tries),
            Invariant.TRIES,
            lambda: f"job {old.id[:8]} had tried {old.tries}, and now it has {new.tries}",
        )
        h.demand(
            new.declined in (old.declined, old.declined + 1, 0) and new.declined < DECLINES_MAX,
            Invariant.DECLINED,
            lambda: f"job {old.id[:8]} was declined {old.declined} times, and now {new.declined}",
        )
        if old.state is JobState.RUNNING:
            if new.state is JobState.RUNNING and new.token == old.token:
                self._check_beaten(old)
                return
            if moved:
                self._excuse(old)
            else:
                self._check_lease_ended(old, new)
        elif old.state is JobState.DEAD:
            self._check_revived(old)
        else:
            h.demand(
                new.state is JobState.RUNNING or moved,
                Invariant.CAUSED,
                lambda: f"job {old.id[:8]} was {old.state} and is {new.state}, and nobody held it",
            )
        if new.state is JobState.RUNNING:
            self._note_claim(new, old)

    def _check_moved(self, old: JobRecord, new: JobRecord) -> JobSpec:
        """It was rescheduled, as somebody asked for. Gives the spec that it has to have now."""
        h, spec = self._h, new.spec
        asked = h.concerning(old.id, Verb.RESCHEDULE)
        acted = next((request for request in asked if request.run_at_ms == spec.run_at_ms), None)
        if acted is None:
            h.broken(Invariant.CAUSED, f"job {old.id[:8]} was rescheduled to {spec.run_at_ms}, and nobody asked for it")
        priorities = {old.spec.priority, *(request.priority for request in asked)}
        h.demand(
            spec.priority in priorities and acted.priority in (None, spec.priority),
            Invariant.CAUSED,
            lambda: f"{acted} gave job {old.id[:8]} the priority {spec.priority}",
        )
        h.demand(
            new.state is not JobState.DELAYED or new.due_ms == spec.run_at_ms or new.token > old.token,
            Invariant.CAUSED,
            lambda: f"{acted} asked for {spec.run_at_ms}, and job {old.id[:8]} waits for {new.due_ms}",
        )
        stays = old.state is JobState.RUNNING and new.state is JobState.RUNNING and old.token == new.token
        h.demand(not stays, Invariant.CAUSED, lambda: f"{acted} rescheduled job {old.id[:8]}, which is running")
        h.demand(not acted.effects or not h.must_remember(acted), Invariant.ONE_EFFECT, lambda: f"{acted} acted twice")
        acted.effects[0] = old.id
        for request in asked:
            request.may_have_acted = True  # one after the other in one commit
        return msgspec.structs.replace(old.spec, run_at_ms=spec.run_at_ms, priority=spec.priority)

    def _excuse(self, old: JobRecord) -> None:
        """Its lease ended and it was rescheduled in one commit: how it ended can no longer be seen."""
        for verb in (Verb.NACK, Verb.SNOOZE, Verb.DECLINE, Verb.RETRY):
            for request in self._h.concerning(old.id, verb):
                request.may_have_acted = True

    def _check_beaten(self, old: JobRecord) -> None:
        h = self._h
        h.demand(
            bool(h.concerning(old.id, Verb.HEARTBEAT, old.token)),
            Invariant.TOKENS,
            lambda: f"the lease {old.token} on job {old.id[:8]} was renewed by nobody who holds it",
        )
        fate = h.fates[old.id]
        fate.touched_at = fate.beaten_at = h.now()

    def _check_lease_ended(self, old: JobRecord, new: JobRecord) -> None:
        h = self._h
        for request in h.concerning(old.id, Verb.RETRY):
            request.may_have_acted = True  # dead and revived in one commit
        counts_crashes = old.spec.max_crashes is not None
        words = _last_words(new.error)
        if new.error != old.error and words.startswith("nack "):
            request = h.requests[int(words.removeprefix("nack "))]
            self._check_ended_by(request, old)
            self._check_tried(old, new, Ending.CRASHED if request.crashed and counts_crashes else Ending.FAILED)
        elif new.error != old.error and words.startswith("decline "):
            self._check_declined(old, new, h.requests[int(words.removeprefix("decline "))])
        elif self._was_failed_unread(old, new):
            self._check_unread(old, new)
        elif self._was_snoozed(old, new):
            self._check_tried(old, new, None)
            for request in h.concerning(old.id, Verb.SNOOZE, old.token):
                request.may_have_acted = True
        elif _was_given_back(old, new):
            self._check_tried(old, new, None)
            claim = h.claims[old.token]
            h.demand(
                claim.holder is None or bool(h.concerning(old.id, Verb.GIVE_BACK, old.token)),
                Invariant.TOKENS,
                lambda: f"the lease {old.token} on job {old.id[:8]} was given back, but {claim.holder} was told of it",
            )
        else:
            h.demand(
                words == LEASE_RAN_OUT,
                Invariant.CAUSED,
                lambda: f"the lease {old.token} on job {old.id[:8]} ended for no reason",
            )
            ended_ms = max((one.ended_ms for one in new.tries if one.token == old.token), default=0)
            self._check_expired(old, ended_ms)
            self._check_left_alone(old, ended_ms)
            self._check_tried(old, new, Ending.CRASHED if counts_crashes else Ending.EXPIRED)
            self._check_place(old, new, ended_ms)

    def _check_place(self, old: JobRecord, new: JobRecord, ended_ms: int) -> None:
        """Where a job waits whose worker was lost, unless more happened to it in this commit."""
        h = self._h
        if (new.state, new.token) != (JobState.READY, old.token) or h.concerning(old.id, Verb.RETRY):
            return
        lost = [tried for tried in old.tries if tried.how is not Ending.FAILED]
        place_ms = ended_ms + 1 if lost else old.due_ms
        h.demand(
            new.due_ms == place_ms,
            Invariant.PLACE,
            lambda: (
                f"job {old.id[:8]} lost its worker after {len(lost)} others, and is due at {new.due_ms}, not {place_ms}"
            ),
        )

    def _was_failed_unread(self, old: JobRecord, new: JobRecord) -> bool:
        """Whether the queue itself failed it, because its payload is gone. Each time it says the same."""
        if old.spec.blob not in self._h.gone:
            return False
        error = str(missing_blob(old))
        return any((one.token, one.error) == (old.token, error) for one in new.tries)

    def _check_unread(self, old: JobRecord, new: JobRecord) -> None:
        holder = self._h.claims[old.token].holder
        self._h.demand(
            holder is None,
            Invariant.TOKENS,
            lambda: f"the queue failed job {old.id[:8]}, whose payload is gone, and {holder} received it",
        )
        self._check_tried(old, new, Ending.FAILED)

    def _was_snoozed(self, old: JobRecord, new: JobRecord) -> bool:
        return (
            new.due_ms != old.due_ms
            and not any(tried.token == old.token for tried in new.tries)
            and bool(self._h.concerning(old.id, Verb.SNOOZE, old.token))
        )

    def _check_tried(self, old: JobRecord, new: JobRecord, how: Ending | None) -> None:
        """The lease that ended is told by one try, or by none if it was given back."""
        told = [tried for tried in new.tries if tried.token == old.token]
        self._h.demand(
            [(one.how, one.worker, one.claimed_ms, one.error) for one in told]
            == ([] if how is None else [(how, old.worker, old.claimed_ms, new.error)]),
            Invariant.TRIES,
            lambda: f"the lease {old.token} on job {old.id[:8]} ended ({how or 'given back'}), and is told as {told}",
        )
        if new.state is JobState.RUNNING:
            return  # and was claimed again at once
        attempts = old.attempts - (how in (None, Ending.CRASHED))
        counts = attempts, old.crashes + (how is Ending.CRASHED)
        self._h.demand(
            (new.attempts, new.crashes) in (counts, (0, 0)),  # or died and was given a fresh start
            Invariant.COUNTED,
            lambda: (
                f"the lease {old.token} on job {old.id[:8]} ended ({how}), and it counts {new.attempts, new.crashes}"
            ),
        )

    def _check_ended_by(self, request: Request, old: JobRecord) -> None:
        h = self._h
        h.demand(
            (request.job_id, request.token) == (old.id, old.token),
            Invariant.TOKENS,
            lambda: f"{request} ended the lease {old.token}",
        )
        h.demand(request.possible, Invariant.ABSENT, lambda: f"{request} was reported as failed, and ended the lease")
        h.demand(not request.effects, Invariant.ONE_EFFECT, lambda: f"{request} acted twice")
        request.effects[0] = old.id

    def _check_declined(self, old: JobRecord, new: JobRecord, request: Request) -> None:
        """It waits for a worker that understands it, and is dead if there has been none for so long."""
        self._check_ended_by(request, old)
        dead = old.declined + 1 == DECLINES_MAX
        self._check_tried(old, new, Ending.FAILED if dead else None)
        ended = (JobState.DEAD, old.declined) if dead else (JobState.DELAYED, old.declined + 1)
        self._h.demand(
            (new.state, new.declined) == ended or new.state is JobState.RUNNING or (dead and new.declined == 0),
            Invariant.DECLINED,
            lambda: f"{request} ended the lease {old.token}, and job {old.id[:8]} is {new.state}, {new.declined} times",
        )

    def _check_expired(self, old: JobRecord, ended_ms: int) -> None:
        h = self._h
        self._expired += 1
        lasted_s = h.now() - h.fates[old.id].touched_at
        full_s = length_s(self._old, old, self._sender)
        if lasted_s < full_s - CLOCK_GRAIN_S and self._taken_back_on_request(old, ended_ms):
            return
        h.demand(
            lasted_s >= full_s - CLOCK_GRAIN_S,
            Invariant.LEASE,
            lambda: f"the lease {old.token} on job {old.id[:8]} was taken back after {lasted_s:.3f} of {full_s:.3f} s",
        )

    def _check_left_alone(self, old: JobRecord, ended_ms: int) -> None:
        """A worker that lives keeps its leases, whatever befalls other shards."""
        h = self._h
        holder = h.claims[old.token].holder
        if holder is None or not holder.kept or self._taken_back_on_request(old, ended_ms):
            return
        life = holder.calls[0].life
        ended = [*h.concerning(old.id, Verb.ACK, old.token), *h.concerning(old.id, Verb.GIVE_BACK, old.token)]
        excused = life.dead or life.closing or h.now() - h.away_until < 2 * old.lease_ms / 1000 or bool(ended)
        h.demand(
            excused,
            Invariant.LEASE,
            lambda: f"the lease {old.token} on job {old.id[:8]} ran out, and {life.name} was at work on it",
        )

    def _taken_back_on_request(self, old: JobRecord, ended_ms: int) -> bool:
        """Somebody asked for it, naming an age by the written time, and has not been answered yet. `ended_ms`: by the
        clock that it was taken back by."""
        h, spec = self._h, old.spec
        return any(
            self._sender in call.via
            and call.told in (Told.PENDING, Told.UNKNOWN, Told.LEFT)
            and (old.beat_ms or 0) < (ended_ms + 1 if request.by_hand else call.wall_ms) - request.timeout_ms
            for request in h.requeues
            if (request.entrypoints is None or spec.entrypoint in request.entrypoints)
            and (request.zones is None or spec.zone in request.zones)
            and not (request.request_id in h.remembered and h.must_remember(request))
            for call in request.calls
        )

    def _check_revived(self, old: JobRecord) -> None:
        h = self._h
        h.demand(
            bool(h.concerning(old.id, Verb.RETRY)),
            Invariant.CAUSED,
            lambda: f"dead job {old.id[:8]} lives again, and nobody asked for it",
        )
        h.fates[old.id].revived_at = h.now()

    # --- Claims ---

    def _note_claim(self, record: JobRecord, before: JobRecord | None) -> None:
        h = self._h
        h.demand(
            self._old.counters.tokens < record.token <= self._new.counters.tokens
            and (before is None or record.token > before.token)
            and record.token not in h.claims,
            Invariant.TOKENS,
            lambda: f"job {record.id[:8]} was claimed with the token {record.token}, which is not a new one",
        )
        h.demand(
            self._sender.writers[self._writer] in (record.worker, ANYBODY),
            Invariant.CAUSED,
            lambda: f"job {record.id[:8]} was claimed for {record.worker}, who did not send this commit",
        )
        expires_ms = record.expires_at_ms
        h.demand(
            expires_ms is None or (record.claimed_ms or 0) < expires_ms,
            Invariant.LAPSED,
            lambda: f"job {record.id[:8]} was claimed at {record.claimed_ms}, and had expired at {expires_ms}",
        )
        was_delayed = before is not None and before.state is JobState.DELAYED
        h.demand(
            not was_delayed or record.due_ms <= self._sender.node.clock.highest_wall_ms,
            Invariant.ORDER,
            lambda: f"job {record.id[:8]} was claimed before it was due",
        )
        name = record.spec.entrypoint
        self._demand_open(record, Gate.PAUSED, self._old.gates.pauses(name) and self._new.gates.pauses(name))
        h.fates[record.id].touched_at = h.now()
        self._claimed.append(record)

    def _check_claims(self) -> None:
        h, old, new = self._h, self._old.jobs, self._new.jobs
        at_ms = self._claimed[0].claimed_ms or 0
        self._check_zones()
        best_left: dict[Line, Key] = {}
        for job_id, record in old.items():
            if not _is_due(record, at_ms) or new.get(job_id) != record or self._may_be_held_back(record):
                continue
            if self._old.gates.pauses(record.spec.entrypoint) or self._new.gates.pauses(record.spec.entrypoint):
                continue
            key, line = order(record), (record.spec.entrypoint, record.spec.zone)
            if line not in best_left or key < best_left[line]:
                best_left[line] = key
        last: dict[Line, Key] = {}
        batch = (self._writer, self._number)
        promised = {lease for answered in self._new.requests.values() for lease in answered.jobs}
        for record in sorted(self._claimed, key=lambda job: job.token):
            lease = (record.id, record.token)
            claim = Claim(record, self._sender, h.now(), batch=batch, promised=lease in promised, best_left=best_left)
            claim.under = self._held_throughout(record.spec.zone)
            h.claims[record.token] = claim
            if record.spec.fifo:
                self._check_fifo(record)
                continue
            line = (record.spec.entrypoint, record.spec.zone)
            better = best_left.get(line)
            h.demand(
                better is None or claim.key < better,
                Invariant.ORDER,
                lambda claim=claim, better=better: f"{claim.key} was claimed, and {better} was left",  # type: ignore[misc]
            )
            before = old.get(record.id)
            if before is None or not _is_due(before, at_ms) or order(before) != claim.key:
                continue  # it came, came due or was moved within this commit, perhaps after the claim of another
            earlier = last.get(line)
            h.demand(
                earlier is None or earlier < claim.key,
                Invariant.ORDER,
                lambda claim=claim, earlier=earlier: f"{claim.key} was claimed after {earlier}",  # type: ignore[misc]
            )
            last[line] = claim.key


def same_state(a: State, b: AnyState) -> bool:
    """Everything that is stored. Remembered requests may have been dropped for their age by one of the two."""
    return a.position == b.position and same_content(a, b)


def same_content(a: AnyState, b: AnyState) -> bool:
    return (
        a.jobs == b.jobs
        and a.counters == b.counters
        and (a.writers, a.writers_forgotten) == (b.writers, b.writers_forgotten)
        and a.admissions == b.admissions
        and a.schedules == b.schedules
        and a.gates == b.gates
        and a.rules == b.rules
        and a.zone_leases == b.zone_leases
        and a.ring == b.ring
        and a.watched() == b.watched()
        and (a.requests == b.requests or all(b.requests.get(i, seen) == seen for i, seen in a.requests.items()))
        and _same_finished(a, b)
    )


def _same_finished(a: AnyState, b: AnyState) -> bool:
    """As far as neither of the two knows it to be archived."""
    archived = max(a.archived, b.archived)
    return [one for one in a.finished if one.position > archived] == [
        one for one in b.finished if one.position > archived
    ]


def _source(name: str, h: History) -> str:
    """Who admits: in a shard of a ring, each share of a batch has a name of its own."""
    return name.rpartition("#")[0] if h.in_ring else name


def _is_due(record: JobRecord, at_ms: int) -> bool:
    return record.state is JobState.READY or (record.state is JobState.DELAYED and record.due_ms <= at_ms)


def _was_given_back(old: JobRecord, new: JobRecord) -> bool:
    attempts = old.attempts - (new.state is not JobState.RUNNING)
    same = (new.error, new.due_ms, new.attempts, new.crashes) == (old.error, old.due_ms, attempts, old.crashes)
    return same and new.state is not JobState.DEAD


def _last_words(error: str | None) -> str:
    """What the last attempt said, also of a job that is quarantined."""
    return (error or "").rpartition("the last time: ")[2]
