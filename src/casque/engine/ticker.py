"""Finds the due ticks of schedules, by this process's wall clock.

Decided on the state that the commit is based on, and again if another writer was faster: so a tick becomes one job,
whichever process handles it. A wrong clock makes a tick early or late, and never duplicates it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice

import msgspec

from casque.cron import parse
from casque.errors import InvalidInputError
from casque.state import State, Tick
from casque.telemetry import logger
from casque.types import JobSpec, Missed, Schedule

log = logger("engine")

LATE_MS = 60_000
"""A tick that is later than this counts as missed. Longer than a failover takes."""
TICKS_AT_ONCE = 100
"""Ticks of one schedule in one commit; the rest go into the next."""
LOOK_MS = 30_000
"""How often a distant tick is compared with the wall clock, which may be changed."""
APART_MS = 200
"""Random spread, so that processes that share a queue do not all handle a tick at the same moment."""
SCHEDULE_HEADER = "casque-schedule"
TICK_HEADER = "casque-tick"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Ticker:
    """Finds due ticks in a state. Remembers only the schedules that it cannot handle."""

    def __init__(self) -> None:
        self._unreadable: set[tuple[str, str]] = set()
        """Expressions and time zones that this process does not understand, but another one may."""
        self._silent: set[str] = set()
        """Schedules whose ticks this process cannot carry out."""

    def next_ms(self, state: State) -> int | None:
        """When the next tick is due on the wall clock; None if there is none."""
        if not self._unreadable and not self._silent:
            return state.next_tick_ms()
        return min((one.next_ms for one in state.schedules.values() if self._is_awake(one)), default=None)

    def silence(self, name: str) -> None:
        """A tick of this schedule failed unexpectedly: leave its ticks to other processes."""
        self._silent.add(name)
        log.error("the schedule %s is skipped here: one of its ticks failed unexpectedly", name)

    def due(self, state: State, now_ms: int) -> list[Tick]:
        """The ticks to handle now."""
        next_ms = self.next_ms(state)
        if next_ms is None or next_ms > now_ms:
            return []
        return [
            tick
            for schedule in list(state.schedules.values())
            if schedule.next_ms <= now_ms and self._is_awake(schedule)
            for tick in self._ticks(schedule, now_ms)
        ]

    def _is_awake(self, schedule: Schedule) -> bool:
        if schedule.paused or schedule.name in self._silent:
            return False
        return (schedule.spec.cron, schedule.spec.tz) not in self._unreadable

    def _ticks(self, schedule: Schedule, now_ms: int) -> list[Tick]:
        spec = schedule.spec
        try:
            return list(islice(_ticks(schedule, now_ms), TICKS_AT_ONCE))
        except InvalidInputError as error:
            self._unreadable.add((spec.cron, spec.tz))
            log.error("the schedule %s does not tick here: %s", spec.name, error)
            return []


def first_tick_ms(expression: str, tz: str, now_ms: int) -> int:
    return parse(expression, tz).next_after(now_ms)


def job_at(schedule: Schedule, tick_ms: int) -> JobSpec:
    """The job of a tick. Its id names the tick."""
    spec, at = schedule.spec, _EPOCH + timedelta(milliseconds=tick_ms)
    marks = {SCHEDULE_HEADER: spec.name, TICK_HEADER: at.isoformat()}
    return msgspec.structs.replace(
        spec.job, id=f"{spec.name}@{at:%Y-%m-%dT%H:%M:%SZ}", headers={**(spec.job.headers or {}), **marks}
    )


def triggered(schedule: Schedule, job_id: str) -> JobSpec:
    """The schedule's job, outside its ticks."""
    spec = schedule.spec
    return msgspec.structs.replace(
        spec.job, id=job_id, headers={**(spec.job.headers or {}), SCHEDULE_HEADER: spec.name}
    )


def _ticks(schedule: Schedule, now_ms: int) -> Iterator[Tick]:
    spec = schedule.spec
    times = parse(spec.cron, spec.tz)
    at_ms, missed_ms = schedule.next_ms, now_ms - LATE_MS
    if at_ms < missed_ms and spec.missed is not Missed.ALL:
        latest_ms = times.latest(at_ms, missed_ms - 1)
        next_ms = times.next_after(latest_ms)
        job = job_at(schedule, latest_ms) if spec.missed is Missed.ONE else None
        yield Tick(spec.name, at_ms, next_ms, job, latest_ms)
        at_ms = next_ms
    while at_ms <= now_ms:
        next_ms = times.next_after(at_ms)
        yield Tick(spec.name, at_ms, next_ms, job_at(schedule, at_ms))
        at_ms = next_ms
