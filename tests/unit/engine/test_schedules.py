"""Schedules: rules, ticks by the engine, declarations by an app."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import msgspec
import pytest

import casque
from casque import InvalidInputError, JobState, NewJob, Queue, ScheduleNotFoundError
from casque.client.opening import Parts
from casque.clock import Random
from casque.codec.digest import state_digest
from casque.service.requests import DropSchedule, Enqueue
from casque.settings import QueueSettings
from casque.state import Command, Limits, PauseSchedule, SetSchedule, State, Tick
from casque.storage.memory import MemoryStore
from casque.testing import in_memory, inline
from casque.testing.clock import ManualClock
from casque.types import JobSpec, Missed, Schedule, ScheduleSpec
from casque.worker import Worker

SEEDS = count(70)
START = datetime(2026, 2, 15, 10, 0, 30, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)
NIGHTLY = ScheduleSpec("nightly", "0 3 * * *", JobSpec("", "report", b"all"))


def job(job_id: str, **more: Any) -> JobSpec:
    return JobSpec(job_id, "report", b"all", **more)


# --- Rules ---


def test_a_tick_moves_the_schedule_and_adds_its_job_once() -> None:
    state = State()
    state.execute(SetSchedule(NIGHTLY, 100), 1)

    assert state.execute(Tick("nightly", 100, 200, job("a")), 101) is True
    assert state.execute(Tick("nightly", 100, 200, job("b")), 101) is False
    assert list(state.jobs) == ["a"]
    assert state.schedules["nightly"] == Schedule(NIGHTLY, 200, False, 100)
    assert state.next_tick_ms() == 200
    assert [type(event).__name__ for event in state.events] == ["Scheduled", "Added", "Ticked"]


def test_a_tick_of_a_schedule_that_is_paused_gone_or_elsewhere_does_nothing() -> None:
    state = State()
    state.execute(SetSchedule(NIGHTLY, 100), 1)
    state.execute(PauseSchedule("nightly", True, 300), 2)
    state.commit(writer="w", batch=1, at_ms=2)

    assert state.next_tick_ms() is None
    assert state.execute(Tick("nightly", 100, 200, job("a")), 101) is False
    assert state.execute(PauseSchedule("nightly", False, 300), 102).next_ms == 300
    state.execute(DropSchedule("nightly"), 103)
    assert state.execute(Tick("nightly", 300, 400, job("a")), 301) is False
    assert not state.jobs
    with pytest.raises(ScheduleNotFoundError):
        state.execute(DropSchedule("nightly"), 104)


def test_a_tick_whose_key_is_held_or_whose_job_is_there_adds_nothing_and_moves_on() -> None:
    state = State()
    state.execute(SetSchedule(NIGHTLY, 100), 1)
    state.execute(Enqueue((job("a", key="k"),)), 1)

    assert state.execute(Tick("nightly", 100, 200, job("b", key="k")), 101) is True
    assert state.execute(Tick("nightly", 200, 300, job("a")), 201) is True
    assert list(state.jobs) == ["a"]
    assert state.schedules["nightly"] == Schedule(NIGHTLY, 300)


def test_what_did_not_land_is_undone() -> None:
    state = State()
    state.execute(SetSchedule(NIGHTLY, 100), 1)
    state.commit(writer="w", batch=1, at_ms=1)
    before = dict(state.schedules)

    state.execute(Tick("nightly", 100, 200, job("a")), 101)
    state.execute(SetSchedule(msgspec.structs.replace(NIGHTLY, name="other"), 50), 101)
    assert state.next_tick_ms() == 50
    state.rollback()

    assert (state.schedules, state.jobs, state.next_tick_ms()) == (before, {}, 100)


def test_setting_the_same_again_changes_nothing_and_another_expression_takes_effect() -> None:
    state = State()
    state.execute(SetSchedule(NIGHTLY, 100), 1)
    state.commit(writer="w", batch=1, at_ms=1)

    state.execute(SetSchedule(NIGHTLY, 999), 2)
    assert not state.events
    other_job = msgspec.structs.replace(NIGHTLY, job=JobSpec("", "report", b"some"))
    assert state.execute(SetSchedule(other_job, 999), 2).next_ms == 100
    other_time = msgspec.structs.replace(NIGHTLY, tz="Europe/Berlin")
    assert state.execute(SetSchedule(other_time, 999), 2).next_ms == 999


def test_there_cannot_be_any_number_of_schedules() -> None:
    state = State(Limits(schedules_max=1))
    state.execute(SetSchedule(NIGHTLY, 100), 1)
    with pytest.raises(InvalidInputError, match="has 1 schedules already"):
        state.execute(SetSchedule(msgspec.structs.replace(NIGHTLY, name="other"), 100), 1)


def test_events_replayed_make_the_same_state() -> None:
    state, replica = State(), State()
    commands: list[Command] = [
        SetSchedule(NIGHTLY, 100),
        Tick("nightly", 100, 200, job("a")),
        Tick("nightly", 200, 900, job("b"), 800),
        PauseSchedule("nightly", True, 0),
        SetSchedule(msgspec.structs.replace(NIGHTLY, name="other"), 100),
        DropSchedule("other"),
    ]
    for number, command in enumerate(commands, 1):
        state.execute(command, number)
        events = state.events
        state.commit(writer="w", batch=number, at_ms=number)
        replica.replay(events, writer="w", batch=number, at_ms=number)

    assert replica.schedules == state.schedules == {"nightly": Schedule(NIGHTLY, 900, True, 800)}
    assert state_digest(replica) == state_digest(state)


# --- The engine ---


@pytest.fixture(params=["log", "document"])
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def opened(store: Any, clock: ManualClock, layout: str, **settings: Any) -> AsyncIterator[Queue[bytes]]:
    queue = Queue.open(store, layout=layout, clock=clock, rng=Random(next(SEEDS)), **settings)
    entering = asyncio.ensure_future(queue.__aenter__())
    await through(clock, entering)
    try:
        yield queue
    finally:
        await through(clock, asyncio.ensure_future(queue.__aexit__(None, None, None)))


async def through(clock: ManualClock, work: asyncio.Future[Any]) -> Any:
    for _ in range(1000):
        if work.done():
            break
        await clock.advance(0.01)
    return await work


async def ticks(queue: Queue[bytes], clock: ManualClock) -> list[str]:
    """Those that have become jobs."""
    return [found.headers["casque-tick"][11:16] for found in await through(clock, asyncio.ensure_future(queue.jobs()))]


@pytest.mark.asyncio
async def test_a_job_is_there_when_its_time_has_come_though_nobody_asks(layout: str) -> None:
    clock, store = ManualClock(START_MS), MemoryStore()
    async with opened(store, clock, layout) as queue:
        set_to = await queue.set_schedule("often", "*/5 * * * *", NewJob("report", b"all", headers={"a": "b"}))
        assert set_to.next_at == datetime(2026, 2, 15, 10, 5, tzinfo=UTC)
        await clock.advance(269.9)
        assert (await Parts(store, QueueSettings(), layout=layout, clock=clock).read()).jobs == {}
        await clock.advance(0.5)

        stored = (await Parts(store, QueueSettings(), layout=layout, clock=clock).read()).jobs
        assert list(stored) == ["often@2026-02-15T10:05:00Z"]
        [found] = await queue.dequeue("report")
        assert (found.id, found.payload) == ("often@2026-02-15T10:05:00Z", b"all")
        assert found.headers == {"a": "b", "casque-schedule": "often", "casque-tick": "2026-02-15T10:05:00+00:00"}
        [schedule] = await queue.schedules()
        assert (schedule.last_at, schedule.next_at) == (set_to.next_at, set_to.next_at + timedelta(minutes=5))


@pytest.mark.asyncio
async def test_whoever_waits_for_a_job_is_given_it_in_the_commit_of_the_tick(layout: str) -> None:
    clock, store = ManualClock(START_MS), MemoryStore()
    async with opened(store, clock, layout) as queue:
        await queue.set_schedule("often", "*/5 * * * *", ("report", b"all"))
        waiting = asyncio.ensure_future(queue.dequeue("report", wait=600))
        await clock.advance(270.5)

        assert [found.id for found in await waiting] == ["often@2026-02-15T10:05:00Z"]


@pytest.mark.asyncio
async def test_processes_side_by_side_make_one_job_of_each_tick(layout: str) -> None:
    clock, store = ManualClock(START_MS), MemoryStore()
    async with opened(store, clock, layout) as one, opened(store, clock, layout) as other:
        setting = asyncio.ensure_future(one.set_schedule("often", "* * * * *", ("report", b"all")))
        await through(clock, setting)
        await through(clock, asyncio.ensure_future(other.schedules()))  # it has seen it
        for _ in range(5):
            await clock.advance(60)

        assert await ticks(one, clock) == await ticks(other, clock) == ["10:01", "10:02", "10:03", "10:04", "10:05"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        ("skip", ["10:05", "12:00"]),
        ("one", ["10:05", "11:55", "12:00"]),
        ("all", ["10:05", *(f"{hour}:{minute:02}" for hour in (10, 11) for minute in range(0, 60, 5))][:1]),
    ],
)
async def test_what_was_missed_while_nobody_was_there(layout: str, missed: str, expected: list[str]) -> None:
    clock, store = ManualClock(START_MS), MemoryStore()
    async with opened(store, clock, layout) as queue:
        await queue.set_schedule("often", "*/5 * * * *", ("report", b"all"), missed=missed)
        await clock.advance(280)
    await clock.advance(6880 - (clock.wall_ms() - START_MS) / 1000 + 320)  # it is 12:00:30
    assert clock.wall_ms() == START_MS + 2 * 3600 * 1000

    async with opened(store, clock, layout) as queue:
        await clock.advance(0.5)
        found = await ticks(queue, clock)
        [schedule] = await queue.schedules()

    if missed == "all":
        minutes = [START.replace(second=0) + timedelta(minutes=5 * n) for n in range(1, 25)]
        expected = [at.strftime("%H:%M") for at in minutes]
    assert found == expected
    assert schedule.next_at == datetime(2026, 2, 15, 12, 5, tzinfo=UTC)


@pytest.mark.asyncio
async def test_a_year_of_missed_minutes_becomes_jobs_a_hundred_at_a_time() -> None:
    clock, store = ManualClock(START_MS), MemoryStore()
    async with opened(store, clock, "log") as queue:
        await queue.set_schedule("often", "* * * * *", ("report", b""), missed="all")
        await queue.set_schedule("rarely", "* * * * *", ("report", b""), missed="one")
    await clock.advance(250 * 60)
    async with opened(store, clock, "log") as queue:
        await clock.advance(1)
        found = await through(clock, asyncio.ensure_future(queue.jobs()))

    assert sum(one.headers["casque-schedule"] == "often" for one in found) == 250
    assert sum(one.headers["casque-schedule"] == "rarely" for one in found) == 2


@pytest.mark.asyncio
async def test_a_clock_that_is_set_makes_a_tick_early_or_late_and_never_two_of_it() -> None:
    clock, store = ManualClock(START_MS), MemoryStore()
    async with opened(store, clock, "log") as queue:
        await queue.set_schedule("often", "*/5 * * * *", ("report", b"all"))
        clock.jump_wall(290)
        await clock.advance(31)  # nobody told the queue
        assert await ticks(queue, clock) == ["10:05"]
        clock.jump_wall(-290)
        await clock.advance(290)
        assert await ticks(queue, clock) == ["10:05"]
        await clock.advance(310)
        assert await ticks(queue, clock) == ["10:05", "10:10"]


@pytest.mark.asyncio
async def test_a_schedule_never_goes_back_to_a_tick_that_became_a_job() -> None:
    ahead, behind, store = ManualClock(START_MS), ManualClock(START_MS - 600_000), MemoryStore()
    async with opened(store, ahead, "log") as queue:
        await queue.set_schedule("often", "*/5 * * * *", ("report", b"all"))
        await ahead.advance(280)
    async with opened(store, behind, "log") as queue:
        changed = await queue.set_schedule("often", "*/2 * * * *", ("report", b"all"))
        assert changed.next_at == datetime(2026, 2, 15, 10, 6, tzinfo=UTC)
        await queue.pause_schedule("often")
        assert (await queue.resume_schedule("often")).next_at == changed.next_at
        assert await ticks(queue, behind) == ["10:05"]


@pytest.mark.asyncio
async def test_a_schedule_that_this_process_cannot_read_does_not_keep_it_busy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, store = ManualClock(START_MS), MemoryStore()
    async with opened(store, clock, "log") as queue:
        spec = ScheduleSpec("odd", "whenever", JobSpec("", "report", b""))
        await queue._group.execute(SetSchedule(spec, START_MS + 60_000))  # type: ignore[union-attr]
        await queue.set_schedule("often", "* * * * *", ("report", b""))
        with caplog.at_level(logging.ERROR, "casque"):
            await clock.advance(200)

        assert await ticks(queue, clock) == ["10:01", "10:02", "10:03"]
    assert [record.getMessage()[:35] for record in caplog.records] == ["the schedule odd does not tick here"]


@pytest.mark.asyncio
async def test_a_paused_schedule_rests_and_does_not_catch_up(layout: str) -> None:
    clock, store = ManualClock(START_MS), MemoryStore()
    async with opened(store, clock, layout) as queue:
        await queue.set_schedule("often", "*/5 * * * *", ("report", b"all"), missed="all")
        await queue.pause_schedule("often")
        await clock.advance(3600)
        assert await ticks(queue, clock) == []
        resumed = await queue.resume_schedule("often")
        assert resumed.next_at == datetime(2026, 2, 15, 11, 5, tzinfo=UTC)
        triggered = await queue.trigger_schedule("often")
        assert (triggered.payload, triggered.headers) == (b"all", {"casque-schedule": "often"})
        await queue.drop_schedule("often")
        await clock.advance(3600)
        assert (await queue.stats()).totals.enqueued == 1
        with pytest.raises(ScheduleNotFoundError):
            await queue.trigger_schedule("often")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"expression": "* * *"}, "has 3 fields"),
        ({"tz": "Mars"}, "is no time zone"),
        ({"missed": "some"}, "missed must be one of skip, one, all"),
        ({"name": ""}, "schedule must be 1 to 200"),
        ({"name": "x" * 201}, "schedule must be 1 to 200"),
        ({"job": ("report", b"x" * 65_537)}, "payload must be at most 65,536 bytes"),
        ({"job": NewJob("report", b"", delay=5)}, "no delay and no run_at"),
        ({"job": b"report"}, "job must be"),
    ],
)
async def test_what_is_no_schedule_is_refused(changes: dict[str, Any], says: str) -> None:
    asked: dict[str, Any] = {"name": "often", "expression": "@daily", "job": ("report", b""), **changes}
    async with Queue.open("memory://") as queue:
        with pytest.raises(InvalidInputError) as refused:
            await queue.set_schedule(**asked)
        assert says in str(refused.value)
        assert await queue.schedules() == []


# --- Apps ---


def make_app(url: str = "memory://") -> casque.App:
    app = casque.App(url)

    @app.cron("0 7 * * *", tz="Europe/Berlin", arguments={"to": "ada"})
    @app.cron("@hourly", name="hourly", missed="skip")
    @app.job(max_attempts=3, priority=4, key="remind-{to}")
    async def remind(to: str = "all") -> str:
        return f"reminded {to}"

    return app


def test_what_cannot_be_declared_is_refused_where_it_stands() -> None:
    app, other = casque.App("memory://"), casque.App("memory://")

    @app.job()
    async def remind(to: str) -> None: ...

    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: app.cron("* * * *"), "has 4 fields"),
        (lambda: app.cron("@daily", tz="Mars"), "time zone"),
        (lambda: app.cron("@daily", missed="maybe"), "missed must be"),  # type: ignore[arg-type]
        (lambda: app.cron("@daily")(remind), "missing a required argument: 'to'"),
        (lambda: app.cron("@daily", arguments={"to": 5})(remind), "'to'"),
        (lambda: other.cron("@daily", arguments={"to": "a"})(remind), "above @app.job() of the same app"),
        (lambda: app.cron("@daily")(print), "above @app.job()"),  # type: ignore[type-var]
    ]
    for declare, says in wrong:
        with pytest.raises(InvalidInputError) as refused:
            declare()
        assert says in str(refused.value)
    app.cron("@daily", arguments={"to": "a"})(remind)
    with pytest.raises(InvalidInputError, match="there is a schedule 'remind' already"):
        app.cron("@weekly", arguments={"to": "a"})(remind)


@pytest.mark.asyncio
async def test_a_worker_tells_the_queue_and_what_vanished_is_reported(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"file://{tmp_path}/q"
    with caplog.at_level(logging.INFO, "casque.functions"):
        await Worker(make_app(url), burst=True).run()
        async with Queue.open(url) as queue:
            before = await queue.schedules()
            await queue.set_schedule("by hand", "@daily", ("remind", b"{}"))
        await Worker(make_app(url), burst=True).run()

    assert {one.name: (one.spec.cron, one.spec.tz, one.spec.missed) for one in before} == {
        "hourly": ("@hourly", "UTC", Missed.SKIP),
        "remind": ("0 7 * * *", "Europe/Berlin", Missed.ONE),
    }
    job = before[1].spec.job
    assert (job.payload, job.priority, job.max_attempts, job.key) == (b'{"to":"ada"}', 4, 3, "remind:remind-ada")
    assert [record.getMessage()[:30] for record in caplog.records] == [
        "the schedule hourly is new: @h",
        "the schedule remind is new: 0 ",
    ]
    caplog.clear()

    app = casque.App(url)

    @app.cron("30 * * * *", name="hourly")
    @app.job()
    async def remind() -> None: ...

    with caplog.at_level(logging.INFO, "casque.functions"):
        await Worker(app, burst=True).run()
    async with Queue.open(url) as queue:
        after = {one.name: one.spec.cron for one in await queue.schedules()}
    assert after == {"hourly": "30 * * * *", "remind": "0 7 * * *", "by hand": "@daily"}
    told = [record.getMessage() for record in caplog.records]
    assert told[0].startswith("the schedule hourly has changed: 30 * * * *")
    assert told[1] == (
        f"the schedule remind is no longer declared in {__name__}, and goes on: `casque cron drop remind` ends it"
    )


@pytest.mark.asyncio
async def test_a_test_moves_the_clock_and_the_jobs_of_an_app_are_there() -> None:
    app = make_app()
    async with in_memory(app, clock=ManualClock(START_MS)) as (queue, clock):
        await clock.advance(2 * 3600)
        await clock.advance(0.1)
        # One at a time: the key is that of all reminders to everybody.
        assert [found.id for found in await queue.jobs()] == ["hourly@2026-02-15T11:00:00Z"]
        [found] = await queue.dequeue("remind")
        assert found.payload == b"{}"
        handle = await app.trigger("remind")
        assert await handle.status() is JobState.READY


def test_inline_a_schedule_is_triggered_and_runs_at_once() -> None:
    app = make_app()
    with inline(app):
        assert app.trigger_sync("remind").result() == "reminded ada"
        assert app.trigger_sync("hourly").result() == "reminded all"
        with pytest.raises(ScheduleNotFoundError):
            app.trigger_sync("weekly")
