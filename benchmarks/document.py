"""The document layout on local files: fifty callers, one call at a time each, side by side with jqueue.

casque syncs every commit to disk before it answers; jqueue's storage leaves that to the operating system.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks import sides
from benchmarks.load import Result, Run
from benchmarks.report import Section, Steps, Table, interleaved, median, show, spread
from benchmarks.scale import Scale

BROKER, APART, QUEUE, QUEUE_UV, JQUEUE = "BrokerQueue", "out of step", "Queue.open", "Queue uvloop", "jqueue"
RUNS = {
    BROKER: Run(api="broker"),
    APART: Run(api="broker", spread_s=0.1),
    QUEUE: Run(api="queue"),
    QUEUE_UV: Run(api="queue", loop="uvloop"),
    JQUEUE: Run(),
}
TIMES_JQUEUE = {0: 1.0, 1_000: 5.0, 20_000: 20.0}
SHARE_OF_CAPACITY = 0.5

Rates = dict[tuple[str, int], list[float]]


def measure(scale: Scale, steps: Steps) -> Section:
    names = [name for name in RUNS if name != JQUEUE or sides.have_jqueue(scale)]
    steps.expect(len(scale.depths) * (len(names) * scale.file_repetitions + min(len(names), 3)) + 4)
    section = Section()
    rates = _closed(scale, steps, names, section)
    _staggered(scale, steps, rates, section)
    _without_a_disk(scale, steps, section)
    return section


def _closed(scale: Scale, steps: Steps, names: list[str], section: Section) -> Rates:
    rates: Rates = {}
    pythons: dict[str, str] = {}
    for depth in scale.depths:
        for name in interleaved(scale.file_repetitions, *names):
            result = _carry_out(name, replace(RUNS[name], depth=depth, seconds=scale.seconds))
            rates.setdefault((name, depth), []).append(result.rate)
            pythons[name] = result.python
            steps.done(f"{name} at {depth:,}")
    table = Table(
        "document: calls per second on local files, 50 callers, 100-byte payloads",
        ["jobs queued", *names, "/ jqueue", "BrokerQueue from to", "jqueue from to"],
        notes=[
            f"Python {pythons[BROKER]} for casque, {pythons.get(JQUEUE, 'none')} for jqueue; asyncio unless named.",
            "Callers start together, except those out of step (BrokerQueue too), who start at random moments.",
        ],
    )
    for depth in scale.depths:
        middle = [median(rates[name, depth]) for name in names]
        theirs = rates.get((JQUEUE, depth))
        ratio = median(rates[BROKER, depth]) / median(theirs) if theirs else 0.0
        shown = (f"{show(ratio)} x", spread(rates[BROKER, depth]), spread(theirs)) if theirs else ("", "", "")
        table.add(depth, *middle, *shown)
        if theirs and depth in TIMES_JQUEUE:
            name = f"calls per second at {depth:,} jobs against jqueue's"
            section.aim_for(name, ratio, at_least=TIMES_JQUEUE[depth], unit=" x")
    section.tables.append(table)
    return rates


def _staggered(scale: Scale, steps: Steps, rates: Rates, section: Section) -> None:
    table = Table(
        f"document: jobs arriving at random, {SHARE_OF_CAPACITY:.0%} of what the closed loop reached",
        ["jobs queued", "side", "calls/s offered", "calls/s done", "failed calls", "median ms", "p99 ms"],
    )
    failed = 0
    for depth in scale.depths:
        for name in (BROKER, QUEUE, JQUEUE):
            if (name, depth) not in rates:
                continue
            offered = median(rates[name, depth]) * SHARE_OF_CAPACITY
            run = replace(RUNS[name], depth=depth, seconds=scale.seconds, jobs_per_second=offered / 3)
            result = _carry_out(name, run)
            table.add(depth, name, offered, result.rate, result.failed, result.median_ms, result.p99_ms)
            failed += result.failed if name != JQUEUE else 0
            steps.done(f"{name} at {depth:,}, staggered")
    section.tables.append(table)
    section.keep_below("calls that failed when they came at random", failed, at_most=0)


def _without_a_disk(scale: Scale, steps: Steps, section: Section) -> None:
    """What the engine and the codec alone would allow."""
    table = Table("document: calls per second in memory, empty queue", ["callers", "asyncio", "uvloop"])
    for concurrency in (50, 1_000):
        found: list[float] = []
        for loop in ("asyncio", "uvloop"):
            run = Run(api="queue", place="memory", concurrency=concurrency, seconds=scale.seconds, loop=loop)
            found.append(sides.casque(run).rate)
            steps.done(f"memory, {concurrency:,} callers, {loop}")
        table.add(concurrency, *found)
    section.tables.append(table)


def _carry_out(name: str, run: Run) -> Result:
    return sides.jqueue(run) if name == JQUEUE else sides.casque(run)
