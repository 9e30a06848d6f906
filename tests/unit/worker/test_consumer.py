"""Consumers of zones: scanner, managers and workers, on queues in memory and on rings."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from casque import InvalidInputError, NewJob, Queue
from casque.client.opening import Parts, as_store
from casque.client.queue import DEFAULTS
from casque.clock import SystemClock, new_nonce, system_random
from casque.testing.clock import ManualClock
from casque.types import PeekedZone
from casque.worker import ConsumerOptions, Handler, JobContext, Retry, Selection, Worker
from casque.worker.consumer.board import Board
from casque.worker.consumer.refusals import Refusals

CLOCK = SystemClock()
QUICK = ConsumerOptions(scanner_interval=0.001, scanner_idle=0.001)


class App:
    """The smallest thing that a worker can work for."""

    def __init__(self, url: str, call: Callable[[bytes, JobContext], Any], **more: Any) -> None:
        self.url = url
        self.opening: Mapping[str, Any] = {}
        self.handlers = {"do": Handler("do", call, **{"is_async": True, **more})}


@pytest.fixture
def url() -> str:
    return "memory://" + new_nonce(system_random())


def options(**changes: Any) -> ConsumerOptions:
    return ConsumerOptions(**{"scanner_interval": 0.001, "scanner_idle": 0.001, **changes})


async def test_every_zone_is_worked_off_and_none_stays_leased(url: str) -> None:
    seen: Counter[str] = Counter()

    async def note(payload: bytes, context: JobContext) -> None:
        seen[payload.decode()] += 1

    async with Queue.open(url) as queue:
        await queue.enqueue_many([NewJob("do", b"%d" % n, zone=f"z{n % 30}") for n in range(300)])
        worker = Worker(App(url, note), burst=True, consumer=QUICK)
        summary = await worker.run()

        assert (summary.done, len(seen), set(seen.values())) == (300, 300, {1})
        assert await queue.zones() == []


async def test_jobs_without_a_zone_and_other_zones_are_left_alone(url: str) -> None:
    async def nothing(payload: bytes, context: JobContext) -> None: ...

    async with Queue.open(url) as queue:
        for zone in ("acme", "umbrella", None):
            await queue.enqueue("do", b"", zone=zone)
        summary = await Worker(App(url, nothing), burst=True, zones="acme", consumer=QUICK).run()

        assert summary.done == 1
        assert [job.zone for job in await queue.jobs()] == ["umbrella", None]


async def test_two_consumers_never_have_one_zone(url: str) -> None:
    """What each of them takes from a zone in a visit is all that anybody takes meanwhile."""
    held: dict[str, str] = {}

    async def note(payload: bytes, context: JobContext) -> None:
        [zone] = await queue.zones(payload.decode())
        if zone.lease is not None:
            held[f"{zone.lease.token}"] = zone.lease.worker or ""

    async with Queue.open(url) as queue:
        await queue.enqueue_many([NewJob("do", b"z%d" % (n % 7), zone=f"z{n % 7}") for n in range(210)])
        workers = [Worker(App(url, note), burst=True, consumer=options(dequeue_max=3)) for _ in range(3)]
        summaries = await asyncio.gather(*(worker.run() for worker in workers))

        assert sum(summary.done for summary in summaries) == 210
        leased = [event async for event in queue.events(from_position=0, follow=False) if "zone_" in event.kind.value]
    holders: dict[str, int] = {}
    for event in leased:
        zone, token = event.fields["zone"], event.fields["token"]
        if event.kind.value == "zone_leased":
            assert zone not in holders
            holders[zone] = token
        elif event.kind.value == "zone_released":
            assert holders.pop(zone) == token
    assert not holders
    assert set(held.values()) <= {worker.name for worker in workers}


async def test_fifo_zones_keep_their_order(url: str) -> None:
    order: dict[str, list[int]] = {"a": [], "b": []}
    failed: set[bytes] = set()

    async def note(payload: bytes, context: JobContext) -> None:
        zone, _, number = payload.decode().partition("-")
        if number == "5" and payload not in failed:
            failed.add(payload)
            raise ValueError("once more")
        order[zone].append(int(number))

    async with Queue.open(url) as queue:
        for zone in order:
            await queue.enqueue_many([NewJob("do", f"{zone}-{n}".encode(), zone=zone, fifo=True) for n in range(25)])
        app = App(url, note, retry=Retry(delays_s=(0.001,)))
        stop = Worker(app, consumer=QUICK)
        running = asyncio.create_task(stop.run())
        while (await queue.stats()).totals.done < 50:
            await CLOCK.sleep(0)
        stop.stop()
        await running

    assert order == {"a": list(range(25)), "b": list(range(25))}


async def test_a_consumer_that_is_stopped_releases_its_zone_at_once(url: str) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait(payload: bytes, context: JobContext) -> None:
        begun.set()
        await go_on.wait()

    async with Queue.open(url) as queue:
        await queue.enqueue_many([NewJob("do", b"%d" % n, zone="line", fifo=True) for n in range(2)])
        worker = Worker(App(url, wait), consumer=options(zone_lease=3600))
        running = asyncio.create_task(worker.run())
        await begun.wait()
        [standing] = await queue.zones("line")
        assert standing.lease is not None
        assert standing.lease.worker == worker.name

        worker.stop()
        while (await queue.zones("line"))[0].lease is not None:
            await CLOCK.sleep(0)
        go_on.set()
        summary = await running

        assert (summary.done, summary.lost) == (1, 0)
        assert [job.raw_payload for job in await queue.jobs()] == [b"1"]


async def test_a_job_that_takes_longer_than_the_bound_has_failed(url: str) -> None:
    async def hang(payload: bytes, context: JobContext) -> None:
        await asyncio.Event().wait()

    async with Queue.open(url) as queue:
        await queue.enqueue("do", b"", zone="acme", max_attempts=1)
        summary = await Worker(App(url, hang), burst=True, consumer=options(processing_bound=0.001)).run()

        assert summary.failed == 1
        [job] = await queue.jobs()
        assert "took longer than its 0.001 s" in (job.record.error or "")


async def test_a_ring_is_walked_until_every_shard_is_empty(url: str) -> None:
    async def nothing(payload: bytes, context: JobContext) -> None: ...

    assert await Parts(as_store(url), DEFAULTS).builder().create(4)
    async with Queue.open(url) as queue:
        await queue.enqueue_many([NewJob("do", b"", zone=f"z{n}") for n in range(40)])
        assert (await Worker(App(url, nothing), burst=True, consumer=QUICK).run()).done == 40


def test_a_scan_selects_a_share_and_never_more_than_allowed() -> None:
    defaults = ConsumerOptions()
    assert [defaults.selected(peeked) for peeked in (0, 1, 5, 11, 100)] == [0, 1, 1, 2, 10]
    assert ConsumerOptions(selection_frac=1.0, selection_max=3).selected(100) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"managers": 0},
        {"workers": 0},
        {"peek_max": 0},
        {"selection_frac": 1.5},
        {"dequeue_max": 0},
        {"zone_lease": 0.5},
        {"scanner_interval": 0},
        {"scanner_idle": 0.01},
        {"processing_bound": 0},
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        ConsumerOptions(**wrong)


def test_the_defaults_are_those_of_quick() -> None:
    options = ConsumerOptions()
    assert (options.peek_max, options.selection_frac, options.selection_max, options.dequeue_max) == (100, 0.1, 10, 10)
    assert (options.min_inactive, options.vesting_threshold, options.scanner_interval) == (30.0, 0.25, 0.1)
    assert options.selection is Selection.RANDOM


async def test_a_refused_zone_is_passed_over_for_longer_each_time_and_forgotten() -> None:
    clock = ManualClock()
    refusals = Refusals(ConsumerOptions(scanner_interval=1.0, scanner_idle=1.0), clock)
    refusals.add("acme")
    assert refusals.passes_over("acme")
    await clock.advance(1.0)
    assert not refusals.passes_over("acme")
    refusals.add("acme")
    await clock.advance(1.0)
    assert refusals.passes_over("acme")
    await clock.advance(29.0)
    refusals.sweep()
    refusals.add("acme")
    await clock.advance(1.0)
    assert not refusals.passes_over("acme")


async def test_a_zone_is_on_the_board_until_its_manager_is_done() -> None:
    board = Board()
    zone = PeekedZone("acme", 0)
    board.put([zone])
    assert ("acme" in board, board.is_empty) == (True, False)
    assert await board.take() is zone
    assert ("acme" in board, board.is_empty, board.is_clear) == (True, True, False)
    board.done(zone)
    assert board.is_clear
    idle = asyncio.create_task(board.take())
    await board.wait_until_wanted()
    idle.cancel()
