"""Values of the wrong type in what callers build themselves: refused, or stored so that everybody can read them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest

from casque import CasqueError, Job, NewJob, Outcome, Queue
from casque.clock import Random
from casque.service import Lease
from casque.storage.memory import MemoryStore
from casque.testing.clock import ManualClock
from casque.types import Progress

STRANGE: Sequence[Any] = (None, True, 0.5, -1, 2**70, "x", "\ud800", b"x", [], {}, object(), float("nan"), ("x",))


def changed(whole: Any) -> list[Any]:
    """The value with one field after the other replaced by something strange."""
    return [
        msgspec.structs.replace(whole, **{field: strange}) for field in whole.__struct_fields__ for strange in STRANGE
    ]


Ask = Callable[[Queue[bytes], Job[bytes], Any], Awaitable[object]]
ASKED: dict[str, tuple[Any, Ask]] = {
    "heartbeats": (Lease("1", 1, Progress(1, 2, "x")), lambda queue, _, given: queue.heartbeats([given])),
    "progress": (
        Progress(1, 2, "x"),
        lambda queue, job, given: queue.heartbeats([Lease(job.id, job.token, given)]),
    ),
    "give_back": (Lease("1", 1), lambda queue, _, given: queue.give_back([given])),
    "settle": (Outcome("1", 1, "no", delay_ms=5), lambda queue, _, given: queue.settle([given])),
    "settle of mine": (
        Outcome("1", 1, "no", delay_ms=5),
        lambda queue, job, given: queue.settle([msgspec.structs.replace(given, job_id=job.id, token=job.token)]),
    ),
}


@pytest.mark.parametrize("layout", ["log", "document"])
@pytest.mark.parametrize("asked", ASKED)
async def test_a_value_of_the_wrong_type_never_makes_a_queue_unreadable(asked: str, layout: str) -> None:
    whole, ask = ASKED[asked]
    for number, given in enumerate(changed(whole)):
        store, clock = MemoryStore(), ManualClock()
        async with Queue.open(store, layout=layout, clock=clock, rng=Random(number)) as queue:
            await queue.enqueue("send", b"x")
            [job] = await queue.dequeue("send")
            try:
                await ask(queue, job, given)
            except (CasqueError, TypeError):
                pass
        async with Queue.open(store, clock=clock, rng=Random(f"again {number}")) as again:
            added = await again.enqueue("send", b"y")
            assert added.id in {job.id for job in await again.jobs()}, given


NEW = NewJob("send", b"x", priority=1, max_attempts=2, key="k", headers={"a": "b"}, zone="z", tags=["t"])


@pytest.mark.parametrize("layout", ["log", "document"])
async def test_a_new_job_of_the_wrong_types_never_makes_a_queue_unreadable(layout: str) -> None:
    fields = msgspec.structs.asdict(NEW)
    for number, (name, strange) in enumerate((name, strange) for name in fields for strange in STRANGE):
        store, clock = MemoryStore(), ManualClock()
        async with Queue.open(store, layout=layout, clock=clock, rng=Random(number)) as queue:
            try:
                await queue.enqueue_many([NewJob(**{**fields, name: strange})])
            except (CasqueError, TypeError):
                pass
        async with Queue.open(store, clock=clock, rng=Random(f"again {number}")) as again:
            added = await again.enqueue("send", b"y")
            assert added.id in {job.id for job in await again.jobs()}, (name, strange)
