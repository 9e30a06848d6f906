"""A name that changes its owner just as a limited caller acts on it: the call finds nothing, on every verb."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext
from typing import Any, cast

import pytest
import pytest_asyncio

from casque import JobNotFoundError, Queue, ScheduleNotFoundError
from casque.client.opening import Parts
from casque.clock import Random
from casque.errors import CasqueError
from casque.service import Lease, Outcome, QueueService, ScopedService
from casque.service.requests import Find, ListSchedules, Request, Reschedule
from casque.settings import QueueSettings
from casque.storage.memory import MemoryStore
from casque.testing.clock import ManualClock
from casque.testing.hosting import Instead
from casque.transport.border import Border
from casque.transport.scopes import Principal, Scope
from casque.types import JobRecord, JobSpec, JobState, Reach, ScheduleSpec
from tests.simulation.tenant_mutations import tenants_are_let_through_before_their_call_is_carried_out

ADMIN = frozenset({Scope.ADMIN})
ACME = Principal("acme", ADMIN, zones=frozenset({"acme"}))
MAILER = Principal("mailer", ADMIN, entrypoints=("mail.*",))
WHO = pytest.mark.parametrize("principal", [ACME, MAILER], ids=["zone", "entrypoint"])


@pytest_asyncio.fixture(params=["log", "ring"])
async def queue(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    store, clock = MemoryStore(), ManualClock()
    if request.param == "ring":
        assert await Parts(store, QueueSettings(), clock=clock, rng=Random(5)).builder().create(1)
    layout = None if request.param == "ring" else "log"
    async with Queue.open(store, clock=clock, rng=Random(6), layout=layout) as q:
        yield q._service


class Interposed(Instead):
    """A queue in which something happens between the moment that a border lets a call through and the call itself."""

    def __init__(self, service: Any, first: Callable[[], Awaitable[None]]) -> None:
        super().__init__(service)
        self._first = first

    def within(self, reach: Reach) -> Interposed:
        return Interposed(cast(ScopedService, self._service).within(reach), self._first)

    async def call(self, request: Request[Any]) -> Any:
        if not isinstance(request, Find | ListSchedules):
            await self._first()
        return await self._service.call(request)


async def claimed(queue: QueueService, spec: JobSpec) -> JobRecord:
    await queue.enqueue([spec])
    [job] = await queue.dequeue(entrypoints=(spec.entrypoint,), limit=1)
    return job


MINE = JobSpec("order-17", "mail.a", b"mine", zone="acme", max_attempts=1)
THEIRS = JobSpec("order-17", "fax", b"theirs", zone="globex", max_attempts=1)
VERBS: dict[str, Callable[[Border, JobRecord], Awaitable[Any]]] = {
    "ack": lambda border, theirs: border.ack("order-17", token=theirs.token),
    "ack without a token": lambda border, _: border.ack("order-17"),
    "nack": lambda border, theirs: border.nack("order-17", token=theirs.token),
    "nack without a token": lambda border, _: border.nack("order-17"),
    "heartbeat": lambda border, theirs: border.heartbeat("order-17", token=theirs.token),
    "heartbeat without a token": lambda border, _: border.heartbeat("order-17"),
    "cancel": lambda border, _: border.cancel("order-17"),
    "retry": lambda border, _: border.retry("order-17"),
    "reschedule": lambda border, _: border.call(Reschedule("order-17", priority=1)),
    "settle": lambda border, theirs: only(border.settle([Outcome("order-17", theirs.token)])),
    "settle as failed": lambda border, theirs: only(border.settle([Outcome("order-17", theirs.token, error="no")])),
    "heartbeats": lambda border, theirs: only(border.heartbeats([Lease("order-17", theirs.token)])),
    "give_back": lambda border, theirs: border.give_back("order-17", token=theirs.token),
}


async def only(answers: Awaitable[list[Any]]) -> None:
    [answer] = await answers
    if isinstance(answer, CasqueError):
        raise answer


@WHO
@pytest.mark.parametrize("verb", VERBS)
async def test_a_job_id_that_becomes_anothers_is_not_there(queue: Any, principal: Principal, verb: str) -> None:
    before = await claimed(queue, JobSpec("before", "mail.b", b""))
    mine = await claimed(queue, MINE)
    theirs: JobRecord | None = None

    async def change_owner() -> None:
        nonlocal theirs
        if theirs is None:
            await queue.ack("order-17", token=mine.token)
            theirs = await claimed(queue, THEIRS)
            if verb == "retry":
                await queue.nack("order-17", token=theirs.token)

    border = Border(Interposed(queue, change_owner), principal)
    # Tokens are numbers that rise: whoever wants another's can guess the next one.
    guessed = JobRecord(THEIRS, 0, 0, JobState.RUNNING, 0, token=2 * mine.token - before.token)
    with pytest.raises(JobNotFoundError) if verb != "give_back" else nullcontext():
        await VERBS[verb](border, guessed)

    assert theirs is not None
    found = await queue.find("order-17")
    assert found.spec == theirs.spec
    assert found.state is (JobState.DEAD if verb == "retry" else JobState.RUNNING)
    assert verb == "retry" or (found.token == guessed.token and found == theirs)


@WHO
@pytest.mark.parametrize("verb", ["set", "pause", "drop"])
@pytest.mark.parametrize("queue", ["log"], indirect=True)
async def test_a_schedule_that_becomes_anothers_is_not_there(queue: Any, principal: Principal, verb: str) -> None:
    mine = ScheduleSpec("nightly", "@daily", JobSpec("", "mail.a", b"mine", zone="acme"))
    theirs = ScheduleSpec("nightly", "@daily", JobSpec("", "fax", b"theirs", zone="globex"))
    await queue.set_schedule(mine)

    async def change_owner() -> None:
        await queue.drop_schedule("nightly")
        await queue.set_schedule(theirs)

    border = Border(Interposed(queue, change_owner), principal)
    verbs: dict[str, Callable[[], Awaitable[Any]]] = {
        "set": lambda: border.set_schedule(mine),
        "pause": lambda: border.pause_schedule("nightly", paused=True),
        "drop": lambda: border.drop_schedule("nightly"),
    }
    with pytest.raises(ScheduleNotFoundError):
        await verbs[verb]()

    [kept] = await queue.schedules()
    assert (kept.spec, kept.paused) == (theirs, False)


async def test_what_is_beyond_a_caller_is_told_like_what_does_not_exist_on_every_row(queue: Any) -> None:
    mine, theirs = await claimed(queue, MINE), await claimed(queue, JobSpec("theirs", "fax", b"", zone="globex"))
    border = Border(queue, ACME)
    outcomes = [Outcome(job.id, job.token) for job in (theirs, mine)] + [Outcome("none", theirs.token)]

    beaten = await border.heartbeats([Lease(one.job_id, one.token) for one in outcomes])
    settled = await border.settle(outcomes, request_id="once")
    again = await border.settle(outcomes, request_id="once")

    assert [type(one) for one in beaten] == [JobNotFoundError, JobRecord, JobNotFoundError]
    assert [type(one) for one in settled] == [JobNotFoundError, type(None), JobNotFoundError]
    assert [type(one) for one in again] == [type(one) for one in settled]
    assert (await queue.find("theirs")).state is JobState.RUNNING


async def test_the_old_mistake_is_found(queue: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose a job is, looked up before the call is carried out: then another's job is cancelled."""
    tenants_are_let_through_before_their_call_is_carried_out(monkeypatch)
    mine = await claimed(queue, MINE)

    async def change_owner() -> None:
        await queue.ack("order-17", token=mine.token)
        await queue.enqueue([THEIRS])

    await Border(Interposed(queue, change_owner), ACME).cancel("order-17")

    assert await queue.find("order-17") is None
