"""How the jobs ended, by the archive, and the objects on the disk."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from casque.cli.top.board import RunningJob
from casque.client.queue import Queue
from casque.service import ArchivedJob
from casque.types import JobState, Totals


async def report_summary(
    console: Console,
    data: Path,
    *,
    since: datetime,
    names: Mapping[str, str],
    seconds: float,
    victim: str | None,
    held: tuple[RunningJob, ...],
    lease_s: float,
) -> bool:
    """Print it. False if a job is left that should have finished."""
    finished = [job async for job in Queue.open(data.as_uri()).archive(since=since)]
    async with Queue.open(data.as_uri()) as queue:
        stats = await queue.stats()
    console.print()
    console.print(_kinds(finished))
    console.print(_workers(finished, names))
    if victim is not None:
        console.print(_rescue(victim, held, finished, names, lease_s), soft_wrap=True)
    for job in [job for job in finished if job.state is JobState.DEAD][:1]:
        why = (job.error or "").partition("\n")[0]
        console.print(Text(f"A dead one: {job.entrypoint}, after {job.attempts} attempts: {why}"), soft_wrap=True)
    console.print(
        f"{len(finished):,} jobs were finished in {seconds:.1f} s; commits in the queue's life: {stats.position:,}."
    )
    console.print(f"enqueued = done + dead + cancelled + purged + waiting: {_totals(stats.totals)}")
    console.print()
    console.print(_objects(data))
    url = data.as_uri()
    for what, command in (
        ("What is dead", f"casque jobs list {url} --state dead"),
        ("Event by event", f"casque tail {url} --from start --no-follow"),
        ("Finished jobs", f"casque archive cat {url}"),
    ):
        console.print(f"{what}: {command}", soft_wrap=True)
    return bool(finished) and not stats.totals.running


def _kinds(finished: list[ArchivedJob]) -> Table:
    table = _table("Finished jobs", "entrypoint", "done", "dead", "cancelled", "failed attempts", "wait ms", "run ms")
    for name in sorted({job.entrypoint for job in finished}):
        jobs = [job for job in finished if job.entrypoint == name]
        ends = Counter(job.state for job in jobs)
        table.add_row(
            name,
            *(f"{ends[state]:,}" for state in (JobState.DONE, JobState.DEAD, JobState.CANCELLED)),
            f"{sum(len(job.tries) for job in jobs):,}",
            _median([_ms(job.due_at, job.claimed_at) for job in jobs]),
            _median([_ms(job.claimed_at, job.finished_at) for job in jobs]),
        )
    return table


def _workers(finished: list[ArchivedJob], names: Mapping[str, str]) -> Table:
    table = _table("Workers", "worker", "finished", "failed attempts")
    done = Counter(job.worker for job in finished)
    failed = Counter(tried.worker for job in finished for tried in job.tries)
    for worker, title in names.items():
        table.add_row(title, f"{done[worker]:,}", f"{failed[worker]:,}")
    return table


def _rescue(
    victim: str, held: tuple[RunningJob, ...], finished: list[ArchivedJob], names: Mapping[str, str], lease_s: float
) -> Text:
    """Which workers finished the jobs of the killed one."""
    by_id = {job.id: job for job in finished}
    rescued = [by_id[job.id] for job in held if job.id in by_id]
    if not rescued:
        return Text(f"{victim} was killed; it held nothing at that very moment.")
    others = Counter(names.get(job.worker or "", job.worker or "?") for job in rescued)
    claimed = [tried.claimed_at for job in rescued for tried in job.tries if tried.claimed_at is not None]
    waited = (max(job.finished_at for job in rescued) - min(claimed)).total_seconds() if claimed else 0.0
    return Text(
        f"{victim} was killed while it held {len(rescued)} of them. When its lease of {lease_s:g} s had run out, "
        f"{' and '.join(f'{name} finished {many}' for name, many in sorted(others.items()))}, "
        f"the last {waited:.1f} s after it had first been claimed. None is lost."
    )


def _objects(data: Path) -> Table:
    """Objects by directory, because there is one for each commit."""
    sizes: dict[str, list[int]] = {}
    for path in sorted(data.rglob("*")):
        inside = path.relative_to(data)
        if path.is_file() and not any(part.startswith(".") for part in inside.parts):
            where = str(inside) if len(inside.parts) == 1 else f"{inside.parts[0]}/"
            sizes.setdefault(where, []).append(path.stat().st_size)
    table = _table(f"Objects in {data}", "key", "objects", "bytes")
    for where, each in sorted(sizes.items()):
        table.add_row(where, f"{len(each):,}", f"{sum(each):,}")
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for at, name in enumerate(columns):
        table.add_column(name, justify="right" if at else "left")
    return table


def _ms(begin: datetime | None, end: datetime | None) -> float | None:
    return None if begin is None or end is None else (end - begin).total_seconds() * 1000


def _median(times: list[float | None]) -> str:
    there = [time for time in times if time is not None]
    return f"{statistics.median(there):,.0f}" if there else ""


def _totals(totals: Totals) -> str:
    waiting = totals.ready + totals.delayed + totals.running
    parts = (totals.done, totals.dead, totals.cancelled, totals.purged, waiting)
    return f"{totals.enqueued:,} = {' + '.join(f'{part:,}' for part in parts)}"
