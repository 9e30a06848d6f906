"""`casque demo` as `make run` runs it, without a terminal, and killed: nothing of it is ever left running."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from casque import JobState, Queue
from casque.client.opening import Parts, as_store
from casque.client.queue import DEFAULTS
from casque.clock import new_nonce, system_random
from tests.integration.shell import casque

MARK = "CASQUE_DEMO_TEST"

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")


class Run:
    """A demo, and whatever it starts: all of it inherits a mark."""

    def __init__(self, data: Path, *arguments: str) -> None:
        self._mark = f"{MARK}={new_nonce(system_random())}"
        name, _, value = self._mark.partition("=")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "casque.cli", "demo", "--data", str(data), "--no-report", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, name: value, "COLUMNS": "100"},
        )

    def until(self, words: str) -> None:
        assert self.process.stdout is not None
        said = ""
        while words not in said:
            line = self.process.stdout.readline()
            assert line, said
            said += line

    def left(self) -> set[int]:
        """Processes of this demo that live."""
        found = set()
        for path in Path("/proc").iterdir():
            try:
                if path.name.isdecimal() and self._mark.encode() in (path / "environ").read_bytes():
                    found.add(int(path.name))
            except OSError:
                continue  # gone, or not ours
        return found - {self.process.pid}


async def test_a_demo_finishes_every_job_and_leaves_nothing_running(tmp_path: Path) -> None:
    run = Run(tmp_path / "shop", "--jobs", "150", "--workers", "2")
    said, _ = await asyncio.to_thread(run.process.communicate, timeout=150)
    assert run.process.returncode == 0, said
    assert "2 workers have started" in said
    assert "count_stock is due every minute" in said
    assert "is killed (SIGKILL)" in said
    assert "ENTRYPOINT" in said, "without a terminal, one look"
    assert "A dead one: import_file, after 3 attempts: ValueError: prices-8.broken: line 7 has no price" in said
    assert "\x1b" not in said
    assert not run.left()

    url = (tmp_path / "shop").as_uri()
    state = await Parts(as_store(url), DEFAULTS).read()
    left = [job for job in state.jobs.values() if job.state is not JobState.DEAD]
    assert {job.spec.entrypoint for job in left} <= {"count_stock"}, "a minute may begin at the very end"
    ids = [job.id async for job in Queue.open(url).archive()]
    assert len(ids) == len(set(ids)) == state.totals(0).enqueued - len(left) > 150


def test_a_demo_that_is_killed_leaves_nothing_running(tmp_path: Path) -> None:
    run = Run(tmp_path / "shop", "--jobs", "1000", "--workers", "2")
    try:
        run.until("2 workers have started")
        started = run.left()
        assert len(started) >= 3, "a broker and two workers"
        watched = {os.pidfd_open(pid) for pid in started}
    finally:
        run.process.send_signal(signal.SIGKILL)
        run.process.communicate()
    while watched:
        ready, _, _ = select.select(watched, [], [], 60)
        assert ready, f"still running: {run.left()}"
        for one in ready:
            os.close(one)
            watched.discard(one)
    assert not run.left()


def test_a_demo_that_cannot_begin_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert casque("demo", "--data", str(tmp_path / "file" / "shop"), ends=1).stdout.startswith(
        "no queue can be kept in"
    )
    (tmp_path / "queue.json").write_text("no queue at all")
    assert "the broker did not start" in casque("demo", "--data", str(tmp_path), ends=1).stdout
