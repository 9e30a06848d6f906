"""What Prometheus is told, and that it is true."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from casque.errors import NoLeaderError, NotAllowedError, NotAuthenticatedError
from casque.service import QueueService, Role, Standing, Stats
from casque.telemetry.metrics import Metrics
from casque.testing import ManualClock
from casque.testing.hosting import Instead
from casque.transport.border import Border, Wrapper, admit
from casque.transport.http import monitoring, zone_numbers
from casque.transport.http.client import HttpService
from casque.transport.http.server import HttpServer
from casque.transport.measured import Measured, Numbers, measuring
from casque.transport.scopes import Principal, Scope
from casque.types import JobSpec, ZoneRules
from tests.integration.over_http.hosts import Leading, Refusing, ask, embedded, serving
from tests.integration.over_http.prometheus import Scrape, scrape


@pytest.fixture
async def queue() -> AsyncIterator[QueueService]:
    async with embedded() as service:
        yield service


async def scraped(server: HttpServer) -> Scrape:
    reply = await ask(server, "GET", "/metrics")
    assert reply.status == 200
    assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return scrape(reply.body.decode())


def zones_on(page: Scrape) -> set[str]:
    return {dict(labels)["zone"] for labels in page.of("casque_zone_jobs")}


async def test_jobs_calls_and_the_broker_are_counted(queue: QueueService) -> None:
    async with serving(Leading(queue)) as server, HttpService(f"127.0.0.1:{server.port}") as remote:
        await remote.enqueue([JobSpec(name, "send", b"") for name in "abc"])
        await remote.enqueue([JobSpec("d", "send", b"", run_at_ms=2**47)])
        [job] = await remote.dequeue(entrypoints=None, limit=1)
        await remote.ack(job.id, token=job.token)
        assert await remote.find("nobody") is None

        page = await scraped(server)

    assert [page.value("casque_jobs", state=state) for state in ("ready", "delayed", "running")] == [2, 1, 0]
    assert page.value("casque_jobs_enqueued_total") == 4
    assert page.value("casque_jobs_finished_total", state="done") == 1
    assert page.value("casque_commit_position") == 4
    assert page.value("casque_broker_role", role="leader") == 1
    assert page.value("casque_broker_role", role="standby") == 0
    assert page.value("casque_broker_epoch") == 3
    assert page.value("casque_queue_readable") == page.value("casque_broker_ready") == 1
    assert page.value("casque_calls_total", verb="enqueue", outcome="ok") == 2
    assert page.value("casque_calls_total", verb="find", outcome="ok") == 1
    assert page.value("casque_call_duration_seconds_count", verb="enqueue") == 2
    assert page.value("casque_call_duration_seconds_bucket", verb="enqueue", le="+Inf") == 2
    assert page.value("casque_call_duration_seconds_sum", verb="enqueue") > 0
    assert page.value("casque_calls_in_flight", verb="enqueue") == 0
    assert page.value("casque_http_requests_total", method="GET", route="/v1/jobs/{id}", status="404") == 1


async def test_what_waits_is_counted_while_it_waits(queue: QueueService) -> None:
    async with serving(Leading(queue)) as server, HttpService(f"127.0.0.1:{server.port}") as remote:
        waiting = asyncio.create_task(remote.dequeue(entrypoints=None, limit=1, wait_s=60))
        while not Numbers(server.metrics).waiting.value:
            await queue.stats()

        during = await scraped(server)
        await queue.enqueue([JobSpec("a", "send", b"")])
        await waiting
        after = await scraped(server)

    assert during.value("casque_dequeues_waiting") == during.value("casque_calls_in_flight", verb="dequeue") == 1
    assert after.value("casque_dequeues_waiting") == after.value("casque_calls_in_flight", verb="dequeue") == 0


async def test_a_broker_that_does_not_lead_tells_nothing_about_jobs(queue: QueueService) -> None:
    class Deposed(Leading):
        leads = True

        def service(self) -> QueueService:
            if not self.leads:
                raise NoLeaderError
            return super().service()

    host = Deposed(queue)
    async with serving(host) as server:
        assert (await scraped(server)).of("casque_jobs")
        host.leads = False

        page = await scraped(server)

    assert page.value("casque_queue_readable") == 0
    for name in ("casque_jobs", "casque_jobs_finished_total", "casque_jobs_enqueued_total"):
        assert not page.of(name)


async def test_zones_with_much_to_do_or_with_rules_are_counted_and_no_others(queue: QueueService) -> None:
    clock = ManualClock()
    for n in range(25):
        jobs = [JobSpec(f"{n}-{at}", "send", b"", zone=f"zone-{n}") for at in range(1 + n)]
        await queue.enqueue(jobs)
    await queue.set_zone("zone-0", ZoneRules(paused=True))
    await queue.dequeue(entrypoints=None, limit=1, zones=("zone-24",))
    async with serving(Leading(queue), clock=clock) as server:
        page = await scraped(server)
        await queue.enqueue([JobSpec("late", "send", b"", zone="zone-24")])
        soon = await scraped(server)
        await clock.advance(10)
        later = await scraped(server)

    assert zones_on(page) == {"zone-0", *(f"zone-{n}" for n in range(5, 25))}
    assert page.value("casque_zone_jobs", zone="zone-24", state="ready") == 24
    assert page.value("casque_zone_jobs", zone="zone-24", state="running") == 1
    assert page.value("casque_zone_paused", zone="zone-0") == 1
    assert page.value("casque_zone_paused", zone="zone-24") == 0
    assert soon.value("casque_zone_jobs", zone="zone-24", state="ready") == 24, "it is not counted at every scrape"
    assert later.value("casque_zone_jobs", zone="zone-24", state="ready") == 25


async def test_zones_are_not_counted_while_that_would_take_long(
    queue: QueueService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zone_numbers, "JOBS_MAX", 1)
    await queue.enqueue([JobSpec(name, "send", b"", zone="acme") for name in "ab"])
    async with serving(Leading(queue)) as server:
        assert not (await scraped(server)).of("casque_zone_jobs")


async def test_a_tenant_sees_no_zones_but_its_own(queue: QueueService) -> None:
    for zone in ("acme", "umbrella"):
        await queue.enqueue([JobSpec(zone, "send", b"", zone=zone)])
    doors = {
        "all": Principal("all", frozenset({Scope.READ})),
        "acme": Principal("acme", frozenset({Scope.READ}), zones=frozenset({"acme"})),
        "worker": Principal("worker", frozenset({Scope.WORK})),
    }

    def admitted(authorization: str | None) -> Wrapper:
        if authorization is None:
            raise NotAuthenticatedError("who is there?")
        return lambda service: Border(service, doors[authorization])

    async def zones(server: HttpServer, authorization: str | None) -> set[str]:
        headers = {} if authorization is None else {"Authorization": authorization}
        reply = await ask(server, "GET", "/metrics", headers=headers)
        assert reply.status == 200
        return zones_on(scrape(reply.body.decode()))

    async with serving(Leading(queue), admit=admitted) as server:
        assert await zones(server, "all") == {"acme", "umbrella"}
        assert await zones(server, "acme") == {"acme"}
        assert await zones(server, "worker") == await zones(server, None) == set()


async def test_a_standby_has_metrics_too() -> None:
    async with serving(Refusing(NoLeaderError(), Standing(Role.STANDBY, epoch=2, position=40))) as server:
        page = await scraped(server)

    assert page.value("casque_broker_role", role="standby") == 1
    assert page.value("casque_commit_position") == 40
    assert page.value("casque_broker_ready") == 0


async def test_a_storage_that_hangs_does_not_hang_the_scrape(
    queue: QueueService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "STATS_LIMIT_S", 0.01)

    class Hanging(Instead):
        async def stats(self) -> Stats:
            await asyncio.Event().wait()
            raise AssertionError

    async with serving(Leading(Hanging(queue))) as server:
        page = await scraped(server)

    assert page.value("casque_queue_readable") == 0


async def test_refusals_and_failures_have_names(queue: QueueService) -> None:
    metrics = Metrics()

    class Refused(Instead):
        async def stats(self) -> Stats:
            raise NotAllowedError("read", "stats")

        async def find(self, job_id: str) -> None:
            raise ZeroDivisionError

    measured = Measured(Refused(queue), metrics)
    with pytest.raises(NotAllowedError):
        await measured.stats()
    with pytest.raises(ZeroDivisionError):
        await measured.find("a")

    page = scrape(metrics.text())
    assert page.value("casque_calls_total", verb="stats", outcome="NotAllowedError") == 1
    assert page.value("casque_calls_total", verb="find", outcome="failure") == 1
    assert page.value("casque_calls_in_flight", verb="find") == 0


async def test_another_server_may_count_into_the_same_numbers(queue: QueueService) -> None:
    metrics = Metrics()
    elsewhere = measuring(admit(None), metrics)(None)(queue)

    await elsewhere.enqueue([JobSpec("a", "send", b"")])
    async with serving(Leading(queue), metrics=metrics) as server, HttpService(f"127.0.0.1:{server.port}") as remote:
        await remote.enqueue([JobSpec("b", "send", b"")])
        page = await scraped(server)

    assert page.value("casque_calls_total", verb="enqueue", outcome="ok") == 2


async def test_only_a_ring_has_numbers_of_shards(queue: QueueService) -> None:
    host = Leading(queue)
    async with serving(host) as server:
        assert not any("_ring_" in name for name in (await scraped(server)).kinds)
        host.stands = Standing(Role.LEADER, shards=4, led=2, members=2)
        page = await scraped(server)

    numbers = [page.value(f"casque_ring_{name}") for name in ("shards", "shards_led", "brokers")]
    assert numbers == [4, 2, 2]


def test_labels_and_numbers_are_written_as_the_format_wants_them() -> None:
    metrics = Metrics()
    metrics.gauge("g", 'a "help"\nwith \\', ("l",)).of('q"b\\s\nn').value = 0.1
    spread = metrics.histogram("h_seconds", "h").of()
    for size in (0.001, 0.0010001, 60, 61):
        spread.observe(size)

    page = scrape(metrics.text())

    assert 'g{l="q\\"b\\\\s\\nn"} 0.1\n' in metrics.text()
    assert '# HELP g a "help"\\nwith \\\\\n' in metrics.text()
    assert page.value("h_seconds_bucket", le="0.001") == 1
    assert page.value("h_seconds_bucket", le="0.0025") == 2
    assert page.value("h_seconds_bucket", le="60") == 3
    assert page.value("h_seconds_bucket", le="+Inf") == page.value("h_seconds_count") == 4


def test_a_family_is_made_once() -> None:
    metrics = Metrics()
    metrics.counter("c_total", "c").of().add(2)

    assert metrics.counter("c_total", "c").of().value == 2
    with pytest.raises(AssertionError):
        metrics.gauge("c_total", "c")
