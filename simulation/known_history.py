"""A history whose every number is known: jobs that went through a real queue, and beside it what was done to them.

A script plays producers and workers on a clock that it moves itself: bursts, retries, leases that run out, dead
letters, cancelled and delayed jobs, zones of very different size, across a midnight of UTC. It writes down each thing
it does as it does it. Whoever computes tables and reports from the queue can then be held against `KnownHistory`, which
never looked at what the queue stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from itertools import count
from typing import Any

import msgspec

from casque.client.opening import Parts, as_store
from casque.clock import Random, new_id
from casque.engine.embedded import EmbeddedService
from casque.settings import QueueSettings
from casque.storage.memory import MemoryStore
from casque.storage.port import LOST, Store, Stored
from casque.testing.clock import ManualClock
from casque.types import JobRecord, JobSpec, JobState

BEGIN = datetime(2026, 2, 15, 21, 10, tzinfo=UTC)
END = datetime(2026, 2, 16, 2, 50, tzinfo=UTC)
LEASE_MS = 45_003
"""Everything the script does happens at a multiple of 10 ms, and so never at the moment a lease runs out."""
NOTICED_MS = LEASE_MS + 1
"""When the queue takes a lease back that nobody renewed."""
BEAT_MS = 20_000
LEASE_RAN_OUT = "the lease ran out: its worker stopped sending heartbeats"
HOSTILE = '<script>alert("1")</script>&amp;'
"""An entrypoint like any other: names are text, and whoever shows them has to show them as that."""


class Try(msgspec.Struct, frozen=True):
    """One attempt at a job."""

    job_id: str
    number: int
    """From 1; a dead job that is given fresh attempts starts again from 1."""
    token: int
    worker: str
    due_ms: int
    """Since when it could have been claimed."""
    claimed_ms: int
    ended_ms: int | None
    """None: it is still under way at the end."""
    outcome: str | None
    """`failed`, `expired`, or if the job ended with it `done`, `dead` or `cancelled`."""
    error: str | None


class End(msgspec.Struct, frozen=True):
    """One end of a job. A dead job that is given fresh attempts may end again."""

    job_id: str
    state: str
    finished_ms: int
    attempts: int
    due_ms: int
    claimed_ms: int | None
    worker: str | None
    error: str | None


class Commit(msgspec.Struct, frozen=True):
    """One conditional write of the queue, and the jobs that it was about, as often as they occur in it."""

    at_ms: int
    verb: str
    jobs: tuple[str, ...]


class Change(msgspec.Struct, frozen=True):
    """A job went from one state to another. A delayed job turns ready by time alone: that is no commit."""

    at_ms: int
    job_id: str
    before: JobState | None
    after: JobState | None
    """None: it is no longer in the queue."""


class KnownHistory(msgspec.Struct, frozen=True):
    """What was done, in order."""

    begin_ms: int
    end_ms: int
    specs: dict[str, JobSpec]
    created_ms: dict[str, int]
    tries: tuple[Try, ...]
    """By the time they were claimed, those still under way included."""
    ends: tuple[End, ...]
    commits: tuple[Commit, ...]
    changes: tuple[Change, ...]
    """By time. Those that time alone brings are there if they happened before the end."""
    states: dict[str, JobState]
    """Of the jobs that are still in the queue at the end."""

    def zone(self, job_id: str) -> str | None:
        return self.specs[job_id].zone

    def entrypoint(self, job_id: str) -> str:
        return self.specs[job_id].entrypoint


async def write_known_history(url: Any, *, seed: int = 5, options: dict[str, str] | None = None) -> KnownHistory:
    """Write the history to a store, which has to be empty, and say what it was. The same for the same seed.

    `url` is what `Queue.open` takes. A few seconds of work: share it between tests.
    """
    # A clock that is moved only works with a store that answers without waiting for anything: it is played in memory,
    # and what the queue has written there is then what lies in the other store, object by object.
    played = MemoryStore()
    known = await _Script(played, seed).play()
    store = as_store(url, options)
    try:
        await copy_objects(played, store)
    finally:
        if isinstance(url, str):
            await store.close()
    return known


async def copy_objects(source: Store, target: Store) -> None:
    """All objects of one store into another, an empty one."""
    # The head comes last: whoever looks before that finds no queue rather than half of one.
    for key in sorted([key async for key in source.list()], key=lambda key: key == "queue.json"):
        read = await source.get(key)
        assert isinstance(read, Stored)
        if await target.create(key, read.body) == LOST:
            raise RuntimeError(f"the store is not empty: there is a {key!r} already")


class _Kind(msgspec.Struct, frozen=True):
    """How the jobs of one entrypoint behave."""

    run_ms: tuple[int, int]
    """The usual span; one in eight takes up to five times as long."""
    fails: float
    vanishes: float = 0.02
    errors: tuple[str, ...] = ("RuntimeError: it did not work",)
    max_attempts: int = 5
    retry_ms: int = 4_000


KINDS = {
    "email.send": _Kind(
        (300, 5_000), 0.06, errors=("TimeoutError: the server took too long", "ValueError: no such address")
    ),
    "report.render": _Kind(
        (8_000, 40_000), 0.08, 0.06, ("MemoryError: the report has too many pages",), max_attempts=3
    ),
    "image.resize": _Kind((900, 7_000), 0.12, 0.1, ("OSError: the image is cut off",), max_attempts=2),
    "billing.charge": _Kind(
        (400, 2_500),
        0.35,
        errors=("ConnectionError: the bank is away", "PermissionError: the card was refused"),
        max_attempts=2,
        retry_ms=15_000,
    ),
    "legacy.sync": _Kind(
        (2_000, 9_000), 0.6, errors=("KeyError: 'customer'", "TimeoutError: no answer in 8 s"), max_attempts=2
    ),
    HOSTILE: _Kind((50, 400), 0.3, 0.0, ("<b>Error</b>: a name & a half", "no class, just words"), max_attempts=2),
}
MIX = ["email.send"] * 8 + ["image.resize"] * 5 + ["billing.charge"] * 3 + ["report.render", "legacy.sync", HOSTILE]
ZONES = ["acme"] * 14 + ["globex"] * 6 + ["initech"] * 2 + ["hooli", "zürich <&>", None]
WORKERS: dict[str, tuple[tuple[str, ...] | None, int]] = {
    "anna": (None, 1),
    "bert": (("email.send", "billing.charge"), 3),
    "cleo": (("image.resize", "report.render"), 1),
    "dora": (None, 2),
}
"""What each takes, and how many at once; it does them one after the other."""
NOBODYS = "orphan.task"


class _Worker:
    def __init__(self, name: str) -> None:
        self.name = name
        self.takes, self.batch = WORKERS[name]
        self.free = True


class _Script:
    """Plays the history, and keeps its own books."""

    def __init__(self, store: Store, seed: int) -> None:
        self._rng = Random(seed)
        self._clock = ManualClock(_ms(BEGIN))
        settings = QueueSettings(
            stale_timeout=timedelta(milliseconds=LEASE_MS),
            retention=timedelta(days=3650),
            archive_interval=timedelta(minutes=10),
            payload_max=1_000,
        )
        self._parts = Parts(store, settings, layout="log", clock=self._clock, rng=Random(seed + 1))
        # What `Queue` is in front of: here one process plays several workers, each under its own name.
        self._group = self._parts.group()
        self._queue = EmbeddedService(
            self._group, settings, self._parts.history(), blobs=self._parts.blobs(tolerant=True)
        )
        self._plan: list[tuple[int, int, Callable[[], Awaitable[None]]]] = []
        self._order = count()
        self._workers = [_Worker(name) for name in WORKERS]
        self._specs: dict[str, JobSpec] = {}
        self._created: dict[str, int] = {}
        self._due: dict[str, int] = {}
        self._lost: set[str] = set()
        """Jobs that have lost a worker: they go to the back when they lose another."""
        self._attempts: dict[str, int] = {}
        self._error: dict[str, str] = {}
        self._states: dict[str, JobState] = {}
        self._last: dict[str, Try] = {}
        """The latest attempt of each job, finished or not."""
        self._tries: dict[int, Try] = {}
        self._beats: dict[int, int] = {}
        self._gone: set[int] = set()
        """Claims whose worker will not be heard of again."""
        self._ends: list[End] = []
        self._commits: list[Commit] = []
        self._changes: list[Change] = []

    async def play(self) -> KnownHistory:
        await self._group.start()
        try:
            self._plan_producers()
            while self._plan and self._plan[0][0] < _ms(END):
                at_ms, _, step = heappop(self._plan)
                await self._until(at_ms)
                await step()
            await self._until(_ms(END))
        finally:
            await self._group.stop()
        return KnownHistory(
            _ms(BEGIN),
            _ms(END),
            self._specs,
            self._created,
            tuple(sorted(self._tries.values(), key=lambda one: (one.claimed_ms, one.token))),
            tuple(self._ends),
            tuple(self._commits),
            tuple(self._changes),
            self._states,
        )

    # --- The plot ---

    def _plan_producers(self) -> None:
        begin_ms, minute = _ms(BEGIN), 60_000
        at_ms = begin_ms
        quiet = range(_ms(datetime(2026, 2, 16, 1, tzinfo=UTC)), _ms(datetime(2026, 2, 16, 2, 5, tzinfo=UTC)))
        while at_ms < _ms(END) - 2 * minute:
            if at_ms not in quiet:
                self._at(at_ms, self._trickle)
            at_ms += self._tens(40_000, 200_000)
        self._at(begin_ms + 55 * minute, lambda: self._burst("acme", "email.send", 90))
        self._at(begin_ms + 150 * minute, lambda: self._burst("globex", "image.resize", 40))
        self._at(begin_ms + 168 * minute, lambda: self._burst("acme", "billing.charge", 12))
        for after in (31, 131, 231, 311):
            self._at(begin_ms + after * minute, lambda: self._burst("initech", NOBODYS, 1))
        for after in (20, 71, 171, 190):
            self._at(begin_ms + after * minute, self._cancel_one)
        for after in (140, 215, 330):
            self._at(begin_ms + after * minute, self._revive_one)
        self._at(begin_ms + 160 * minute, lambda: self._purge("legacy.sync"))
        self._at(_ms(END) - minute, lambda: self._put_off("hooli", "email.send"))
        self._at(_ms(END) - 5_000, lambda: self._burst("acme", "report.render", 3))

    async def _trickle(self) -> None:
        specs = [self._spec(self._rng.choice(ZONES), self._rng.choice(MIX)) for _ in range(self._rng.randint(1, 4))]
        await self._enqueue(specs)

    async def _burst(self, zone: str, entrypoint: str, jobs: int) -> None:
        await self._enqueue([self._spec(zone, entrypoint) for _ in range(jobs)])

    async def _put_off(self, zone: str, entrypoint: str) -> None:
        """Not due before the end."""
        await self._enqueue([self._spec(zone, entrypoint, delay_ms=86_400_000) for _ in range(3)])

    async def _cancel_one(self) -> None:
        """A delayed job, or one that is being worked on."""
        await self._enqueue([self._spec("acme", NOBODYS, delay_ms=3_600_000)])
        running = sorted(self._open(JobState.RUNNING))
        for job_id in [*sorted(self._open(JobState.DELAYED))[-1:], *running[:1]]:
            await self._queue.cancel(job_id)
            self._committed("cancel", job_id)
            if self._states[job_id] is JobState.RUNNING:
                self._end_try(job_id, "cancelled", None)
            self._end(job_id, JobState.CANCELLED)

    async def _revive_one(self) -> None:
        for job_id in sorted(self._open(JobState.DEAD))[:2]:
            await self._queue.retry(job_id)
            self._committed("retry", job_id)
            self._attempts[job_id] = 0
            self._wait(job_id, self._now(), JobState.READY)

    async def _purge(self, entrypoint: str) -> None:
        doomed = [one for one in self._open(JobState.DEAD) if self._specs[one].entrypoint == entrypoint]
        if doomed:
            assert await self._queue.purge(entrypoint=entrypoint) == len(doomed)
            self._committed("purge", *doomed)
            for job_id in doomed:
                self._change(job_id, None)

    def _spec(self, zone: str | None, entrypoint: str, delay_ms: int = 0) -> JobSpec:
        rng = self._rng
        if not delay_ms and rng.random() < 0.08:
            delay_ms = self._tens(20_000, 900_000)
        large = rng.random() < 0.01
        return JobSpec(
            new_id(rng),
            entrypoint,
            rng.randbytes(1_500 if large else rng.randint(4, 90)),
            rng.choice((0, 0, 0, 0, 5, -1)),
            self._now() + delay_ms if delay_ms else None,
            KINDS[entrypoint].max_attempts if entrypoint in KINDS else 3,
            headers={"trace": f"{rng.getrandbits(32):08x}"} if rng.random() < 0.1 else None,
            zone=zone,
        )

    # --- Producers and workers ---

    async def _enqueue(self, specs: Sequence[JobSpec]) -> None:
        now_ms = self._now()
        await self._queue.enqueue(specs)
        self._committed("enqueue", *(spec.id for spec in specs))
        for spec in specs:
            self._specs[spec.id] = spec
            self._created[spec.id] = now_ms
            self._attempts[spec.id] = 0
            self._wait(spec.id, spec.run_at_ms or now_ms, JobState.DELAYED if spec.run_at_ms else JobState.READY)

    def _wake(self, due_ms: int) -> None:
        """Everybody who has nothing to do looks for a job, some sooner than others."""
        for worker in self._workers:
            self._at(self._up(due_ms) + self._tens(20, 900), lambda worker=worker: self._look(worker))  # type: ignore[misc]

    async def _look(self, worker: _Worker) -> None:
        if not worker.free:
            return
        limit = self._rng.randint(1, worker.batch)
        # Nobody takes what nobody can do.
        takes = worker.takes or tuple(KINDS)
        now_ms = self._now()
        claimed = await self._queue.dequeue(entrypoints=takes, limit=limit, worker=worker.name)
        if not claimed:
            return
        worker.free = False
        self._committed("dequeue", *(job.id for job in claimed))
        for job in claimed:
            self._attempts[job.id] += 1
            one = Try(
                job.id,
                self._attempts[job.id],
                job.token,
                worker.name,
                self._due[job.id],
                now_ms,
                None,
                None,
                None,
            )
            self._last[job.id] = self._tries[job.token] = one
            self._change(job.id, JobState.RUNNING)
        if self._rng.random() < 0.02:
            self._at(now_ms + 30, lambda: self._give_back(claimed[-1]))
        self._work(worker, claimed, now_ms)

    def _work(self, worker: _Worker, claimed: list[JobRecord], at_ms: int) -> None:
        """One after the other, each with its end decided by chance."""
        rng = self._rng
        until: dict[str, int] = {}
        for place, job in enumerate(claimed):
            kind = KINDS[job.spec.entrypoint]
            if rng.random() < kind.vanishes:
                self._at(at_ms, lambda rest=claimed[place:]: self._vanish(rest))  # type: ignore[misc]
                until.update((lost.id, at_ms) for lost in claimed[place:])
                at_ms += self._tens(60_000, 150_000)
                break
            at_ms += self._tens(*kind.run_ms) * (rng.randint(2, 5) if rng.random() < 0.12 else 1)
            until[job.id] = at_ms
            error = rng.choice(kind.errors) if rng.random() < kind.fails else None
            self._at(at_ms, lambda job=job, error=error: self._finish(job, error))  # type: ignore[misc]
        # A worker renews all that it has claimed, also what it has not begun.
        for job in claimed:
            for beat_ms in range(_claimed_ms(job) + BEAT_MS, until[job.id], BEAT_MS):
                self._at(beat_ms, lambda job=job: self._beat(job))  # type: ignore[misc]
        self._at(at_ms + self._tens(0, 400), lambda: self._rest(worker))

    async def _rest(self, worker: _Worker) -> None:
        worker.free = True
        await self._look(worker)

    def _holds(self, job: JobRecord) -> bool:
        """Whether this claim of it is the one that counts, still."""
        return self._states.get(job.id) is JobState.RUNNING and self._last[job.id].token == job.token

    async def _beat(self, job: JobRecord) -> None:
        if self._holds(job) and job.token not in self._gone:
            await self._queue.heartbeat(job.id, token=job.token)
            self._committed("heartbeat", job.id)
            self._beats[job.token] = self._now()

    async def _finish(self, job: JobRecord, error: str | None) -> None:
        if not self._holds(job):
            return
        if error is None:
            await self._queue.ack(job.id, token=job.token, result=b"ok" if self._rng.random() < 0.2 else None)
            self._committed("ack", job.id)
            self._end_try(job.id, "done", None)
            self._end(job.id, JobState.DONE)
            return
        delay_ms = KINDS[job.spec.entrypoint].retry_ms * self._attempts[job.id]
        await self._queue.nack(job.id, token=job.token, delay_ms=delay_ms, error=error)
        self._committed("nack", job.id)
        self._fail(job.id, "failed", error, self._now() + delay_ms, JobState.DELAYED)

    async def _give_back(self, job: JobRecord) -> None:
        """A claim that was not worked on is no attempt."""
        if not self._holds(job):
            return
        await self._queue.give_back(job.id, token=job.token)
        self._committed("give_back", job.id)
        self._attempts[job.id] -= 1
        del self._tries[job.token]
        self._wait(job.id, self._due[job.id], JobState.READY)

    async def _vanish(self, claimed: list[JobRecord]) -> None:
        """Its process was killed: nobody hears of these claims again, until their leases run out."""
        for job in claimed:
            if self._holds(job):
                self._gone.add(job.token)
                since_ms = self._beats.get(job.token, _claimed_ms(job))
                self._at(since_ms + NOTICED_MS, lambda job=job: self._expire(job))  # type: ignore[misc]

    async def _expire(self, job: JobRecord) -> None:
        """The queue does this by itself; the script only knows when."""
        if not self._holds(job):
            return
        now_ms = self._now()
        if self._commits[-1].at_ms == now_ms and self._commits[-1].verb == "expire":
            last = self._commits.pop()
            self._commits.append(Commit(now_ms, "expire", (*last.jobs, job.id)))
        else:
            self._committed("expire", job.id)
        place_ms = self._due[job.id] if job.id not in self._lost else now_ms + 1
        self._lost.add(job.id)
        self._fail(job.id, "expired", LEASE_RAN_OUT, place_ms, JobState.READY)

    # --- The books ---

    def _fail(self, job_id: str, outcome: str, error: str, due_ms: int, state: JobState) -> None:
        self._error[job_id] = error
        max_attempts = self._specs[job_id].max_attempts
        if max_attempts is not None and self._attempts[job_id] >= max_attempts:
            self._end_try(job_id, "dead", error)
            self._end(job_id, JobState.DEAD)
        else:
            self._end_try(job_id, outcome, error)
            self._wait(job_id, due_ms, state)

    def _wait(self, job_id: str, due_ms: int, state: JobState) -> None:
        self._due[job_id] = due_ms
        self._change(job_id, state)
        self._wake(max(due_ms, self._now()))
        if state is JobState.DELAYED:
            self._at(due_ms, lambda: self._ripen(job_id, due_ms))

    async def _ripen(self, job_id: str, due_ms: int) -> None:
        if self._states.get(job_id) is JobState.DELAYED and self._due[job_id] == due_ms:
            self._change(job_id, JobState.READY)

    def _end_try(self, job_id: str, outcome: str, error: str | None) -> None:
        last = self._last[job_id]
        ended = msgspec.structs.replace(last, ended_ms=self._now(), outcome=outcome, error=error)
        self._last[job_id] = self._tries[last.token] = ended

    def _end(self, job_id: str, state: JobState) -> None:
        last = self._last.get(job_id)
        self._ends.append(
            End(
                job_id,
                state.value,
                self._now(),
                self._attempts[job_id],
                self._due[job_id],
                None if last is None else last.claimed_ms,
                last.worker if last is not None and self._states[job_id] is JobState.RUNNING else None,
                self._error.get(job_id),
            )
        )
        self._change(job_id, JobState.DEAD if state is JobState.DEAD else None)

    def _change(self, job_id: str, after: JobState | None) -> None:
        self._changes.append(Change(self._now(), job_id, self._states.get(job_id), after))
        # Taken out first: dead jobs are purged in the order of their last deaths.
        self._states.pop(job_id, None)
        if after is not None:
            self._states[job_id] = after

    def _committed(self, verb: str, *job_ids: str) -> None:
        self._commits.append(Commit(self._now(), verb, job_ids))

    def _open(self, state: JobState) -> list[str]:
        return [job_id for job_id, current in self._states.items() if current is state]

    # --- Time ---

    def _at(self, at_ms: int, step: Callable[[], Awaitable[None]]) -> None:
        heappush(self._plan, (at_ms, next(self._order), step))

    async def _until(self, at_ms: int) -> None:
        assert at_ms >= self._now(), "what is over cannot be planned"
        await self._clock.advance((at_ms - self._clock.wall_ms()) / 1000)

    def _now(self) -> int:
        return self._clock.wall_ms()

    def _tens(self, least_ms: int, most_ms: int) -> int:
        return self._rng.randint(least_ms // 10, most_ms // 10) * 10

    def _up(self, at_ms: int) -> int:
        return -(-at_ms // 10) * 10


def _claimed_ms(job: JobRecord) -> int:
    assert job.claimed_ms is not None
    return job.claimed_ms


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
