"""One job for each tick, though those who notice them are really killed: brokers, and processes without brokers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from casque import EventKind, Missed, Queue, QueueEvent
from casque.client.opening import as_store
from casque.clock import SystemClock
from casque.journal.discovery import find_leader
from casque.state import SetSchedule
from casque.types import JobSpec, ScheduleSpec

ROOT = Path(__file__).parents[2]
SPEC = ScheduleSpec("often", "* * * * *", JobSpec("", "tick", b""), missed=Missed.ALL)


class Process(NamedTuple):
    popen: subprocess.Popen[str]
    address: str


@contextmanager
def processes(kind: str, url: str, count: int) -> Iterator[list[Process]]:
    """Several of them, ready; killed in the end."""
    command = [sys.executable, "-W", "error", "-m", "tests.acceptance.ticking", kind, url]
    started = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    try:
        found = []
        for one in started:
            assert one.stdout is not None
            said, address = one.stdout.readline().split()
            assert said == "ready"
            found.append(Process(one, address))
        yield found
    finally:
        for one in started:
            one.kill()
            one.wait()
            assert one.stdout is not None
            one.stdout.close()


async def set_schedule(url: str) -> None:
    """From the second that begins next: by hand, because elsewhere a second is none that a schedule could have."""
    async with Queue.open(url, ticks=False) as queue:
        assert queue._group is not None
        await queue._group.execute(SetSchedule(SPEC, (SystemClock().wall_ms() // 1000 + 1) * 1000))


async def until(events: AsyncGenerator[QueueEvent], ticks: int, seen: list[QueueEvent]) -> None:
    """So many more ticks."""
    while ticks:
        event = await anext(events)
        seen.append(event)
        ticks -= event.kind is EventKind.TICKED


def check_one_job_for_each_tick(seen: list[QueueEvent]) -> None:
    ticked = [event.fields["tick_ms"] for event in seen if event.kind is EventKind.TICKED]
    assert ticked == list(range(ticked[0], ticked[-1] + 1, 1000)), "a tick is missing, or came twice"
    stamps = [datetime.fromtimestamp(ms / 1000, UTC).strftime("often@%Y-%m-%dT%H:%M:%SZ") for ms in ticked]
    assert [event.fields["job"] for event in seen if event.kind is EventKind.TICKED] == stamps
    assert [event.job_id for event in seen if event.kind is EventKind.ADDED] == stamps


async def test_brokers_that_are_killed_miss_no_tick_and_make_none_twice(tmp_path: Path) -> None:
    url = (tmp_path / "queue").as_uri()
    await set_schedule(url)
    seen: list[QueueEvent] = []
    with processes("broker", url, 3) as brokers:
        addresses = ",".join(broker.address for broker in brokers)
        async with Queue.open(f"grpc://{addresses}") as queue, aclosing(queue.events(from_position=1)) as events:
            store = as_store(url)
            for _ in range(2):
                await until(events, 2, seen)
                leader = await find_leader(store)
                [leading] = [broker for broker in brokers if broker.address == leader]
                leading.popen.kill()
            await until(events, 4, seen)  # some of which passed while nobody led
            await store.close()
            assert [schedule.spec for schedule in await queue.schedules()] == [SPEC]
    check_one_job_for_each_tick(seen)


async def test_processes_side_by_side_make_one_job_of_each_tick_though_they_are_killed(tmp_path: Path) -> None:
    url = (tmp_path / "queue").as_uri()
    await set_schedule(url)
    seen: list[QueueEvent] = []
    with processes("embedded", url, 3) as workers:
        async with aclosing(Queue.open(url).events(from_position=1)) as events:
            for worker in workers[:2]:
                await until(events, 2, seen)
                worker.popen.kill()
            await until(events, 2, seen)
    check_one_job_for_each_tick(seen)
