"""Runs seeds by the thousand, on every processor: `python -m simulation.world --seeds 1000`."""

from __future__ import annotations

import argparse
import gc
import os
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from multiprocessing import get_context
from typing import TypeAlias

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from casque.clock import SystemClock
from simulation.world.layout import LAYOUTS
from simulation.world.profile import PROFILES
from simulation.world.run import Report, simulate

FAILURES_SHOWN = 5
PER_FORK = 8
"""Worlds in one process."""
ALL = "all"


Mapped: TypeAlias = Callable[[Callable[[int], Report], Iterable[int]], Iterator[Report]]


class Summary:
    """Many reports added up."""

    def __init__(self) -> None:
        self.runs = 0
        self.simulated_s = 0.0
        self.effects: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.operations: Counter[str] = Counter()
        self.checked: Counter[str] = Counter()
        self.failed: list[Report] = []

    def add(self, report: Report) -> None:
        self.runs += 1
        self.simulated_s += report.simulated_s
        self.effects.update(report.effects)
        self.faults.update(report.faults)
        self.operations.update(report.operations)
        self.checked.update(report.checked)
        if not report.passed:
            self.failed.append(report)


def main() -> int:
    args = _arguments()
    console = Console()
    summary = Summary()
    clock = SystemClock()
    began_ms = clock.monotonic_ms()
    run = partial(simulate_by_name, profile=args.profile, layout=args.layout, duration_s=args.duration)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress, _mapping(args.jobs) as mapped:
        bar = progress.add_task("seeds", total=args.seeds)
        for report in mapped(run, range(args.start, args.start + args.seeds)):
            summary.add(report)
            failed = f", [red]{len(summary.failed)} failed" if summary.failed else ""
            progress.update(bar, advance=1, description=f"seeds{failed}")
    _print(console, summary, (clock.monotonic_ms() - began_ms) / 1000)
    for report in sorted(summary.failed, key=lambda failed: failed.seed)[:FAILURES_SHOWN]:
        _print_failure(console, report, args.lines)
    return 1 if summary.failed else 0


def simulate_by_name(seed: int, *, profile: str, layout: str, duration_s: float | None) -> Report:
    """A run in another process: only names travel there. Where all are asked for, seeds take turns."""
    layouts = list(LAYOUTS) if layout == ALL else [layout]
    profiles = list(PROFILES) if profile == ALL else [profile]
    chosen = LAYOUTS[layouts[seed % len(layouts)]]
    weather = PROFILES[profiles[seed // len(layouts) % len(profiles)]]
    return simulate(seed, duration_s=duration_s, profile=weather, layout=chosen)


@contextmanager
def _mapping(jobs: int) -> Iterator[Mapped]:
    if jobs == 1:
        yield map
        return
    # Not a multiprocessing.Pool: that one waits for ever for a worker that died.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield lambda run, seeds: chain.from_iterable(pool.map(partial(_in_a_fork, run), _batched(seeds)))


def _batched(seeds: Iterable[int]) -> Iterator[list[int]]:
    numbers = iter(seeds)
    while batch := list(islice(numbers, PER_FORK)):
        yield batch


def _in_a_fork(run: Callable[[int], Report], seeds: list[int]) -> list[Report]:
    """Run these seeds in a child that ends afterwards, and the memory of its worlds with it.

    A world is full of cycles: collecting them took 15 % of the time.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            gc.disable()
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump([run(seed) for seed in seeds], pipe)
            os._exit(0)
        finally:
            os._exit(1)  # never back into the pool of the parent
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        reports = pipe.read()
    _, status = os.waitpid(pid, 0)
    if status:
        raise RuntimeError(f"seeds {seeds[0]} to {seeds[-1]} ended with status {status}; --jobs 1 shows why")
    answered: list[Report] = pickle.loads(reports)  # noqa: S301 - from our own child
    return answered


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulation.world", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run")
    parser.add_argument("--start", type=int, default=1, help="the first seed")
    parser.add_argument("--jobs", type=_jobs, default="auto", help="processes, or 'auto' for one per processor")
    parser.add_argument("--profile", choices=[*PROFILES, ALL], default=ALL, help="how bad the weather is")
    parser.add_argument("--layout", choices=[*LAYOUTS, ALL], default=ALL, help="how the queue is kept")
    parser.add_argument("--duration", type=float, default=None, help="seconds of faults per run")
    parser.add_argument("--lines", type=int, default=40, help="lines of trace shown of a failed run")
    return parser.parse_args()


def _jobs(text: str) -> int:
    return os.cpu_count() or 1 if text == "auto" else int(text)


def _print(console: Console, summary: Summary, took_s: float) -> None:
    console.print(
        f"{summary.runs} seeds in {took_s:.0f} s ({summary.runs / max(took_s, 0.001):.1f}/s): "
        f"{summary.simulated_s / 3600:.1f} simulated hours, {summary.operations.total():,} operations, "
        f"{summary.effects.total():,} changes, {summary.faults.total():,} faults, {summary.checked.total():,} checks, "
        f"{len(summary.failed)} failed"
    )
    for what, how_often, counter in (
        ("fault", "times", summary.faults),
        ("change", "times", summary.effects),
        ("operation and outcome", "times", summary.operations),
        ("invariant", "checks", summary.checked),
    ):
        table = Table(what, box=None, pad_edge=False)
        table.add_column(how_often, justify="right")
        for name, times in sorted(counter.items()):
            table.add_row(name, f"{times:,}")
        console.print(table)
        console.print()


def _print_failure(console: Console, report: Report, lines: int) -> None:
    console.rule(f"seed {report.seed}, profile {report.profile}, layout {report.layout}")
    for line in report.trace[-lines:]:
        console.print(escape(line), highlight=False, soft_wrap=True)
    console.print(f"[red]{escape(str(report.violated))}[/]\n{escape(report.detail)}")
    again = f"--start {report.seed} --seeds 1 --profile {report.profile} --layout {report.layout} --jobs 1"
    console.print(f"Again: python -m simulation.world {again}", soft_wrap=True)
