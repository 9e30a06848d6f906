"""`casque queue pause`, `resume` and `drain` as people run them, on real files."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from casque import Gate, Queue
from tests.integration.shell import casque, lines_of, on


@pytest.fixture
def url(tmp_path: Path) -> str:
    where = (tmp_path / "queue").as_uri()

    async def fill(q: Queue[bytes]) -> None:
        await q.enqueue("send", b"1")
        await q.enqueue("resize", b"2", delay=3600)

    on(where, fill)
    return where


def test_a_queue_is_paused_and_resumed(url: str) -> None:
    assert casque("queue", "pause", url).stdout == "the queue is paused: nothing is claimed\n"
    casque("dequeue", url, ends=3)
    assert casque("queue", "pause", url).stdout == "the queue is paused already: nothing is claimed\n"
    assert "the queue is paused" in casque("queue", "info", url).stdout
    [told] = lines_of(casque("queue", "info", url, "--json"))
    assert told["gates"] == {"queue": "paused", "entrypoints": {}}

    assert casque("queue", "resume", url).stdout == "the queue is open\n"
    casque("dequeue", url)


def test_one_entrypoint_is_paused_and_says_so_of_its_jobs(url: str) -> None:
    [told] = lines_of(casque("queue", "pause", url, "--entrypoint", "send", "--json"))
    assert told == {"entrypoint": "send", "gate": "paused", "was": "open", "left": None}
    assert "send is paused" in casque("queue", "info", url).stdout
    send, resize = [job["id"] for job in lines_of(casque("jobs", "list", url, "--json"))]

    why = casque("jobs", "show", url, send).stdout
    assert "It waits because 'send' is paused. `casque queue resume --entrypoint send` lets workers go on." in why
    assert "because" not in casque("jobs", "show", url, resize).stdout
    casque("queue", "pause", url)
    assert "It waits because the queue is paused" in casque("jobs", "show", url, resize).stdout


def test_a_queue_that_is_drained_refuses_jobs_and_says_how_many_are_left(url: str) -> None:
    said = casque("queue", "drain", url, "--no-wait").stdout
    assert said == "the queue is draining: 2 left, and none is added\n"
    assert "the queue is being drained" in casque("enqueue", url, "send", "3", ends=1).stderr
    [told] = lines_of(casque("queue", "drain", url, "-e", "send", "--no-wait", "--json"))
    assert (told["left"], told["gate"]) == (1, "draining")

    said = casque("queue", "pause", url).stdout
    assert said == "the queue is paused: nothing is claimed; jobs may be added again\n"
    casque("enqueue", url, "resize", "3")


def test_a_drain_waits_for_the_last_job_and_ends(url: str) -> None:
    draining = subprocess.Popen(
        [sys.executable, "-m", "casque.cli", "queue", "drain", url, "--entrypoint", "send", "--json"],
        stdout=subprocess.PIPE,
        text=True,
    )

    async def work_off(q: Queue[bytes]) -> None:
        while (await q.stats()).gates.of("send") is not Gate.DRAINING:
            async for _ in q.events(from_position=(await q.stats()).position):
                break
        for job in await q.dequeue("send"):
            await job.ack()

    on(url, work_off)
    said, _ = draining.communicate(timeout=60)
    assert draining.returncode == 0
    assert json.loads(said)["left"] == 0


def test_whoever_does_not_want_to_wait_leaves_a_queue_that_drains(url: str) -> None:
    draining = subprocess.Popen(
        [sys.executable, "-m", "casque.cli", "queue", "drain", url], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )

    async def drains(q: Queue[bytes]) -> None:
        async with asyncio.timeout(60):
            async for event in q.events(from_position=0):
                if event.fields.get("gate") == Gate.DRAINING:
                    return

    on(url, drains)
    draining.send_signal(signal.SIGINT)
    draining.communicate(timeout=60)
    assert draining.returncode == 130
    [told] = lines_of(casque("queue", "info", url, "--json"))
    assert (told["gates"]["queue"], told["ready"]) == ("draining", 1)
