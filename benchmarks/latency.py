"""A store that takes 50 ms per request: how many round trips a call takes, and how full each write is.

With one write in flight, a caller who comes at a random moment waits for half a write and then for its own: 1.5
round trips. A hundred callers can be answered once per round trip and no faster.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks import sides
from benchmarks.load import Result, Run
from benchmarks.report import Section, Steps, Table, median
from benchmarks.scale import Scale
from tests.support.servers import ServerMissingError, seaweedfs

DELAY_MS = 50.0
CALLERS = 100
PATTERNS = {
    "closed, in step": {"spread_s": 0.0},
    "closed, out of step": {"spread_s": 0.2},
    "random arrivals, 70 %": {"jobs_per_second": 0.7 * CALLERS / (DELAY_MS / 1000) / 3},
}
Side = Callable[[Run], Result]
_ROOT = Path(__file__).resolve().parents[1]


def measure(scale: Scale, steps: Steps) -> Section:
    section = Section()
    table = Table(
        f"latency: {CALLERS} callers, {DELAY_MS:.0f} ms per request",
        ["store", "load", "trip ms", "median, trips", "p99, trips", "calls/s", "of limit", "failed"],
        notes=[
            "Calls are given in round trips (trip ms, as measured); the limit is one write in flight for all callers.",
            f"A log is measured after {scale.log_warm_up_s:.0f} s: until its writer knows itself alone, it reads too.",
        ],
    )
    base = Run(api="queue", place="memory", concurrency=CALLERS, seconds=scale.latency_seconds, delay_ms=DELAY_MS)
    _add("casque, memory", base, sides.casque, scale, steps, table, section)
    try:
        with slow_s3(base) as (near, far):
            _add("casque, SeaweedFS", far, sides.casque, scale, steps, table, section)
            for depth in (0, scale.deepest):
                _fill(near, depth)
                run = replace(far, layout="log", place=_place(far, depth), warm_up_s=scale.log_warm_up_s)
                _add(f"log at {depth:,}, SeaweedFS", run, sides.casque, scale, steps, table, section)
    except ServerMissingError as error:
        table.notes.append(f"SeaweedFS was left out: {error}")
    if sides.have_jqueue(scale):
        _add("jqueue, memory", replace(base, api="broker"), sides.jqueue, scale, steps, table, None)
    section.tables.append(table)
    return section


def _fill(near: Run, depth: int) -> None:
    """Once for all runs, and past the proxy: what is filled is not what is measured."""
    sides.deep(replace(near, api="fill", layout="log", place=_place(near, depth), depth=depth))


def _place(run: Run, depth: int) -> str:
    return f"{run.place}/log-{depth}"


def _add(name: str, base: Run, side: Side, scale: Scale, steps: Steps, table: Table, section: Section | None) -> None:
    steps.expect(len(PATTERNS) * scale.latency_repetitions)
    for pattern, changes in PATTERNS.items():
        results: list[Result] = []
        for seed in range(scale.latency_repetitions):
            results.append(side(replace(base, **changes, seed=seed + 1)))  # type: ignore[arg-type]
            steps.done(f"{name}, {pattern}")
        trip_ms = median([r.round_trip_ms for r in results])
        middle = median([r.median_ms for r in results]) / trip_ms
        slowest = median([r.p99_ms for r in results]) / trip_ms
        rate = median([r.rate for r in results])
        allowed = CALLERS / (trip_ms / 1000)
        failed = sum(r.failed for r in results)
        is_closed = "jobs_per_second" not in changes
        share = f"{rate / allowed:.0%}" if is_closed else ""
        table.add(name, pattern, trip_ms, middle, slowest, rate, share, failed)
        if section is not None:
            section.keep_below(f"{name}, {pattern}: median call", middle, at_most=1.6, unit=" round trips")
            if is_closed:
                share_found = 100 * rate / allowed
                section.aim_for(f"{name}, {pattern}: calls per round trip", share_found, at_least=90, unit=" %")
            else:
                section.keep_below(f"{name}, {pattern}: failed calls", failed, at_most=0)


@contextlib.contextmanager
def slow_s3(base: Run) -> Iterator[tuple[Run, Run]]:
    """A real server, reached directly, and behind a proxy that holds every request back."""
    with seaweedfs() as server:
        proxy = subprocess.Popen(
            [sys.executable, "-m", "tests.support.proxy", "--upstream", server.endpoint, "--delay-ms", str(DELAY_MS)],
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert proxy.stdout is not None
            behind = server.through(proxy.stdout.readline().strip())
            direct = replace(base, place=server.url, options=server.options, delay_ms=0.0)
            yield direct, replace(direct, place=behind.url, options=behind.options)
        finally:
            proxy.terminate()
            proxy.wait()
