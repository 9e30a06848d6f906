"""`casque top` as people run it: once, as JSON, on a bucket, through a broker, and in a real terminal."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

from casque import Queue
from casque.app import BrokerServer, ServeOptions
from casque.cli.top.board import Picture
from casque.cli.top.source import Watch, open_source
from casque.client.config import QueueConfig
from casque.transport.listening import Address
from tests.integration.shell import casque, lines_of, on

pytestmark = pytest.mark.usefixtures("nothing_around")

ONCE = ("--once", "--interval", "0.05")
LEAVE_SCREEN = b"\x1b[?1049l"


async def fill(q: Queue[bytes]) -> None:
    await q.enqueue_many([("send", b"")] * 3)
    await q.enqueue("resize", b"", delay=3600)
    [job] = await q.dequeue("send", lease=3600)
    [job] = await q.dequeue("send")
    await job.ack()


@pytest.fixture
def url(tmp_path: Path) -> str:
    place = (tmp_path / "queue").as_uri()
    on(place, fill)
    return place


def looked(*arguments: str) -> dict[str, Any]:
    [picture] = lines_of(casque("top", *arguments, *ONCE, "--json"))
    return picture


def test_top_shows_a_queue_once(url: str) -> None:
    result = casque("top", url, *ONCE)
    assert "ready 1   delayed 1   running 1   dead 0   done 1" in result.stdout
    assert ["send", "1", "0", "1", "0"] in [line.split()[:5] for line in result.stdout.splitlines()]
    assert "leader none" in result.stdout
    assert "\x1b" not in result.stdout, "no terminal, no control characters"


def test_top_without_a_terminal_shows_it_once(url: str) -> None:
    assert "ENTRYPOINT" in casque("top", url, "-i", "0.05").stdout


def test_top_as_json_says_everything(url: str) -> None:
    picture = looked(url)
    assert picture["layout"] == "log"
    assert picture["leader"] is None
    assert picture["totals"] == {
        "enqueued": 4, "ready": 1, "delayed": 1, "running": 1, "done": 1, "dead": 0, "cancelled": 0, "purged": 0,
    }  # fmt: skip
    assert [one["entrypoint"] for one in picture["entrypoints"]] == ["resize", "send"]
    [running] = picture["running"]
    assert (running["worker"], running["attempt"]) == ("w1", 1)
    assert [one["name"] for one in picture["workers"]] == ["w1"]
    assert picture["rates"] == {"enqueued": 0.0, "done": 0.0, "failed": 0.0}


def test_top_of_a_document_does_without_what_it_cannot_know(tmp_path: Path) -> None:
    url = (tmp_path / "document").as_uri()
    casque("queue", "create", url, "--layout", "document")
    on(url, fill)
    picture = looked(url)
    assert picture["layout"] == "document"
    assert picture["totals"]["ready"] == 1
    assert picture["rates"]["failed"] is None
    assert picture["commits"] == []


def test_top_does_not_take_a_wrong_url_for_an_empty_queue(tmp_path: Path) -> None:
    assert "there is no queue here" in casque("top", tmp_path.as_uri(), *ONCE, ends=2).stderr
    assert "of a broker" in casque("top", "grpc://127.0.0.1:1", "-o", "region=x", *ONCE, ends=2).stderr


async def test_top_asks_brokers_and_follows_what_they_do(url: str) -> None:
    server = BrokerServer(ServeOptions(url=url, listen=Address.parse("127.0.0.1:0"), http=Address.parse("127.0.0.1:0")))
    await server.start()
    try:
        for address in (f"grpc://{server.address}", f"http://127.0.0.1:{server.http_port}"):
            async with (
                Watch(await open_source(QueueConfig(address)), address) as watch,
                Queue.open(address, worker="w2") as q,
            ):
                assert (await watch.look()).totals == (await q.stats()).totals
                await q.enqueue("send", b"")
                [job] = await q.dequeue("send", wait=10)
                await job.nack(error="no", delay=3600)
                picture = await until(watch, "nacked")
                assert picture.totals == (await q.stats()).totals
                assert picture.leader is not None
                assert picture.leader.startswith("127.0.0.1:")
                assert {"w1", "w2"} >= {one.name for one in picture.workers} >= {"w2"}
        by_bucket = await asyncio.to_thread(looked, url)
        assert by_bucket["leader"] == server.address
    finally:
        await server.stop()


async def until(watch: Watch, kind: str) -> Picture:
    """The feed brings it sooner or later."""
    async with asyncio.timeout(30):
        while True:
            picture = await watch.look()
            if any(kind in commit.events for commit in picture.commits):
                return picture
            await asyncio.sleep(0)  # noqa: TID251  until the feed has had its turn


class Terminal:
    """A command in a real terminal."""

    def __init__(self, *arguments: str) -> None:
        self.ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (30, 100))
        self.before = termios.tcgetattr(theirs)
        self.theirs = theirs
        self.said = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "casque.cli", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm-256color"},
            start_new_session=True,
        )

    def read_until(self, words: bytes) -> None:
        while words not in self.said:
            self.said += os.read(self.ours, 65536)

    def ended(self) -> int:
        self.read_until(LEAVE_SCREEN)
        return self.process.wait(timeout=30)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)


@pytest.mark.parametrize("way", ["q", "SIGINT", "SIGTERM"])
def test_top_leaves_the_terminal_as_it_was(url: str, way: str) -> None:
    terminal = Terminal("top", url, "-i", "0.1")
    try:
        terminal.read_until(b"RUNNING")
        assert termios.tcgetattr(terminal.theirs) != terminal.before, "keys come without Enter"
        if way == "q":
            os.write(terminal.ours, b"xq")
        else:
            terminal.process.send_signal(signal.Signals[way])
        assert terminal.ended() == 0
        assert termios.tcgetattr(terminal.theirs) == terminal.before
        assert terminal.said.rstrip().endswith(LEAVE_SCREEN)
    finally:
        terminal.close()


def test_a_reader_who_has_seen_enough_is_no_failure(url: str) -> None:
    async def work(q: Queue[bytes]) -> None:  # more than fits into a pipe
        await q.enqueue_many([("send", b"x" * 1000)] * 2000)
        await q.settle(await q.dequeue("send", batch_size=1000))

    on(url, work)
    for command in (
        ("jobs", "list", url, "--limit", "2000", "--json"),
        ("jobs", "list", url, "--limit", "2000"),
        ("tail", url, "--from", "start", "--no-follow"),
        ("archive", url),
    ):
        with subprocess.Popen(
            [sys.executable, "-m", "casque.cli", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline()
            process.stdout.close()
            assert process.wait(timeout=60) == 0, command
            assert process.stderr.read() == b""
