"""How far a pipeline may read: never past a finished job that is not archived yet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from casque import Job, Outcome, OutcomeKind, Queue
from casque.clock import Random
from casque.scan.horizon import look_around
from casque.state.job_life import FINISHING
from casque.storage.memory import MemoryStore
from casque.testing.clock import ManualClock

End = Callable[[Queue[bytes], Job[bytes], ManualClock], Awaitable[object]]


async def expire(queue: Queue[bytes], job: Job[bytes], clock: ManualClock) -> None:
    await queue.give_back([job])
    await clock.advance(61)


ENDS: dict[str, End] = {
    "acked": lambda _queue, job, _clock: job.ack(),
    "died": lambda queue, job, _clock: queue.settle([Outcome(job.id, job.token, "no", how=OutcomeKind.FINAL)]),
    "quarantined": lambda queue, job, _clock: queue.settle(
        [Outcome(job.id, job.token, "killed", how=OutcomeKind.CRASHED)]
    ),
    "cancelled": lambda queue, job, _clock: queue.cancel(job.id),
    "withdrawn": lambda queue, job, _clock: queue.settle(
        [Outcome(job.id, job.token, "not needed", how=OutcomeKind.CANCELLED)]
    ),
    "lapsed": expire,
}


def test_every_event_that_finishes_a_job_is_tried_here() -> None:
    assert {event.__struct_config__.tag for event in FINISHING} == set(ENDS)


@pytest.mark.parametrize("how", ENDS)
async def test_a_job_that_finished_and_is_not_archived_is_not_passed_over(how: str) -> None:
    store, clock = MemoryStore(), ManualClock()
    late = timedelta(hours=1)
    async with Queue.open(store, layout="log", archive_interval=late, clock=clock, rng=Random(1)) as queue:
        added = await queue.enqueue("work", b"", max_crashes=1, expires=60)
        [job] = await queue.dequeue()
        await ENDS[how](queue, job, clock)
        [event] = [one async for one in queue.events(from_position=0, follow=False) if one.kind.value == how]

        horizon = (await look_around(store, lambda _shard: 0)).shards[None]

        assert horizon.position == event.position - 1
        async with Queue.open(store, as_of=horizon.position) as then:
            running = await then.jobs()
        assert [one.id for one in running] == [added.id], "as of the horizon it is in the queue, and not yet finished"
    # Closing the queue archives what has finished: the next pipeline finds the job there.
    after = (await look_around(store, lambda _shard: horizon.position)).shards[None]
    assert after.position >= event.position


async def test_a_bound_is_not_passed_and_leads_neither_back_nor_below_the_log() -> None:
    store = MemoryStore()
    async with Queue.open(store, layout="log", clock=ManualClock(), rng=Random(1)) as queue:
        for _ in range(5):
            await queue.enqueue("work", b"")
    end = (await look_around(store, lambda _shard: 0)).position
    assert end >= 5

    async def bounded(known: int, upto: int) -> int:
        sight = await look_around(store, lambda _shard: known, lambda _shard: upto)
        assert sight.is_end
        return sight.position

    assert await bounded(known=0, upto=3) == 3
    assert await bounded(known=4, upto=3) == 4
    assert await bounded(known=0, upto=end + 7) == end
