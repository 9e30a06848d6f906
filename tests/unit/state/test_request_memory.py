"""What the queue remembers of requests: whose they are, what they asked for, and for how long."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

from casque import InvalidInputError, Queue
from casque.client.opening import Parts
from casque.clock import Random
from casque.codec.head import KEY
from casque.engine.request_watch import KEPT_MS
from casque.service import Outcome, OutcomeKind
from casque.service.requests import (
    Ack,
    Cancel,
    Dequeue,
    Enqueue,
    LeaseZone,
    Nack,
    Purge,
    Retry,
    SetGate,
    Settle,
    SetZone,
)
from casque.settings import QueueSettings
from casque.state import Command, Limits, State
from casque.state.fingerprints import Repeatable, fingerprint
from casque.storage.memory import MemoryStore
from casque.storage.port import Stored
from casque.testing.clock import ManualClock
from casque.types import Gate, JobSpec, ZoneRules

MINUTE_S = 60
LAYOUTS = pytest.mark.parametrize("layout", ["log", "document"])


def opened(store: MemoryStore, clock: ManualClock, layout: str, seed: int = 1, **settings: Any) -> Queue[bytes]:
    return Queue.open(store, layout=layout, clock=clock, rng=Random(seed), **settings)


# --- For how long ---


@LAYOUTS
@pytest.mark.parametrize("ahead_s", [16 * MINUTE_S, 366 * 24 * 3600, -366 * 24 * 3600])
async def test_a_machine_whose_clock_is_ahead_forgets_nothing_when_it_takes_over(layout: str, ahead_s: float) -> None:
    store, clock = MemoryStore(), ManualClock()
    async with opened(store, clock, layout) as q:
        calls = [q.enqueue("send", b"%d" % n, request_id=f"r{n}") for n in range(1000)]
        first = await asyncio.gather(*calls)

    later = ManualClock()
    later.jump_wall(ahead_s)
    async with opened(store, later, layout, seed=2) as q:
        await q.enqueue("send", b"news")
        again = await asyncio.gather(*(q.enqueue("send", b"%d" % n, request_id=f"r{n}") for n in range(1000)))
        assert [job.id for job in again] == [job.id for job in first]
        assert (await q.stats()).totals.enqueued == 1001


@LAYOUTS
async def test_a_time_step_forgets_nothing(layout: str) -> None:
    store, clock = MemoryStore(), ManualClock()
    async with opened(store, clock, layout) as q:
        first = [await q.enqueue("send", b"", request_id=f"r{n}") for n in range(300)]
        for step_s in (3600, -7200, 366 * 24 * 3600):
            clock.jump_wall(step_s)
            await q.enqueue("send", b"news")
            again = [await q.enqueue("send", b"", request_id=f"r{n}") for n in range(300)]
            assert [job.id for job in again] == [job.id for job in first]


@LAYOUTS
async def test_what_was_seen_a_quarter_of_an_hour_ago_is_forgotten_but_for_the_last_ones(layout: str) -> None:
    store, clock = MemoryStore(), ManualClock()
    kept = Limits().requests_min
    async with opened(store, clock, layout) as q:
        for n in range(kept + 20):
            await q.enqueue("send", b"", request_id=f"r{n}")
        await clock.advance(2 * MINUTE_S)
        await q.enqueue("send", b"")
        await clock.advance(KEPT_MS / 1000 - MINUTE_S)
        await q.enqueue("send", b"", request_id="later")
        assert len(await remembered(store, layout)) == kept + 21 - 1, "the first was seen a little earlier"
        for _ in range(2):
            await clock.advance(2 * MINUTE_S)
            await q.enqueue("send", b"")
        left = await remembered(store, layout)
        assert len(left) == kept
        assert (left[0], left[-1]) == ("r21", "later")


async def remembered(store: MemoryStore, layout: str) -> list[str]:
    """As a process finds it that opens the queue."""
    parts = Parts(store, QueueSettings(), layout=layout, clock=ManualClock(), rng=Random(99))
    state = await parts.read()
    if layout == "document":
        read = await store.get(KEY)
        assert isinstance(read, Stored)
        assert [one[0] for one in json.loads(read.body)["requests"]] == list(state.requests)
    return list(state.requests)


def test_forgetting_is_part_of_the_commit_so_that_every_replica_forgets_alike() -> None:
    state = State(Limits(requests_max=10, requests_min=2))
    for n in range(6):
        state.execute(Enqueue((JobSpec(f"j{n}", "send", b""),), f"r{n}"), now_ms=1)
        state.commit(writer="w", batch=n + 1, at_ms=1, forgets="r2" if n == 5 else None)
    assert list(state.requests) == ["r3", "r4", "r5"]
    state.commit(writer="w", batch=7, at_ms=1, forgets="r5")
    assert list(state.requests) == ["r4", "r5"], "some are kept whatever their age"
    state.commit(writer="w", batch=8, at_ms=1, forgets="gone")
    assert list(state.requests) == ["r4", "r5"]


# --- What was asked ---

SPEC = JobSpec("j", "send", b"payload", zone="acme")
ASKED: list[tuple[Command, Command]] = [
    (Enqueue((SPEC,), "r"), Enqueue((replace(SPEC, id="k", payload=b"other"),), "r")),
    (Enqueue((SPEC,), "r"), Enqueue((replace(SPEC, id="k", entrypoint="other"),), "r")),
    (Enqueue((SPEC,), "r"), Enqueue((replace(SPEC, id="k", zone="zeta"),), "r")),
    (Enqueue((SPEC,), "r"), Enqueue((SPEC, replace(SPEC, id="k")), "r")),
    (Dequeue(("send",), 1, 1000, request_id="r"), Dequeue(("other",), 1, 1000, request_id="r")),
    (Ack("a", 1, "r"), Ack("b", 2, "r")),
    (Nack("a", 1, request_id="r"), Nack("b", 2, request_id="r")),
    (Settle((Outcome("a", 1),), "r"), Settle((Outcome("b", 2),), "r")),
    (Settle((Outcome("a", 1),), "r"), Settle((Outcome("a", 1, error="no"),), "r")),
    (Cancel("a", "r"), Cancel("b", "r")),
    (Retry("dead", "r"), Retry("deader", "r")),
    (Purge(request_id="r"), Purge("send", "r")),
    (SetGate(Gate.PAUSED, None, "r"), SetGate(Gate.PAUSED, "send", "r")),
    (SetZone("acme", ZoneRules(2.0), "r"), SetZone("zeta", ZoneRules(2.0), "r")),
    (LeaseZone("acme", 1000, request_id="r"), LeaseZone("zeta", 1000, request_id="r")),
]


def with_tokens(state: State, command: Command) -> Command:
    """The tokens that the jobs have."""
    if isinstance(command, Ack | Nack):
        return replace(command, token=state.jobs[command.job_id].token)
    if isinstance(command, Settle):
        return replace(command, outcomes=tuple(replace(o, token=state.jobs[o.job_id].token) for o in command.outcomes))
    return command


def ready_for(command: Command) -> State:
    state = State()
    specs = [JobSpec(name, "send", b"") for name in ("a", "b")]
    state.execute(Enqueue(tuple(specs)), now_ms=1)
    if isinstance(command, Ack | Nack | Settle):
        state.execute(Dequeue(("send",), 2, 1000), now_ms=1)
    doomed = [JobSpec(name, "die", b"", max_attempts=1) for name in ("dead", "deader")]
    zoned = [JobSpec(f"in {zone}", "wait", b"", zone=zone) for zone in ("acme", "zeta")]
    state.execute(Enqueue((*doomed, *zoned)), now_ms=1)
    for job in state.execute(Dequeue(("die",), 2, 1000), now_ms=1):
        state.execute(Nack(job.spec.id, job.token), now_ms=1)
    state.commit(writer="w", batch=1, at_ms=1)
    return state


@pytest.mark.parametrize(("first", "other"), ASKED, ids=lambda c: type(c).__name__)
def test_a_repeated_id_with_another_content_is_refused_and_the_same_one_answered(
    first: Command, other: Command
) -> None:
    state = ready_for(first)
    first, other = with_tokens(state, first), with_tokens(state, other)
    state.execute(first, now_ms=2)
    state.commit(writer="w", batch=2, at_ms=2)

    with pytest.raises(InvalidInputError, match="request_id 'r' was used before"):
        state.execute(other, now_ms=3)
    assert not state.events

    state.execute(first, now_ms=3)
    assert not state.events


def test_a_repeated_id_with_another_verb_is_refused() -> None:
    state = ready_for(Cancel("a"))
    state.execute(Cancel("a", "r"), now_ms=2)
    with pytest.raises(InvalidInputError, match="to cancel and not to enqueue"):
        state.execute(Enqueue((SPEC,), "r"), now_ms=2)


def test_what_a_broker_works_out_anew_does_not_make_it_another_request() -> None:
    state = State()
    spec = JobSpec("one", "send", b"x", run_at_ms=5000, max_attempts=3, headers={"trace": "1"})
    [job] = state.execute(Enqueue((spec,), "r"), now_ms=1)
    again = JobSpec("two", "send", b"x", run_at_ms=6000, max_attempts=5, headers={"trace": "2"})
    [same] = state.execute(Enqueue((again,), "r"), now_ms=2)
    assert same == job


def test_an_id_that_an_older_release_remembered_is_answered_as_before() -> None:
    state = State()
    [job] = state.execute(Enqueue((SPEC,), "r"), now_ms=1)
    state.commit(writer="w", batch=1, at_ms=1)
    state.requests["r"] = replace(state.requests["r"], verb="enqueue")
    [same] = state.execute(Enqueue((replace(SPEC, id="k", payload=b"other"),), "r"), now_ms=2)
    assert same == job


STORED: dict[str, Repeatable] = {
    "a19cd586e5b8b63e": Enqueue((JobSpec("j", "mail", b"x", 3, None, 25, "k", None, "z"),), "r"),
    "7b1be7208a975991": Dequeue(("mail",), 3, 1000, "w", "r", None, ("z", 4)),
    "8a3496a6031ca892": Ack("j", 7, "r", b"done"),
    "a942936d85c22d3d": Settle((Outcome("j", 7), Outcome("k", 8, "bad", how=OutcomeKind.FINAL)), "r"),
    "1f09fbb37ee296b9": Cancel("j", "r"),
    "549e71ed687d338a": Purge("mail", "r", "z"),
    "26ee47b4d0c7c056": SetGate(Gate.PAUSED, "mail", "r"),
    "d4bcdfb4f382e765": SetZone("z", ZoneRules(2.0, 3), "r"),
    "5df54812ee335d9d": LeaseZone("z", 1000, "w", "r"),
}


@pytest.mark.parametrize("stored", STORED)
def test_a_request_that_is_remembered_is_recognised_by_later_releases(stored: str) -> None:
    assert fingerprint(STORED[stored]) == stored
