"""Callers that wait for jobs or events, and leave: by whichever wire they came, nothing of them stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from casque.clock import yield_once
from casque.engine.group import GroupCommit
from casque.engine.waiting import Parked, Waiting
from casque.service import QueueService
from casque.service.requests import Dequeue, Enqueue, LeaseZone, ReleaseZone, SetGate, SetZone
from casque.state import State
from casque.testing.hosting import FixedHost, leading
from casque.testing.service_suite.jobs import a_job
from casque.transport.grpc import casque_v1_pb2 as pb
from casque.transport.http.client import HttpService
from casque.transport.http.server import HttpServer
from casque.types import Gate, JobSpec, ZoneRules
from tests.support.over_grpc import calling, serving

CALLERS = 300


def engine_of(host: FixedHost) -> GroupCommit:
    engine = host.queue._executor  # type: ignore[attr-defined]
    assert isinstance(engine, GroupCommit)
    return engine


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await yield_once()


def wishes() -> list[dict[str, Any]]:
    """Some alike, most of them different: entrypoints, several, any, zones."""
    return [
        {"entrypoints": (f"entry {n}",)} if n % 4 == 0
        else {"entrypoints": ("one", f"other {n}")} if n % 4 == 1
        else {"entrypoints": None, "zones": (f"zone {n}", "zone")} if n % 4 == 2
        else {"entrypoints": ("same",)}
        for n in range(CALLERS)
    ]  # fmt: skip


@asynccontextmanager
async def embedded(host: FixedHost) -> AsyncIterator[QueueService]:
    yield host.queue


@asynccontextmanager
async def over_exchange(host: FixedHost) -> AsyncIterator[QueueService]:
    async with serving(host) as server, calling(server) as client:
        yield client


@asynccontextmanager
async def over_http(host: FixedHost) -> AsyncIterator[QueueService]:
    server = HttpServer(host, listen="127.0.0.1:0")
    await server.start()
    client = HttpService(f"http://127.0.0.1:{server.port}")
    try:
        yield client
    finally:
        await client.close()
        await server.stop(1)


@pytest.mark.parametrize("reach", [embedded, over_exchange, over_http])
async def test_callers_that_left_are_parked_no_longer(reach: Any) -> None:
    async with leading(f"memory://left-{reach.__name__}") as host, reach(host) as service:
        engine = engine_of(host)
        waiting = [asyncio.create_task(service.dequeue(limit=1, wait_s=60, **wish)) for wish in wishes()]
        await until(lambda: len(engine._parked) == CALLERS)

        for one in waiting[1:]:
            one.cancel()

        await until(lambda: len(engine._parked) == 1)
        [left] = engine._parked._groups
        assert left[0] == ("entry 0",)
        await host.queue.enqueue([JobSpec("job", "entry 0", b"")])
        assert [job.id for job in await waiting[0]] == ["job"]
        assert not engine._parked
        for index in (engine._parked._by_entrypoint, engine._parked._by_zone, engine._parked._by_lease):
            assert not index
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_callers_whose_connection_broke_are_parked_no_longer() -> None:
    async with leading("memory://left-broken") as host, serving(host) as server:
        engine = engine_of(host)
        async with calling(server) as client:
            waiting = [asyncio.create_task(client.dequeue(limit=1, wait_s=60, **wish)) for wish in wishes()]
            await until(lambda: len(engine._parked) == CALLERS)

        await until(lambda: not engine._parked)
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_unary_callers_whose_deadline_passed_are_parked_no_longer() -> None:
    async with leading("memory://left-unary") as host, serving(host) as server:
        engine = engine_of(host)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            call = channel.unary_unary(
                "/casque.v1.Queue/Dequeue",
                request_serializer=pb.DequeueRequest.SerializeToString,
                response_deserializer=pb.DequeueResponse.FromString,
            )
            waiting = [call(pb.DequeueRequest(entrypoints=[f"entry {n}"], wait_ms=60_000)) for n in range(50)]
            await until(lambda: len(engine._parked) == 50)
            for one in waiting:
                one.cancel()

            await until(lambda: not engine._parked)


@pytest.mark.parametrize("reach", [over_exchange, over_http])
async def test_readers_of_events_that_left_are_waited_for_no_longer(reach: Any) -> None:
    async with leading(f"memory://events-{reach.__name__}", layout="log") as host, reach(host) as service:
        await host.queue.enqueue([a_job(b"1")])
        begun = asyncio.Semaphore(0)
        followers = count()

        async def follow() -> None:
            async for _ in service.events(from_position=0):
                next(followers)
                begun.release()

        reading = [asyncio.create_task(follow()) for _ in range(20)]
        for _ in reading:
            await begun.acquire()
        tasks = len(asyncio.all_tasks())

        for one in reading:
            one.cancel()
        await asyncio.gather(*reading, return_exceptions=True)

        await until(lambda: len(asyncio.all_tasks()) <= tasks - len(reading))


# --- What a commit looks at ---


async def test_a_commit_looks_only_at_callers_that_its_jobs_may_be_for(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Any] = []
    has_due = State.has_due
    async with leading("memory://looks") as host:
        engine = engine_of(host)
        waiting = [asyncio.create_task(host.queue.dequeue(limit=1, wait_s=60, **wish)) for wish in wishes()]
        await until(lambda: len(engine._parked) == CALLERS)

        def counted(self: State, *asked: Any) -> bool:
            looked.append(asked)
            return has_due(self, *asked)

        monkeypatch.setattr(State, "has_due", counted)

        await host.queue.enqueue(
            [JobSpec("job 1", "nobody's", b""), JobSpec("job 2", "nobody's", b"", zone="elsewhere")]
        )
        assert len(looked) <= 2
        await host.queue.enqueue([JobSpec("job 3", "entry 8", b"")])

        assert [job.id for job in await waiting[8]] == ["job 3"]
        assert len(looked) <= 6
        monkeypatch.undo()
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


NAMES = st.sampled_from(["a", "b", "c"])
ZONES = st.sampled_from(["x", "y", "z"])
WISH = st.tuples(
    st.none() | st.lists(NAMES, min_size=1, max_size=3).map(tuple),
    st.none() | st.lists(ZONES, min_size=1, max_size=2).map(tuple),
    st.none(),
) | st.tuples(st.none() | NAMES.map(lambda name: (name,)), st.none(), ZONES.map(lambda zone: (zone, 1)))
STEP = st.one_of(
    st.tuples(st.just("add"), NAMES, st.none() | ZONES, st.booleans()),
    st.tuples(st.just("wait"), WISH),
    st.tuples(st.just("leave"), st.integers(0, 5)),
    st.tuples(st.just("gate"), NAMES, st.sampled_from([Gate.OPEN, Gate.PAUSED])),
    st.tuples(
        st.just("rules"), ZONES, st.sampled_from([ZoneRules(), ZoneRules(paused=True), ZoneRules(running_max=1)])
    ),
    st.tuples(st.just("lease"), ZONES),
    st.tuples(st.just("release"), ZONES),
    st.tuples(st.just("time"), st.integers(1, 5_000)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEP, max_size=40))
def test_whoever_can_be_served_is_served_and_nobody_is_forgotten(steps: list[tuple[Any, ...]]) -> None:
    """After every step, none of those that wait has an answer: as if each had been asked about."""
    state, parked, now_ms, ids = State(), Parked(), 1_000, count()
    waiting: list[Waiting] = []
    loop = asyncio.new_event_loop()
    try:
        for step in steps:
            match step:
                case ("add", name, zone, fifo):
                    spec = JobSpec(f"job {next(ids)}", name, b"", zone=zone, fifo=fifo and zone == "z")
                    if zone == "z":
                        spec = JobSpec(spec.id, name, b"", zone=zone, fifo=True)
                    state.execute(Enqueue((spec,)), now_ms)
                case ("wait", (names, zones, lease)):
                    operation = Waiting(loop.create_future(), Dequeue(names, 1, 1_000, None, None, zones, lease))
                    operation.decide(state, now_ms)
                    if operation.goes_on_waiting:
                        waiting.append(operation)
                        parked.add(operation)
                case ("leave", which) if waiting:
                    left = waiting.pop(which % len(waiting))
                    assert parked.discard(left) or left.future is not None
                case ("gate", name, gate):
                    state.execute(SetGate(gate, name), now_ms)
                case ("rules", zone, rules):
                    state.execute(SetZone(zone, rules), now_ms)
                case ("lease", zone):
                    state.execute(LeaseZone(zone, 1_000), now_ms)
                case ("release", zone):
                    state.execute(ReleaseZone(zone, 1), now_ms)
                case ("time", later_ms):
                    now_ms += later_ms
            for operation in parked.served(state, now_ms):
                operation.decide(state, now_ms)
                assert operation.answer or operation.error
                waiting.remove(operation)
            for operation in waiting:
                names, zones, lease = operation.wanted
                assert not state.has_due(names, now_ms, zones, lease)
        assert len(parked) == len(waiting)
        for operation in waiting:
            assert parked.discard(operation)
        assert not parked._groups
        assert not parked._by_entrypoint
        assert not parked._by_zone
        assert not parked._by_lease
        assert not parked._for_any
    finally:
        loop.close()
