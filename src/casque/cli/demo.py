"""`casque demo`: a queue, a few hundred jobs, workers in processes of their own, and one of them killed on the way."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from casque import NewJob, Queue
from casque.cli.demo_history import tell_history
from casque.clock import SystemClock

LEASE = timedelta(seconds=2)
KINDS = ("email", "thumbnail", "report")


def demo(
    data: Annotated[Path, typer.Option(help="Where the queue lives; created if it is not there.")] = Path("data"),
    jobs: Annotated[int, typer.Option(min=1, max=100_000, help="How many jobs to enqueue.")] = 300,
    workers: Annotated[int, typer.Option(min=2, max=16, help="How many worker processes to start.")] = 3,
    report: Annotated[
        bool, typer.Option(help="Make tables and a report of it in the end, with Spark if that is installed.")
    ] = True,
) -> None:
    """Enqueue some hundred jobs, process them in several processes, kill one of them, and show what is left.

    No service is needed: the queue is a directory. The worker that is killed holds a job at that moment; its lease
    runs out, and another worker finishes the job. In the end the pipeline turns the queue's history into tables in a
    directory beside it, and a report about them is written there.

    Exit code 0: every job was worked off. 1: something is left, or the report could not be written.
    """
    console = Console()
    done = asyncio.run(_Demo(data.absolute(), jobs, workers, console).run())
    if report:
        done = tell_history(data.absolute(), console) and done
    raise typer.Exit(0 if done else 1)


class _Demo:
    def __init__(self, data: Path, jobs: int, workers: int, console: Console) -> None:
        self._data = data
        self._url = data.as_uri()
        self._jobs = jobs
        self._workers = workers
        self._console = console
        self._done: Counter[str] = Counter()
        self._failed = 0
        self._victim: dict[str, Any] | None = None
        self._rescue: dict[str, Any] | None = None
        self._clock = SystemClock()
        self._killed_ms = 0
        self._rescued_ms = 0
        self._progress = Progress(
            TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        )

    async def run(self) -> bool:
        self._data.mkdir(parents=True, exist_ok=True)
        async with Queue.open(self._url, stale_timeout=LEASE, worker="producer") as queue:
            left_over = (await queue.stats()).totals
            waiting = left_over.ready + left_over.delayed + left_over.running
            if waiting:
                self._console.print(f"{waiting} jobs of an earlier run are still here and are worked off too.")
            total = self._jobs + waiting
            with Live(self._progress, console=self._console, refresh_per_second=12):
                started_ms = self._clock.monotonic_ms()
                await self._enqueue(queue)
                await self._work(queue, total)
                seconds = (self._clock.monotonic_ms() - started_ms) / 1000
            await self._summary(queue, seconds)
            totals = (await queue.stats()).totals
            return totals.ready + totals.delayed + totals.running == 0

    async def _enqueue(self, queue: Queue[bytes]) -> None:
        bar = self._progress.add_task("enqueued", total=self._jobs)
        new = [
            NewJob(KINDS[n % len(KINDS)], json.dumps({"number": n, "fails": n % 37 == 5}).encode(), priority=n % 3)
            for n in range(self._jobs)
        ]
        for start in range(0, len(new), 25):
            added = await queue.enqueue_many(new[start : start + 25])
            self._progress.advance(bar, len(added))

    async def _work(self, queue: Queue[bytes], total: int) -> None:
        bars = [self._progress.add_task(f"worker {n}", total=None) for n in range(self._workers)]
        overall = self._progress.add_task("finished", total=total)
        processes = [await self._spawn(n, crashes=n == 1) for n in range(self._workers)]
        try:
            watching = [
                asyncio.create_task(self._watch(process, bar, overall))
                for process, bar in zip(processes, bars, strict=True)
            ]
            await asyncio.gather(*watching)
            # Workers leave when nothing is left to claim; what the killed one held may outlive them by a lease.
            while (await queue.stats()).totals.running or await queue.jobs(limit=1):
                last = await self._spawn(self._workers, crashes=False)
                processes.append(last)
                await self._watch(last, bars[0], overall)
        finally:
            for process in processes:
                if process.returncode is None:
                    process.kill()
                await process.wait()

    async def _spawn(self, number: int, *, crashes: bool) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "casque.cli.demo_worker",
            self._url,
            f"worker-{number}",
            "crash" if crashes else "work",
            str(LEASE.total_seconds()),
            stdout=asyncio.subprocess.PIPE,
        )

    async def _watch(self, process: asyncio.subprocess.Process, bar: Any, overall: Any) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            news = json.loads(line)
            match news["what"]:
                case "holding":
                    # It has claimed a job and works on it: the worst moment for a process to vanish.
                    self._victim = news
                    self._killed_ms = self._clock.monotonic_ms()
                    os.kill(process.pid, signal.SIGKILL)
                case "failed":
                    self._failed += 1
                case "done":
                    self._done[news["worker"]] += 1
                    if self._victim is not None and news["job"] == self._victim["job"]:
                        self._rescue = news
                        self._rescued_ms = self._clock.monotonic_ms()
                    self._progress.advance(bar)
                    self._progress.advance(overall)
        await process.wait()

    async def _summary(self, queue: Queue[bytes], seconds: float) -> None:
        stats = await queue.stats()
        totals = stats.totals
        console = self._console
        table = Table(title="What happened", show_header=False, title_justify="left")
        table.add_row("jobs finished in this run", f"{self._done.total()} in {seconds:.1f} s")
        for worker, count in sorted(self._done.items()):
            table.add_row(f"  by {worker}", str(count))
        table.add_row("attempts that failed and were tried again", str(self._failed))
        table.add_row("commits in the queue's life", str(stats.position))
        table.add_row("enqueued = done + dead + cancelled + waiting", _law(totals))
        console.print(table)
        if self._victim is not None and self._rescue is not None:
            waited = (self._rescued_ms - self._killed_ms) / 1000
            console.print(
                f"[bold]{self._victim['worker']}[/] was killed (SIGKILL) while it held job {self._victim['job'][:8]}…; "
                f"[bold]{self._rescue['worker']}[/] finished it {waited:.1f} s later as attempt "
                f"{self._rescue['attempt']} (the lease is {LEASE.total_seconds():.0f} s)."
            )
        console.print(self._objects())
        console.print(f"Look inside with: cat {self._data / 'queue.json'}", soft_wrap=True)
        console.print(f"Event by event: casque tail {self._url} --from start --no-follow", soft_wrap=True)

    def _objects(self) -> Table:
        """What is on disk: the files of a directory together, because there is one for each commit."""
        sizes: dict[str, list[int]] = {}
        for path in sorted(self._data.rglob("*")):
            inside = path.relative_to(self._data)
            if path.is_file() and not any(part.startswith(".") for part in inside.parts):
                where = str(inside) if len(inside.parts) == 1 else f"{inside.parts[0]}/"
                sizes.setdefault(where, []).append(path.stat().st_size)
        table = Table(title=f"Objects in {self._data}", title_justify="left")
        table.add_column("key")
        table.add_column("objects", justify="right")
        table.add_column("bytes", justify="right")
        for where, each in sorted(sizes.items()):
            table.add_row(where, f"{len(each):,}", f"{sum(each):,}")
        return table


def _law(totals: Any) -> str:
    waiting = totals.ready + totals.delayed + totals.running
    return f"{totals.enqueued} = {totals.done} + {totals.dead} + {totals.cancelled} + {waiting}"
