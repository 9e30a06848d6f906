"""One job for each tick, though those who notice them are really killed: brokers, and processes without brokers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path

from casque import EventKind, Missed, Queue, QueueEvent
from casque.client.opening import as_store
from casque.clock import SystemClock
from casque.state import SetSchedule
from casque.types import JobSpec, ScheduleSpec
from tests.acceptance.fleet import addresses, kill_leader, processes

SPEC = ScheduleSpec("often", "* * * * *", JobSpec("", "tick", b""), missed=Missed.ALL)


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
        async with Queue.open(addresses(brokers)) as queue, aclosing(queue.events(from_position=1)) as events:
            store = as_store(url)
            for _ in range(2):
                await until(events, 2, seen)
                await kill_leader(store, brokers)
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
