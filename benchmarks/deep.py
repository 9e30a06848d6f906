"""A deep queue of the log layout: filling it in bulk, opening it, its memory, and what a snapshot costs the others.

Filling and opening take place in different processes, so that neither's memory counts for the other.
"""

from __future__ import annotations

import tempfile

from benchmarks import sides
from benchmarks.load import PAYLOAD, Run
from benchmarks.report import Section, Steps, Table
from benchmarks.scale import Scale

BULK_RATE = 200_000
OPEN_S = 8.0
BYTES_PER_JOB = 1_000
LONGER_MS = 50.0
ENOUGH_JOBS = 100_000
"""With fewer, what a process needs anyway would count as the jobs'."""


def measure(scale: Scale, steps: Steps) -> Section:
    steps.expect(5)
    section = Section()
    _in_bulk(scale, steps, section)
    with tempfile.TemporaryDirectory(prefix="casque-bench-") as directory:
        place = f"file://{directory}"
        _filled_and_opened(place, scale, steps, section)
        _snapshots(place, scale, steps, section)
    return section


def _in_bulk(scale: Scale, steps: Steps, section: Section) -> None:
    found = sides.deep(Run(api="bulk", layout="log", place="memory", depth=scale.deepest))
    steps.done("enqueue_many")
    table = Table("deep: enqueue_many in memory, 10,000 jobs a call", ["jobs queued", "jobs/s", "longest call, ms"])
    for at, name in ((0, "empty"), (scale.deepest, "deep")):
        table.add(at, found[f"{name}_rate"], found[f"{name}_longest_ms"])
        section.aim_for(f"enqueue_many, jobs per second, {name}", found[f"{name}_rate"], at_least=BULK_RATE, unit="/s")
    section.tables.append(table)


def _filled_and_opened(place: str, scale: Scale, steps: Steps, section: Section) -> None:
    table = Table(
        f"deep: {scale.deepest:,} jobs on local files, {len(PAYLOAD)}-byte payloads",
        ["what", "seconds", "memory after, MB", "peak, MB", "peak per job, bytes", "over its payload"],
        notes=["Memory is what the process holds (RSS) beyond what it held before the queue was opened."],
    )
    for task, name in (("fill", "filled in bulk"), ("open", "opened")):
        found = sides.deep(Run(api=task, layout="log", place=place, depth=scale.deepest))
        steps.done(name)
        each = found["peak_bytes"] / scale.deepest
        over = each - len(PAYLOAD)
        table.add(name, found["seconds"], found["after_bytes"] / 1e6, found["peak_bytes"] / 1e6, each, over)
        if task == "open":
            section.keep_below(f"opening {scale.deepest:,} jobs", found["seconds"], at_most=OPEN_S, unit=" s")
        if scale.deepest >= ENOUGH_JOBS:
            what = f"peak memory per job, {name}"
            section.keep_below(what, over, at_most=BYTES_PER_JOB, unit=" bytes over its payload")
    section.tables.append(table)


def _snapshots(place: str, scale: Scale, steps: Steps, section: Section) -> None:
    table = Table(
        f"deep: commits beside a snapshot of {scale.deepest:,} jobs",
        ["store", "snapshots", "seconds each", "calls/s without", "beside", "longest call without, ms", "beside, ms"],
        notes=["Fifty callers, every call timed; a while without a snapshot and then beside one, three times."],
    )
    for store, where in (("memory", "memory"), ("files", place)):
        run = Run(api="snapshot", layout="log", place=where, depth=scale.deepest, seconds=scale.deep_seconds)
        found = sides.deep(run)
        steps.done(f"snapshot, {store}")
        without, beside = found["without_ms"], found["beside_ms"]
        rates = found["without_rate"], found["beside_rate"]
        table.add(store, int(found["snapshots"]), found["snapshot_s"], *rates, without, beside)
        if found["snapshots"]:
            name = f"{store}, longest call beside a snapshot against without"
            section.keep_below(name, beside - without, at_most=LONGER_MS, unit=" ms longer")
    section.tables.append(table)
