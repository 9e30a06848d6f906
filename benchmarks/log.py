"""The log layout by depth: a thousand callers in memory, and fifty on local files beside jqueue.

The depths take turns, each run in a process of its own that fills the queue, closes it and opens it again. casque syncs
every commit to disk before it answers; jqueue's storage leaves that to the operating system.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks import sides
from benchmarks.load import Run
from benchmarks.report import Section, Steps, Table, median, show, spread
from benchmarks.scale import Scale

IN_MEMORY = Run(api="queue", layout="log", place="memory", concurrency=1_000)
ON_FILES = Run(api="queue", layout="log", place="file")
MEMORY_RATE = 60_000
MEMORY_SHARE = 80
TIMES_JQUEUE = {0: 1.3, 1_000: 15.0, 20_000: 300.0}
FILES_SHARE = 90
CASQUE, JQUEUE = "casque", "jqueue"


def measure(scale: Scale, steps: Steps) -> Section:
    section = Section()
    _in_memory(scale, steps, section)
    _on_files(scale, steps, section)
    return section


def _in_memory(scale: Scale, steps: Steps, section: Section) -> None:
    depths = _depths((0, 100_000), scale)
    steps.expect(len(depths) * scale.memory_repetitions)
    rates: dict[int, list[float]] = {depth: [] for depth in depths}
    by_cpu: dict[int, list[float]] = {depth: [] for depth in depths}
    for _ in range(scale.memory_repetitions):
        for depth in depths:
            result = sides.casque(replace(IN_MEMORY, depth=depth, seconds=scale.seconds))
            assert result.failed == 0, result.first_error
            rates[depth].append(result.rate)
            by_cpu[depth].append(result.calls / result.cpu_seconds)
            steps.done(f"memory at {depth:,}")
    table = Table(
        "log: calls per second in memory, 1,000 callers, 100-byte payloads",
        ["jobs queued", "calls/s", "of empty", "from to", "calls per CPU second"],
        notes=[
            "enqueue, dequeue and ack, one job per call; asyncio.",
            "The snapshot that filling the queue made due is waited for; others that fall into a run are part of it.",
        ],
    )
    empty = median(rates[0])
    for depth in depths:
        share = 100 * median(rates[depth]) / empty
        table.add(depth, median(rates[depth]), f"{share:.0f}%", spread(rates[depth]), median(by_cpu[depth]))
        if depth:
            section.aim_for(f"memory, rate at {depth:,} jobs", share, at_least=MEMORY_SHARE, unit=" % of empty")
        else:
            section.aim_for("memory, calls per second, empty", empty, at_least=MEMORY_RATE, unit="/s")
    section.tables.append(table)


def _on_files(scale: Scale, steps: Steps, section: Section) -> None:
    names = [CASQUE, JQUEUE] if sides.have_jqueue(scale) else [CASQUE]
    depths = _depths(scale.depths, scale)
    # All depths take turns too: what one of them reaches of another is a target.
    runs = [
        (name, depth)
        for _ in range(scale.log_repetitions)
        for depth in depths
        for name in (names if depth in scale.depths else [CASQUE])
    ]
    steps.expect(len(runs))
    rates: dict[tuple[str, int], list[float]] = {}
    for name, depth in runs:
        run = replace(ON_FILES, depth=depth, seconds=scale.seconds)
        result = sides.casque(run) if name == CASQUE else sides.jqueue(replace(run, api="broker"))
        assert name == JQUEUE or result.failed == 0, result.first_error
        rates.setdefault((name, depth), []).append(result.rate)
        steps.done(f"{name} at {depth:,}")
    table = Table(
        "log: calls per second on local files, 50 callers, 100-byte payloads",
        ["jobs queued", "casque", "of empty", "jqueue", "/ jqueue", "casque from to", "jqueue from to"],
    )
    for depth in depths:
        ours, theirs = rates[CASQUE, depth], rates.get((JQUEUE, depth))
        share = 100 * median(ours) / median(rates[CASQUE, 0])
        ratio = median(ours) / median(theirs) if theirs else 0.0
        beside = (show(median(theirs)), f"{show(ratio)} x") if theirs else ("", "")
        table.add(depth, median(ours), f"{share:.0f}%", *beside, spread(ours), spread(theirs) if theirs else "")
        if theirs and depth in TIMES_JQUEUE:
            # Worded unlike the document layout's: the README quotes those figures by name.
            what = f"files, calls per second at {depth:,} jobs, times jqueue's"
            section.aim_for(what, ratio, at_least=TIMES_JQUEUE[depth], unit=" x")
        if depth >= min(20_000, scale.deepest):
            section.aim_for(f"files, rate at {depth:,} jobs", share, at_least=FILES_SHARE, unit=" % of empty")
    section.tables.append(table)


def _depths(depths: tuple[int, ...], scale: Scale) -> list[int]:
    return sorted({*(depth for depth in depths if depth < scale.deepest), scale.deepest})
