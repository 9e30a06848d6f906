"""Consumers of zones that are real processes: killed, stopped, and several at once."""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from pathlib import Path

from casque import EventKind, NewJob
from casque.clock import SystemClock
from tests.acceptance.test_worker_processes import ended, queue_of, told, worker

CLOCK = SystemClock()
consumer = partial(worker, command=("zones", "consume"))


async def test_the_zone_and_the_jobs_of_a_consumer_that_is_killed_go_to_another(tmp_path: Path) -> None:
    names = [f"line-{n}" for n in range(4)]
    async with queue_of(tmp_path) as queue:
        await queue.enqueue_many([NewJob("wait", name.encode(), zone="line", fifo=True) for name in names])
    leases = ("--zone-lease", "1", "--job-lease", "2")
    async with consumer(tmp_path, *leases) as first:
        await told(tmp_path, "line-0.started")
        first.kill()
        await first.wait()
        for name in names:
            (tmp_path / f"{name}.go").touch()
        async with consumer(tmp_path, *leases) as second:
            await told(tmp_path, *[f"{name}.done" for name in names])
            second.send_signal(signal.SIGTERM)
            summary = await ended(second)

    assert summary["done"] == 4
    order = sorted(names, key=lambda name: (tmp_path / f"{name}.done").stat().st_mtime_ns)
    assert order == names
    for name in names:
        assert (tmp_path / f"{name}.done").read_text() == f"{second.pid}\n"


async def test_sigterm_releases_the_zone_at_once(tmp_path: Path) -> None:
    async with queue_of(tmp_path) as queue:
        await queue.enqueue_many([NewJob("wait", b"%d" % n, zone="line", fifo=True) for n in range(2)])
    async with consumer(tmp_path, "--zone-lease", "3600", "--job-lease", "3600") as process:
        await told(tmp_path, "0.started")
        process.send_signal(signal.SIGTERM)
        async with queue_of(tmp_path) as queue, asyncio.timeout(60):
            while (await queue.zones("line"))[0].lease is not None:
                await CLOCK.sleep(0.01)
            (tmp_path / "0.go").touch()
            summary = await ended(process)
            assert (summary["done"], summary["left"]) == (1, 0)
            # Nobody has to wait for anything to run out.
            async with consumer(tmp_path, "--burst") as other:
                (tmp_path / "1.go").touch()
                assert (await ended(other))["done"] == 1


async def test_three_consumers_never_have_one_zone_and_do_every_job_once(tmp_path: Path) -> None:
    async with queue_of(tmp_path) as queue:
        jobs = [NewJob("write", f"{n % 12}-{n}".encode(), zone=f"z{n % 12}", fifo=n % 12 < 4) for n in range(240)]
        await queue.enqueue_many(jobs)
    async with (
        consumer(tmp_path, "--burst", "--dequeue-max", "3") as a,
        consumer(tmp_path, "--burst", "--dequeue-max", "3") as b,
        consumer(tmp_path, "--burst", "--dequeue-max", "3") as c,
    ):
        summaries = await asyncio.gather(*map(ended, (a, b, c)))

    assert sum(summary["done"] for summary in summaries) == 240
    holders: dict[str, int] = {}
    order: dict[str, list[int]] = {}
    zone_of = {}
    async with queue_of(tmp_path) as queue:
        assert await queue.zones() == []
        async for event in queue.events(from_position=0, follow=False):
            match event.kind:
                case EventKind.ADDED:
                    zone_of[event.job_id] = (event.fields["zone"], event.fields["sequence"])
                case EventKind.ZONE_LEASED:
                    assert event.fields["zone"] not in holders
                    holders[event.fields["zone"]] = event.fields["token"]
                case EventKind.ZONE_RELEASED | EventKind.ZONE_EXPIRED:
                    assert holders.pop(event.fields["zone"]) == event.fields["token"]
                case EventKind.CLAIMED:
                    zone, sequence = zone_of[event.job_id]
                    assert zone in holders  # nobody took from a zone that was not theirs
                    order.setdefault(zone, []).append(sequence)
                case _:
                    pass
    assert not holders
    for number in range(4):
        assert order[f"z{number}"] == sorted(order[f"z{number}"])
