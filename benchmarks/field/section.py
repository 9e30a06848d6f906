"""Runs the field, one side after the other, and compares."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.field import servers
from benchmarks.field.desk import BULK, Task
from benchmarks.report import Cell, Section, Steps, Table, median, show
from benchmarks.scale import Scale

_ROOT = Path(__file__).resolve().parents[2]
_LIMIT_S = 300
CALLERS = 100
THREADS = 20
"""Callers at once of a library that blocks: each needs a thread and a connection."""
TIMES_THE_BEST = 2.0
IDLE_MS = 4.0


@dataclass(frozen=True, kw_only=True)
class Contender:
    name: str
    module: str
    server: str
    """What it needs: `postgres`, `redis`, `file`, `directory` or `broker`."""
    share: float
    """Of the jobs that the fastest are given: what takes as long."""
    blocks: bool = False
    has_bulk: bool = True
    goes_deep: bool = True
    repeated: bool = True
    about: str = ""

    @property
    def callers(self) -> int:
        return THREADS if self.blocks else CALLERS


CASQUE = (
    Contender(name="casque, embedded", module="of_casque", server="directory", share=1),
    Contender(name="casque, broker", module="of_casque", server="broker", share=1),
)
OTHERS = (
    Contender(name="PgQueuer", module="of_pgqueuer", server="postgres", share=0.5),
    Contender(name="Procrastinate", module="of_procrastinate", server="postgres", share=0.05, repeated=False),
    Contender(name="SAQ", module="of_saq", server="redis", share=0.1, has_bulk=False),
    Contender(name="RQ", module="of_rq", server="redis", share=0.025, blocks=True, repeated=False),
    Contender(
        name="Celery", module="of_celery", server="redis", share=0.04, blocks=True, has_bulk=False, goes_deep=False,
        repeated=False,
    ),
    Contender(name="Huey", module="of_huey", server="file", share=0.12, blocks=True, has_bulk=False),
)  # fmt: skip
FIGURES = ("one by one", "100 callers", "bulk", "worker", "idle start")
Found = dict[str, list[float]]


def measure(scale: Scale, steps: Steps) -> Section:
    contenders = [*CASQUE, *(OTHERS if scale.with_field and field_python() else ())]
    runs = [
        (contender, depth)
        for repetition in range(scale.field_repetitions)
        for depth in (0, scale.field_depth)
        for contender in contenders
        if (contender.repeated or not repetition) and (contender.goes_deep or not depth)
    ]
    steps.expect(len(runs))
    found: dict[int, dict[str, Found]] = {0: {}, scale.field_depth: {}}
    with tempfile.TemporaryDirectory(prefix="casque-field-", ignore_cleanup_errors=True) as directory:
        for number, (contender, depth) in enumerate(runs):
            kept = found[depth].setdefault(contender.name, defaultdict(list))
            with _place(contender, Path(directory) / str(number)) as place:
                for name, values in _figures(contender, place, scale, depth).items():
                    kept[name] += values
            steps.done(f"{contender.name}, {depth:,} waiting")
    section = Section()
    for depth, sides in found.items():
        section.tables.append(_table(depth, sides, contenders))
        _aim(section, depth, sides)
    return section


def _figures(contender: Contender, place: str, scale: Scale, depth: int) -> Found:
    """One suite on a fresh place. What is enqueued stays, but for what the worker takes."""
    jobs = max(int(scale.field_jobs * contender.share), 10)
    few = max(jobs // 10, 10)

    def done(task: str, count: int = 0, **more: Any) -> Any:
        return _carry_out(contender, Task(task=task, place=place, count=count, **more))

    done("prepare")
    if depth:
        done("bulk", depth, callers=contender.callers)
    found: Found = {"idle start": done("idle", scale.field_idle, kind="ping")}
    bulk = done("bulk", jobs, callers=contender.callers)
    if contender.has_bulk:
        found["bulk"] = [bulk]
    found["worker"] = [done("work", jobs)]
    found["one by one"] = [done("enqueue", min(few, 2_000))]
    found["100 callers"] = [done("enqueue", few * 2, callers=contender.callers)]
    return found


def _table(depth: int, sides: dict[str, Found], contenders: list[Contender]) -> Table:
    waiting = f"{depth:,} jobs waiting" if depth else "nothing waiting"
    table = Table(f"field: {waiting}, each of them durable", ["side", *_COLUMNS.values()])
    for contender in contenders:
        if contender.name in sides:
            figures = sides[contender.name]
            table.add(contender.name, *(_cell(name, figures.get(name)) for name in FIGURES))
    if not depth:
        callers = f"{THREADS} threads and not {CALLERS} tasks"
        table.notes += [
            "Jobs per second, with a payload of 100 bytes and a handler that does nothing.",
            f"Callers share one process; where a library blocks, they are {callers}. Bulk is {BULK:,} jobs a call.",
            "idle start: from the call that enqueues a job to its handler, in another process that has nothing to do.",
            "—: there is no such call.",
        ]
        if len(contenders) == len(CASQUE):
            table.notes.append("The others are away: scripts/field-venv could not make their environment.")
    else:
        table.notes.append("What waits is of the same kind; for idle start, of one that the worker does not take.")
    return table


_COLUMNS = {
    "one by one": "enqueue, 1 caller",
    "100 callers": f"enqueue, {CALLERS} callers",
    "bulk": "enqueue, bulk",
    "worker": "one worker",
    "idle start": "idle start, ms",
}


def _cell(name: str, values: list[float] | None) -> Cell:
    if not values:
        return "—"
    return median(values) if name == "idle start" else round(median(values))


def _aim(section: Section, depth: int, sides: dict[str, Found]) -> None:
    waiting = f"{depth:,} waiting" if depth else "nothing waiting"
    for side in CASQUE:
        own = sides[side.name]
        for name in FIGURES:
            rivals = {other.name: sides[other.name][name] for other in OTHERS if sides.get(other.name, {}).get(name)}
            if name == "idle start":
                section.keep_below(
                    f"{side.name}, {waiting}: idle start", median(own[name]), at_most=IDLE_MS, unit=" ms"
                )
            elif rivals:
                best = max(rivals, key=lambda rival: median(rivals[rival]))
                times = median(own[name]) / median(rivals[best])
                what = f"{side.name}, {waiting}: {_COLUMNS[name]}, times {best}'s {show(round(median(rivals[best])))}"
                section.aim_for(what, times, at_least=TIMES_THE_BEST)


@contextmanager
def _place(contender: Contender, directory: Path) -> Iterator[str]:
    directory.mkdir(mode=0o755)
    match contender.server:
        case "postgres":
            with servers.postgres(_site(), directory / "postgres") as url:
                yield url
        case "redis":
            with servers.redis(_site(), directory / "redis") as url:
                yield url
        case "broker":
            with servers.casque_broker(f"file://{directory}/queue", directory / "broker.log") as url:
                yield url
        case "directory":
            yield f"file://{directory}/queue"
        case _:
            yield str(directory / "queue.db")


def _carry_out(contender: Contender, task: Task) -> Any:
    python = sys.executable if contender in CASQUE else field_python()
    assert python is not None
    done = subprocess.run(
        [python, "-m", f"benchmarks.field.{contender.module}", json.dumps(asdict(task))],
        cwd=_ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{contender.name} failed on {task}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


@cache
def field_python() -> str | None:
    """A Python that has the others installed; None where they cannot be had."""
    made = subprocess.run([_ROOT / "scripts" / "field-venv"], cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=False)
    return made.stdout.split()[-1] if made.returncode == 0 and made.stdout.strip() else None


@cache
def _site() -> Path:
    """Where the wheels of the servers were unpacked."""
    python = field_python()
    assert python is not None
    return Path(sysconfig.get_path("purelib", vars={"base": str(Path(python).parents[1])}))
