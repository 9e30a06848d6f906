"""Workers that are real processes: stopped, killed, blocked."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from casque import JobState, Queue
from casque.clock import SystemClock

HERE = Path(__file__).parent
CLOCK = SystemClock()


@asynccontextmanager
async def worker(
    place: Path, *options: str, command: Sequence[str] = ("worker",)
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "casque.cli", *command, "worker_app:app", "--json", *options),
        cwd=HERE,
        env={**os.environ, "WORKER_APP_PLACE": str(place)},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def told(place: Path, *names: str) -> None:
    """Until all these files are there."""
    async with asyncio.timeout(60):
        while not all((place / name).exists() for name in names):
            await CLOCK.sleep(0.01)


async def ended(process: asyncio.subprocess.Process) -> dict[str, int]:
    """What it said when it had come to its end."""
    async with asyncio.timeout(60):
        out, _ = await process.communicate()
    assert process.returncode == 0
    return dict(json.loads(out))


def queue_of(place: Path) -> Queue[bytes]:
    return Queue.open(f"file://{place}/queue")


async def test_sigterm_gives_back_what_was_not_started_and_lets_what_runs_come_to_its_end(tmp_path: Path) -> None:
    async with queue_of(tmp_path) as queue:
        await queue.enqueue_many([("write", b"quick-%d" % n) for n in range(300)])  # so that it claims ahead
        await queue.enqueue_many([("wait", b"%d" % n) for n in range(20)])
    async with worker(tmp_path, "--concurrency", "2") as process:
        await told(tmp_path, "0.started", "1.started")
        process.send_signal(signal.SIGTERM)
        async with queue_of(tmp_path) as queue, asyncio.timeout(60):
            while (await queue.stats()).totals.running > 2:
                await CLOCK.sleep(0.01)
        (tmp_path / "0.go").touch()
        (tmp_path / "1.go").touch()
        summary = await ended(process)

    assert summary["done"] == 302
    assert (summary["failed"], summary["left"], summary["lost"]) == (0, 0, 0)
    async with queue_of(tmp_path) as queue:
        jobs = await queue.jobs()
    assert {job.state for job in jobs} == {JobState.READY}
    assert (len(jobs), {job.attempts for job in jobs}) == (18, {0})
    assert not (tmp_path / "2.started").exists()


@pytest.mark.parametrize("command", [("worker",), ("zones", "consume")])
async def test_what_does_not_end_in_the_time_of_the_drain_goes_back_at_once(
    tmp_path: Path, command: Sequence[str]
) -> None:
    async with queue_of(tmp_path) as queue:
        await queue.enqueue("wait", b"endless", max_crashes=1, zone="acme")
    async with worker(tmp_path, "--drain", "0.1", command=command) as process:
        await told(tmp_path, "endless.started")
        process.send_signal(signal.SIGTERM)
        summary = await ended(process)

    assert (summary["done"], summary["given_back"], summary["left"]) == (0, 1, 0)
    assert (tmp_path / "endless.cancelled").exists()
    async with queue_of(tmp_path) as queue:
        [job] = await queue.jobs()
    assert (job.state, job.attempts, job.record.crashes) == (JobState.READY, 0, 0)


@pytest.mark.parametrize("entrypoint", ["deaf", "stubborn", "apart"])
async def test_a_handler_that_cannot_be_stopped_goes_back_when_its_process_is_gone(
    tmp_path: Path, entrypoint: str
) -> None:
    async with queue_of(tmp_path) as queue:
        await queue.enqueue(entrypoint, b"endless", max_crashes=1)
    (tmp_path / "apart").touch()
    async with worker(tmp_path, "--drain", "0.1") as process:
        await told(tmp_path, "endless.started")
        process.send_signal(signal.SIGTERM)
        summary = await ended(process)

    assert summary["given_back" if entrypoint == "apart" else "left"] == 1
    async with queue_of(tmp_path) as queue:
        [job] = await queue.jobs()
    assert (job.state, job.attempts, job.record.crashes) == (JobState.READY, 0, 0)
    for process_id in set((tmp_path / "endless.started").read_text().split()):
        with pytest.raises(ProcessLookupError):
            os.kill(int(process_id), 0)


async def test_the_jobs_of_a_worker_that_is_killed_are_done_by_another(tmp_path: Path) -> None:
    async with queue_of(tmp_path) as queue:
        await queue.enqueue_many([("wait", b"%d" % n) for n in range(4)])
    names = [f"{n}.started" for n in range(4)]
    async with worker(tmp_path, "--lease", "2") as first:
        await told(tmp_path, *names)
        first.kill()
        await first.wait()
        for n in range(4):
            (tmp_path / f"{n}.go").touch()
        async with worker(tmp_path, "--lease", "2") as second:
            await told(tmp_path, *[f"{n}.done" for n in range(4)])
            second.send_signal(signal.SIGTERM)
            summary = await ended(second)

    assert summary["done"] == 4
    for n in range(4):
        assert (tmp_path / f"{n}.done").read_text() == f"{second.pid}\n"


@pytest.mark.parametrize("how", ["block", "hold"])
async def test_a_handler_that_lets_nothing_else_in_for_longer_than_its_lease_keeps_it(tmp_path: Path, how: str) -> None:
    """`block` holds the loop, `hold` the interpreter."""
    go = tmp_path / "busy.go"
    pipe = -1
    if how == "hold":
        os.mkfifo(go)
        pipe = os.open(go, os.O_RDWR)
    async with queue_of(tmp_path) as queue:
        await queue.enqueue(how, b"busy")
    async with worker(tmp_path, "--lease", "5") as process:
        await told(tmp_path, "busy.started")
        async with queue_of(tmp_path) as queue, asyncio.timeout(60):
            # This one watches leases too, and would take it back if it ran out: every beat came in time.
            claimed = await queue.find(_id := (await queue.jobs())[0].id)
            assert claimed is not None
            beats = {claimed.heartbeat_at}
            while len(beats) < 6:  # a quarter of a lease apart
                found = await queue.find(_id)
                assert found is not None
                assert (found.state, found.token) == (JobState.RUNNING, claimed.token)
                beats.add(found.heartbeat_at)
                await CLOCK.sleep(0.02)
            if how == "hold":
                os.write(pipe, b"!")
                os.close(pipe)
            else:
                go.touch()
            while await queue.find(_id) is not None:
                await CLOCK.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        summary = await ended(process)

    assert (summary["done"], summary["lost"]) == (1, 0)
    assert (tmp_path / "busy.started").read_text().count("\n") == 1


async def test_a_job_that_is_cancelled_by_somebody_has_its_handler_cancelled(tmp_path: Path) -> None:
    async with queue_of(tmp_path) as queue:
        job = await queue.enqueue("wait", b"unwanted")
        async with worker(tmp_path, "--lease", "1") as process:
            await told(tmp_path, "unwanted.started")
            await queue.cancel(job.id)
            await told(tmp_path, "unwanted.cancelled")
            process.send_signal(signal.SIGTERM)
            summary = await ended(process)

    assert (summary["done"], summary["failed"], summary["lost"]) == (0, 0, 1)


async def test_a_job_that_the_app_has_no_function_for_is_left_alone(tmp_path: Path) -> None:
    async with queue_of(tmp_path) as queue:
        await queue.enqueue_many([("unknown", b""), ("write", b"known"), ("wait", b"not-now")])
    async with worker(tmp_path, "--burst", "--entrypoint", "write") as process:
        summary = await ended(process)

    assert (summary["claimed"], summary["done"]) == (1, 1)
    async with queue_of(tmp_path) as queue:
        jobs = await queue.jobs()
    assert [(job.entrypoint, job.state, job.token) for job in jobs] == [
        ("unknown", JobState.READY, 0),
        ("wait", JobState.READY, 0),
    ]
