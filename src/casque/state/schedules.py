"""Schedules: when each has its next tick, and the job that a tick adds."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

from casque.errors import InvalidInputError, ScheduleNotFoundError
from casque.service.requests import DropSchedule
from casque.state import adding
from casque.state.commands import PauseSchedule, SetSchedule, Tick
from casque.state.events import Scheduled, Ticked, Unscheduled
from casque.state.facet import Facet, Methods
from casque.types import Reach, Schedule

if TYPE_CHECKING:
    from casque.state.machine import State

NEVER_MS = 2**62


class ScheduleFacet(Facet[list[Schedule]]):
    STORED = "schedules"
    HANDLERS: ClassVar[Methods] = {
        SetSchedule: "set_schedule",
        PauseSchedule: "pause_schedule",
        DropSchedule: "drop_schedule",
        Tick: "tick",
    }
    APPLIERS: ClassVar[Methods] = {
        Scheduled: "apply_scheduled",
        Unscheduled: "apply_unscheduled",
        Ticked: "apply_ticked",
    }

    def __init__(self) -> None:
        self.by_name: dict[str, Schedule] = {}
        """In the order in which they were set first."""
        self._next_tick: int | None = None
        """None when it has to be looked for again."""

    def copied(self) -> list[Schedule]:
        return list(self.by_name.values())

    def restore(self, state: State, data: list[Schedule]) -> None:  # noqa: ARG002
        self.by_name.clear()
        self.by_name.update({schedule.name: schedule for schedule in data})
        self._next_tick = None

    def changing(self, state: State) -> None:
        super().changing(state)
        self._next_tick = None

    def next_tick_ms(self) -> int | None:
        """When the next tick of a schedule is due, if there is one."""
        if not self.by_name:
            return None
        if self._next_tick is None:
            self._next_tick = min((s.next_ms for s in self.by_name.values() if not s.paused), default=NEVER_MS)
        return None if self._next_tick == NEVER_MS else self._next_tick

    # --- Requests ---

    def set_schedule(self, state: State, c: SetSchedule, now_ms: int) -> Schedule | None:
        spec, old = c.spec, self.by_name.get(c.spec.name)
        if state.ring is not None and (state.ring.token or spec.job.zone is not None or spec.job.key is not None):
            raise InvalidInputError(
                "schedules of a ring are in its first shard, and their jobs have no zone and no unique key: open the "
                "ring by its own URL, and let the job enqueue, when it runs, what has one"
            )
        if state.reach is not None:
            self._check_reach(state.reach, spec.name, old)
        if old is None:
            if len(self.by_name) >= state.limits.schedules_max:
                raise InvalidInputError(
                    f"this queue has {len(self.by_name)} schedules already, and more there cannot be; drop some, or "
                    "let one job enqueue the others"
                )
            state.happen(Scheduled(spec, c.next_ms), now_ms)
        elif old.spec != spec:
            same_times = (old.spec.cron, old.spec.tz) == (spec.cron, spec.tz)
            if not same_times and not _is_ahead(old, c.next_ms):
                return None
            state.happen(Scheduled(spec, old.next_ms if same_times else c.next_ms, old.paused), now_ms)
        return self.by_name[spec.name]

    def _check_reach(self, reach: Reach, name: str, old: Schedule | None) -> None:
        """That this caller may set the schedule: it is its own, or new and not one too many."""
        if old is not None:
            if not reach.has(old.spec.job):
                raise ScheduleNotFoundError(name)
        elif reach.schedules_max is not None:
            jobs = (one.spec.job for one in self.by_name.values())
            if sum(reach.has(job) for job in jobs) >= reach.schedules_max:
                raise InvalidInputError(
                    f"a token that is limited to zones or entrypoints may have {reach.schedules_max} schedules; drop "
                    "some"
                )

    def pause_schedule(self, state: State, c: PauseSchedule, now_ms: int) -> Schedule | None:
        old = self._found(c.name, state.reach)
        if old.paused is not c.paused:
            if not c.paused and not _is_ahead(old, c.next_ms):
                return None
            state.happen(Scheduled(old.spec, old.next_ms if c.paused else c.next_ms, c.paused), now_ms)
        return self.by_name[c.name]

    def drop_schedule(self, state: State, c: DropSchedule, now_ms: int) -> None:
        self._found(c.name, state.reach)
        state.happen(Unscheduled(c.name), now_ms)

    def tick(self, state: State, c: Tick, now_ms: int) -> bool:
        assert c.next_ms > c.tick_ms, "a schedule only moves forward"
        schedule = self.by_name.get(c.name)
        if schedule is None or schedule.paused or schedule.next_ms != c.tick_ms:
            return False
        tick_ms = c.tick_ms if c.at_ms is None else c.at_ms
        job, added = c.job, False
        if job is not None and job.zone in state.zone_jobs and state.is_fifo(job.zone) is not job.fifo:
            # The zone was emptied and used in the other way since the schedule was set. Jobs of both kinds in one zone
            # would stand in each other's way for good, and a tick is not left out: the zone decides.
            job = msgspec.structs.replace(job, fifo=not job.fifo)
        # Its id tells the tick: one that is there is this very job, of a schedule that was dropped and set again. And
        # with a unique key there is none while the one before it is unfinished. Nor while nothing may be added.
        free = job is not None and job.id not in state.jobs and (job.key is None or job.key not in state.keys)
        if job is not None and state.ring is not None:
            free = free and state.places.may_tick(state.ring, job)
        if job is not None and free and not state.gates.drains(job.entrypoint):
            adding.add(state, job, now_ms)
            added = True
        state.happen(Ticked(c.name, tick_ms, c.next_ms, job.id if job is not None and added else None), now_ms)
        return True

    def _found(self, name: str, reach: Reach | None) -> Schedule:
        schedule = self.by_name.get(name)
        if schedule is None or (reach is not None and not reach.has(schedule.spec.job)):
            raise ScheduleNotFoundError(name)
        return schedule

    # --- Events ---

    def apply_scheduled(self, state: State, event: Scheduled, at_ms: int) -> None:  # noqa: ARG002
        self.changing(state)
        name = event.spec.name
        old = self.by_name.get(name)
        last_ms = None if old is None else old.last_ms
        self.by_name[name] = Schedule(event.spec, event.next_ms, event.paused, last_ms)

    def apply_unscheduled(self, state: State, event: Unscheduled, at_ms: int) -> None:  # noqa: ARG002
        self.changing(state)
        del self.by_name[event.name]

    def apply_ticked(self, state: State, event: Ticked, at_ms: int) -> None:  # noqa: ARG002
        self.changing(state)
        old = self.by_name[event.name]
        last_ms = old.last_ms if event.job is None else event.tick_ms
        self.by_name[event.name] = Schedule(old.spec, event.next_ms, old.paused, last_ms)


def _is_ahead(schedule: Schedule, next_ms: int) -> bool:
    """Whether a schedule that goes on there would not come by a tick that has become a job."""
    return schedule.last_ms is None or next_ms > schedule.last_ms
