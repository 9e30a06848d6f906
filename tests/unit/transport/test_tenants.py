"""Tenants, each behind a token that is limited to zones: none sees, blocks or detects what another has."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio

from casque import InvalidInputError, JobNotFoundError, Queue, ScheduleNotFoundError
from casque.client.opening import Parts
from casque.clock import Random
from casque.engine.ticker import job_at
from casque.service import EventKind, QueueService
from casque.settings import QueueSettings
from casque.storage.memory import MemoryStore
from casque.testing.clock import ManualClock
from casque.transport.border import Border
from casque.transport.limits import Limits
from casque.transport.scopes import Principal, Scope
from casque.transport.tenants import prefix
from casque.types import JobSpec, JobState, ScheduleSpec

ADMIN = frozenset({Scope.ADMIN})


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest_asyncio.fixture(params=["log", "ring"])
async def queue(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[QueueService]:
    if request.param == "ring":
        store = MemoryStore()
        assert await Parts(store, QueueSettings(), clock=clock, rng=Random(5)).builder().create(3)
        async with Queue.open(store, clock=clock, rng=Random(6)) as q:
            yield q._service
    else:
        async with Queue.open(MemoryStore(), layout="log", clock=clock, rng=Random(4)) as q:
            yield q._service


def tenant(service: QueueService, *zones: str) -> Border:
    return Border(service, Principal(zones[0], ADMIN, zones=frozenset(zones)))


def job(job_id: str, zone: str, payload: bytes = b"", **more: object) -> JobSpec:
    return msgspec.structs.replace(JobSpec(job_id, "work", payload, zone=zone), **more)


async def done(service: QueueService, border: Border, zone: str, result: bytes = b"") -> None:
    [claimed] = await border.dequeue(entrypoints=None, limit=1, zones=(zone,))
    await border.ack(claimed.spec.id, token=claimed.token, result=result)


async def shown(border: Border) -> list[tuple[EventKind, str | None, object]]:
    found = [event async for event in border.events(from_position=0, follow=False)]
    return [(event.kind, event.job_id, event.fields.get("payload") or event.fields.get("result")) for event in found]


async def test_the_id_of_anothers_finished_job_shows_nothing_of_it(queue: QueueService) -> None:
    acme, globex = tenant(queue, "acme"), tenant(queue, "globex")
    await acme.enqueue([job("order-17", "acme", b"secret")])
    await done(queue, acme, "acme", b"result")
    [mine] = await globex.enqueue([job("order-17", "globex", b"mine")])
    assert await shown(globex) == [(EventKind.ADDED, mine.spec.id, b"mine")]
    assert mine.spec.id == "globex::order-17"


async def test_an_id_that_belonged_to_another_before_ids_had_zones_shows_nothing_of_it(queue: QueueService) -> None:
    await queue.enqueue([job("order-17", "acme", b"secret")])
    await done(queue, tenant(queue, "acme"), "acme", b"result")
    await queue.enqueue([job("order-17", "globex", b"mine")])
    globex = tenant(queue, "globex")
    assert await shown(globex) == [(EventKind.ADDED, "order-17", b"mine")]
    found = await globex.find("order-17")
    assert found is not None
    assert found.spec.payload == b"mine"


async def test_an_id_that_is_taken_by_another_is_free_and_tells_nothing(queue: QueueService) -> None:
    acme, globex = tenant(queue, "acme"), tenant(queue, "globex")
    await acme.enqueue([job("order-17", "acme")])
    await queue.enqueue([job("plain", "acme")])
    for taken in ("order-17", "acme::order-17", "plain"):
        [added] = await globex.enqueue([job(taken, "globex")])
        assert added.spec.id == f"globex::{taken}"
    with pytest.raises(InvalidInputError, match="already in the queue"):
        await globex.enqueue([job("order-17", "globex")])


async def test_keys_of_tenants_do_not_meet(queue: QueueService) -> None:
    acme, globex = tenant(queue, "acme"), tenant(queue, "globex")
    [theirs] = await acme.enqueue([job("1", "acme", b"theirs", key="daily")])
    [mine] = await globex.enqueue([job("2", "globex", b"mine", key="daily")])
    [again] = await globex.enqueue([job("3", "globex", b"again", key="daily")])
    assert theirs.spec.id != mine.spec.id == again.spec.id
    assert (mine.spec.key, again.spec.payload) == ("daily", b"mine")
    [claimed] = await globex.dequeue(entrypoints=None, limit=5)
    assert claimed.spec.key == "daily"
    assert [one.spec.key for one in await globex.jobs()] == ["daily"]


async def test_two_tokens_of_one_zone_share_its_names(queue: QueueService) -> None:
    one, other = tenant(queue, "acme"), tenant(queue, "acme", "initech")
    [first] = await one.enqueue([job("1", "acme", key="daily")])
    [second] = await other.enqueue([job("2", "acme", key="daily")])
    [elsewhere] = await other.enqueue([job("2", "initech", key="daily")])
    assert first.spec.id == second.spec.id != elsewhere.spec.id
    with pytest.raises(InvalidInputError, match="already in the queue"):
        await other.enqueue([job("1", "acme")])


async def test_callers_without_limits_keep_their_names(queue: QueueService) -> None:
    [added] = await Border(queue).enqueue([job("order-17", "acme", key="daily")])
    assert (added.spec.id, added.spec.key) == ("order-17", "daily")
    found = await tenant(queue, "acme").find("order-17")
    assert found is not None


async def test_names_of_zones_cannot_be_made_to_look_like_another(queue: QueueService) -> None:
    assert len({prefix(zone) + name for zone, name in [("a", "b::c"), ("a::b", "c"), ("a%3A%3Ab", "c")]}) == 3
    long = [tenant(queue, zone) for zone in ("z" * 200, "z" * 201)]
    ids = [
        (await one.enqueue([job("x", zone)]))[0].spec.id for one, zone in zip(long, ("z" * 200, "z" * 201), strict=True)
    ]
    assert len(set(ids)) == 2
    with pytest.raises(InvalidInputError, match="id must be at most"):
        await tenant(queue, "acme").enqueue([job("x" * 256, "acme")])


@pytest.mark.parametrize("queue", ["log"], indirect=True)
async def test_schedules_of_tenants_do_not_meet(queue: QueueService, clock: ManualClock) -> None:
    acme, globex = tenant(queue, "acme"), tenant(queue, "globex")
    spec = ScheduleSpec("nightly", "* * * * *", JobSpec("", "work", b"admin"))
    await queue.set_schedule(spec)
    for border, zone in ((acme, "acme"), (globex, "globex")):
        set_ = await border.set_schedule(
            msgspec.structs.replace(spec, job=JobSpec("", "work", zone.encode(), zone=zone))
        )
        assert set_.name == "nightly"
        assert [one.name for one in await border.schedules()] == ["nightly"]
    await acme.drop_schedule("nightly")
    with pytest.raises(ScheduleNotFoundError):
        await acme.pause_schedule("nightly", paused=True)
    assert sorted(one.name for one in await queue.schedules()) == ["globex::nightly", "nightly"]
    paused = await globex.pause_schedule("nightly", paused=True)
    assert (paused.name, paused.paused) == ("nightly", True)


@pytest.mark.parametrize("queue", ["log"], indirect=True)
async def test_a_tick_cannot_be_swallowed_by_another(queue: QueueService, clock: ManualClock) -> None:
    globex = tenant(queue, "globex")
    schedule = await queue.set_schedule(ScheduleSpec("nightly", "* * * * *", JobSpec("", "work", b"", zone="acme")))
    tick = job_at(schedule, schedule.next_ms)
    await globex.enqueue([job(tick.id, "globex", key=tick.key)])
    for _ in range(70):
        await clock.advance(1)
    assert await queue.find(tick.id) is not None


@pytest.mark.parametrize("queue", ["log"], indirect=True)
async def test_a_schedule_from_before_names_had_zones_is_changed_in_place(queue: QueueService) -> None:
    spec = ScheduleSpec("nightly", "@daily", JobSpec("", "work", b"", zone="acme"))
    await queue.set_schedule(spec)
    await tenant(queue, "acme").set_schedule(msgspec.structs.replace(spec, cron="@hourly"))
    assert [(one.name, one.spec.cron) for one in await queue.schedules()] == [("nightly", "@hourly")]


@pytest.mark.parametrize("queue", ["log"], indirect=True)
async def test_one_tenant_cannot_use_up_the_room_for_schedules(queue: QueueService) -> None:
    border = Border(queue, Principal("acme", ADMIN, zones=frozenset({"acme"})), Limits(schedules_per_tenant=2))
    spec = ScheduleSpec("a", "@daily", JobSpec("", "work", b"", zone="acme"))
    for name in ("a", "b", "a"):
        await border.set_schedule(msgspec.structs.replace(spec, name=name))
    with pytest.raises(InvalidInputError, match="2 schedules"):
        await border.set_schedule(msgspec.structs.replace(spec, name="c"))


async def test_what_is_not_yours_is_answered_like_what_does_not_exist(queue: QueueService) -> None:
    acme, globex = tenant(queue, "acme"), tenant(queue, "globex")
    [theirs] = await acme.enqueue([job("1", "acme")])
    for verb in (globex.ack, globex.nack, globex.heartbeat, globex.cancel, globex.retry):
        answers = []
        for job_id in (theirs.spec.id, "no such job"):
            with pytest.raises(JobNotFoundError) as refusal:
                await verb(job_id)
            answers.append(str(refusal.value).replace(job_id, "ID"))
        assert len(set(answers)) == 1
    assert await globex.find(theirs.spec.id) is None
    await globex.give_back(theirs.spec.id, token=1)
    assert [one.zone for one in await globex.peek_zones()] == []
    assert await globex.zones() == []
    assert (await globex.stats()).totals.enqueued == 0
    assert await globex.jobs(states=frozenset(JobState)) == []
