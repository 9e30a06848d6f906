"""The network between one process and the bucket: a `Store` whose requests travel, and some of which come to grief."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from casque.clock import Random
from casque.codec.blobs import BLOBS
from casque.errors import StorageError
from casque.storage.port import MISSING, Outcome, Read, Unknown
from simulation.world.bucket import Bucket
from simulation.world.profile import Fault

if TYPE_CHECKING:
    from simulation.world.life import Life

R = TypeVar("R")
PAGE = 8
"""Keys that one request of a listing brings at most."""


class Line:
    """What one life of a process knows as its store. Outcomes are truthful or unknown, except for `Fault.HIDDEN`."""

    def __init__(self, bucket: Bucket, life: Life, rng: Random) -> None:
        self._bucket = bucket
        self.life = life
        self.rng = rng

    async def create(self, key: str, body: bytes) -> Outcome:
        await self._reach(key)
        attempt = partial(self._bucket.create, key, body, self.life)
        return await _Write(self, "create", lambda synced: self._settled(key) or attempt(synced=synced)).sent()

    async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
        await self._reach(key)
        attempt = partial(self._bucket.replace, key, body, expected, self.life)
        return await _Write(self, "replace", lambda synced: self._settled(key) or attempt(synced=synced)).sent()

    async def get(self, key: str, *, unless: str | None = None) -> Read:
        await self._reach(key)
        if self._is_unread(key):
            raise StorageError("slow down")
        read = await _Fetch(self, lambda: self._settled(key) or self._found(key, unless)).sent()
        if isinstance(read, Unknown):
            raise StorageError("the sync failed", read.cause)
        return read

    async def delete(self, key: str) -> None:
        await self._reach(key)
        await _Delete(self, "delete", lambda _synced: self._delete(key)).sent()

    async def _reach(self, key: str) -> None:
        self.life.stop_if_dead()
        if self.life.world.is_away(key):
            await self.life.clock.sleep(self.latency_s(slow=False))
            raise StorageError("slow down")

    def _is_unread(self, key: str) -> bool:
        """Whether this is a large payload that cannot be had just now."""
        world = self.life.world
        if not world.profile.unread or world.healed or not key.startswith(BLOBS):
            return False
        unread = self.rng.random() < world.profile.unread
        world.faults[Fault.READ_FAILED] += unread
        return unread

    def _found(self, key: str, unless: str | None) -> Read:
        return MISSING if self.life.world.is_gone(key) else self._bucket.get(key, unless)

    def _delete(self, key: str) -> None:
        self._bucket.settle(key)
        self._bucket.delete(key, self.life)

    def _settled(self, key: str) -> Unknown | None:
        """Nothing is believed of a key whose last write could not be synced, until a sync works. None if it is."""
        if key in self._bucket.unsynced:
            if not self.life.world.healed and self.rng.random() < 0.5:
                return Unknown(OSError("the sync failed"))
            self._bucket.settle(key)
        return None

    async def list(self, prefix: str = "", *, after: str | None = None) -> AsyncIterator[str]:
        """Page by page: what changes in between is seen or not, and any page may fail."""
        while True:
            await self._reach(prefix)
            limit = self.rng.randint(1, PAGE)
            page = await _Fetch(self, partial(self._bucket.list, prefix, after, limit)).sent()
            for key in page:
                yield key
            if len(page) < limit:
                return
            after = page[-1]

    async def close(self) -> None:
        """Nothing to let go of."""

    def latency_s(self, *, slow: bool) -> float:
        stretch = self.rng.uniform(5.0, 60.0) if slow else 1.0
        return self.rng.uniform(*self.life.world.profile.latency_s) * stretch

    def timeout_s(self) -> float:
        return self.rng.uniform(*self.life.world.profile.timeout_s)

    def fault(self, rates: Mapping[Fault, float]) -> Fault | None:
        """What comes to pass, by chance; counted."""
        drawn = self.rng.random()
        if self.life.world.healed:
            return None
        for fault, rate in rates.items():
            drawn -= rate
            if drawn < 0:
                self.life.world.faults[fault] += 1
                return fault
        return None


class PlacedLine(Line):
    """To a bucket that can tell itself from copies of it."""

    def __init__(self, bucket: Bucket, life: Life, rng: Random, name: str) -> None:
        super().__init__(bucket, life, rng)
        self._name = name

    async def place(self, *, make: bool) -> str:  # noqa: ARG002  it needs no mark
        self.life.stop_if_dead()
        return await _Fetch(self, lambda: self._name).sent()


class _Fetch(Generic[R]):
    """One read under way. It sees the bucket as it is when the request arrives."""

    def __init__(self, line: Line, look: Callable[[], R]) -> None:
        self._line = line
        self._life = line.life
        self._loop = line.life.world.loop
        self._look = look
        self._reply: asyncio.Future[R] = self._loop.create_future()

    async def sent(self) -> R:
        line = self._line
        fault = line.fault(self._life.world.profile.reads)
        there_s = line.latency_s(slow=fault is Fault.READ_SLOW)
        back_s = line.latency_s(slow=fault is Fault.READ_SLOW)
        if self._life.node.cut_off:
            self._loop.call_later(line.timeout_s(), self._life.deliver, self._fail)
        elif fault is Fault.READ_FAILED:
            self._loop.call_later(there_s, self._life.deliver, self._fail)
        else:
            self._loop.call_later(there_s, self._arrive, back_s)
        return await self._reply

    def _arrive(self, back_s: float) -> None:
        read = self._look()
        self._loop.call_later(back_s, self._life.deliver, lambda: self._answer(read))

    def _answer(self, read: R) -> None:
        if self._life.node.cut_off:
            self._fail()
        elif not self._reply.done():
            self._reply.set_result(read)
            self._life.told()

    def _fail(self) -> None:
        if not self._reply.done():
            self._reply.set_exception(StorageError("the read failed"))


class _Change(Generic[R]):
    """One request under way that changes the bucket, now, later, twice or never."""

    def __init__(self, line: Line, verb: str, attempt: Callable[[bool], R]) -> None:
        self._line = line
        self._life = line.life
        self._world = line.life.world
        self._loop = line.life.world.loop
        self._verb = verb
        self._attempt = attempt
        self._reply: asyncio.Future[R] = self._loop.create_future()
        self._fault = line.fault(self._world.profile.writes)
        self._there_s = line.latency_s(slow=self._fault is Fault.SLOW)
        self._back_s = line.latency_s(slow=self._fault is Fault.SLOW)
        rng = line.rng
        # A request that is under way when its sender dies arrives, or does not.
        self._survives = rng.random() < 0.5
        self._deadly = rng.random() < self._world.profile.crash_in_write and not self._world.healed
        self._deadly_late = rng.random() < 0.5

    async def sent(self) -> R:
        line, loop, later = self._line, self._loop, self._loop.call_later
        if self._deadly and not self._deadly_late:
            loop.call_soon(self._crash)
        if self._life.node.cut_off:
            later(line.timeout_s(), self._life.deliver, self._time_out)
            return await self._reply
        if self._life.node.refused:
            later(self._there_s, self._life.deliver, self._refuse)
            return await self._reply
        match self._fault:
            case Fault.THROTTLED:
                later(self._there_s, self._life.deliver, self._refuse)
            case Fault.BEFORE:
                later(line.timeout_s(), self._life.deliver, self._time_out)
            case Fault.AFTER:
                later(self._there_s, self._arrive, False)
                later(line.timeout_s(), self._life.deliver, self._time_out)
            case Fault.DELAYED:
                timeout_s = line.timeout_s()
                # Mostly soon after the sender gave up: then it has a chance to land.
                late_s = self._world.profile.late_s * line.rng.random() ** 4
                later(timeout_s, self._life.deliver, self._time_out)
                later(timeout_s + late_s, self._arrive, False)
            case Fault.DUPLICATED:
                later(self._there_s, self._arrive, True)
                later(self._there_s + line.rng.uniform(0.001, 2.0), self._arrive, False)
            case Fault.HIDDEN:
                later(self._there_s, self._arrive, False)
                later(self._there_s + line.rng.uniform(0.001, 2.0), self._arrive, True)
            case _:
                later(self._there_s, self._arrive, True)
        return await self._reply

    def _arrive(self, tell: bool) -> None:
        if self._life.dead and not self._survives:
            self._world.trace.note(self._life.name, f"{self._verb} died with its sender")
            return
        outcome = self._attempt(self._fault is not Fault.UNSYNCED)
        self._world.trace.note(
            self._life.name, f"{self._verb} arrived, {type(outcome).__name__.lower()} {self._fault or ''}"
        )
        self._life.arrived()
        if self._deadly and self._deadly_late:
            self._crash()
        elif tell:
            self._loop.call_later(self._back_s, self._life.deliver, lambda: self._answer(outcome))

    def _answer(self, outcome: R) -> None:
        if self._life.node.cut_off:
            self._time_out()
        elif not self._reply.done():
            self._reply.set_result(outcome)
            self._life.written()
            self._life.told()

    def _time_out(self) -> None:
        raise NotImplementedError

    def _refuse(self) -> None:
        if not self._reply.done():
            full = OSError(errno.ENOSPC, "no room") if self._world.profile.full else None
            self._reply.set_exception(StorageError("slow down", full))

    def _crash(self) -> None:
        if not self._life.dead:
            self._world.faults[Fault.CRASH_IN_WRITE] += 1
            self._life.node.crash()


class _Write(_Change[Outcome]):
    """A conditional write: without an answer its outcome is unknown."""

    def _time_out(self) -> None:
        if not self._reply.done():
            self._reply.set_result(Unknown(TimeoutError("no answer")))


class _Delete(_Change[None]):
    """A deletion: it fails or succeeds, and a failed one may have happened, or happen yet."""

    def _time_out(self) -> None:
        if not self._reply.done():
            self._reply.set_exception(StorageError("no answer"))
