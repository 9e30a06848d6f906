"""Every table of the pipeline against a history whose numbers are known, counted here in plain Python."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from datetime import UTC, datetime
from typing import Any

import pytest

from casque.spark.warehouse import Snapshot, Warehouse
from casque.types import JobState
from simulation.known_history import End, KnownHistory, Try
from tests.spark.known_answers import Made

pytestmark = pytest.mark.xdist_group("spark")
MINUTE, HOUR = 60_000, 3_600_000
FAILED = {"failed", "expired", "crashed", "dead"}

Rows = list[dict[str, Any]]


class Filled:
    """A warehouse made of the known history by one run."""

    def __init__(self, known: KnownHistory, snapshot: Snapshot) -> None:
        self.known = known
        self.snapshot = snapshot
        self.lives = lives(known)

    def rows(self, table: str) -> Rows:
        return [dict(row) for row in self.snapshot.arrow(table).to_pylist()]


@pytest.fixture(scope="module", params=["known_warehouse", "ring_warehouse"])
def filled(request: pytest.FixtureRequest) -> Filled:
    """Of one queue, and of a ring of shards."""
    made: Made = request.getfixturevalue(request.param)
    return Filled(made.known, Warehouse(made.warehouse).snapshot())


def lives(known: KnownHistory) -> list[tuple[End, list[Try]]]:
    """Each end of a job with the attempts that led to it, those of an earlier life left out."""
    found = []
    for end in known.ends:
        tries = [one for one in known.tries if one.job_id == end.job_id and one.claimed_ms <= end.finished_ms]
        own: list[Try] = []
        for one in tries:
            own = [one] if one.number == 1 else [*own, one]
        earlier = [other.finished_ms for other in known.ends if other.job_id == end.job_id]
        since = max((at for at in earlier if at < end.finished_ms), default=-1)
        found.append((end, [one for one in own if one.claimed_ms > since]))
    return found


def error_class(error: str | None) -> str | None:
    return None if error is None else re.sub(r"\d+", "#", error.partition(":")[0].strip())


def is_second(filled: Filled, end: End) -> bool:
    return any(other.job_id == end.job_id and other.finished_ms < end.finished_ms for other in filled.known.ends)


def at(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


def ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def whose(filled: Filled, job_id: str) -> tuple[str, str | None]:
    return filled.known.entrypoint(job_id), filled.known.zone(job_id)


def test_silver_jobs_are_the_ends_of_jobs(filled: Filled) -> None:
    found = {(row["id"], row["finished_at"]): row for row in filled.rows("silver/jobs")}
    assert len(found) == len(filled.known.ends)
    for end, tries in filled.lives:
        row = found[end.job_id, at(end.finished_ms)]
        spec = filled.known.specs[end.job_id]
        second = is_second(filled, end)
        created = filled.known.created_ms[end.job_id]
        first_due = max(created, spec.run_at_ms or 0)
        assert (row["entrypoint"], row["zone"], row["state"]) == (spec.entrypoint, spec.zone, end.state)
        assert (row["attempts"], row["error"], row["revived"]) == (end.attempts, end.error, second)
        assert (row["created_at"], row["payload_bytes"]) == (at(created), len(spec.payload))
        assert row["total_ms"] == end.finished_ms - created
        assert row["run_ms"] == sum(one.ended_ms - one.claimed_ms for one in tries if one.ended_ms is not None)
        assert row["first_claimed_at"] == at(tries[0].claimed_ms if tries else None)
        if not second:
            assert row["first_due_at"] == at(first_due)
            assert row["wait_ms"] == (tries[0].claimed_ms - first_due if tries else None)
        elif len(tries) == 1:
            assert row["wait_ms"] == tries[0].claimed_ms - tries[0].due_ms
        assert row["date"] == datetime.fromtimestamp(end.finished_ms / 1000, UTC).date()


def test_silver_attempts_are_the_attempts_of_finished_jobs(filled: Filled) -> None:
    expected = Counter(
        (one.job_id, one.number, one.token, one.worker, at(one.claimed_ms), at(one.ended_ms), one.outcome)
        for _, tries in filled.lives
        for one in tries
    )
    names = ("job_id", "attempt", "token", "worker", "claimed_at", "ended_at", "outcome")
    assert Counter(tuple(row[name] for name in names) for row in filled.rows("silver/attempts")) == expected


def test_silver_queue_is_what_is_left(filled: Filled) -> None:
    # A delayed job turns ready by time alone, and nobody writes that down.
    ripe = {"delayed": "ready"}
    found = {row["id"]: ripe.get(row["state"], row["state"]) for row in filled.rows("silver/queue")}
    states = {job_id: state.value for job_id, state in filled.known.states.items()}
    assert found == {job_id: ripe.get(state, state) for job_id, state in states.items()}


def test_bronze_has_every_commit_in_order(filled: Filled) -> None:
    events = filled.rows("bronze/events")
    assert len({(row["shard"], row["position"], row["index"]) for row in events}) == len(events)
    by_commit: dict[tuple[int, int], list[str]] = defaultdict(list)
    for row in sorted(events, key=lambda row: (row["shard"], row["position"], row["index"])):
        if row["job_id"] is not None:
            by_commit[row["shard"], row["position"]].append(row["job_id"])
    assert Counter(map(tuple, by_commit.values())) == Counter(commit.jobs for commit in filled.known.commits)
    assert not any(row["payload"] for row in events)


@pytest.mark.parametrize(("table", "span", "name"), [("gold/minutes", MINUTE, "minute"), ("gold/hours", HOUR, "hour")])
def test_counts_by_minute_and_by_hour(filled: Filled, table: str, span: int, name: str) -> None:
    expected: dict[Any, Counter[str]] = defaultdict(Counter)
    known = filled.known
    for job_id, created_ms in known.created_ms.items():
        expected[created_ms // span, whose(filled, job_id)]["enqueued"] += 1
    for end in known.ends:
        counts = expected[end.finished_ms // span, whose(filled, end.job_id)]
        counts["finished"] += 1
        counts[end.state] += 1
        counts["retried"] += end.attempts > 1
    for one in known.tries:
        if one.ended_ms is not None:
            counts = expected[one.ended_ms // span, whose(filled, one.job_id)]
            counts["attempts"] += 1
            counts["failed"] += one.outcome in FAILED
    names = ("enqueued", "finished", "done", "dead", "cancelled", "retried", "attempts", "failed")
    found = {
        (ms(row[name]) // span, (row["entrypoint"], row["zone"])): Counter({one: row[one] for one in names})
        for row in filled.rows(table)
    }
    assert found.keys() == expected.keys()
    assert all(found[key] == expected[key] for key in found)
    for row in filled.rows(table):
        ended = row["done"] + row["dead"]
        assert row["failure_rate"] == (pytest.approx(row["dead"] / ended) if ended else None)
        assert row["retry_rate"] == (pytest.approx(row["retried"] / ended) if ended else None)
        assert row["throughput"] == pytest.approx(row["finished"] * 1000 / span)
        assert row["date"] == row[name].date()


def test_waits_and_run_times_and_their_percentiles(filled: Filled) -> None:
    waits: dict[Any, list[int]] = defaultdict(list)
    runs: dict[Any, list[int]] = defaultdict(list)
    for end, tries in filled.lives:
        if tries and not (is_second(filled, end) and len(tries) > 1):
            key = end.finished_ms // HOUR, whose(filled, end.job_id)
            waits[key].append(tries[0].claimed_ms - tries[0].due_ms)
    for one in filled.known.tries:
        if one.ended_ms is not None:
            runs[one.ended_ms // HOUR, whose(filled, one.job_id)].append(one.ended_ms - one.claimed_ms)
    checked = 0
    for row in filled.rows("gold/hours"):
        key = ms(row["hour"]) // HOUR, (row["entrypoint"], row["zone"])
        for kind, spans in (("wait", waits.get(key, [])), ("run", runs.get(key, []))):
            assert (row[f"{kind}_sketch"] is None) == (not spans)
            assert (row[f"{kind}_count"], row[f"{kind}_ms_sum"]) == (len(spans), sum(spans))
            assert row[f"{kind}_ms_max"] == max(spans, default=None)
            for q in (50, 90, 99):
                true = sorted(spans)[math.ceil(q / 100 * len(spans)) - 1] if spans else None
                assert row[f"{kind}_p{q}_ms"] == true, "a sketch of so few is exact"
            checked += len(spans)
    assert checked > 900


def test_dead_letters_by_error(filled: Filled) -> None:
    expected: dict[Any, list[End]] = defaultdict(list)
    for end in filled.known.ends:
        if end.state == "dead":
            key = end.finished_ms // HOUR, *whose(filled, end.job_id), error_class(end.error)
            expected[key].append(end)
    rows = filled.rows("gold/dead_letters")
    assert len(rows) == len(expected)
    for row in rows:
        ends = expected[ms(row["hour"]) // HOUR, row["entrypoint"], row["zone"], row["error_class"]]
        first = min(ends, key=lambda end: (end.finished_ms, end.job_id))
        assert (row["jobs"], row["sample_job"], row["sample_error"]) == (len(ends), first.job_id, first.error)
        assert (row["first_at"], row["last_at"]) == (at(first.finished_ms), at(max(e.finished_ms for e in ends)))


def test_depth_at_the_end_of_every_minute(filled: Filled) -> None:
    """Told by the changes of states, which the tables never saw."""
    known = filled.known
    rows = {(ms(row["minute"]), row["entrypoint"], row["zone"]): row for row in filled.rows("gold/depth")}
    found: dict[Any, dict[str, Any]] = {}
    as_of = ms(filled.rows("silver/queue")[0]["as_of"])
    states: dict[str, JobState] = {}
    changes = iter(sorted(known.changes, key=lambda change: change.at_ms))
    change = next(changes, None)
    checked = 0
    for end in range(known.begin_ms // MINUTE * MINUTE + MINUTE, as_of // MINUTE * MINUTE + 1, MINUTE):
        while change is not None and change.at_ms < end:
            if change.after is None:
                states.pop(change.job_id, None)
            else:
                states[change.job_id] = change.after
            change = next(changes, None)
        expected: dict[Any, Counter[str]] = defaultdict(Counter)
        for job_id, state in states.items():
            first_due = known.specs[job_id].run_at_ms or 0
            if state is JobState.DEAD:
                continue
            kind = "running" if state is JobState.RUNNING else "scheduled" if first_due >= end else "waiting"
            expected[whose(filled, job_id)][kind] += 1
        # Where there is no row, nothing has changed.
        found |= {key[1:]: row for key, row in rows.items() if key[0] == end - MINUTE}
        for key in {*expected, *found}:
            levels = {name: found[key][name] for name in ("scheduled", "waiting", "running")}
            assert levels == {name: expected[key][name] for name in levels}, (at(end), key)
            checked += bool(expected[key])
    assert checked > 300


def test_time_spent_in_each_state_adds_up(filled: Filled) -> None:
    jobs = filled.rows("silver/jobs")
    queue = [row for row in filled.rows("silver/queue") if row["state"] != "dead"]
    as_of = ms(queue[0]["as_of"])
    running = sum(row["run_ms"] for row in jobs)
    running += sum(as_of - ms(row["claimed_at"]) for row in queue if row["state"] == "running")
    running += sum(ms(one["ended_at"]) - ms(one["claimed_at"]) for row in queue for one in row["tried"])
    spent = spent_until(filled, as_of)
    assert spent["running"] == running
    alive = sum(ms(row["finished_at"]) - min(ms(row["first_due_at"]), ms(row["finished_at"])) for row in jobs)
    alive += sum(max(0, as_of - ms(row["first_due_at"])) for row in queue)
    assert spent["waiting"] == alive - running


def spent_until(filled: Filled, end: int) -> Counter[str]:
    """The milliseconds in each state: in minutes that have a row, and in those after it, when nothing changed."""
    series: dict[Any, Rows] = defaultdict(list)
    for row in sorted(filled.rows("gold/depth"), key=lambda row: ms(row["minute"])):
        series[row["entrypoint"], row["zone"]].append(row)
    spent: Counter[str] = Counter()
    for rows in series.values():
        for row, until in zip(rows, [*(ms(after["minute"]) for after in rows[1:]), end], strict=True):
            for state in ("scheduled", "waiting", "running"):
                spent[state] += row[f"{state}_ms"] + row[state] * max(0, until - ms(row["minute"]) - MINUTE)
    return spent


def test_workers_are_as_busy_as_their_attempts(filled: Filled) -> None:
    busy: Counter[Any] = Counter()
    ended: Counter[Any] = Counter()
    failed: Counter[Any] = Counter()
    as_of = ms(filled.rows("silver/queue")[0]["as_of"])
    for one in filled.known.tries:
        end = as_of if one.ended_ms is None else one.ended_ms
        for minute in range(one.claimed_ms // MINUTE, end // MINUTE + 1):
            within = min(end, (minute + 1) * MINUTE) - max(one.claimed_ms, minute * MINUTE)
            busy[minute, one.worker] += within
        if one.ended_ms is not None:
            ended[end // MINUTE, one.worker] += 1
            failed[end // MINUTE, one.worker] += one.outcome in FAILED
    rows = filled.rows("gold/workers")
    for row in rows:
        key = ms(row["minute"]) // MINUTE, row["worker"]
        assert (row["busy_ms"], row["attempts"], row["failed"]) == (busy[key], ended[key], failed[key])
        assert row["utilisation"] == pytest.approx(busy[key] / MINUTE)
    assert sum(row["busy_ms"] for row in rows) == sum(busy.values())


def test_fairness_between_zones(filled: Filled) -> None:
    hours: dict[int, dict[str | None, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for row in filled.rows("gold/hours"):
        counts = hours[ms(row["hour"])][row["zone"]]
        for name in ("finished", "run_ms_sum", "wait_ms_sum", "wait_count"):
            counts[name] += row[name]
    rows = {ms(row["hour"]): row for row in filled.rows("gold/fairness")}
    for hour, by_zone in hours.items():
        zones = {zone: counts for zone, counts in by_zone.items() if counts["finished"]}
        if not zones:
            assert hour not in rows
            continue
        row = rows[hour]
        assert (row["zones"], row["jobs"]) == (len(zones), sum(counts["finished"] for counts in zones.values()))
        assert row["jain_service"] == pytest.approx(jain([counts["run_ms_sum"] for counts in zones.values()]))
        means = [counts["wait_ms_sum"] / counts["wait_count"] for counts in zones.values() if counts["wait_count"]]
        assert row["jain_wait"] == pytest.approx(jain(means))
        ranked = sorted(zones, key=lambda zone: (-zones[zone]["finished"], zone is not None, zone))
        large: list[str | None] = []
        for zone in ranked:
            if sum(zones[one]["finished"] for one in large) * 2 < row["jobs"]:
                large.append(zone)
        assert (row["largest_zone"], row["large_zones"]) == (ranked[0], len(large))
        assert row["large_wait_ms"] == pytest.approx(mean_wait(zones, large))
        small = mean_wait(zones, [zone for zone in ranked if zone not in large])
        assert row["small_wait_ms"] == (None if small is None else pytest.approx(small))


def test_commits_are_shared_among_their_operations(filled: Filled) -> None:
    expected: dict[Any, list[float]] = defaultdict(lambda: [0, 0.0])
    for commit in filled.known.commits:
        for job_id in commit.jobs:
            entry = expected[commit.at_ms // HOUR, whose(filled, job_id)]
            entry[0] += 1
            entry[1] += 1 / len(commit.jobs)
    rows = filled.rows("gold/requests")
    assert len(rows) == len(expected)
    for row in rows:
        operations, commits = expected[ms(row["hour"]) // HOUR, (row["entrypoint"], row["zone"])]
        assert row["operations"] == operations
        assert float(row["commits"]) == pytest.approx(commits, abs=1e-6)
        assert row["dollars"] == pytest.approx(commits * 0.005 / 1000, abs=1e-9)
    assert float(sum(row["commits"] for row in rows)) == pytest.approx(len(filled.known.commits), abs=1e-5)


def jain(values: list[float]) -> float:
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))


def mean_wait(zones: dict[str | None, Counter[str]], chosen: list[str | None]) -> float | None:
    count = sum(zones[zone]["wait_count"] for zone in chosen)
    return sum(zones[zone]["wait_ms_sum"] for zone in chosen) / count if count else None
