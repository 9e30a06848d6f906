"""Histories made by chance: some days of a queue in which everything happens that can happen to a job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from casque import CasqueError, JobState, NewJob, Outcome, OutcomeKind, Queue
from casque.client.staging import StagedJobs, Stager
from casque.clock import Random
from casque.service import Lease
from casque.testing.clock import ManualClock
from casque.types import Backoff, Progress
from tests.spark.histories import ring_of

BEGIN_MS = 1_771_096_800_000
"""2026-02-14, 19:20 UTC: the first midnight is near."""
ENTRYPOINTS = ("send", "resize", "charge")
ZONES = (None, "acme", "globex", "hooli", "it's")
WORKERS = ("w1", "w2", "w3")
ERRORS = (
    "ValueError: no such user 7",
    "Timeout after 30 s: 10.0.0.1",
    "lost 0xfeed",
    None,
    "job 6f1c8d2a-93b4-4c5e-8a77-0123456789ab not found",
    "no colon 12 and digest 0123456789abcdef01 " + "x" * 200,
)


class GeneratedHistory:
    """Plays on, a portion at a time. Between portions nobody has the queue open, and everything is archived."""

    def __init__(self, url: str, seed: int, *, shards: int = 0) -> None:
        self.url = url
        self.clock = ManualClock(BEGIN_MS)
        self._rng = Random(seed)
        self._shards = shards
        self._batches = 0
        self._held: list[Lease] = []

    def play(self, portions: int = 1, *, steps: int = 80) -> None:
        for _ in range(portions):
            asyncio.run(self._play(steps))

    async def _play(self, steps: int) -> None:
        await self.clock.advance(self._rng.randint(0, 20 * 3600))  # nobody has it open, which costs no time here
        if self._shards and not self._batches:
            await ring_of(self.url, self._shards, self.clock)
        settings: dict[str, Any] = {
            "stale_timeout": timedelta(minutes=2),
            "retention": timedelta(days=30),
            "payload_max": 64,
        }
        weights: dict[Callable[[Queue[bytes]], Awaitable[None]], int] = {
            self._enqueue: 8,
            self._claim: 10,
            self._finish: 12,
            self._renew: 3,
            self._give_back: 1,
            self._intervene: 3,
            self._look_after_the_dead: 2,
            self._hold_up: 1,
        }
        rng = self._rng
        async with Queue.open(
            self.url, clock=self.clock, rng=Random(rng.getrandbits(32)), worker=rng.choice(WORKERS), **settings
        ) as q:
            if not self._batches:
                await self._fail_often(q)
                await q.set_schedule("often", "*/50 * * * *", ("send", b"tick"))
            await self._admit(q)
            await self._burst(q)
            for _ in range(steps):
                await rng.choices(list(weights), list(weights.values()))[0](q)
                # Now and then two things happen in the same millisecond.
                await self.clock.advance(rng.choice((0, 0.013, 2, 7, 40, 90, 300)))

    # --- Steps ---

    async def _enqueue(self, q: Queue[bytes]) -> None:
        rng = self._rng
        with suppress(CasqueError):  # while it drains, nothing is added
            await q.enqueue_many([self._new() for _ in range(rng.randint(1, 5))])
            await q.enqueue("charge", b"", zone="fifo", fifo=True, request_id=f"r{rng.getrandbits(60)}")

    def _new(self) -> NewJob[bytes]:
        rng = self._rng
        return NewJob(
            rng.choice(ENTRYPOINTS),
            b"x" * rng.choice((0, 3, 64, 90)),
            priority=rng.choice((0, 0, -1, 5)),
            delay=rng.choice((None, None, None, 0, 30.5, 400, 90_000)),
            key=rng.choice((None, None, None, "k1", "k2")),
            max_attempts=rng.choice((None, 1, 2, 3)),
            headers=rng.choice((None, {"trace": "t"})),
            zone=rng.choice(ZONES),
            max_crashes=rng.choice((None, 1, 2, 3)),
            tags=rng.choice(((), ("a", "b"))),
        )

    async def _claim(self, q: Queue[bytes]) -> None:
        rng = self._rng
        which = rng.choice((None, ENTRYPOINTS))
        jobs = await q.dequeue(which, batch_size=rng.randint(1, 9), lease=rng.choice((None, 1000, 90_000)))
        self._held += [Lease(job.id, job.token) for job in jobs]

    async def _finish(self, q: Queue[bytes]) -> None:
        rng = self._rng
        rng.shuffle(self._held)
        count = rng.randint(1, 9)
        ended, self._held = self._held[:count], self._held[count:]
        await q.settle([self._outcome(one) for one in ended if rng.random() < 0.95])

    def _outcome(self, one: Lease) -> Outcome:
        rng = self._rng
        error = rng.choice(ERRORS)
        ways: dict[str, tuple[int, dict[str, Any]]] = {
            "done": (6, {"result": rng.choice((None, b"", b"sent"))}),
            "failed": (5, {"error": error or "again", "delay_ms": rng.choice((None, 0, 5_000, 60_000))}),
            "backs off": (2, {"error": error or "again", "backoff": Backoff(1_000, 60_000)}),
            "dead": (1, {"error": error or "never", "how": OutcomeKind.FINAL}),
            "crashed": (3, {"error": error or "killed", "how": OutcomeKind.CRASHED}),
            "snoozed": (4, {"delay_ms": rng.choice((0, 1_000, 60_000, 7_000_000)), "how": OutcomeKind.SNOOZED}),
            "withdrawn": (1, {"error": error, "how": OutcomeKind.CANCELLED}),
            "declined": (2, {"error": error or "unknown", "how": OutcomeKind.DECLINED}),
        }
        [said] = rng.choices([said for _, said in ways.values()], [weight for weight, _ in ways.values()])
        assert one.token is not None
        return Outcome(one.job_id, one.token, **said)

    async def _renew(self, q: Queue[bytes]) -> None:
        self._rng.shuffle(self._held)
        renewed = [Lease(one.job_id, one.token, Progress(1, 2, "half")) for one in self._held[:3]]
        await q.heartbeats([*renewed, *self._held[3:6]])

    async def _give_back(self, q: Queue[bytes]) -> None:
        given, self._held = self._held[:2], self._held[2:]
        await q.give_back(given)

    async def _intervene(self, q: Queue[bytes]) -> None:
        rng = self._rng
        found = [job for job in await q.jobs(limit=500) if job.state is not JobState.DEAD]
        for job in rng.sample(found, min(len(found), 3)):
            with suppress(CasqueError):  # it may be running
                match rng.randint(0, 5):
                    case 0:
                        await q.cancel(job.id)
                    case 1:
                        await q.ack(job.id)
                    case _:
                        await q.reschedule(job.id, delay=rng.choice((None, 0, 50, 900)), priority=rng.choice((None, 3)))

    async def _look_after_the_dead(self, q: Queue[bytes]) -> None:
        for job in await q.jobs(states=[JobState.DEAD], limit=500):
            with suppress(CasqueError):  # another job may have its key by now
                if self._rng.random() < 0.4:
                    await q.retry(job.id)
        if self._rng.random() < 0.1:
            await q.purge(entrypoint=self._rng.choice(ENTRYPOINTS))

    async def _hold_up(self, q: Queue[bytes]) -> None:
        rng = self._rng
        await rng.choice((q.pause, q.drain, q.resume, q.resume))("resize")
        await q.set_zone("acme", weight=rng.choice((1, 2)), running_max=rng.choice((None, 2)))
        await q.requeue_stale(rng.choice((600, 90_000)))

    async def _admit(self, q: Queue[bytes]) -> None:
        self._batches += 1
        ids = [f"staged-{self._batches}-{n}" for n in range(4)]
        with Stager(self.url, clock=self.clock) as stager:
            part = await asyncio.to_thread(stager.stage, StagedJobs(ids, "send", b"staged"))
        await q.admit("nightly", self._batches, [part])

    async def _burst(self, q: Queue[bytes]) -> None:
        """More in an hour than a sketch keeps exactly."""
        if self._batches != 2:
            return
        await q.resume()
        await q.enqueue_many([NewJob("burst", b"", zone="hooli") for _ in range(700)])
        while jobs := await q.dequeue("burst", batch_size=self._rng.randint(5, 15)):
            await self.clock.advance(self._rng.randint(10, 40_000) / 1000)
            await q.settle([Outcome(job.id, job.token) for job in jobs])

    async def _fail_often(self, q: Queue[bytes]) -> None:
        """More often than is kept."""
        for entrypoint, times in (("stubborn", 53), ("persistent", 50), ("lasting", 51)):
            await q.enqueue(entrypoint, b"", max_attempts=1000)
            for _ in range(times):
                [job] = await q.dequeue(entrypoint)
                await self.clock.advance(0.25)
                await job.nack(error="again", delay=1)
                await self.clock.advance(1)
        for entrypoint in ("persistent", "lasting"):
            [job] = await q.dequeue(entrypoint)
            await job.ack()
