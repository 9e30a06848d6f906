"""The metrics of a real broker: by entrypoint, for those who may see them, and of what is in the queue now."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from casque import NewJob, Queue
from casque.app import BrokerServer, ServeOptions
from casque.clock import SystemClock, yield_once
from casque.service import Outcome
from casque.settings import QueueSettings
from casque.testing import ManualClock
from casque.transport import tokenfile
from casque.transport.access import TokenBook
from casque.transport.http import entrypoint_numbers, led_states
from casque.transport.scopes import Scope
from tests.contract.test_service_ring_brokers import FREE, brokers
from tests.integration.over_http.prometheus import Scrape, scrape

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
NOW = datetime.fromtimestamp(SystemClock().wall_ms() / 1000, UTC)


@asynccontextmanager
async def a_broker(url: str = "memory://", **options: Any) -> AsyncIterator[BrokerServer]:
    server = BrokerServer(ServeOptions(url=url, listen=FREE, http=FREE, **options))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def scraped(server: BrokerServer, token: str | None = None) -> Scrape:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient() as client:
        reply = await client.get(f"http://127.0.0.1:{server.http_port}/metrics", headers=headers)
    assert reply.status_code == 200
    return scrape(reply.text)


def opened(server: BrokerServer, **more: Any) -> Any:
    return Queue.open(f"grpc://{server.address}", **more)


@pytest.fixture(autouse=True)
def counted_at_every_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(led_states, "EVERY_S", 0.0)
    monkeypatch.setattr(led_states, "SHARE", 0)


def depth(page: Scrape, entrypoint: str) -> list[float]:
    return [
        page.value("casque_entrypoint_jobs", entrypoint=entrypoint, state=state)
        for state in ("ready", "delayed", "running", "dead")
    ]


async def test_jobs_are_counted_by_entrypoint() -> None:
    async with a_broker() as server, opened(server, worker="w1") as queue:
        for n in range(3):
            await queue.enqueue("send", b"%d" % n)
        await queue.enqueue("send", b"", delay=3600)
        await queue.enqueue("bill", b"", max_attempts=1)
        [job] = await queue.dequeue("bill")
        await job.nack(error="no")
        await queue.dequeue("send")

        page = await scraped(server)

    assert depth(page, "send") == [2, 1, 1, 0]
    assert depth(page, "bill") == [0, 0, 0, 1]
    assert page.value("casque_workers", state="busy") == 1
    assert page.value("casque_workers", state="idle") == 0


@pytest.mark.parametrize("layout", ["log", "document"])
async def test_dead_means_dead_now(layout: str) -> None:
    async with a_broker(layout=layout) as server, opened(server) as queue:
        await queue.enqueue_many(NewJob("send", b"", max_attempts=1) for _ in range(3))
        jobs = await queue.dequeue("send", batch_size=3)
        for job in jobs:
            await job.nack(error="no")
        dead = await scraped(server)
        await queue.retry(jobs[0].id)
        retried = await scraped(server)
        assert await queue.purge() == 2
        purged = await scraped(server)

    assert [page.value("casque_jobs", state="dead") for page in (dead, retried, purged)] == [3, 2, 0]
    finished = [page.value("casque_jobs_finished_total", state="purged") for page in (dead, retried, purged)]
    assert finished == [0, 0, 2]
    for page in (dead, retried, purged):
        whole = sum(page.of("casque_jobs").values()) + sum(page.of("casque_jobs_finished_total").values())
        assert page.value("casque_jobs_enqueued_total") == whole


async def test_a_job_that_waits_has_an_age() -> None:
    async with a_broker() as server, opened(server) as queue:
        assert (await scraped(server)).value("casque_oldest_due_seconds") == 0
        # Due when it is added: an age is never longer than the test takes.
        began_ms = SystemClock().wall_ms()
        await queue.enqueue("send", b"")
        await queue.enqueue("later", b"", delay=3600)
        page = await scraped(server)
        took_s = (SystemClock().wall_ms() - began_ms) / 1000
        numbers = server._entrypoints
        assert numbers is not None
        depths = await numbers.states.depths()
        later = ManualClock(wall_ms=began_ms + 7_200_000)
        numbers.states._clock = numbers._clock = later
        hours = await scraped(server)

    assert depths.oldest_due_ms is not None
    assert depths.oldest_due_ms >= began_ms
    assert 0 <= page.value("casque_oldest_due_seconds") <= took_s
    assert 0 <= page.value("casque_entrypoint_oldest_due_seconds", entrypoint="send") <= took_s
    assert page.value("casque_entrypoint_oldest_due_seconds", entrypoint="later") == 0
    assert 7190 < hours.value("casque_entrypoint_oldest_due_seconds", entrypoint="send") <= 7200
    assert 3590 < hours.value("casque_entrypoint_oldest_due_seconds", entrypoint="later") <= 3600


async def test_waits_and_runs_are_observed_whichever_way_jobs_end() -> None:
    async with a_broker() as server, opened(server, worker="w1") as queue:
        for _ in range(4):
            await queue.enqueue("send", b"")
        one, two, three, four = await queue.dequeue("send", batch_size=4)
        await one.ack()
        await two.nack(error="no", delay=3600)
        await queue.settle([Outcome(three.id, three.token)])
        await queue.give_back([four])

        page = await scraped(server)

    assert page.value("casque_job_wait_seconds_count", entrypoint="send") == 4
    assert page.value("casque_job_run_seconds_count", entrypoint="send") == 3, "one was given back, and did not run"
    assert page.value("casque_job_run_seconds_bucket", entrypoint="send", le="14400") == 3
    assert page.value("casque_job_wait_seconds_sum", entrypoint="send") >= 0


async def test_a_claim_that_is_asked_for_twice_is_one_claim() -> None:
    async with a_broker() as server, opened(server, worker="w1") as queue:
        await queue.enqueue("send", b"")
        [job] = await queue.dequeue("send", request_id="same")
        [again] = await queue.dequeue("send", request_id="same")
        page = await scraped(server)

    assert page.value("casque_job_wait_seconds_count", entrypoint="send") == 1
    assert (again.id, again.token) == (job.id, job.token)


async def test_an_entrypoint_that_has_run_dry_is_shown_at_zero() -> None:
    async with a_broker() as server, opened(server) as queue:
        await queue.enqueue("send", b"")
        [job] = await queue.dequeue("send")
        await job.ack()

        assert depth(await scraped(server), "send") == [0, 0, 0, 0]


async def test_a_worker_that_waits_is_idle_and_one_that_left_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_broker() as server, opened(server, worker="w1") as queue:
        await queue.dequeue("send")
        assert (await scraped(server)).value("casque_workers", state="idle") == 1
        monkeypatch.setattr(entrypoint_numbers, "WORKER_MS", -1)
        assert (await scraped(server)).value("casque_workers", state="idle") == 0


async def test_many_entrypoints_are_shown_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrypoint_numbers, "NAMES_MAX", 2)
    async with a_broker() as server, opened(server) as queue:
        await queue.enqueue("claimed", b"")
        await queue.dequeue("claimed")
        for n in range(1, 5):
            for _ in range(n):
                await queue.enqueue(f"e{n}", b"")
        await queue.dequeue("e1")
        await queue.dequeue("e2")
        page = await scraped(server)

    names = {dict(labels)["entrypoint"] for labels in page.of("casque_entrypoint_jobs")}
    assert names == {"claimed", "e1", "(others)"}
    assert depth(page, "(others)") == [8, 0, 1, 0]
    assert page.value("casque_job_wait_seconds_count", entrypoint="(others)") == 1


async def test_a_count_is_repeated_only_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(led_states, "EVERY_S", 3600.0)
    async with a_broker() as server, opened(server) as queue:
        await queue.enqueue("send", b"")
        assert depth(await scraped(server), "send")[0] == 1
        await queue.enqueue("send", b"")
        page = await scraped(server)

    assert depth(page, "send")[0] == 1
    assert page.value("casque_jobs", state="ready") == 2, "sums are of now"


async def test_names_of_entrypoints_are_for_those_who_may_read_them(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    tokens = {
        "all": tokenfile.add(file, name="all", scopes=[Scope.READ], created=NOW),
        "mail": tokenfile.add(file, name="mail", scopes=[Scope.READ], created=NOW, entrypoints=["mail.*"]),
        "acme": tokenfile.add(file, name="acme", scopes=[Scope.READ], created=NOW, zones=["acme"]),
        "worker": tokenfile.add(file, name="worker", scopes=[Scope.WORK, Scope.PRODUCE], created=NOW),
    }
    async with a_broker(tokens=TokenBook(file)) as server, opened(server, token=tokens["worker"]) as queue:
        for name in ("mail.send", "bill"):
            await queue.enqueue(name, b"")
            await queue.dequeue(name)

        async def names(who: str | None) -> set[str]:
            page = await scraped(server, None if who is None else tokens[who])
            assert page.value("casque_jobs", state="running") == 2
            return {dict(labels)["entrypoint"] for _, labels in page.samples if "entrypoint" in dict(labels)}

        assert await names("all") == {"mail.send", "bill"}
        assert await names("mail") == {"mail.send"}
        assert await names("acme") == await names("worker") == await names(None) == set()


async def test_a_standby_counts_no_jobs_and_a_deposed_leader_stops(tmp_path: Path) -> None:
    async with a_broker(tmp_path.as_uri()) as leader, opened(leader) as queue:
        await queue.enqueue("send", b"")
        async with a_broker(tmp_path.as_uri()) as standby:
            page = await scraped(standby)

    for name in ("casque_jobs", "casque_entrypoint_jobs", "casque_oldest_due_seconds", "casque_workers"):
        assert not page.of(name)
    assert page.value("casque_store_requests_total", operation="get", outcome="ok") > 0


async def test_brokers_of_a_ring_count_what_they_lead(tmp_path: Path) -> None:
    async with brokers(tmp_path.as_uri(), 2) as servers, opened(servers[0]) as queue:
        for n in range(20):
            await queue.enqueue("send", b"", zone=f"z{n}", max_attempts=1)
        for job in await queue.dequeue("send", batch_size=4):
            await job.nack(error="no")
        pages = [await scraped(server) for server in servers]

    assert sum(page.value("casque_jobs", state="dead") for page in pages) == 4
    counted = [depth(page, "send") for page in pages]
    assert [sum(column) for column in zip(*counted, strict=True)] == [16, 0, 0, 4]
    assert all(0 < ready < 16 for ready, *_ in counted)


async def test_finished_jobs_wait_for_the_archive_and_this_has_an_age() -> None:
    settings = QueueSettings(archive_interval=timedelta(hours=1))
    async with a_broker(queue=settings) as server, opened(server) as queue:
        assert (await scraped(server)).value("casque_archive_pending_seconds") == 0
        await queue.enqueue("send", b"")
        [job] = await queue.dequeue("send")
        await job.ack()
        page = await scraped(server)

    assert page.value("casque_archive_pending_jobs") == 1
    assert 0 <= page.value("casque_archive_pending_seconds") < 60


async def test_requests_to_the_store_are_counted(tmp_path: Path) -> None:
    async with a_broker(tmp_path.as_uri()) as server, opened(server) as queue:
        before = (await scraped(server)).value("casque_store_requests_total", operation="create", outcome="ok")
        await queue.enqueue("send", b"")
        page = await scraped(server)

    assert page.value("casque_store_requests_total", operation="create", outcome="ok") > before
    assert page.value("casque_store_request_duration_seconds_count", operation="create") > 0


async def test_a_scrape_does_not_hold_up_calls_on_a_deep_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(led_states, "AT_ONCE", 10)
    async with a_broker() as server, opened(server) as queue:
        await queue.enqueue_many(NewJob("send", b"") for _ in range(500))
        assert server._entrypoints is not None
        counting = asyncio.create_task(server._entrypoints.states.depths())
        turns = 0
        while not counting.done():
            turns += 1
            await yield_once()
        depths = counting.result()

    assert depths.by_entrypoint["send"].ready == 500
    assert turns >= 50, "others have their turns after every portion"


async def test_every_name_is_in_the_reference_and_in_base_units(tmp_path: Path) -> None:
    budgeted = QueueSettings(requests_per_day=1_000_000)
    async with brokers(tmp_path.as_uri(), 1, queue=budgeted) as [server], opened(server) as queue:
        await queue.enqueue("send", b"", zone="acme")
        page = await scraped(server)

    text = REFERENCE.read_text().partition("## Workers")[0]
    documented = dict(re.findall(r"^\| `(casque_\w+)`[^|]* \| (\w+) \|", text, re.MULTILINE))
    assert documented == page.kinds
    for name, kind in page.kinds.items():
        assert name.endswith("_total") == (kind == "counter")
        assert not re.search("_(ms|millis|kb|mb|minutes)", name)
        assert kind != "histogram" or name.endswith("_seconds")


async def test_a_broker_with_a_budget_shows_how_much_of_it_is_used() -> None:
    async with a_broker(queue=QueueSettings(requests_per_minute=5_000, requests_per_day=100_000)) as server:
        async with opened(server) as queue:
            await queue.enqueue("mail", b"")
        page = await scraped(server)
        assert page.value("casque_store_requests_budget", window="minute") == 5_000
        assert page.value("casque_store_requests_budget", window="day") == 100_000
        used = page.value("casque_store_requests_budget_used", window="day")
        assert used == page.value("casque_store_requests_budget_used", window="minute") > 1


async def test_a_broker_without_a_budget_says_nothing_of_one() -> None:
    async with a_broker() as server:
        assert "casque_store_requests_budget" not in (await scraped(server)).kinds
