"""Small histories with everything in them, for tests that read them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from casque import JobState, NewJob, Outcome, OutcomeKind, Queue
from casque.client.opening import Parts, as_store
from casque.client.queue import DEFAULTS
from casque.client.staging import StagedJobs, Stager
from casque.clock import Clock, Random
from casque.service import Lease
from casque.testing.clock import ManualClock
from casque.types import Progress


async def ring_of(storage: Any, shards: int, clock: Clock | None = None) -> None:
    """A ring of this number of shards, without a job."""
    assert await Parts(as_store(storage), DEFAULTS, clock=clock).builder().create(shards)


async def resized(storage: Any, shards: int) -> None:
    await Parts(as_store(storage), DEFAULTS).builder().resize(shards)


async def varied(
    url: str,
    clock: ManualClock,
    rounds: int = 3,
    *,
    options: dict[str, str] | None = None,
    seed: int = 1,
    **settings: Any,
) -> None:
    """Jobs of every kind, with every kind of end, an hour for each round."""
    async with Queue.open(
        url,
        options=options,
        clock=clock,
        rng=Random(seed),
        worker="w1",
        stale_timeout=timedelta(minutes=2),
        payload_max=64,
        **settings,
    ) as q:
        await play(q, clock, rounds)


async def play(q: Queue[bytes], clock: ManualClock, rounds: int) -> None:
    """What happens to such a queue; its lease is two minutes, and payloads of more than 64 bytes are large."""
    for n in range(rounds):
        await q.enqueue("send", b"x" * n, headers={"trace": f"t{n}", "empty": ""}, zone=f"zone-{n % 2}", priority=n)
        await q.enqueue_many([("resize", b"\0\xff%d" % n), NewJob("send", b"", key=f"key-{n}", max_attempts=1)])
        await q.enqueue("later", b"large" * 30, delay=90)
        await q.enqueue("later", b"cancelled", delay=5000)
        await clock.advance(1)
        for job in await q.dequeue("send", batch_size=2):
            if job.key is not None:
                await job.nack(error=f"no such user {n}")
            else:
                await job.ack(result=b"sent" if n % 2 else None)
        [held] = await q.dequeue("resize")
        await q.heartbeat(held.id, held.token)
        await held.nack(error="try again", delay=30)
        if n % 3 == 2:
            waiting = await q.jobs(states=[JobState.DELAYED], entrypoint="later")
            await q.cancel(waiting[-1].id)
            dead = await q.jobs(states=[JobState.DEAD])
            await q.retry(dead[0].id)
            await q.purge(entrypoint="nothing")
        await q.dequeue("resize")  # nobody finishes it: its lease runs out
        await clock.advance(3600)


async def complete(url: str, clock: ManualClock) -> None:
    """A ring of two shards whose logs have every kind of event; `test_histories.py` names those that are missing."""
    await ring_of(url, 2, clock)
    await varied(url, clock, 3, retention=timedelta(days=30))
    settings: dict[str, Any] = {"stale_timeout": timedelta(minutes=2), "retention": timedelta(days=30)}
    async with Queue.open(url, clock=clock, rng=Random(2), worker="w2", **settings) as q:
        await _end_in_other_ways(q, clock)
        await _take_detours(q, clock)
        await _use_zones(q, clock)
        await _use_gates_and_schedules(q, clock)
        await q.enqueue("watched", b"", request_id="once")
        with Stager(url, clock=clock) as stager:
            part = await asyncio.to_thread(stager.stage, StagedJobs(["s1", "s2"], "staged", b"x"))
        await q.admit("nightly", 1, [part])
        await q.dequeue("watched", lease=600)
    # A process that closes before a lease has run out says how long it has seen it.
    async with Queue.open(url, clock=clock, rng=Random(3), worker="w3", **settings) as q:
        # In both shards: a process that only looks records nothing.
        await q.enqueue_many([NewJob("visit", b"", zone=f"zone-{n}") for n in range(8)])
        for _ in range(400):  # a process that slept has watched nothing
            await clock.advance(1)


async def _end_in_other_ways(q: Queue[bytes], clock: ManualClock) -> None:
    """Outcomes that are neither done nor failed, and jobs that change while they wait or run."""
    ways: dict[str, dict[str, Any]] = {
        "snoozed": {"delay_ms": 1000, "how": OutcomeKind.SNOOZED},
        "declined": {"error": "TypeError: unknown argument", "how": OutcomeKind.DECLINED},
        "crashed": {"error": "WorkerDied: killed", "how": OutcomeKind.CRASHED},
        "withdrawn": {"error": "not needed", "how": OutcomeKind.CANCELLED},
        "died": {"error": "ValueError: never", "how": OutcomeKind.FINAL},
    }
    for way, said in ways.items():
        await q.enqueue(way, b"", max_crashes=2)
        [job] = await q.dequeue(way)
        await q.settle([Outcome(job.id, job.token, **said)])
    for _ in range(2):  # the second crash is one too many
        await clock.advance(7200)
        for job in await q.dequeue("crashed"):
            await q.settle([Outcome(job.id, job.token, "WorkerDied: killed", how=OutcomeKind.CRASHED)])
    await q.enqueue("moved", b"")
    [job] = await q.dequeue("moved")
    await q.heartbeats([Lease(job.id, job.token, Progress(1, 2, "half"))])
    await q.give_back([job])
    await q.reschedule(job.id, delay=60, priority=7)
    await q.enqueue("late", b"", expires=60)
    await clock.advance(120)
    assert not await q.dequeue("late")
    dead = await q.jobs(states=[JobState.DEAD], entrypoint="died")
    assert dead
    await q.purge(entrypoint="died")


async def _take_detours(q: Queue[bytes], clock: ManualClock) -> None:
    """Jobs that are put off, moved, revived or cancelled at different points of their lives."""
    ways = {
        "put_off": "snooze fail done",
        "hurried": "hurry fail done",
        "failed_then_moved": "fail move done",
        "moved_then_failed": "move fail done",
        "cancelled_at_work": "fail claim cancel",
        "cancelled_in_between": "fail cancel",
        "withdrawn_at_last": "fail withdraw",
        "unclaimed": "done_unclaimed",
        "put_off_and_dead": "snooze die",
        "revived_once": "die revive done",
        "revived_and_put_off": "fail die revive snooze done",
        "revived_and_failing": "die revive fail fail die",
        "revived_for_nothing": "crash die revive cancel",
        "left_after_all": "die revive crash move",
    }
    for way, steps in ways.items():
        job = await q.enqueue(way, b"", max_crashes=9, zone="acme")
        for step in steps.split():
            await clock.advance(70)
            await _detour(q, job.id, way, step)


async def _detour(q: Queue[bytes], job_id: str, entrypoint: str, step: str) -> None:
    said: dict[str, dict[str, Any]] = {
        "fail": {"error": "ValueError: 1"},
        "die": {"error": "KeyError: 2", "how": OutcomeKind.FINAL},
        "crash": {"error": "killed", "how": OutcomeKind.CRASHED},
        "snooze": {"delay_ms": 30_000, "how": OutcomeKind.SNOOZED},
        "withdraw": {"how": OutcomeKind.CANCELLED},
        "done": {},
    }
    match step:
        case "move" | "hurry":
            await q.reschedule(job_id, delay=60 if step == "move" else 0, priority=1)
        case "cancel":
            await q.cancel(job_id)
        case "revive":
            await q.retry(job_id)
        case "done_unclaimed":
            await q.ack(job_id)
        case _:
            [job] = await q.dequeue(entrypoint)
            if step != "claim":
                await q.settle([Outcome(job.id, job.token, **said[step])])


async def _use_zones(q: Queue[bytes], clock: ManualClock) -> None:
    await q.set_zone("acme", weight=2, running_max=5)
    for zone in ("acme", "globex"):
        await q.enqueue("zoned", b"", zone=zone)
        lease = await q.lease_zone(zone, lease=60)
        assert lease is not None
        if zone == "acme":
            await q.heartbeat_zone(lease)
            await q.release_zone(lease)
        else:
            await clock.advance(300)  # nobody renews it


async def _use_gates_and_schedules(q: Queue[bytes], clock: ManualClock) -> None:
    await q.pause("nothing")
    await q.resume("nothing")
    await q.set_schedule("hourly", "0 * * * *", ("ticked", b""))
    await clock.advance(3700)
    await q.drop_schedule("hourly")
