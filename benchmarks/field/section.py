"""Runs the field, one side after the other, and compares."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.field import servers
from benchmarks.field.desk import BULK, Task
from benchmarks.report import Cell, Section, Steps, Table, Target, median, show
from benchmarks.scale import Scale
from benchmarks.sides import jqueue_python

_ROOT = Path(__file__).resolve().parents[2]
_LIMIT_S = 120
"""For one figure: whoever takes longer has failed."""
_FILL_S = 25.0
_WHOLE_S = 13 * 60.0
"""After that nothing is measured once more."""
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
    """What it needs: `postgres`, `redis`, `beanstalkd`, `file`, `directory` or `broker`."""
    share: float
    """Of the jobs that the fastest are given: what takes as long."""
    python: str = "field"
    """Whose environment it runs in: `own` for casque's, `field` or `jqueue`."""
    blocks: bool = False
    has_bulk: bool = True
    goes_deep: bool = True
    repeated: bool = True
    durable: bool = True

    @property
    def callers(self) -> int:
        return THREADS if self.blocks else CALLERS


CASQUE = (
    Contender(name="casque, embedded", module="of_casque", server="directory", share=1, python="own"),
    Contender(name="casque, broker", module="of_casque", server="broker", share=1, python="own"),
)
OTHERS = (
    Contender(name="PgQueuer", module="of_pgqueuer", server="postgres", share=0.5),
    Contender(name="Procrastinate", module="of_procrastinate", server="postgres", share=0.05, repeated=False),
    Contender(name="SAQ", module="of_saq", server="redis", share=0.1, has_bulk=False),
    Contender(name="RQ", module="of_rq", server="redis", share=0.025, blocks=True, repeated=False),
    Contender(
        name="Celery", module="of_celery", server="redis", share=0.04, blocks=True, has_bulk=False, repeated=False
    ),
    Contender(name="Huey", module="of_huey", server="file", share=0.12, blocks=True, has_bulk=False),
    Contender(name="beanstalkd", module="of_beanstalkd", server="beanstalkd", share=0.2, blocks=True, has_bulk=False),
    Contender(
        name="jqueue", module="of_jqueue", server="file", share=0.05, python="jqueue", has_bulk=False, goes_deep=False,
        repeated=False, durable=False,
    ),
)  # fmt: skip
FIGURES = ("one by one", "100 callers", "bulk", "worker", "idle start")
_COLUMNS = {
    "one by one": "enqueue, 1 caller",
    "100 callers": f"enqueue, {CALLERS} callers",
    "bulk": "enqueue, bulk",
    "worker": "one worker",
    "idle start": "idle start, ms",
}
_FILLED = "filled"
Found = dict[str, list[float]]


class _FailedError(Exception):
    """One figure of one side. The rest goes on."""


def measure(scale: Scale, steps: Steps) -> Section:
    contenders = _present(scale)
    runs = [
        (repetition, contender, depth)
        for repetition in range(scale.field_repetitions)
        for depth in (0, scale.field_depth)
        for contender in contenders
        if (contender.repeated or not repetition) and (contender.goes_deep or not depth)
    ]
    steps.expect(len(runs))
    ends = time.monotonic() + _WHOLE_S
    found: dict[int, dict[str, Found]] = {0: {}, scale.field_depth: {}}
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="casque-field-", ignore_cleanup_errors=True) as directory:
        for number, (repetition, contender, depth) in enumerate(runs):
            if repetition and time.monotonic() > ends:
                break
            suite = Suite(contender, depth, found[depth].setdefault(contender.name, defaultdict(list)), failures)
            suite.run(Path(directory) / str(number), scale)
            steps.done(f"{contender.name}, {depth:,} waiting")
    section = Section()
    for depth, sides in found.items():
        section.tables.append(_table(depth, sides, contenders))
    section.tables.append(comparison(section, found))
    section.tables[-1].notes += failures
    return section


def _present(scale: Scale) -> list[Contender]:
    """Who can be had here."""
    if not scale.with_field:
        return list(CASQUE)
    present = list(CASQUE)
    for contender in OTHERS:
        if contender.python == "jqueue":
            here = jqueue_python() is not None
        else:
            here = field_python() is not None
            if here and contender.server == "beanstalkd":
                here = (servers.programs_of(_site()) / "beanstalkd").exists()
        if here:
            present.append(contender)
    return present


class Suite:
    """All figures of one side on a fresh place, at one depth. What is enqueued stays, but for what the worker takes."""

    def __init__(self, contender: Contender, depth: int, found: Found, failures: list[str]) -> None:
        self._contender = contender
        self._depth = depth
        self._found = found
        self._failures = failures

    def run(self, directory: Path, scale: Scale) -> None:
        try:
            with _place(self._contender, directory) as place:
                self._measure(place, scale)
        except (_FailedError, OSError, RuntimeError) as error:
            self._note(error)

    def _measure(self, place: str, scale: Scale) -> None:
        side, found = self._contender, self._found
        jobs = max(int(scale.field_jobs * side.share), 10)
        few = max(jobs // 10, 10)

        def done(task: str, count: int = 0, **more: Any) -> Any:
            return _carry_out(side, Task(task=task, place=place, count=count, **more))

        def figure(name: str, task: str, count: int, **more: Any) -> None:
            try:
                value = done(task, count, **more)
            except _FailedError as error:
                self._note(error)
            else:
                found[name] += value if isinstance(value, list) else [value]

        done("prepare")
        if self._depth:
            found[_FILLED] = [done("fill", self._depth, callers=side.callers, limit_s=_FILL_S)]
        figure("idle start", "idle", scale.field_idle, kind="ping")
        figure("bulk", "bulk", jobs, callers=side.callers)
        if not side.has_bulk:
            del found["bulk"]  # but the worker needs the jobs
        figure("worker", "work", jobs)
        figure("one by one", "enqueue", min(few, 2_000))
        figure("100 callers", "enqueue", few * 2, callers=side.callers)

    def _note(self, error: Exception) -> None:
        self._failures.append(f"{self._contender.name}, {self._depth:,} waiting, failed: {error}")


def _table(depth: int, sides: dict[str, Found], contenders: list[Contender]) -> Table:
    waiting = f"{depth:,} jobs waiting" if depth else "nothing waiting"
    table = Table(f"field: {waiting}", ["side", *_COLUMNS.values()])
    for contender in contenders:
        if contender.name in sides:
            figures = sides[contender.name]
            fewer = [filled for filled in figures.get(_FILLED, ()) if filled < depth]
            name = f"{contender.name} ({fewer[0]:,.0f})" if fewer else contender.name
            table.add(name, *(_cell(name, figures.get(name)) for name in FIGURES))
    if not depth:
        callers = f"{THREADS} threads and not {CALLERS} tasks"
        table.notes += [
            "Jobs per second, with a payload of 100 bytes and a handler that does nothing.",
            f"Callers share one process; where a library blocks, they are {callers}. Bulk is {BULK:,} jobs a call.",
            "idle start: from the call that enqueues a job to its handler, in another process that has nothing to do.",
            "Each is durable but for jqueue, which does not sync and is not compared.",
            "—: there is no such call, or it failed.",
        ]
        away = [other.name for other in OTHERS if other not in contenders]
        if away:
            table.notes.append(f"Away, for what they need could not be installed here: {', '.join(away)}.")
    else:
        table.notes += [
            "What waits is of the same kind; for idle start, of one that the worker does not take.",
            f"(so many): what could be put in within {_FILL_S:g} s, if that is less.",
            "jqueue is left out: it writes its whole queue for every commit, which takes seconds here.",
        ]
    return table


def _cell(name: str, values: list[float] | None) -> Cell:
    if not values:
        return "—"
    return median(values) if name == "idle start" else round(median(values))


def comparison(section: Section, found: dict[int, dict[str, Found]]) -> Table:
    """casque's figures beside the best of the others, and whether they are what is wanted."""
    columns = ["what", "waiting", "best other", "its figure", "wanted"]
    table = Table("field: casque / best other", [*columns, *(side.name for side in CASQUE)])
    for depth, sides in found.items():
        for name in FIGURES:
            idle = name == "idle start"
            rivals = {
                other.name: median(sides[other.name][name])
                for other in OTHERS
                if other.durable and sides.get(other.name, {}).get(name)
            }
            best = (min if idle else max)(rivals, key=lambda rival: rivals[rival]) if rivals else None
            verdicts = [_verdict(section, side.name, depth, name, sides, best, rivals) for side in CASQUE]
            table.add(
                _COLUMNS[name],
                f"{depth:,}",
                best or "—",
                show(rivals[best] if idle else round(rivals[best])) if best else "—",
                f"≤ {show(IDLE_MS)} ms" if idle else f"≥ {show(TIMES_THE_BEST)} x",
                *verdicts,
            )
    return table


def _verdict(
    section: Section, side: str, depth: int, name: str, sides: dict[str, Found], best: str | None,
    rivals: dict[str, float],
) -> str:  # fmt: skip
    what = f"{side}, {depth:,} waiting: {_COLUMNS[name]}"
    own = sides.get(side, {}).get(name)
    if not own:
        section.targets.append(Target(what, "a figure", "failed", met=False))
        return "failed, MISSED"
    if name == "idle start":
        section.keep_below(what, median(own), at_most=IDLE_MS, unit=" ms")
        unit = "ms"
    elif best is None:
        return show(round(median(own)))
    else:
        section.aim_for(f"{what}, times {best}'s", median(own) / rivals[best], at_least=TIMES_THE_BEST)
        unit = "x"
    last = section.targets[-1]
    return f"{last.measured.removesuffix(' ms')} {unit}, {'met' if last.met else 'MISSED'}"


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
        case "beanstalkd":
            with servers.beanstalkd(_site(), directory / "beanstalkd") as path:
                yield path
        case "broker":
            with servers.casque_broker(f"file://{directory}/queue", directory / "broker.log") as url:
                yield url
        case "directory":
            yield f"file://{directory}/queue"
        case _:
            yield str(directory / "queue.db")


def _carry_out(contender: Contender, task: Task) -> Any:
    """Raises _FailedError. Whatever it has started ends with it."""
    match contender.python:
        case "own":
            python: str | None = sys.executable
        case "jqueue":
            python = jqueue_python()
        case _:
            python = field_python()
    assert python is not None
    process = subprocess.Popen(
        [python, "-m", f"benchmarks.field.{contender.module}", json.dumps(asdict(task))],
        cwd=_ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, complaints = process.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise _FailedError(f"{task.task} took longer than {_LIMIT_S} s") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode != 0:
        last = complaints.strip().splitlines()[-1:] or ["no word of why"]
        raise _FailedError(f"{task.task}: {last[0]}")
    return json.loads(said.splitlines()[-1])


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
