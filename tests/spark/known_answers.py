"""The figures of a known history, worked out in plain Python from what its script did: no queue, no Spark, no sketch.

Meanings are those of `casque.spark.models`. Some of them say what a warehouse can know: attempts are counted once their
job has finished, and a claim that was given back was none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import ceil
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from casque.ring.numbers import outer
from casque.spark.report.figures import (
    Cost,
    DeadLetters,
    Depth,
    FairHour,
    Fairness,
    Figures,
    Moment,
    Named,
    Spread,
    Standing,
    Tally,
    WorkerUse,
)
from casque.spark.report.period import HOUR_MS, MINUTE_MS, Period
from simulation.known_history import End, KnownHistory, Try

PUT_DOLLARS = 0.005 / 1000


class Life(NamedTuple):
    """A job from its enqueueing to its end, or from its revival to its next one."""

    job_id: str
    entrypoint: str
    zone: str | None
    revived: bool
    created_ms: int
    due_ms: int
    """For the first time, in this life."""
    tries: tuple[Try, ...]
    end: End | None

    @property
    def wait_ms(self) -> int | None:
        """None if nobody claimed it; of a revival also if it took several attempts, because then nobody knows."""
        if not self.tries or (self.revived and len(self.tries) > 1):
            return None
        return max(0, self.tries[0].claimed_ms - self.due_ms)


def lives(known: KnownHistory) -> list[Life]:
    found = []
    revivals = [(commit.at_ms, job_id) for commit in known.commits if commit.verb == "retry" for job_id in commit.jobs]
    for job_id, spec in known.specs.items():
        created_ms = known.created_ms[job_id]
        begins = [created_ms, *(at_ms for at_ms, revived in revivals if revived == job_id)]
        ends = [end for end in known.ends if end.job_id == job_id]
        tries = [one for one in known.tries if one.job_id == job_id]
        for number, begin_ms in enumerate(begins):
            next_ms = begins[number + 1] if number + 1 < len(begins) else known.end_ms + 1
            its = tuple(one for one in tries if begin_ms <= one.claimed_ms < next_ms)
            end = next((end for end in ends if begin_ms <= end.finished_ms < next_ms), None)
            due_ms = max(created_ms, spec.run_at_ms or 0) if number == 0 else begin_ms
            found.append(Life(job_id, spec.entrypoint, spec.zone, number > 0, created_ms, due_ms, its, end))
    return found


def of_ring(shards: Sequence[KnownHistory]) -> KnownHistory:
    """What happened in all shards of a ring, in the numbers of the ring."""

    def all_of(name: str, by: str) -> tuple[Any, ...]:
        return tuple(sorted((one for known in shards for one in getattr(known, name)), key=attrgetter(by)))

    tries = [
        msgspec.structs.replace(one, token=outer(one.token, shard))
        for shard, known in enumerate(shards)
        for one in known.tries
    ]
    return KnownHistory(
        min(known.begin_ms for known in shards),
        max(known.end_ms for known in shards),
        {job_id: spec for known in shards for job_id, spec in known.specs.items()},
        {job_id: at_ms for known in shards for job_id, at_ms in known.created_ms.items()},
        tuple(sorted(tries, key=attrgetter("claimed_ms"))),
        all_of("ends", "finished_ms"),
        all_of("commits", "at_ms"),
        all_of("changes", "at_ms"),
        {job_id: state for known in shards for job_id, state in known.states.items()},
    )


class Made(NamedTuple):
    """A known history, the warehouse that was made of it, and what that can know about."""

    known: KnownHistory
    queue: str
    warehouse: str

    @property
    def as_of_ms(self) -> int:
        return self.known.commits[-1].at_ms

    @property
    def extent(self) -> Period:
        return Period(self.known.begin_ms, self.as_of_ms // MINUTE_MS * MINUTE_MS + MINUTE_MS)

    def answers(self, period: Period) -> Figures:
        return answers(self.known, period, self.as_of_ms)


def answers(known: KnownHistory, period: Period, as_of_ms: int) -> Figures:
    return _Answers(known, period, as_of_ms).figures()


class _Answers:
    def __init__(self, known: KnownHistory, period: Period, as_of_ms: int) -> None:
        self.known = known
        self.period = period
        self.as_of_ms = as_of_ms
        self.lives = lives(known)

    def figures(self) -> Figures:
        period = self.period
        entrypoints = {life.entrypoint for life in self.lives}
        zones = {life.zone for life in self.lives}
        by_zone = {zone: self.tally([one for one in self.lives if one.zone == zone], period) for zone in zones}
        named = [(name, tally) for name, tally in by_zone.items() if something(tally)]
        return Figures(
            period,
            self.tally(self.lives, period),
            {},
            {},
            self.moments(period.step_ms),
            self.moments(HOUR_MS),
            ranked(
                (name, self.tally([one for one in self.lives if one.entrypoint == name], period))
                for name in entrypoints
            ),
            ranked(named),
            self.depth(),
            self.standing(),
            self.workers(),
            self.dead_letters(),
            fair(named),
            self.fair_hours(),
            self.costs(),
        )

    # --- Tallies ---

    def tally(self, some: Sequence[Life], period: Period) -> Tally:
        ended = [(life, life.end) for life in some if life.end is not None and inside(life.end.finished_ms, period)]
        states = [end.state for _, end in ended]
        tries = [
            one
            for life in some
            if life.end is not None
            for one in life.tries
            if one.ended_ms is not None and inside(one.ended_ms, period)
        ]
        failed = sum(one.outcome in ("failed", "expired", "dead") for one in tries)
        retried = sum(end.attempts > 1 for _, end in ended)
        done, died = states.count("done"), states.count("dead")
        return Tally(
            enqueued=sum(inside(life.created_ms, period) for life in some if not life.revived),
            finished=len(ended),
            done=done,
            died=died,
            cancelled=states.count("cancelled"),
            retried=retried,
            attempts=len(tries),
            failed=failed,
            retry_rate=retried / (done + died) if done + died else None,
            failure_rate=died / (done + died) if done + died else None,
            attempt_failure_rate=failed / len(tries) if tries else None,
            wait=spread([life.wait_ms for life, _ in ended if life.wait_ms is not None]),
            run=spread([one.ended_ms - one.claimed_ms for one in tries if one.ended_ms is not None]),
        )

    def moments(self, step_ms: int) -> tuple[Moment, ...]:
        found = []
        for step in range(self.period.from_ms // step_ms * step_ms, self.period.to_ms, step_ms):
            stretch = Period(max(step, self.period.from_ms), min(step + step_ms, self.period.to_ms))
            tally = self.tally(self.lives, stretch)
            if something(tally):
                found.append(Moment(step, tally))
        return tuple(found)

    # --- The rest ---

    def stays(self) -> dict[str, list[tuple[int, int]]]:
        """From when to when a job was scheduled, waiting or running, for all jobs."""
        found: dict[str, list[tuple[int, int]]] = {"scheduled": [], "waiting": [], "running": []}
        for life in self.lives:
            end_ms = life.end.finished_ms if life.end is not None else self.as_of_ms
            tries = self.seen(life)
            # Of a revival with several attempts only these are known.
            late = life.revived and len(life.tries) > 1
            due_ms = min(life.tries[0].claimed_ms if late else life.due_ms, end_ms)
            if not life.revived and life.created_ms < due_ms:
                found["scheduled"].append((life.created_ms, due_ms))
            since_ms = due_ms
            for began_ms, ended_ms, _ in tries:
                found["running"].append((began_ms, ended_ms))
                found["waiting"].append((since_ms, began_ms))
                since_ms = ended_ms
            found["waiting"].append((since_ms, end_ms))
        return found

    def seen(self, life: Life) -> list[tuple[int, int, Try]]:
        """The attempts that a warehouse knows of, of an unfinished job only the one under way."""
        if life.end is not None:
            return [(one.claimed_ms, one.ended_ms, one) for one in life.tries if one.ended_ms is not None]
        return [(one.claimed_ms, self.as_of_ms, one) for one in life.tries if one.ended_ms is None]

    def depth(self) -> tuple[Depth, ...]:
        stays, period = self.stays(), self.period
        points = []
        for step in period.steps:
            begin, end = max(step, period.from_ms), min(step + period.step_ms, period.to_ms)
            means = {
                state: sum(max(0, min(b, end) - max(a, begin)) for a, b in spans) / (end - begin)
                for state, spans in stays.items()
            }
            at_ends = [
                sum(a <= minute < b for a, b in stays["waiting"])
                for minute in range(begin + period.tick_ms - 1, end, period.tick_ms)
            ]
            points.append(Depth(step, **means, waiting_max=max(at_ends, default=0)))
        return tuple(points)

    def standing(self) -> Standing:
        if self.period.to_ms > self.as_of_ms:
            open_ = [life for life in self.lives if life.end is None]
            running = sum(bool(self.seen(life)) for life in open_)
            scheduled = sum(life.due_ms > self.as_of_ms for life in open_)
            return Standing(scheduled, len(open_) - running - scheduled, running)
        moment = self.period.to_ms - 1
        return Standing(**{state: sum(a <= moment < b for a, b in spans) for state, spans in self.stays().items()})

    def workers(self) -> tuple[WorkerUse, ...]:
        period, uses = self.period, []
        for worker in {one.worker for one in self.known.tries}:
            spans = [span for life in self.lives for span in self.seen(life) if span[2].worker == worker]
            over = [one for _, ended_ms, one in spans if one.ended_ms is not None and inside(ended_ms, period)]
            busy = {}
            for step in period.steps:
                begin, end = max(step, period.from_ms), min(step + period.step_ms, period.to_ms)
                busy[step] = sum(max(0, min(b, end) - max(a, begin)) for a, b, _ in spans), end - begin
            busy_ms = sum(ms for ms, _ in busy.values())
            if busy_ms or over:
                uses.append(
                    WorkerUse(
                        worker,
                        busy_ms,
                        busy_ms / period.span_ms,
                        len(over),
                        sum(one.outcome != "done" and one.outcome != "cancelled" for one in over),
                        {step: ms / length_ms for step, (ms, length_ms) in busy.items() if ms},
                    )
                )
        return tuple(sorted(uses, key=lambda use: (-use.busy_ms, use.worker or "")))

    def dead_letters(self) -> tuple[DeadLetters, ...]:
        groups: dict[tuple[str | None, str], list[End]] = {}
        for end in self.known.ends:
            if end.state == "dead" and inside(end.finished_ms, self.period):
                kind = None if end.error is None else end.error.partition(":")[0]
                groups.setdefault((kind, self.known.entrypoint(end.job_id)), []).append(end)
        found = []
        for (kind, entrypoint), ends in groups.items():
            first = min(ends, key=lambda end: (end.finished_ms, end.job_id))
            last_ms = max(end.finished_ms for end in ends)
            found.append(
                DeadLetters(kind, entrypoint, len(ends), first.job_id, first.error, first.finished_ms, last_ms)
            )
        return tuple(sorted(found, key=lambda one: (-one.jobs, one.error_class or "", one.entrypoint)))

    def fair_hours(self) -> tuple[FairHour, ...]:
        found = []
        for hour in self.period.hours:
            whole = Period(hour, hour + HOUR_MS)
            zones = {life.zone for life in self.lives}
            fairness = fair(
                (zone, self.tally([life for life in self.lives if life.zone == zone], whole)) for zone in zones
            )
            if fairness.zones:
                found.append(FairHour(hour, fairness))
        return tuple(found)

    def costs(self) -> tuple[Cost, ...]:
        operations: dict[str | None, int] = {}
        commits: dict[str | None, Fraction] = {}
        written: dict[str | None, int] = {}
        hours = self.period.hours
        for commit in self.known.commits:
            if not hours[0] <= commit.at_ms < hours[-1] + HOUR_MS:
                continue
            for job_id in commit.jobs:
                zone = self.known.zone(job_id)
                operations[zone] = operations.get(zone, 0) + 1
                commits[zone] = commits.get(zone, Fraction(0)) + Fraction(1, len(commit.jobs))
                if commit.verb == "enqueue":
                    written[zone] = written.get(zone, 0) + len(self.known.specs[job_id].payload)
        found = [
            Cost(zone, count, float(commits[zone]), written.get(zone, 0), float(commits[zone]) * PUT_DOLLARS)
            for zone, count in operations.items()
        ]
        return tuple(sorted(found, key=lambda cost: (-cost.dollars, cost.zone or "")))


def inside(at_ms: int, period: Period) -> bool:
    return period.from_ms <= at_ms < period.to_ms


def something(tally: Tally) -> bool:
    return bool(tally.enqueued or tally.finished or tally.attempts)


def ranked(tallies: Iterable[tuple[str | None, Tally]]) -> tuple[Named, ...]:
    there = [Named(name, tally) for name, tally in tallies if something(tally)]
    return tuple(sorted(there, key=lambda one: (-one.tally.finished, -one.tally.enqueued, one.name or "")))


def spread(spans: Sequence[int]) -> Spread:
    if not spans:
        return Spread()
    p50, p90, p99 = (sorted(spans)[ceil(q * len(spans)) - 1] for q in (0.5, 0.9, 0.99))
    return Spread(len(spans), sum(spans), sum(spans) / len(spans), p50, p90, p99, max(spans))


def fair(zones: Iterable[tuple[str | None, Tally]]) -> Fairness:
    """Both of Jain's indices, and the waits of the few zones that have half of the jobs against all others'."""
    # Zones of the same size go by their names, that of nobody first.
    served = sorted((z for z in zones if z[1].finished), key=lambda z: (-z[1].finished, z[0] is not None, z[0] or ""))
    if not served:
        return Fairness()
    total = sum(tally.finished for _, tally in served)
    large = 1
    while 2 * sum(tally.finished for _, tally in served[:large]) < total:
        large += 1
    waits = []
    for some in (served[:large], served[large:]):
        count = sum(tally.wait.count for _, tally in some)
        waits.append(sum(tally.wait.sum_ms for _, tally in some) / count if count else None)
    means = [tally.wait.mean_ms for _, tally in served if tally.wait.mean_ms is not None]
    large_wait, small_wait = waits
    return Fairness(
        len(served),
        jain([tally.run.sum_ms for _, tally in served]),
        jain(means),
        large,
        large_wait,
        small_wait,
        small_wait / large_wait if small_wait is not None and large_wait else None,
    )


def jain(values: Sequence[float]) -> float | None:
    squares = sum(float(value) ** 2 for value in values)
    return sum(values) ** 2 / len(values) / squares if squares else None
