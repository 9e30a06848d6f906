"""gRPC on loopback, the broker in another process: what the wire costs beside the same calls without one.

Callers, client and broker share the machine's cores, so the rate is that of the machine and not of the wire alone.
"""

from __future__ import annotations

from benchmarks import sides
from benchmarks.load import Run
from benchmarks.report import Section, Steps, Table, interleaved, median, spread
from benchmarks.scale import Scale

SIDES = ("embedded", "grpc")
CALLERS = 1000
FLEET = 50


def measure(scale: Scale, steps: Steps) -> Section:
    section = Section()
    _rates(
        "calls",
        Table(
            f"grpc: calls per second, {CALLERS:,} callers, memory store",
            ["side", "calls/s", "lowest to highest", "of embedded", "µs here", "µs in the broker"],
            notes=[
                "Each caller enqueues, claims and acknowledges, one call after the other; all are in one process.",
                "Both sides are a broker that leads: embedded is called in its own process, gRPC from another one.",
                "µs: what a call takes of the processors, in the callers' process and in the broker's.",
            ],
        ),
        Run(concurrency=CALLERS, seconds=scale.seconds, loop="uvloop"),
        at_least=12_000,
        what="calls per second, 1,000 callers in one process",
        scale=scale,
        steps=steps,
        section=section,
    )
    _rates(
        "bulk",
        Table(
            "grpc: jobs per second, 1,000 jobs per enqueue, memory store",
            ["side", "jobs/s", "lowest to highest", "of embedded", "µs here", "µs in the broker"],
            notes=["Four callers."],
        ),
        Run(concurrency=4, seconds=scale.seconds, loop="uvloop"),
        at_least=100_000,
        what="jobs per second, 1,000 per call",
        scale=scale,
        steps=steps,
        section=section,
    )
    _latency(scale, steps, section)
    _idle(scale, steps, section)
    return section


def _rates(
    task: str, table: Table, run: Run, *, at_least: float, what: str, scale: Scale, steps: Steps, section: Section
) -> None:
    steps.expect(scale.memory_repetitions * len(SIDES))
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for side in interleaved(scale.memory_repetitions, *SIDES):
        found[side].append(sides.grpc(_with(run, f"{side}:{task}")))
        steps.done(f"{task}, {side}")
    rates = {side: [one["rate"] for one in found[side]] for side in SIDES}
    whole = median(rates["embedded"])
    for side in SIDES:
        rate = median(rates[side])
        spent = [median([one[where] for one in found[side]]) for where in ("here_us", "there_us")]
        table.add(side, rate, spread(rates[side]), f"{rate / whole:.0%}", *spent)
    section.tables.append(table)
    section.aim_for(what, median(rates["grpc"]), at_least=at_least, unit="/s")


def _latency(scale: Scale, steps: Steps, section: Section) -> None:
    steps.expect(1)
    found = sides.grpc(Run(api="grpc:latency", seconds=scale.seconds, loop="uvloop"))
    steps.done("long poll")
    table = Table(
        "grpc: from the commit to a consumer on long poll, memory store",
        ["jobs", "median ms", "p99 ms"],
        notes=["From the end of the commit's write in the broker to the job in the hands of the consumer's process."],
    )
    table.add(int(found["jobs"]), found["median_ms"], found["p99_ms"])
    section.tables.append(table)
    section.keep_below("from the commit to a waiting consumer, median", found["median_ms"], at_most=2.0, unit=" ms")


def _idle(scale: Scale, steps: Steps, section: Section) -> None:
    steps.expect(2)
    seconds = max(5 * scale.seconds, 2.5)
    verbs = ("GET", "PUT", "LIST", "DELETE")
    table = Table(
        "grpc: requests to the store while consumers wait for a job that does not come",
        ["consumers", "seconds", *verbs],
        notes=["What there is without consumers is the leader's heartbeat."],
    )
    per_heartbeat: list[float] = []
    for consumers in (0, FLEET):
        found = sides.grpc(Run(api="grpc:idle", concurrency=consumers, seconds=seconds, loop="uvloop"))
        steps.done(f"{consumers} idle consumers")
        table.add(consumers, seconds, *(int(found.get(verb, 0)) for verb in verbs))
        per_heartbeat.append(sum(found.get(verb, 0) for verb in verbs) / max(found.get("PUT", 0), 1))
    section.tables.append(table)
    alone, waited_on = per_heartbeat
    section.keep_below("requests per heartbeat with 50 idle consumers", waited_on, at_most=alone)


def _with(run: Run, api: str) -> Run:
    return Run(api=api, concurrency=run.concurrency, seconds=run.seconds, loop=run.loop)
