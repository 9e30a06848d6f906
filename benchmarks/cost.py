"""What the document layout asks of the store, and what S3 would charge for it.

Counted at the store, not computed. The number of requests depends on how many callers share a write, the bytes on how
deep the queue is.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks import sides
from benchmarks.load import Result, Run
from benchmarks.report import Section, Steps, Table
from benchmarks.scale import Scale

DOLLARS_PER_PUT = 0.005 / 1000
DOLLARS_PER_GET = 0.0004 / 1000
DELAY_MS = 2.0
"""Long enough that callers meet in one write, as they would over a network."""


def measure(scale: Scale, steps: Steps) -> Section:
    table = Table(
        "cost: requests and bytes per 1,000 calls, dollars per million calls at S3's list prices",
        ["side", "jobs queued", "callers", "PUT", "GET", "MB up", "MB down", "$ per million calls"],
        notes=["$0.005 per 1,000 PUT, $0.0004 per 1,000 GET; transfer within a region is free."],
    )
    # jqueue asks the same at every depth and takes minutes at the deepest: two depths show it.
    theirs = scale.depths[:2] if sides.have_jqueue(scale) else ()
    steps.expect(len(scale.cost_concurrency) * (len(scale.depths) + len(theirs)))
    base = Run(api="queue", place="memory", delay_ms=DELAY_MS, seconds=scale.cost_seconds)
    for side, depths in (("casque", scale.depths), ("jqueue", theirs)):
        for depth in depths:
            for callers in scale.cost_concurrency:
                run = replace(base, depth=depth, concurrency=callers)
                _add(table, side, run, sides.casque(run) if side == "casque" else sides.jqueue(run))
                steps.done(f"{side} at {depth:,}, {callers} callers")
    return Section([table])


def _add(table: Table, side: str, run: Run, result: Result) -> None:
    assert result.failed == 0, result.first_error
    per_call = 1 / result.calls
    puts, gets = result.requests.get("PUT", 0) * per_call, result.requests.get("GET", 0) * per_call
    up, down = result.bytes_up * per_call / 1000, result.bytes_down * per_call / 1000
    dollars = 1_000_000 * (puts * DOLLARS_PER_PUT + gets * DOLLARS_PER_GET)
    table.add(side, run.depth, run.concurrency, puts * 1000, gets * 1000, up, down, dollars)
