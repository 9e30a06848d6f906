"""`casque worker --metrics`: a real worker is asked whether it lives, whether it is ready, and what it has done."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from casque import Queue
from casque.app import BrokerServer, ServeOptions
from casque.cli.main import app as commands
from casque.cli.worker_monitor import parse_address
from casque.clock import SystemClock
from casque.errors import InvalidInputError
from casque.transport import tokenfile
from casque.transport.access import TokenBook
from casque.transport.listening import Address
from casque.transport.scopes import Scope
from tests.integration.over_http.prometheus import Scrape, scrape

HERE = Path(__file__).parent
REFERENCE = HERE.parents[1] / "docs" / "reference" / "metrics.md"
CLOCK = SystemClock()
NOW = datetime.fromtimestamp(CLOCK.wall_ms() / 1000, UTC)
FREE = Address.parse("127.0.0.1:0")


class Watched:
    """A worker in a process of its own, and the address of its metrics."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self.process = process
        self.address = address

    async def get(self, path: str, *, within_s: float = 30.0) -> httpx.Response:
        async with httpx.AsyncClient(timeout=within_s) as client:
            return await client.get(f"http://{self.address}{path}")

    async def metrics(self) -> Scrape:
        reply = await self.get("/metrics")
        assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
        return scrape(reply.text)

    async def until_ready(self, status: int = 200) -> httpx.Response:
        async with asyncio.timeout(60):
            while (reply := await self.get("/readyz")).status_code != status:
                await CLOCK.sleep(0.01)
        return reply


@asynccontextmanager
async def worker(place: Path, *options: str) -> AsyncIterator[Watched]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "casque.cli", "worker", "worker_app:app", "--metrics", "127.0.0.1:0", *options),
        cwd=HERE,
        env={**os.environ, "WORKER_APP_PLACE": str(place)},
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        found = None
        while not found:
            line = (await process.stderr.readline()).decode()
            assert line, "it ended"
            found = re.search(r"metrics at http://(127\.0\.0\.1:\d+)/metrics", line)
        yield Watched(process, found[1])
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def started(place: Path, name: str) -> None:
    async with asyncio.timeout(60):
        while not (place / name).exists():
            await CLOCK.sleep(0.01)


def queue_of(place: Path) -> Queue[bytes]:
    return Queue.open(f"file://{place}/queue")


async def test_a_worker_shows_what_it_has_done(tmp_path: Path) -> None:
    async with queue_of(tmp_path) as queue:
        await queue.enqueue_many([("write", b"%d" % n) for n in range(3)])
        await queue.enqueue("write", b"\xff", max_attempts=1)  # no text, so that it fails
        await queue.enqueue("wait", b"long")
        async with worker(tmp_path, "--concurrency", "7") as watched:
            ready = await watched.until_ready()
            await started(tmp_path, "long.started")
            async with asyncio.timeout(60):
                while (await queue.stats()).totals.ready:
                    await CLOCK.sleep(0.01)
                while (
                    not (page := await watched.metrics())
                    .of("casque_worker_run_seconds_count")
                    .get(frozenset({("entrypoint", "write"), ("outcome", "failed")}))
                ):
                    await CLOCK.sleep(0.01)
            health = await watched.get("/healthz")

    name = ready.json()["worker"]
    assert (health.status_code, health.text) == (200, "ok\n")
    assert ready.json() == {"worker": name, "problem": None}
    assert page.value("casque_worker_info", worker=name) == page.value("casque_worker_ready") == 1
    assert page.value("casque_worker_concurrency") == 7
    assert page.value("casque_worker_jobs_claimed_total") == 5
    assert page.value("casque_worker_jobs_held") == 1
    assert page.value("casque_worker_jobs_total", outcome="done") == 3
    assert page.value("casque_worker_jobs_total", outcome="failed") == 1
    assert page.value("casque_worker_run_seconds_count", entrypoint="write", outcome="done") == 3
    assert page.value("casque_worker_wait_seconds_count", entrypoint="write") == 4
    assert page.value("casque_store_requests_total", operation="create", outcome="ok") >= 1
    assert page.value("casque_store_requests_total", operation="create", outcome="error") == 0
    assert documented("Workers") | documented("The store") == page.kinds


def documented(heading: str) -> dict[str, str]:
    """The metrics under a heading of the reference, and their kinds; without those that only some settings bring."""
    text = REFERENCE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `(casque_\w+)`[^|]* \| (\w+) \|(?!.*Only with)", text, re.MULTILINE))


async def test_a_worker_whose_loop_is_blocked_does_not_answer(tmp_path: Path) -> None:
    async with queue_of(tmp_path) as queue:
        await queue.enqueue("block", b"loop")
    async with worker(tmp_path) as watched:
        await started(tmp_path, "loop.started")
        with pytest.raises(httpx.TimeoutException):
            await watched.get("/healthz", within_s=0.3)
        (tmp_path / "loop.go").touch()
        assert (await watched.get("/healthz")).status_code == 200


async def test_a_worker_that_stops_lives_and_is_not_ready(tmp_path: Path) -> None:
    async with queue_of(tmp_path) as queue:
        await queue.enqueue("wait", b"long")
    async with worker(tmp_path) as watched:
        await started(tmp_path, "long.started")
        await watched.until_ready()
        watched.process.send_signal(signal.SIGTERM)
        refused = await watched.until_ready(503)
        assert (await watched.get("/healthz")).status_code == 200
        assert (await watched.metrics()).value("casque_worker_ready") == 0
        (tmp_path / "long.go").touch()
        assert await watched.process.wait() == 0

    assert refused.json()["problem"] == "the worker is stopping"


async def test_a_worker_without_its_broker_is_not_ready_until_it_is_back(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    # The scope of a worker does not include reading: a refusal is an answer, too.
    token = tokenfile.add(tokens, name="worker", scopes=[Scope.WORK], created=NOW)

    def broker(listen: Address) -> BrokerServer:
        return BrokerServer(ServeOptions(url=f"file://{tmp_path}/queue", listen=listen, tokens=TokenBook(tokens)))

    server = broker(FREE)
    await server.start()
    address = Address.parse(server.address)
    try:
        async with worker(tmp_path, "--url", f"grpc://{address}", "--token", token) as watched:
            await watched.until_ready()
            await server.stop()
            lost = await watched.until_ready(503)
            assert (await watched.get("/healthz")).status_code == 200
            server = broker(address)
            await server.start()
            back = await watched.until_ready()
            page = await watched.metrics()
    finally:
        await server.stop()

    assert lost.json()["problem"]
    assert back.json()["problem"] is None
    assert not page.kinds.keys() & documented("The store").keys(), "it has no store"


def test_an_address_that_cannot_be_used_is_refused_with_the_option() -> None:
    for text, why in (("nine", "--metrics must be HOST:PORT"), ("127.0.0.1:99999", "--metrics: the port must be")):
        with pytest.raises(InvalidInputError, match=why):
            parse_address(text)
    assert [str(parse_address(text)) for text in ("9102", ":9102", "0.0.0.0:9102")] == [
        *["127.0.0.1:9102"] * 2,
        "0.0.0.0:9102",
    ]


async def test_a_port_that_is_taken_ends_the_worker_with_the_fix(tmp_path: Path) -> None:
    async with worker(tmp_path) as watched:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "casque.cli", "worker", "worker_app:app", "--metrics", watched.address),
            cwd=HERE,
            env={**os.environ, "WORKER_APP_PLACE": str(tmp_path)},
            stderr=asyncio.subprocess.PIPE,
        )
        _, error = await process.communicate()

    assert process.returncode == 2
    said = " ".join(error.decode().split())
    assert f"--metrics: cannot listen on {watched.address}" in said
    assert "choose another port, or 0 for any that is free" in said


def test_the_metrics_of_a_consumer_of_zones_are_the_same_option() -> None:
    shown = CliRunner().invoke(commands, ["zones", "consume", "--help"], env={"COLUMNS": "200"}).output
    assert "--metrics" in shown
    assert "HOST:PORT" in shown
