"""The border: what came from a wire is checked before it gets near the queue, and so is who sent it."""

from __future__ import annotations

import asyncio
import inspect
import math
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from casque import (
    CasqueError,
    InvalidInputError,
    JobNotFoundError,
    JobState,
    LeaseLostError,
    NotAllowedError,
    NotAuthenticatedError,
    Queue,
    ScheduleNotFoundError,
    checks,
)
from casque.service import ArchivedJob, EventKind, Lease, Outcome, OutcomeKind, QueueEvent, QueueService
from casque.service.requests import EVERY, Request, verb_of
from casque.testing.clock import ManualClock
from casque.transport import tokenfile
from casque.transport.access import TokenBook
from casque.transport.border import Admit, Border, admit
from casque.transport.limits import Limits
from casque.transport.scopes import ANYBODY, Principal, Scope
from casque.types import (
    TRIES_MAX,
    Backoff,
    Gate,
    Gates,
    JobRecord,
    JobSpec,
    Missed,
    Progress,
    ScheduleSpec,
    StagedPart,
    ZoneRules,
)

# --- Who may do what ---

NIGHTLY = ScheduleSpec("nightly", "@daily", JobSpec("", "mail", b"data"))
CALLS: dict[str, dict[str, Any]] = {
    "enqueue": {"specs": [JobSpec("new", "mail", b"")]},
    "admit": {"source": "s", "batch": 1, "parts": [StagedPart("staged/2026-02-15T10/t-" + "0" * 16, "0" * 64, 1, 1)]},
    "dequeue": {"entrypoints": None, "limit": 1},
    "ack": {"job_id": "j"},
    "nack": {"job_id": "j"},
    "settle": {"outcomes": [Outcome("j", 1)]},
    "heartbeat": {"job_id": "j"},
    "heartbeats": {"leases": [Lease("j", 1)]},
    "give_back": {"job_id": "j", "token": 1},
    "cancel": {"job_id": "j"},
    "retry": {"job_id": "j"},
    "reschedule": {"job_id": "j", "priority": 1},
    "purge": {},
    "requeue_stale": {"older_ms": 1000},
    "set_gate": {"gate": Gate.PAUSED},
    "set_zone": {"zone": "acme", "rules": ZoneRules(weight=2.0)},
    "zones": {},
    "peek_zones": {},
    "lease_zone": {"zone": "acme"},
    "heartbeat_zone": {"zone": "acme", "token": 1},
    "release_zone": {"zone": "acme", "token": 1},
    "find": {"job_id": "j"},
    "jobs": {},
    "stats": {},
    "events": {},
    "archive": {},
    "set_schedule": {"spec": NIGHTLY},
    "schedules": {},
    "pause_schedule": {"name": "nightly", "paused": True},
    "drop_schedule": {"name": "nightly"},
}
NEEDS = {
    **dict.fromkeys(["enqueue", "admit", "set_schedule"], Scope.PRODUCE),
    **dict.fromkeys(["dequeue", "ack", "nack", "settle", "heartbeat", "heartbeats", "give_back"], Scope.WORK),
    **dict.fromkeys(["peek_zones", "lease_zone", "heartbeat_zone", "release_zone"], Scope.WORK),
    **dict.fromkeys(["find", "jobs", "stats", "events", "archive", "schedules"], Scope.READ),
    **dict.fromkeys(["cancel", "retry", "purge", "pause_schedule", "drop_schedule"], Scope.ADMIN),
    **dict.fromkeys(["find", "jobs", "stats", "events", "archive", "zones"], Scope.READ),
    **dict.fromkeys(["cancel", "retry", "reschedule", "purge", "requeue_stale", "set_gate", "set_zone"], Scope.ADMIN),
}
KINDS = {verb_of(kind): kind for kind in EVERY if kind.scope is not Scope.PEER}
VERBS = [*KINDS, "events", "archive"]


def arguments_of(verb: str) -> list[str]:
    if verb in KINDS:
        # What is for the brokers of a ring has a test of its own.
        return [name for name in KINDS[verb].__struct_fields__ if name != "generation"]
    return [name for name in inspect.signature(getattr(QueueService, verb)).parameters if name != "self"]


class Recorder(QueueService):
    """A queue that does nothing but remember what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def call(self, request: Request[Any]) -> Any:
        fields = request.__struct_fields__
        self.asked.append((verb_of(type(request)), {name: getattr(request, name) for name in fields}))
        return await self._answer()

    def events(self, **asked: Any) -> AsyncGenerator[Any]:
        self.asked.append(("events", asked))
        return self._events()

    def archive(self, **asked: Any) -> AsyncGenerator[Any]:
        self.asked.append(("archive", asked))
        return self._events()

    async def _answer(self) -> Any:
        return []

    async def _events(self) -> AsyncGenerator[Any]:
        return
        yield


async def call(service: QueueService, verb: str, arguments: dict[str, Any]) -> Any:
    if verb in KINDS:
        return await service.call(KINDS[verb](**arguments))
    return [one async for one in getattr(service, verb)(**arguments)]


def test_the_tables_of_this_test_have_every_verb() -> None:
    assert CALLS.keys() == NEEDS.keys() == set(VERBS)


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("verb", VERBS)
async def test_every_verb_needs_its_scope_and_admin_has_all(verb: str, scope: Scope) -> None:
    queue = Recorder()
    border = Border(queue, Principal("p", frozenset({scope})))
    if scope in (NEEDS[verb], Scope.ADMIN):
        await call(border, verb, CALLS[verb])
        assert [name for name, _ in queue.asked] == [verb]
        return

    with pytest.raises(NotAllowedError) as refused:
        await call(border, verb, CALLS[verb])

    assert refused.value.scope == NEEDS[verb]
    assert queue.asked == []


async def test_a_principal_may_have_several_scopes() -> None:
    border = Border(Recorder(), Principal("p", frozenset({Scope.PRODUCE, Scope.READ})))
    await call(border, "enqueue", CALLS["enqueue"])
    await call(border, "stats", {})
    with pytest.raises(NotAllowedError):
        await call(border, "dequeue", CALLS["dequeue"])


# --- What an argument may be ---

INT64 = 2**63


def is_name(value: Any, longest: int = 256) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= longest and value.isprintable()


def is_text(value: Any, longest: int) -> bool:
    try:
        return isinstance(value, str) and len(value.encode()) >= 0 and len(value) <= longest
    except UnicodeEncodeError:
        return False


def is_whole(value: Any, least: int, most: int = INT64 - 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_number(value: Any, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def is_bytes(value: Any) -> bool:
    return isinstance(value, bytes) and len(value) <= 64


def is_headers(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= 64
        and all(is_text(k, 16_384) and is_text(v, 16_384) for k, v in value.items())
        and sum(len(k) + len(v) for k, v in value.items()) <= 16_384
    )


def is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def is_spec(spec: Any) -> bool:
    return (
        type(spec) is JobSpec
        and is_name(spec.id)
        and is_name(spec.entrypoint)
        and is_bytes(spec.payload)
        and is_whole(spec.priority, -INT64)
        and (spec.run_at_ms is None or is_whole(spec.run_at_ms, -62_135_596_800_000, 253_402_300_799_999))
        and (spec.max_attempts is None or is_whole(spec.max_attempts, 1))
        and (spec.max_crashes is None or is_whole(spec.max_crashes, 1))
        and (spec.key is None or is_name(spec.key, 1024))
        and (spec.headers is None or is_headers(spec.headers))
        and (spec.zone is None or is_name(spec.zone))
        and (spec.blob, spec.blob_bytes) == (None, 0)
        and is_flag(spec.fifo)
        and spec.tags == ()  # nothing here draws a list of names
    )


def is_schedule(value: Any) -> bool:
    if type(value) is not ScheduleSpec:
        return False
    job: Any = value.job
    missed: Any = value.missed
    return (
        is_name(value.name, 200)
        and (value.cron, value.tz) == ("@daily", "UTC")
        and isinstance(missed, Missed)
        and (value.origin is None or is_name(value.origin))
        and type(job) is JobSpec
        and (job.id, job.run_at_ms) == ("", None)
        and is_spec(msgspec.structs.replace(job, id="-"))
    )


def is_lease(value: Any) -> bool:
    return (
        isinstance(value, Lease) and is_text(value.job_id, 1024) and (value.token is None or is_whole(value.token, 0))
    )


def is_part(value: Any) -> bool:
    return (
        isinstance(value, StagedPart)
        and value.key == "staged/2026-02-15T10/t-" + "0" * 16
        and value.sha256 == "0" * 64
        and is_whole(value.jobs, 1, 100_000)
        and is_whole(value.bytes, 1, 64 << 20)
    )


def is_backoff(value: Any) -> bool:
    longest = checks.LONGEST_S * 1000
    return (
        isinstance(value, Backoff)
        and is_whole(value.base_ms, 0, longest)
        and is_whole(value.cap_ms, 0, longest)
        and is_number(value.spread, 0, 1)
    )


def is_outcome(value: Any) -> bool:
    if type(value) is not Outcome or not is_text(value.job_id, 1024) or not is_whole(value.token, 0):
        return False
    how = value.how or ("done" if value.error is None else "failed")
    if value.how is not None and type(value.how) is not OutcomeKind:
        return False
    if value.result is not None and not (how == "done" and is_bytes(value.result)):
        return False
    waits = value.delay_ms is None or is_whole(value.delay_ms, 0, checks.LONGEST_S * 1000)
    if how == "done":
        return value.error is None and value.delay_ms is None and value.backoff is None
    if how == "snoozed":
        return value.error is None and waits and value.backoff is None
    if how == "cancelled":
        only_why = value.error is None or is_text(value.error, 10_000)
        return only_why and value.delay_ms is None and value.backoff is None
    if how == "declined":
        return is_text(value.error, 10_000) and waits and value.backoff is None
    return is_text(value.error, 10_000) and waits and is_backoff_or_none(value.backoff)


def is_backoff_or_none(value: Any) -> bool:
    return value is None or is_backoff(value)


def is_moment(value: Any) -> bool:
    return isinstance(value, datetime) and value.tzinfo is not None


LIMITS = Limits(
    payload_bytes=64,
    result_bytes=64,
    jobs_per_enqueue=3,
    outcomes_per_settle=3,
    leases_per_heartbeat=3,
    entrypoints_per_dequeue=3,
)
ACCEPTABLE: dict[str, Callable[[Any], bool]] = {
    "specs": lambda v: isinstance(v, list | tuple) and len(v) <= 3 and all(map(is_spec, v)),
    "request_id": lambda v: v is None or is_name(v),
    "entrypoints": lambda v: v is None or (isinstance(v, tuple) and 1 <= len(v) <= 3 and all(map(is_name, v))),
    "entrypoint": lambda v: v is None or is_name(v),
    "worker": lambda v: v is None or is_name(v),
    "lease_ms": lambda v: v is None or is_whole(v, 1, checks.LONGEST_S * 1000),
    "older_ms": lambda v: is_whole(v, 0, checks.LONGEST_S * 1000),
    "wait_s": lambda v: is_number(v, 0, 300),
    "first": lambda v: isinstance(v, bool),
    "job_id": lambda v: is_text(v, 1024),
    "result": lambda v: v is None or is_bytes(v),
    "delay_ms": lambda v: v is None or is_whole(v, 0, checks.LONGEST_S * 1000),
    "backoff": lambda v: v is None or is_backoff(v),
    "error": lambda v: v is None or is_text(v, 4096),
    "outcomes": lambda v: isinstance(v, list | tuple) and len(v) <= 3 and all(map(is_outcome, v)),
    "leases": lambda v: isinstance(v, list | tuple) and len(v) <= 3 and all(map(is_lease, v)),
    "states": lambda v: v is None or (isinstance(v, frozenset) and all(isinstance(one, JobState) for one in v)),
    "source": is_name,
    "batch": lambda v: is_whole(v, 0),
    "parts": lambda v: isinstance(v, list | tuple) and 1 <= len(v) <= 3 and all(map(is_part, v)),
    "skip_known": lambda v: isinstance(v, bool),
    "spec": is_schedule,
    "name": lambda v: is_text(v, 1024),
    "paused": lambda v: isinstance(v, bool),
    "after": lambda v: is_whole(v, 0),
    "from_position": lambda v: v is None or is_whole(v, 0),
    "follow": lambda v: isinstance(v, bool),
    "gate": lambda v: isinstance(v, Gate),
    "zone": is_name,
    "rules": lambda v: isinstance(v, ZoneRules) and is_rules(v),
    "zones": lambda v: v is None or (isinstance(v, tuple) and bool(v) and all(map(is_name, v))),
    "zone_lease": lambda v: v is None or (isinstance(v, tuple) and len(v) == 2 and is_name(v[0]) and is_whole(v[1], 0)),
    "progress": lambda v: v is None or is_progress(v),
    "run_at_ms": lambda v: v is None or is_whole(v, *checks.MOMENTS_MS),
    "priority": lambda v: v is None or is_whole(v, -(2**63), 2**63 - 1),
    "names": lambda v: v is None or (isinstance(v, frozenset) and all(map(is_name, v))),
    "since": lambda v: v is None or is_moment(v),
    "until": lambda v: v is None or is_moment(v),
}


def is_progress(value: Any) -> bool:
    return (
        isinstance(value, Progress)
        and is_number(value.done, 0, checks.PROGRESS_MAX)
        and (value.total is None or is_number(value.total, 0, checks.PROGRESS_MAX))
        and (value.note is None or is_text(value.note, checks.PROGRESS_NOTE_MAX))
    )


def is_rules(rules: ZoneRules) -> bool:
    return (
        is_number(rules.weight, *checks.ZONE_WEIGHTS)
        and (rules.running_max is None or is_whole(rules.running_max, 1))
        and (rules.per_second is None or is_number(rules.per_second, *checks.ZONE_RATES))
        and isinstance(rules.paused, bool)
    )


def acceptable(verb: str, argument: str, value: Any) -> bool:
    if argument == "limit" and verb in ("zones", "peek_zones"):
        return is_whole(value, 1, checks.ZONES_SHOWN_MAX)
    if argument == "limit":
        return is_whole(value, 1, checks.BATCH_MAX) if verb == "dequeue" else value is None or is_whole(value, 1)
    if (verb, argument, value) == ("reschedule", "priority", None):
        return False  # then there is nothing to change
    if argument == "token":
        return is_whole(value, 0) or (value is None and verb in ("ack", "nack", "heartbeat"))
    if argument == "zone" and verb in ("purge", "requeue_stale") and value is None:
        return True
    return ACCEPTABLE[argument](value)


scalars: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, 1, -1, checks.BATCH_MAX, checks.BATCH_MAX + 1, INT64 - 1, INT64, -INT64, -INT64 - 1]),
    st.just(5000).map(lambda digits: 10**digits),  # whose repr would end whoever prints the strategy
    st.floats(),
    st.sampled_from([0.0, 300.0, 300.1, -0.1, math.nan, math.inf]),
    st.text(st.characters(codec=None), max_size=20),
    st.sampled_from(["", "x" * 256, "x" * 257, "x" * 1024, "x" * 1025, "x" * 5000, "a\nb", "a\0b", "\ud800", "ready"]),
    st.binary(max_size=80),
    st.binary(max_size=4).map(bytearray),
    st.datetimes(timezones=st.none() | st.just(UTC) | st.timezones()),
    st.timedeltas(),
    st.just(object()),
)
printable = scalars.filter(lambda v: not (isinstance(v, int) and abs(v) > 2**80))
headers = st.dictionaries(scalars.filter(lambda v: not isinstance(v, bytearray)), scalars, max_size=3)
many_headers = st.sampled_from(
    [{str(n): "" for n in range(n)} for n in (64, 65)] + [{"a": "x" * 16_383}, {"a": "x" * 16_384}]
)


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    """A good job with one thing about it that may be anything."""
    field = draw(st.sampled_from(JobSpec.__struct_fields__))
    value = draw(scalars | headers | many_headers if field == "headers" else scalars)
    return msgspec.structs.replace(JobSpec("id", "mail", b"data"), **{field: value})


@st.composite
def schedules(draw: st.DrawFn) -> ScheduleSpec:
    """A good schedule with one thing about it, or about its job, that may be anything."""
    field = draw(st.sampled_from(ScheduleSpec.__struct_fields__))
    job = draw(specs()) if field == "job" else JobSpec("", "mail", b"data")
    value = msgspec.structs.replace(job, id="") if field == "job" and job.id == "id" else draw(scalars)
    return msgspec.structs.replace(NIGHTLY, **{field: value})


parts = st.builds(
    StagedPart,
    scalars | st.sampled_from(["staged/2026-02-15T10/t-" + "0" * 16, "queue.json", "staged/../queue.json-" + "0" * 16]),
    scalars | st.just("0" * 64),
    scalars,
    scalars,
)
leases = st.builds(Lease, scalars, scalars)
zone_leases = st.tuples(scalars, scalars)
progresses = st.builds(Progress, printable, printable, printable)
backoffs = st.builds(Backoff, scalars, scalars, scalars)


@st.composite
def outcomes(draw: st.DrawFn) -> Outcome:
    """A good outcome with one thing about it that may be anything."""
    good = draw(st.sampled_from([Outcome("j", 1), Outcome("j", 1, error="boom", delay_ms=1)]))
    field = draw(st.sampled_from(Outcome.__struct_fields__))
    others = {"backoff": backoffs, "how": st.sampled_from(OutcomeKind)}
    return msgspec.structs.replace(good, **{field: draw(scalars | others.get(field, scalars))})


anything: st.SearchStrategy[Any] = st.one_of(
    scalars,
    specs(),
    backoffs,
    leases,
    zone_leases,
    progresses,
    schedules(),
    st.lists(scalars | specs() | leases, max_size=4),
    st.lists(specs(), max_size=4),
    st.lists(leases, max_size=4),
    st.lists(outcomes(), max_size=4),
    st.lists(parts, max_size=2),
    st.lists(scalars, max_size=4).map(tuple),
    st.frozensets(st.sampled_from([*JobState, "ready", "bogus", 7, None]), max_size=3),
    st.dictionaries(st.text(max_size=3), scalars, max_size=3),
)
ARGUMENTS = [(verb, argument) for verb in VERBS for argument in arguments_of(verb)]


@pytest.mark.parametrize(("verb", "argument"), ARGUMENTS)
def test_no_argument_of_any_kind_gets_through_unchecked(verb: str, argument: str) -> None:
    @settings(max_examples=60, deadline=None, database=None)
    @given(anything)
    def check(value: Any) -> None:
        queue = Recorder()
        refused = None
        try:
            asyncio.run(call(Border(queue, ANYBODY, LIMITS), verb, CALLS[verb] | {argument: value}))
        except InvalidInputError as error:
            refused = str(error)
        if refused is None:
            asked = queue.asked[0][1] if queue.asked else {}  # the heartbeats of no lease at all need no queue
            passed = asked.get(argument, value)
            assert acceptable(verb, argument, passed), f"{passed!r} went through"
        else:
            assert len(refused) < 600, "a refusal does not repeat what it was sent"
            assert queue.asked == [], "nothing reached the queue"
            assert not acceptable(verb, argument, value), f"{value!r} is fine"

    check()


@settings(max_examples=60, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(ARGUMENTS).flatmap(lambda va: st.tuples(st.just(va), anything)), max_size=6))
def test_a_real_queue_survives_whatever_comes_over_its_border(calls: list[tuple[tuple[str, str], Any]]) -> None:
    async def run() -> None:
        async with Queue.open("memory://", clock=ManualClock()) as queue:
            border = Border(queue._service, ANYBODY, LIMITS)
            await border.enqueue([JobSpec("j", "other", b"")])
            await border.dequeue(entrypoints=("other",), limit=1)
            for (verb, argument), value in calls:
                if verb in ("events", "archive") or argument == "wait_s":
                    continue
                try:
                    await call(border, verb, CALLS[verb] | {argument: value})
                except CasqueError:
                    pass
            [added] = await border.enqueue([JobSpec("last", "still there", b"")])
            assert (await border.find("last")) == added

    asyncio.run(run())


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("enqueue", {"specs": [JobSpec("a", "mail", b"x" * 65)]}),
        ("enqueue", {"specs": [JobSpec(str(n), "mail", b"") for n in range(4)]}),
        ("dequeue", {"entrypoints": (), "limit": 1}),
        ("dequeue", {"entrypoints": ("a", "b", "c", "d"), "limit": 1}),
        ("dequeue", {"entrypoints": None, "limit": 1, "wait_s": 301}),
        ("ack", {"job_id": "j", "result": b"x" * 65}),
        ("heartbeats", {"leases": [Lease("j", 1)] * 4}),
        ("settle", {"outcomes": [Outcome("j", 1)] * 4}),
        ("settle", {"outcomes": [Outcome("j", 1, result=b"x" * 65)]}),
    ],
)
async def test_the_limits_are_those_that_were_given(verb: str, arguments: dict[str, Any]) -> None:
    queue = Recorder()
    with pytest.raises(InvalidInputError):
        await call(Border(queue, ANYBODY, LIMITS), verb, arguments)
    assert queue.asked == []
    if "wait_s" not in arguments and arguments.get("entrypoints") != ():
        await call(Border(queue), verb, arguments)


@pytest.mark.parametrize("added", [{"blob": "blobs/2026-02-15T10/j"}, {"blob_bytes": 7}])
async def test_what_the_queue_adds_to_a_job_cannot_come_from_a_caller(added: dict[str, Any]) -> None:
    queue = Recorder()
    with pytest.raises(InvalidInputError, match=f"{next(iter(added))} is for the queue to set"):
        await Border(queue).enqueue([JobSpec("j", "mail", b"", **added)])
    assert queue.asked == []
    await Border(queue).enqueue([JobSpec("j", "mail", b"")])


async def test_a_long_error_is_cut_as_it_is_by_an_embedded_queue() -> None:
    queue = Recorder()
    await Border(queue).nack("j", error="x" * 10_000)
    assert len(queue.asked[0][1]["error"]) == checks.ERROR_MAX


# --- Callers that are limited to some jobs ---


def limited(
    *entrypoints: str, zones: tuple[str, ...] | None = None, scopes: tuple[Scope, ...] = (Scope.ADMIN,)
) -> Principal:
    return Principal("limited", frozenset(scopes), entrypoints or None, None if zones is None else frozenset(zones))


@pytest_asyncio.fixture
async def clock() -> ManualClock:
    return ManualClock()


@pytest_asyncio.fixture
async def queue(clock: ManualClock) -> AsyncIterator[QueueService]:
    """A real queue with a waiting and a running job of two entrypoints in two zones."""
    async with Queue.open("memory://", clock=clock) as opened:
        service = opened._service
        for entrypoint, zone in (("mail.a", "acme"), ("fax", "zeta")):
            await service.enqueue([JobSpec(f"{entrypoint} running", entrypoint, b"secret", zone=zone)])
            await service.dequeue(entrypoints=(entrypoint,), limit=1)
            await service.enqueue([JobSpec(f"{entrypoint} waiting", entrypoint, b"secret", zone=zone, key=entrypoint)])
        yield service


LIMITED = [limited("mail.a"), limited("mail.*"), limited("mail.a", "more"), limited(zones=("acme",))]
by_limit = pytest.mark.parametrize("principal", LIMITED, ids=["name", "pattern", "names", "zone"])


async def everything(service: QueueService) -> tuple[int, list[JobRecord]]:
    return (await service.stats()).position, await service.jobs()


@by_limit
async def test_a_limited_reader_sees_only_its_own(queue: QueueService, principal: Principal) -> None:
    border = Border(queue, principal)
    assert [job.id for job in await border.jobs()] == ["mail.a running", "mail.a waiting"]
    assert [job.id for job in await border.jobs(limit=1)] == ["mail.a running"]
    assert [job.id for job in await border.jobs(limit=1, after=1)] == ["mail.a waiting"]
    assert [job.id for job in await border.jobs(entrypoint="mail.a", states=frozenset({JobState.RUNNING}))] == [
        "mail.a running"
    ]
    assert await border.find("fax waiting") is None
    assert await border.find("mail.a waiting") is not None


async def test_a_limited_reader_finds_its_own_behind_thousands_of_others(queue: QueueService) -> None:
    await queue.enqueue([JobSpec(f"o{n}", "other", b"") for n in range(2_500)])
    await queue.enqueue([JobSpec(f"m{n}", "mail.b", b"") for n in range(3)])
    border = Border(queue, limited("mail.*"))
    assert [job.id for job in await border.jobs(limit=4)] == ["mail.a running", "mail.a waiting", "m0", "m1"]


async def test_a_listing_of_an_entrypoint_that_is_not_theirs_is_refused(queue: QueueService) -> None:
    border = Border(queue, limited("mail.*"))
    for refused in (lambda: border.jobs(entrypoint="fax"), lambda: border.archive(entrypoint="fax")):
        with pytest.raises(NotAllowedError, match="'read' for the entrypoint 'fax'"):
            await refused()  # type: ignore[misc]


@by_limit
async def test_a_limited_reader_counts_only_its_own(
    queue: QueueService, principal: Principal, clock: ManualClock
) -> None:
    later = clock.wall_ms() + 60_000
    await queue.enqueue([JobSpec("later", "mail.a", b"", run_at_ms=later, zone="acme")])
    border = Border(queue, principal)
    totals = (await border.stats()).totals
    assert (totals.enqueued, totals.ready, totals.delayed, totals.running) == (3, 1, 1, 1)
    await clock.advance(61)
    totals = (await border.stats()).totals
    assert (totals.enqueued, totals.ready, totals.delayed, totals.running) == (3, 2, 0, 1)
    assert (totals.done, totals.cancelled) == (0, 0)


@by_limit
async def test_to_give_back_a_job_of_others_is_to_give_back_none(queue: QueueService, principal: Principal) -> None:
    before = await everything(queue)
    await Border(queue, principal).give_back("no such job", token=2)
    await Border(queue, principal).give_back("fax running", token=2)
    assert await everything(queue) == before


@by_limit
@pytest.mark.parametrize("verb", ["ack", "nack", "heartbeat", "cancel", "retry"])
async def test_the_jobs_of_others_are_as_good_as_not_there(
    queue: QueueService, principal: Principal, verb: str
) -> None:
    before = await everything(queue)
    token = {"token": 2} if verb not in ("cancel", "retry") else {}

    with pytest.raises(JobNotFoundError):
        await call(Border(queue, principal), verb, {"job_id": "fax running", **token})

    assert await everything(queue) == before


@by_limit
async def test_a_limited_worker_finishes_its_own(queue: QueueService, principal: Principal) -> None:
    border = Border(queue, principal)
    await border.heartbeat("mail.a running", token=1)
    await border.ack("mail.a running", token=1, request_id="r")
    await border.ack("mail.a running", token=1, request_id="r")  # the answer was lost and is asked for again
    with pytest.raises(JobNotFoundError):
        await border.ack("mail.a running", token=1)
    await border.cancel("mail.a waiting")
    assert await border.jobs() == []


@by_limit
async def test_each_of_many_heartbeats_is_judged_by_itself(queue: QueueService, principal: Principal) -> None:
    border = Border(queue, principal)
    answers = await border.heartbeats(
        [Lease("fax running", 2), Lease("mail.a running", 1), Lease("nobody's", 1), Lease("mail.a running", 7)]
    )
    assert [type(answer) for answer in answers] == [JobNotFoundError, JobRecord, JobNotFoundError, LeaseLostError]
    assert await border.heartbeats([]) == []
    assert [type(answer) for answer in await border.heartbeats([Lease("fax running", 2)])] == [JobNotFoundError]


@by_limit
async def test_each_of_many_outcomes_is_judged_by_itself(queue: QueueService, principal: Principal) -> None:
    border = Border(queue, principal)
    outcomes = [Outcome("fax running", 2), Outcome("mail.a running", 1), Outcome("nobody's", 1)]
    for _ in range(2):
        answers = await border.settle(outcomes, request_id="r")
        assert [type(answer) for answer in answers] == [JobNotFoundError, type(None), JobNotFoundError]
    assert (await queue.find("fax running")) is not None
    assert await border.settle([]) == []
    await queue.ack("fax running", token=2)
    assert len(await border.settle(outcomes, request_id="r")) == 3


async def test_an_outcome_that_makes_no_sense_is_refused_and_so_are_those_beside_it() -> None:
    queue = Recorder()
    for outcome, word in (
        (Outcome("j", 1, error="boom", result=b"fine"), "result"),
        (Outcome("j", 1, delay_ms=5), "error as well"),
        (Outcome("j", 1, backoff=Backoff(1, 2)), "error as well"),
        (Outcome("j", 1, how=OutcomeKind.FINAL), "error as well"),
        (Outcome("j", 1, error="boom", how="final"), "how must be an OutcomeKind, not a str"),  # type: ignore[arg-type]
        (Outcome("j", 1, how=OutcomeKind.CRASHED), "error as well"),
        (Outcome("j", 1, error="boom", how=True), "how must be an OutcomeKind, not a bool"),  # type: ignore[arg-type]
        (Outcome("j", 1, error="boom", how=OutcomeKind.DONE), "a job that is done has no error"),
        (Outcome("j", 1, how=OutcomeKind.DONE, delay_ms=5), "error as well"),
        (Outcome("j", 1, how=OutcomeKind.FAILED), "error as well"),
        (Outcome("j", 1, error="boom", result=b"fine", how=OutcomeKind.FINAL), "no result"),
        (Outcome("j", 1, how=OutcomeKind.SNOOZED, error="boom"), "a snoozed job has a delay_ms"),
        (Outcome("j", 1, how=OutcomeKind.SNOOZED, result=b"fine"), "a snoozed job has a delay_ms"),
        (Outcome("j", 1, how=OutcomeKind.CANCELLED, delay_ms=5), "a cancelled job may have an error"),
        (Outcome("j", 1, how=OutcomeKind.SNOOZED, backoff=Backoff(1, 2)), "a snoozed job has a delay_ms"),
        (Outcome("j", 1, how=OutcomeKind.CANCELLED, result=b"fine"), "a cancelled job may have an error"),
        (Outcome("j", 1, how=OutcomeKind.DECLINED), "a declined job has an error"),
        (Outcome("j", 1, error="no", how=OutcomeKind.DECLINED, backoff=Backoff(1, 2)), "a declined job has an error"),
        (Outcome("j", 1, how=OutcomeKind.SNOOZED, delay_ms=-1), "delay_ms"),
    ):
        with pytest.raises(InvalidInputError, match=word):
            await Border(queue).settle([Outcome("k", 1), outcome])
    assert queue.asked == []
    await Border(queue).settle([Outcome("k", 1, error="x" * 5000)])
    [sent] = queue.asked[0][1]["outcomes"]
    assert len(sent.error) == checks.ERROR_MAX


async def test_a_limited_worker_that_takes_any_gets_its_own(queue: QueueService) -> None:
    border = Border(queue, limited("more", "mail.a"))
    claimed = await border.dequeue(entrypoints=None, limit=10)
    assert [job.id for job in claimed] == ["mail.a waiting"]


async def test_a_limited_worker_may_name_what_its_pattern_covers(queue: QueueService) -> None:
    border = Border(queue, limited("mail.*"))
    assert [job.id for job in await border.dequeue(entrypoints=("mail.a", "mail.b"), limit=10)] == ["mail.a waiting"]


@pytest.mark.parametrize(
    ("principal", "asked", "says"),
    [
        (limited("mail.a"), ("fax",), "the entrypoint 'fax'"),
        (limited("mail.a"), ("mail.a", "fax"), "the entrypoint 'fax'"),
        (limited("mail.*"), None, "names of those"),
    ],
)
async def test_a_claim_beyond_the_limit_is_refused(
    queue: QueueService, principal: Principal, asked: Any, says: str
) -> None:
    before = await everything(queue)
    with pytest.raises(NotAllowedError, match=says):
        await Border(queue, principal).dequeue(entrypoints=asked, limit=10)
    assert await everything(queue) == before


async def test_a_worker_that_is_limited_to_zones_claims_of_these_alone(queue: QueueService) -> None:
    [own] = await Border(queue, limited(zones=("acme",))).dequeue(entrypoints=None, limit=10)
    assert own.spec.zone == "acme"
    with pytest.raises(NotAllowedError, match="'work' for the zone 'zeta'"):
        await Border(queue, limited(zones=("acme",))).dequeue(entrypoints=None, limit=10, zones=("acme", "zeta"))
    with pytest.raises(NotAllowedError, match="'admin' for every"):
        await Border(queue, limited(zones=("acme",))).set_zone("acme", ZoneRules(weight=1000.0))
    assert [one.zone for one in await Border(queue, limited(zones=("acme",))).zones()] == ["acme"]
    with pytest.raises(NotAllowedError, match="'read' for every entrypoint"):
        await Border(queue, limited("mail.a")).zones()


async def test_a_worker_that_is_limited_to_zones_leases_these_alone(queue: QueueService) -> None:
    border = Border(queue, limited(zones=("acme",)))
    assert [one.zone for one in await border.peek_zones()] == ["acme"]
    theirs = await queue.lease_zone("zeta")
    assert theirs is not None
    before = await everything(queue)
    for refused in (
        border.lease_zone("zeta"),
        border.heartbeat_zone("zeta", token=theirs.token),
        border.release_zone("zeta", token=theirs.token),
        border.dequeue(entrypoints=None, limit=1, zone_lease=theirs),
    ):
        with pytest.raises(NotAllowedError, match="'work' for the zone 'zeta'"):
            await refused
    with pytest.raises(NotAllowedError, match="'work' for every entrypoint"):
        await Border(queue, limited("mail.a")).lease_zone("acme")
    with pytest.raises(InvalidInputError, match="leave the other zones out"):
        await border.dequeue(entrypoints=None, limit=1, zones=("acme",), zone_lease=theirs)
    assert await everything(queue) == before

    lease = await border.lease_zone("acme")
    assert lease is not None
    [own] = await border.dequeue(entrypoints=None, limit=10, zone_lease=lease)
    assert own.spec.zone == "acme"
    await border.release_zone("acme", token=(await border.heartbeat_zone("acme", token=lease.token)).token)


async def test_the_request_id_of_somebody_else_is_another_request(queue: QueueService) -> None:
    theirs = Border(queue, msgspec.structs.replace(limited("fax"), name="them"))
    await theirs.dequeue(entrypoints=("fax",), limit=1, request_id="order-16")
    await theirs.enqueue([JobSpec("x", "fax", b"secret")], request_id="order-17")
    border = Border(queue, limited("mail.a"))
    [claimed] = await border.dequeue(entrypoints=None, limit=1, request_id="order-16")
    assert claimed.spec.entrypoint == "mail.a"
    for _ in range(2):
        [added] = await border.enqueue([JobSpec("y", "mail.a", b"mine")], request_id="order-17")
        assert (added.id, added.spec.payload) == ("mail.a:~y", b"mine")
    assert await queue.find("fax:~x") is not None
    assert await queue.find("mail.a:~y") is not None


async def test_a_caller_cannot_say_the_request_id_of_another(queue: QueueService) -> None:
    everything = frozenset({Scope.ADMIN})
    one, other = Principal("a", everything), Principal("a@b", everything)
    await Border(queue, one).enqueue([JobSpec("x", "mail.a", b"")], request_id="b@c")
    await Border(queue, other).enqueue([JobSpec("y", "mail.a", b"")], request_id="c")
    assert await queue.find("y") is not None


REPEATABLE = [verb for verb in VERBS if "request_id" in arguments_of(verb)]


@pytest.mark.parametrize("verb", REPEATABLE)
async def test_every_request_id_that_passes_the_border_is_its_caller_s(verb: str) -> None:
    queue = Recorder()
    await call(Border(queue, Principal("shop", frozenset({Scope.ADMIN}))), verb, CALLS[verb] | {"request_id": "r"})
    assert [arguments["request_id"] for name, arguments in queue.asked if name == verb] == ["@shop@r"]
    queue.asked.clear()
    await call(Border(queue), verb, CALLS[verb] | {"request_id": "r"})
    assert [arguments["request_id"] for name, arguments in queue.asked if name == verb] == ["r"]


async def test_the_unique_key_of_somebody_else_is_another_key(queue: QueueService) -> None:
    border = Border(queue, limited("mail.a"))
    for name in ("y", "z"):
        [added] = await border.enqueue([JobSpec(name, "mail.a", b"mine", key="fax")])
        assert (added.id, added.spec.key, added.spec.payload) == ("mail.a:~y", "fax", b"mine")
    stored = await queue.find("mail.a:~y")
    assert stored is not None
    assert stored.spec.key == "mail.a:~fax"


@pytest.mark.parametrize(
    ("principal", "spec", "says"),
    [
        (limited("mail.*"), JobSpec("x", "fax", b""), "'produce' for the entrypoint 'fax'"),
        (limited(zones=("acme",)), JobSpec("x", "mail.a", b"", zone="zeta"), "'produce' for the zone 'zeta'"),
        (limited(zones=("acme",)), JobSpec("x", "mail.a", b""), "without a zone"),
    ],
)
async def test_one_job_beyond_the_limit_refuses_them_all(
    queue: QueueService, principal: Principal, spec: JobSpec, says: str
) -> None:
    before = await everything(queue)
    with pytest.raises(NotAllowedError, match=says):
        await Border(queue, principal).enqueue([JobSpec("good", "mail.a", b"", zone="acme"), spec])
    assert await everything(queue) == before


async def test_schedules_of_others_are_as_good_as_not_there(queue: QueueService) -> None:
    await queue.set_schedule(NIGHTLY)
    other = msgspec.structs.replace(NIGHTLY, name="other", job=JobSpec("", "fax", b""))
    border = Border(queue, Principal("p", frozenset({Scope.ADMIN}), entrypoints=("fax",)))

    await border.set_schedule(other)
    assert [one.name for one in await border.schedules()] == ["other"]
    with pytest.raises(NotAllowedError, match="mail"):
        await border.set_schedule(msgspec.structs.replace(NIGHTLY, name="third"))
    for verb in (border.drop_schedule, partial(border.pause_schedule, paused=True)):
        with pytest.raises(ScheduleNotFoundError):
            await verb("nightly")
    await border.set_schedule(msgspec.structs.replace(other, name="nightly"))
    assert sorted(one.name for one in await border.schedules()) == ["nightly", "other"]
    for name in ("other", "nightly"):
        await border.drop_schedule(name)
    assert [one.spec for one in await queue.schedules()] == [NIGHTLY]


@pytest.mark.parametrize(
    ("principal", "entrypoint"),
    [(limited("mail.a"), None), (limited("mail.a"), "fax"), (limited(zones=("acme",)), "mail.a")],
)
async def test_a_purge_or_a_gate_beyond_the_limit_is_refused(principal: Principal, entrypoint: str | None) -> None:
    queue = Recorder()
    with pytest.raises(NotAllowedError, match="'admin' for"):
        await Border(queue, principal).purge(entrypoint=entrypoint)
    assert queue.asked == []
    with pytest.raises(NotAllowedError, match="'admin' for"):
        await Border(queue, principal).set_gate(Gate.PAUSED, entrypoint=entrypoint)
    assert queue.asked == []
    await Border(queue, limited("mail.*")).purge(entrypoint="mail.a")
    await Border(queue, limited("mail.*")).set_gate(Gate.PAUSED, entrypoint="mail.a")
    assert queue.asked == [
        ("purge", {"entrypoint": "mail.a", "request_id": None, "zone": None}),
        ("set_gate", {"gate": Gate.PAUSED, "entrypoint": "mail.a", "request_id": None}),
    ]


async def test_whoever_manages_a_zone_purges_it_and_no_other() -> None:
    queue = Recorder()
    tenant = Border(queue, limited(zones=("acme",)))
    for zone in (None, "umbrella"):
        with pytest.raises(NotAllowedError, match="'admin' for"):
            await tenant.purge(zone=zone)
        with pytest.raises(NotAllowedError, match="'admin' for"):
            await tenant.requeue_stale(0, zone=zone)
    with pytest.raises(NotAllowedError, match="'admin' for every entrypoint"):
        await Border(queue, limited("mail.a", zones=("acme",))).purge(zone="acme")
    with pytest.raises(InvalidInputError, match="zone must"):
        await Border(queue).purge(zone="")
    assert queue.asked == []
    await tenant.purge(zone="acme")
    await tenant.requeue_stale(0, zone="acme")
    where = {"entrypoint": None, "request_id": None, "zone": "acme"}
    assert queue.asked == [("purge", where), ("requeue_stale", {"older_ms": 0, **where})]


async def test_a_limited_reader_sees_the_gates_of_its_own(queue: QueueService) -> None:
    await queue.set_gate(Gate.PAUSED, entrypoint="mail.a")
    await queue.set_gate(Gate.DRAINING, entrypoint="fax")

    assert (await Border(queue, limited("mail.*")).stats()).gates == Gates(entrypoints={"mail.a": Gate.PAUSED})


@by_limit
async def test_a_limited_watcher_sees_the_events_of_its_own_jobs(queue: QueueService, principal: Principal) -> None:
    shown = [event async for event in Border(queue, principal).events(from_position=0, follow=False)]
    assert [(event.position, event.kind, event.job_id) for event in shown] == [
        (1, EventKind.ADDED, "mail.a running"),
        (2, EventKind.CLAIMED, "mail.a running"),
        (3, EventKind.ADDED, "mail.a waiting"),
    ]


@by_limit
async def test_a_limited_watcher_knows_the_jobs_that_were_there_before(
    queue: QueueService, principal: Principal, clock: ManualClock
) -> None:
    seen: list[tuple[EventKind, str | None]] = []

    async def watch() -> None:
        events = Border(queue, principal).events()
        async for event in events:
            seen.append((event.kind, event.job_id))
            if event.job_id == "end":
                await events.aclose()
                return

    watching = asyncio.create_task(watch())
    await clock.advance(1)
    await queue.ack("fax running", request_id="fax")
    await queue.ack("mail.a running", request_id="mail")
    await queue.enqueue([JobSpec("end", "mail.a", b"", zone="acme")])
    while not watching.done():
        await clock.advance(1)

    assert seen == [(EventKind.ACKED, "mail.a running"), (EventKind.ADDED, "end")]


@by_limit
async def test_a_limited_reader_of_the_archive_sees_only_its_own(principal: Principal) -> None:
    now = datetime(2026, 2, 15, tzinfo=UTC)

    class Kept(Recorder):
        async def _events(self) -> AsyncGenerator[Any]:
            for name, zone in (("mail.a", "acme"), ("fax", "zeta"), ("mail.a", "acme")):
                yield ArchivedJob(name, name, b"", JobState.DONE, 1, now, now, now, 1, 1, zone=zone)

    shown = [job async for job in Border(Kept(), principal).archive()]
    assert [job.entrypoint for job in shown] == ["mail.a", "mail.a"]
    assert len([job async for job in Border(Kept()).archive()]) == 3


# --- Admission ---


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


def new_token(path: Path, name: str, *scopes: Scope, **more: Any) -> str:
    created = datetime(2026, 2, 15, tzinfo=UTC)
    return "Bearer " + tokenfile.add(path, name=name, scopes=scopes, created=created, **more)


def rewrite(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


async def test_without_a_book_everybody_may_do_everything(queue: QueueService) -> None:
    door: Admit = admit(None)
    assert door("Bearer nonsense")(queue) is door(None)(queue)
    assert await door(None)(queue).purge() == 0


async def test_a_token_is_asked_for_and_gives_its_scopes(queue: QueueService, tokens: Path) -> None:
    reader = new_token(tokens, "reader", Scope.READ)
    door = admit(TokenBook(tokens))
    with pytest.raises(NotAuthenticatedError):
        door(None)
    await door(reader)(queue).stats()
    with pytest.raises(NotAllowedError):
        await door(reader)(queue).cancel("mail.a waiting")


async def test_a_caller_s_border_is_made_once_per_queue(queue: QueueService, tokens: Path) -> None:
    one, other = new_token(tokens, "one", Scope.READ), new_token(tokens, "other", Scope.READ)
    door = admit(TokenBook(tokens))
    border = door(one)(queue)
    assert door(one)(queue) is border
    assert door(other)(queue) is not border
    assert door(one)(Recorder()) is not border, "another leadership, another queue"


async def test_a_token_whose_scopes_change_counts_as_changed(
    queue: QueueService, tokens: Path, clock: ManualClock
) -> None:
    token = new_token(tokens, "one", Scope.READ)
    door = admit(TokenBook(tokens, clock=clock))
    session = door(token)
    await session(queue).stats()
    rewrite(tokens, '"read"', '"work"')
    await clock.advance(1)
    for wrapper in (door(token), session):
        with pytest.raises(NotAllowedError):
            await wrapper(queue).stats()
        await wrapper(queue).dequeue(entrypoints=None, limit=1)


async def test_a_session_ends_with_its_token_even_if_another_of_the_name_is_made(
    queue: QueueService, tokens: Path, clock: ManualClock
) -> None:
    token = new_token(tokens, "one", Scope.READ)
    session = admit(TokenBook(tokens, clock=clock))(token)
    await session(queue).stats()
    tokenfile.revoke(tokens, "one")
    new_token(tokens, "one", Scope.READ)
    await clock.advance(1)
    with pytest.raises(NotAuthenticatedError):
        session(queue)


async def test_a_worker_whose_token_is_revoked_while_it_waits_gets_nothing(
    queue: QueueService, tokens: Path, clock: ManualClock
) -> None:
    token = new_token(tokens, "worker", Scope.WORK)
    border = admit(TokenBook(tokens, clock=clock))(token)(queue)
    waiting = asyncio.create_task(border.dequeue(entrypoints=("new",), limit=1, wait_s=60))
    await clock.advance(1)
    tokenfile.revoke(tokens, "worker")
    await clock.advance(1)
    await queue.enqueue([JobSpec("n", "new", b"")])

    with pytest.raises(NotAuthenticatedError):
        await waiting

    job = await queue.find("n")
    assert job is not None
    assert (job.state, job.attempts) == (JobState.READY, 0)


async def test_a_watcher_whose_token_changes_is_cut_off(queue: QueueService, tokens: Path, clock: ManualClock) -> None:
    token = new_token(tokens, "watcher", Scope.READ)
    events = admit(TokenBook(tokens, clock=clock))(token)(queue).events(from_position=0, follow=False)
    await anext(events)
    rewrite(tokens, '"read"', '"work"')
    await clock.advance(1)
    with pytest.raises(NotAuthenticatedError, match="has changed"):
        await anext(events)


@pytest.mark.parametrize("more", [{}, {"entrypoints": ("mail.a",)}], ids=["any", "limited"])
async def test_a_watcher_whose_token_is_revoked_is_cut_off(
    queue: QueueService, tokens: Path, clock: ManualClock, more: dict[str, Any]
) -> None:
    token = new_token(tokens, "watcher", Scope.READ, **more)
    events = admit(TokenBook(tokens, clock=clock))(token)(queue).events(from_position=0, follow=False)
    first: QueueEvent = await anext(events)
    assert first.position == 1
    tokenfile.revoke(tokens, "watcher")
    await clock.advance(1)
    with pytest.raises(NotAuthenticatedError, match="watcher"):
        await anext(events)


# --- What the reference says ---

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "limits.md"


def test_the_reference_has_every_verb_under_its_scope() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE))
    for verb, scope in NEEDS.items():
        assert f"`{verb}`" in rows[scope.value], verb


def test_the_reference_has_the_limits_that_are_kept() -> None:
    rows = dict(re.findall(r"^\| ([^|]*) \| ([^|]*) \|$", PAGE.read_text(), re.MULTILINE))
    limits = Limits()
    assert rows["a payload"].startswith(f"{limits.payload_bytes >> 20} MiB")
    assert rows["jobs in one `enqueue`"] == f"{limits.jobs_per_enqueue:,}"
    assert rows["jobs in one `dequeue`"] == f"{limits.jobs_per_dequeue:,}"
    assert rows["entrypoints in one `dequeue`"] == f"{limits.entrypoints_per_dequeue:,}"
    assert rows["outcomes in one `settle`"] == f"{limits.outcomes_per_settle:,}"
    assert rows["leases in one `heartbeats`"] == f"{limits.leases_per_heartbeat:,}"
    assert rows["`wait` of a `dequeue`"].startswith(f"{limits.wait_s / 60:g} minutes")
    assert rows["the `result` of an `ack`"] == f"{limits.result_bytes >> 10} KiB"
    assert rows["the `error` of a `nack`"].startswith(f"{checks.ERROR_MAX:,} characters")
    assert rows["failed attempts kept with a job"].startswith(f"the last {TRIES_MAX}, ")
    assert rows["a unique key"] == f"{checks.KEY_MAX:,} printable characters"
    assert (
        rows["headers of a job"] == f"{checks.HEADERS_MAX}, with {checks.HEADERS_CHARACTERS_MAX:,} characters in total"
    )
