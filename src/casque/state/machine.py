"""Dispatches commands and events to the facets of a state; commits a batch of them, or rolls it back.

Each command's handler checks first, then makes events and applies them; replay applies the same events through the same
functions. What a queue keeps, and the rules for it, is in the facets (`facets`) and in the modules about jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from casque.state import adding, claiming, interventions, job_life, lapses, leases, settling
from casque.state.admission import take_added
from casque.state.commands import Command, Watching
from casque.state.events import Added, Admitted, Event, Watched
from casque.state.facet import Facet
from casque.state.facets import Facets
from casque.state.job_table import Counters
from casque.state.limits import Limits
from casque.state.ready import ReadyIndex
from casque.state.request_memory import Answered
from casque.state.ring import Places, RingView
from casque.types import Admission, Gates, JobRecord, JobState, PeekedZone, Reach, Totals, Vigil

LOOKED_AHEAD = 1_000
"""Number of delayed jobs that are searched for zones whose time has not come yet."""

_ABOUT_JOBS = (adding, claiming, settling, interventions, leases, lapses)


class State:
    """All jobs of one queue and the rules for changing them.

    >>> from casque.service.requests import Ack, Dequeue, Enqueue
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

    def __init__(self, limits: Limits | None = None, facets: Facets | None = None) -> None:
        self.limits = limits or Limits()
        self.position = 0
        """The last commit that this state includes."""
        self.begins = 0
        """The position that it was restored at: it saw the commits after it happen."""
        self.events: list[Event] = []
        """What happened since the last commit."""
        self.changed: list[Facet[Any]] = []
        """The facets that have to hear of a commit because the batch changed them; the jobs always do."""
        self.reach: Reach | None = None
        """What the caller may name whose command is being carried out."""
        self.facets = facets = facets or Facets(self.limits)
        self.table = facets.jobs
        self.answers = facets.answers
        self.keeps_finished = facets.finished.kept
        # What others look at, by a short name. Each facet keeps its dict or list for good, and changes it in place.
        self.jobs: Final = facets.jobs.by_id
        self.dead: Final = facets.jobs.dead
        self.keys: Final = facets.jobs.keys
        self.zone_jobs: Final = facets.jobs.zone_jobs
        self.writers: Final = facets.writers.last
        self.admissions: Final = facets.sources.last
        self.staged: Final = facets.staged.named
        self.schedules: Final = facets.schedules.by_name
        self.rules: Final = facets.rules.by_zone
        self.zone_leases: Final = facets.zone_leases.by_zone
        self.vigils: Final = facets.vigils.by_token
        self.finished: Final = facets.finished.pending
        # Functions of modules and methods of facets, both called with the state. Never its own methods: a state that
        # holds itself is left to the garbage collector.
        self._handlers: dict[type, Callable[..., Any]] = {}
        self._appliers: dict[type, Callable[..., Any]] = {
            what: getattr(job_life, name) for what, name in job_life.APPLIERS.items()
        }
        for module in _ABOUT_JOBS:
            for what, name in module.HANDLERS.items():
                self._handlers[what] = getattr(module, name)
        for facet in facets:
            for what, name in facet.HANDLERS.items():
                self._handlers[what] = getattr(facet, name)
            for what, name in facet.APPLIERS.items():
                self._appliers[what] = getattr(facet, name)

    # --- Commands, commits, replay ---

    def execute(self, command: Command, now_ms: int, reach: Reach | None = None) -> Any:
        """Carry out one command; its events join the batch, its answer is returned.

        All commands of a batch get the same time, which is then the commit's. `reach`: what its caller may name, if not
        everything: a job or a schedule beyond it is not there. That is judged here, because a name may be another's by
        now.

        Raises:
            CasqueError: the command was refused and changed nothing.
        """
        self.table.begin()
        if self.facets.sources.pending is not None:
            self.facets.sources.carry_out(self, now_ms)
        self.reach = reach
        return self._handlers[type(command)](self, command, now_ms)

    def happen(self, event: Event, now_ms: int) -> None:
        """For handlers: the event joins the batch, and is applied."""
        self.events.append(event)
        self._appliers[type(event)](self, event, now_ms)

    def commit(self, *, writer: str, batch: int, at_ms: int, forgets: str | None = None) -> None:
        """The batch has landed: it is part of history now.

        `forgets`: the request of this id and those before it are old, as the writer knows by its monotonic clock.
        """
        if self.facets.sources.pending is not None:
            for _ in self.carrying_out(at_ms):
                pass
        self.position += 1
        self.events = []
        self.table.commit()
        if self.changed:
            for facet in self.changed:
                facet.commit()
            self.changed.clear()
        self.facets.writers.landed(writer, batch, self.position)
        self.answers.trim(forgets)
        self.check()

    def rollback(self) -> None:
        """The batch did not land: everything is as it was before it."""
        for facet in self.facets:
            facet.rollback(self)
        self.changed.clear()
        self.events = []

    def replay(
        self, events: Iterable[Event], *, writer: str, batch: int, at_ms: int, forgets: str | None = None
    ) -> None:
        """Apply the commit of any writer."""
        assert not self.events, "roll the batch back before applying another writer's commit"
        left = iter(events)
        for event in left:
            self._appliers[type(event)](self, event, at_ms)
            if type(event) is Admitted:
                job_life.apply_added_all(self, take_added(left, event), at_ms)
        self.commit(writer=writer, batch=batch, at_ms=at_ms, forgets=forgets)

    def fence(self) -> None:
        """A broker took the lead here: a commit without events."""
        assert not self.events, "roll the batch back before applying another writer's commit"
        self.position += 1

    def restore(self, records: Iterable[JobRecord], counters: Counters, position: int) -> None:
        """Fill an empty state from what a journal kept."""
        assert not self.position
        self.table.restore(self, records)
        self.table.counters = counters
        self.position = self.begins = position

    def reindex(self) -> None:
        """Build anew everything that is derived from the jobs: for a batch that was undone after it had failed half
        way, so that the indexes cannot be trusted. Takes as long as there are jobs."""
        assert not self.events, "roll the batch back first"
        self.table.reindex(self)
        self.facets.schedules.restore(self, self.facets.schedules.copied())
        self.check()

    def check(self) -> None:
        assert self.violation() is None, self.violation()

    def violation(self) -> str | None:
        """The conservation law: no job comes from nowhere and none vanishes. What breaks it, if anything does."""
        return self.table.violation()

    # --- What the facets keep, for those who look ---

    @property
    def counters(self) -> Counters:
        return self.table.counters

    @property
    def running(self) -> int:
        return self.table.running

    @property
    def waiting(self) -> int:
        return self.table.waiting

    @property
    def ready(self) -> ReadyIndex:
        return self.table.ready

    @property
    def gates(self) -> Gates:
        """What is paused or being drained."""
        return self.facets.gates.current

    @property
    def ring(self) -> RingView | None:
        """The ring that this queue is a shard of, if it is one."""
        return self.table.shard.view

    @property
    def places(self) -> Places:
        """What is at home in this shard, if it is one."""
        return self.table.shard.places

    @property
    def archived(self) -> int:
        """What finished up to this position is kept no longer."""
        return self.facets.finished.archived

    @property
    def archiving(self) -> int | None:
        return self.facets.finished.archiving

    @property
    def writers_forgotten(self) -> int:
        return self.facets.writers.forgotten

    @property
    def requests(self) -> dict[str, Answered]:
        """Answers by request id, the oldest first."""
        return self.answers.by_id

    def leases(self) -> Iterator[JobRecord]:
        """The running jobs."""
        return (job for job in self.jobs.values() if job.state is JobState.RUNNING)

    def listed(self) -> Iterable[JobRecord]:
        """Every job in enqueue order."""
        return self.table.listed()

    def is_fifo(self, zone: str) -> bool:
        """Whether it has jobs, and hands them out strictly in enqueue order."""
        return zone in self.table.ready.fair.fifos

    def watched(self) -> list[Vigil]:
        """What visits have seen of leases that are still as they were then."""
        return self.facets.vigils.live(self)

    def visited(self, seen: Watching, now_ms: int) -> Watched | None:
        """What this visit adds to those before it; None if the lease was renewed meanwhile, or has ended."""
        return self.facets.vigils.visited(self, seen, now_ms)

    def admitted(self, source: str, batch: int) -> Admission | None:
        """What became of this batch, if it or a later one of its source was admitted."""
        return self.facets.sources.admitted(source, batch)

    def carry_out(self, now_ms: int) -> None:
        """Add the jobs of an admission that was decided, before its commit lands."""
        self.facets.sources.carry_out(self, now_ms)

    def carrying_out(self, at_ms: int) -> Iterator[list[Added]]:
        """The same, some jobs at a time."""
        return self.facets.sources.carrying_out(self, at_ms)

    def stored_events(self) -> list[Event]:
        """What happened since the last commit, without what staged objects tell."""
        return self.facets.sources.stored_events(self)

    def fate(self, writer: str, batch: int, *, tried: int) -> bool | None:
        """Whether this batch of a writer, or a later one, has landed; None if that may have been forgotten."""
        return self.facets.writers.fate(writer, batch, tried=tried)

    def writers_with(self, writer: str, batch: int) -> tuple[dict[str, int], int]:
        """The table of writers after this batch, the one that was silent longest first, and what it forgot."""
        return self.facets.writers.after(writer, batch, self.position + 1)

    def requests_after(self, forgets: str | None) -> dict[str, Answered]:
        """Those that a commit leaves."""
        return self.answers.after(forgets)

    def shed(self, archived: int) -> None:
        """What finished up to this position is in the archive, and not needed here."""
        self.facets.finished.shed(archived)

    def unname(self, floor: int) -> None:
        """Commits up to here are not replayed any more, so what they name is not needed."""
        self.facets.staged.unname(floor)

    # --- What is due ---

    def totals(self, now_ms: int) -> Totals:
        self.table.ready.promote(now_ms)
        c = self.counters
        return Totals(
            enqueued=c.enqueued,
            ready=self.waiting - self.table.ready.delayed,
            delayed=self.table.ready.delayed,
            running=self.running,
            done=c.done,
            dead=len(self.dead),
            cancelled=c.cancelled,
            purged=c.dead_purged,
        )

    def next_due_ms(self) -> int | None:
        """When the next delayed job becomes due, if there is one."""
        return self.table.ready.next_due_ms()

    def next_lapse_ms(self) -> int | None:
        """When the next waiting job expires, if one does."""
        return self.table.lapses.next_ms()

    def next_tick_ms(self) -> int | None:
        """When the next tick of a schedule is due, if there is one."""
        return self.facets.schedules.next_tick_ms()

    def has_due(
        self,
        entrypoints: tuple[str, ...] | None,
        now_ms: int,
        zones: tuple[str, ...] | None = None,
        zone_lease: tuple[str, int] | None = None,
    ) -> bool:
        """Whether a dequeue like this has an answer. One whose lease is lost has: a refusal."""
        self.table.ready.promote(now_ms)
        if zone_lease is not None:
            if not self.facets.zone_leases.has(*zone_lease):
                return True
            zones = zone_lease[:1]
        through = self._let_through(entrypoints)
        return self.table.ready.has_due(through, zones, now_ms, holds=zone_lease is not None)

    def due_among(self, entrypoints: Mapping[str, object], now_ms: int) -> list[str]:
        """Those of them that `has_due` may be true of: it need not be asked about the others. As fast as the smaller
        of two: these, and the entrypoints that have jobs due."""
        self.table.ready.promote(now_ms)
        return self.table.ready.due_among(entrypoints)

    def due_names(self, now_ms: int) -> tuple[str, ...]:
        """The entrypoints that have jobs due, and maybe some that had."""
        self.table.ready.promote(now_ms)
        return tuple(self.table.ready.names())

    def due_zones_among(self, zones: Mapping[str, object], now_ms: int) -> list[str]:
        """The same of zones."""
        self.table.ready.promote(now_ms)
        return self.table.ready.due_zones_among(zones)

    def peek(
        self, entrypoints: tuple[str, ...] | None, names: frozenset[str] | None, limit: int, now_ms: int
    ) -> list[PeekedZone]:
        """The top-level queue: zones with work that no lease, rule or gate holds back, by vesting time.
        Those whose time has not come yet are found as far as a look at the next delayed jobs tells of them."""
        ready = self.table.ready
        ready.promote(now_ms)
        through = self._let_through(entrypoints)
        due = ready.fair.peek(through, names, limit, now_ms) if ready.takes_turns() else []
        found = {zone: PeekedZone(zone, due_ms, True, self.is_fifo(zone)) for due_ms, zone in due}
        self._peek_ahead(found, through, names, limit, now_ms)
        return sorted(found.values(), key=lambda one: (one.next_ms, one.zone))

    def peek_delayed(self, names: frozenset[str] | None, limit: int, now_ms: int) -> list[PeekedZone]:
        """Only those whose next delayed job is near, of whatever entrypoint."""
        found: dict[str, PeekedZone] = {}
        self.table.ready.promote(now_ms)
        self._peek_ahead(found, self._let_through(None), names, limit, now_ms)
        return list(found.values())

    def _peek_ahead(
        self,
        found: dict[str, PeekedZone],
        through: tuple[str, ...] | None,
        names: frozenset[str] | None,
        limit: int,
        now_ms: int,
    ) -> None:
        ready = self.table.ready
        for job in islice(ready.upcoming(), LOOKED_AHEAD if len(found) < limit else 0):
            zone = job.spec.zone
            if zone is None or zone in found or (names is not None and zone not in names):
                continue
            if (through is None or job.spec.entrypoint in through) and not self.table.ready.fair.limits.waits(
                zone, now_ms
            ):
                found[zone] = PeekedZone(zone, job.due_ms, False, self.is_fifo(zone))
                if len(found) == limit:
                    return

    def _let_through(self, entrypoints: tuple[str, ...] | None) -> tuple[str, ...] | None:
        gates = self.facets.gates
        return gates.let_through(self, entrypoints) if gates.current else entrypoints
