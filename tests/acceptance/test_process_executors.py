"""Functions that run in processes of their own, which are really killed."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from casque import InvalidInputError, Job, JobState, Queue
from casque.cli.logs import log_fields
from casque.clock import SystemClock
from casque.functions.app import App
from casque.worker import Handler, JobContext, Summary, Worker, processes
from tests.acceptance import process_app as functions
from tests.acceptance.process_app import app

CLOCK = SystemClock()
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the functions say what they do, here and in every process that is started."""
    monkeypatch.setenv("PROCESS_APP_PLACE", str(tmp_path))
    monkeypatch.setattr(functions, "PLACE", tmp_path)
    return tmp_path


async def worked(queue: Queue[bytes], place: Path, **options: Any) -> Summary:
    return await Worker(app, burst=True, **{"url": f"file://{place}/queue", "concurrency": 2, **options}).run()


def queue_of(place: Path) -> Queue[bytes]:
    return Queue.open(f"file://{place}/queue")


async def told(place: Path, word: str) -> int:
    """Which process says so, once it does."""
    async with asyncio.timeout(60):
        while not (place / word).exists():
            await CLOCK.sleep(0.01)
    return int((place / word).read_text())


async def by_name(queue: Queue[bytes]) -> dict[str, Job[bytes]]:
    return {job.entrypoint: job for job in await queue.jobs()}


@asynccontextmanager
async def command(place: Path, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "casque.cli", "worker", "tests.acceptance.process_app:app", "--json", *options),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_whatever_a_function_says_in_its_process_counts_as_it_does_elsewhere(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with queue_of(place) as queue:
        with app.through(queue):
            squared, where = await functions.square.enqueue(7), await functions.where.enqueue("coroutine")
            for one in (functions.put_off, functions.withdraw, functions.fail, functions.leave):
                await one.enqueue()
            await queue.enqueue("square", b'{"number": "seven"}')
            with caplog.at_level(logging.WARNING, "casque.job"):
                summary = await worked(queue, place)
            results = await squared.result(timeout=60), await where.result(timeout=60)
        jobs = await by_name(queue)

    assert (summary.done, summary.snoozed, summary.cancelled, summary.failed) == (2, 1, 1, 2)
    assert summary.declined >= 1
    assert results[0] == 49
    assert results[1].startswith("coroutine ")
    assert str(os.getpid()) not in results[1]
    assert jobs["put_off"].state is JobState.DELAYED
    assert str(jobs["fail"].last_error).startswith("ValueError: no such user\n")
    assert "child.py" not in str(jobs["fail"].last_error)
    assert str(jobs["leave"].last_error).startswith("SystemExit: 3")
    assert jobs["square"].attempts == 0
    assert "argument 'number': Expected `int`, got `str`" in str(jobs["square"].last_error)
    [line] = [log_fields(record) for record in caplog.records if record.name == "casque.job"]
    assert (line["entrypoint"], line["attempt"]) == ("square", 1)
    assert line["message"].startswith("squaring 7 [square ")


async def test_a_process_gives_back_a_job_whose_arguments_its_version_does_not_take(place: Path) -> None:
    async with queue_of(place) as queue:
        await queue.enqueue("square", b'{"number":3,"rounded":true}', max_attempts=1)
        summary = await worked(queue, place)
        [job] = await queue.jobs()
    assert (summary.declined, summary.failed) == (1, 0)
    assert (job.state, job.attempts, job.record.declined) == (JobState.DELAYED, 0, 1)


async def test_a_process_that_is_killed_takes_its_own_job_with_it_and_no_other(place: Path) -> None:
    async with queue_of(place) as queue:
        with app.through(queue):
            await functions.wait.enqueue("victim")
            other = await functions.wait.enqueue("neighbour")
            working = asyncio.create_task(worked(queue, place))
            victim = await told(place, "victim.started")
            await told(place, "neighbour.started")
            os.kill(victim, signal.SIGKILL)
            async with asyncio.timeout(60):
                while (job := (await queue.jobs())[0]).state is JobState.RUNNING:
                    await CLOCK.sleep(0.01)
            (place / "neighbour.go").touch()
            summary = await working
            result = await other.result(timeout=60)

    assert (summary.done, summary.crashed, summary.failed) == (1, 1, 0)
    assert (job.attempts, job.record.crashes) == (0, 1)
    assert job.last_error == "the process that ran it was killed by SIGKILL"
    assert result == f"neighbour {other.id} 1"


async def test_a_function_whose_time_is_up_is_killed_though_it_holds_the_interpreter(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    spawn = processes._spawned

    def spawned() -> tuple[socket.socket, subprocess.Popen[bytes]]:
        line, process = spawn()
        started.append(process)
        return line, process

    monkeypatch.setattr(processes, "_spawned", spawned)
    async with queue_of(place) as queue:
        with app.through(queue):
            await functions.hold_for_ever.enqueue("held")
            summary = await worked(queue, place)
        [job] = await queue.jobs()

    assert summary.failed == 1
    assert job.last_error == "TimeoutError: the handler took longer than its 1 s"
    assert [process.returncode for process in started] == [-signal.SIGKILL]


async def test_a_job_that_kills_its_process_is_quarantined_and_its_worker_goes_on(place: Path) -> None:
    async with queue_of(place) as queue:
        with app.through(queue):
            await functions.die_apart.enqueue()
            fine = await functions.square.enqueue(3)
            summary = await worked(queue, place)
            assert await fine.result(timeout=60) == 9
        [job] = await queue.jobs()

    assert (summary.done, summary.crashed, summary.failed) == (1, 2, 0)
    assert (job.state, job.attempts, job.record.crashes) == (JobState.DEAD, 0, 2)
    assert job.last_error == (
        "quarantined: its worker died 2 times while it worked on this job; the last time: "
        "the process that ran it was killed by SIGKILL"
    )


@pytest.mark.parametrize(("name", "code"), [("die_here", 3), ("die_in_a_thread", -signal.SIGKILL)])
async def test_a_job_that_kills_its_worker_is_quarantined(place: Path, name: str, code: int) -> None:
    async with queue_of(place) as queue:
        await queue.enqueue(name, b"{}", max_crashes=2)
        for _ in range(2):
            async with command(place, "--lease", "1", "--entrypoint", name) as worker, asyncio.timeout(60):
                assert await worker.wait() == code
        async with asyncio.timeout(60):
            while (job := (await queue.jobs())[0]).state is not JobState.DEAD:
                await CLOCK.sleep(0.02)  # until the lease of the second one has run out

    assert (job.attempts, job.record.crashes) == (0, 2)
    assert str(job.last_error).startswith("quarantined: its worker died 2 times while it worked on this job")


@pytest.mark.parametrize(
    ("options", "lives"), [({"recycle_after": 2}, [2, 2]), ({"recycle_memory": 1}, [1, 1, 1, 1]), ({}, [4])]
)
async def test_a_process_is_replaced_after_so_many_jobs_or_when_it_has_grown(
    place: Path, options: dict[str, int], lives: list[int]
) -> None:
    async with queue_of(place) as queue:
        with app.through(queue):
            handles = [await functions.where.enqueue("in") for _ in range(4)]
            await worked(queue, place, concurrency=1, **options)
            seen = [await handle.result(timeout=60) for handle in handles]

    assert [seen.count(one) for one in dict.fromkeys(seen)] == lives


async def test_a_function_whose_job_was_cancelled_is_told(place: Path) -> None:
    async with queue_of(place) as queue:
        with app.through(queue):
            job = await functions.wait.enqueue("polite")
            working = asyncio.create_task(worked(queue, place, lease=1))
            await told(place, "polite.started")
            async with asyncio.timeout(60):
                while (progress := await job.progress()) is None:  # until the next heartbeat
                    await CLOCK.sleep(0.02)
            await job.cancel()
            await told(place, "polite.lost")
            summary = await working

    assert (summary.lost, summary.done, summary.failed) == (1, 0, 0)
    assert str(progress) == "1/3 polite"


async def test_a_function_that_does_not_stop_when_its_job_is_cancelled_is_killed(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "GRACE_S", 0)
    os.mkfifo(place / "held.pipe")
    pipe = os.open(place / "held.pipe", os.O_RDONLY | os.O_NONBLOCK)
    async with queue_of(place) as queue:
        with app.through(queue):
            job = await functions.hold.enqueue("held")
            working = asyncio.create_task(worked(queue, place, lease=1))
            await told(place, "held")
            await job.cancel()
            summary = await working

    os.set_blocking(pipe, True)
    assert os.read(pipe, 1) == b""  # nobody has it open any more
    os.close(pipe)
    assert (summary.lost, summary.done, summary.failed) == (1, 0, 0)


async def test_processes_end_with_a_worker_that_is_killed(place: Path) -> None:
    os.mkfifo(place / "held.pipe")
    pipe = os.open(place / "held.pipe", os.O_RDONLY | os.O_NONBLOCK)
    async with queue_of(place) as queue:
        with app.through(queue):
            await functions.hold.enqueue("held")
    async with command(place) as worker:
        await told(place, "held")
        worker.kill()
        await worker.wait()

    os.set_blocking(pipe, True)
    async with asyncio.timeout(60):
        assert await asyncio.to_thread(os.read, pipe, 1) == b""
    os.close(pipe)


async def test_a_signal_to_all_processes_lets_what_runs_come_to_its_end(place: Path) -> None:
    """As service managers send it."""
    async with queue_of(place) as queue:
        with app.through(queue):
            await functions.wait.enqueue("running")
    async with command(place) as worker:
        child = await told(place, "running.started")
        worker.send_signal(signal.SIGTERM)
        os.kill(child, signal.SIGTERM)
        (place / "running.go").touch()
        async with asyncio.timeout(60):
            out, _ = await worker.communicate()

    assert worker.returncode == 0
    assert json.loads(out)["done"] == 1


async def test_a_function_without_a_name_is_refused(place: Path) -> None:
    local = App(f"file://{place}/queue")

    @local.job(executor="process")
    def inner() -> None: ...

    with pytest.raises(InvalidInputError, match=r"'inner' has executor='process'.*top level of a module"):
        Worker(local)


def unloadable(payload: bytes, context: JobContext) -> None: ...


async def test_what_no_process_can_load_ends_the_worker_before_it_claims_anything(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unloadable, "__module__", "tests.acceptance.not_there")
    monkeypatch.setitem(sys.modules, "tests.acceptance.not_there", sys.modules[__name__])

    class Mine:
        url = f"file://{place}/queue"
        opening: ClassVar[dict[str, Any]] = {}
        handlers: ClassVar = {"do": Handler("do", unloadable, is_async=False, executor="process")}

    async with queue_of(place) as queue:
        await queue.enqueue("do", b"")
        with pytest.raises(InvalidInputError, match="could not load them: ModuleNotFoundError"):
            await Worker(Mine(), burst=True).run()
        [job] = await queue.jobs()

    assert (job.state, job.attempts) == (JobState.READY, 0)
