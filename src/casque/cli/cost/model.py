"""How many requests a queue makes, and what they cost.

Everything here is an upper estimate: calls are counted as if they came at random, though some would share a commit.
Figures that were measured and not derived say so.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp

import msgspec
from msgspec.structs import replace

from casque.journal.log.pace import BYTES_PER_SEGMENT, SNAPSHOT_BYTES, SNAPSHOT_SEGMENTS
from casque.prices import Prices
from casque.request_budget import LEASE_PART
from casque.settings import BrokerSettings, QueueSettings

MONTH_S = 30 * 86_400
CALLS_PER_JOB = 3
"""Enqueue, dequeue and ack, each for one job."""
BEATS_PER_LEASE = 3
BISECTIONS = 40
COMMITS_SEEN_MAX = 12.0
"""Commits per second up to which a follower reads them one by one; beyond, several at once."""

# Measured at a store, in open mode with 2 to 4 processes and 6 to 60 commits per second; see what-it-costs.md.
IDLE_GETS = 4.2
"""Per second, by an embedded process that waits for jobs."""
SHARED_PUTS = 1.4
"""Per commit, if several embedded processes write: some fail, some change who may write."""
SHARED_GETS = 2.3
"""Per commit and embedded process."""
STANDBY_GETS = 5.2
"""Per second, by a standby broker."""
STANDBY_GETS_PER_COMMIT = 1.3


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The load on a queue."""

    jobs_per_s: float
    batch: float = 1
    """Jobs that are enqueued, claimed and acknowledged by one call."""
    workers: int = 1
    """Worker processes."""
    run_s: float = 1
    """How long a job takes."""
    lease_s: float = 60
    interval_s: float = 0
    """The least time between two commits of a process, `commit_interval`."""
    idle_gets: float = IDLE_GETS
    """Per second, by an embedded process that waits for jobs. A budget makes it poll less often."""


class Estimate(msgspec.Struct, frozen=True):
    """Requests and dollars."""

    calls_per_s: float
    commits_per_s: float
    puts_per_s: float
    gets_per_s: float
    dollars_per_month: float
    dollars_per_million_jobs: float | None
    """None if there are no jobs."""
    interval_s: float = 0
    """The least time between two commits of a process."""
    requests_per_process_per_s: float = 0
    """Requests of a process that commits: the leading broker, or an embedded one."""


def through_brokers(load: Load, prices: Prices, *, round_trip_ms: float, brokers: int) -> Estimate:
    """One broker leads and is the only writer; the others follow its log."""
    calls = calls_per_s(load)
    commits = commits_per_s(calls, round_trip_ms + load.interval_s * 1000)
    every_s = BrokerSettings().heartbeat.total_seconds()
    beats = exp(-commits * every_s) / every_s  # a commit is as good as a heartbeat
    puts = commits + beats + upkeep_per_s(load, commits)
    followed = min(commits, COMMITS_SEEN_MAX) * (STANDBY_GETS_PER_COMMIT - 1) + commits
    gets = beats + (brokers - 1) * (STANDBY_GETS + followed)
    return _priced(load, prices, calls, commits, puts, gets, of_one=puts + beats)


def embedded(load: Load, prices: Prices, *, round_trip_ms: float) -> Estimate:
    """Every worker writes, and so does one process that enqueues; a single worker enqueues as well."""
    calls = calls_per_s(load)
    processes = 1 if load.workers == 1 else load.workers + 1
    # Each process has windows of its own, and its share of the calls.
    most = processes * commits_per_s(calls / processes, round_trip_ms + load.interval_s * 1000)
    commits = min(commits_per_s(calls, round_trip_ms), most)
    upkeep = upkeep_per_s(load, commits)
    if processes == 1:
        puts = commits + upkeep
        return _priced(load, prices, calls, commits, puts, load.idle_gets, of_one=puts + load.idle_gets)
    # The loser of a race reads the winner's commit and tries again: twice the round trips.
    commits = min(commits_per_s(calls, 2 * round_trip_ms), most)
    gets = processes * (load.idle_gets + SHARED_GETS * commits)
    puts = commits * SHARED_PUTS + upkeep
    return _priced(load, prices, calls, commits, puts, gets, of_one=(puts + gets) / processes)


def within_budget(estimate: Callable[[Load], Estimate], load: Load, requests_per_s: float) -> Estimate:
    """The estimate with commits so far apart that a process keeps its budget, or as far apart as they ever are."""
    found = estimate(load)
    least_s, most_s = load.interval_s, max(load.interval_s, QueueSettings().stale_timeout.total_seconds() / LEASE_PART)
    if found.requests_per_process_per_s <= requests_per_s:
        return found
    for _ in range(BISECTIONS):
        middle_s = (least_s + most_s) / 2
        if estimate(replace(load, interval_s=middle_s)).requests_per_process_per_s > requests_per_s:
            least_s = middle_s
        else:
            most_s = middle_s
    return estimate(replace(load, interval_s=most_s))


def calls_per_s(load: Load) -> float:
    """Heartbeats included: a worker renews all of its leases in one call."""
    every_s = load.lease_s / BEATS_PER_LEASE
    at_work = min(load.workers, load.jobs_per_s * load.run_s)
    beats = at_work / every_s if load.run_s > every_s else 0
    return CALLS_PER_JOB * load.jobs_per_s / load.batch + beats


def commits_per_s(calls: float, round_trip_ms: float) -> float:
    """A commit starts when the one before it ends, if calls have come in meanwhile; otherwise with the next call."""
    if not calls:
        return 0.0
    trip_s = round_trip_ms / 1000
    return 1 / (trip_s + exp(-calls * trip_s) / calls)


def upkeep_per_s(load: Load, commits: float) -> float:
    """Snapshots and the archive: an object each, and the head that names it."""
    interval_s = QueueSettings().archive_interval.total_seconds()
    return 2 * commits / SNAPSHOT_SEGMENTS + 3 * min(load.jobs_per_s, 1 / interval_s)


def snapshot_bytes_per_commit(queue_bytes: float, commit_bytes: float) -> float:
    """Bytes of snapshots per commit in the long run, by the rule that makes them due."""
    by_segments = max(SNAPSHOT_SEGMENTS, queue_bytes / BYTES_PER_SEGMENT)
    by_bytes = max(SNAPSHOT_BYTES, queue_bytes) / commit_bytes
    return queue_bytes / min(by_segments, by_bytes)


def _priced(
    load: Load, prices: Prices, calls: float, commits: float, puts: float, gets: float, *, of_one: float
) -> Estimate:
    per_s = prices.dollars(puts=puts, gets=gets)
    per_job = per_s / load.jobs_per_s * 1_000_000 if load.jobs_per_s else None
    return Estimate(calls, commits, puts, gets, per_s * MONTH_S, per_job, load.interval_s, of_one)
