"""Bounds on how much of a server one address, and one principal, may use at the same time.

A place is taken before a request is read and given back when its call has ended, so usage is bounded with or without a
token. Only `room_for_bytes` and `room_in_time` wait; otherwise a call beyond a limit is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from casque.clock import Clock
from casque.errors import LimitReachedError


class Counts:
    """Counters by name. A counter at zero is dropped."""

    def __init__(self) -> None:
        self._by_name: dict[str, int] = {}
        self.total = 0

    def of(self, name: str) -> int:
        return self._by_name.get(name, 0)

    def names(self) -> int:
        return len(self._by_name)

    def add(self, name: str, by: int = 1) -> None:
        self._by_name[name] = self._by_name.get(name, 0) + by
        self.total += by

    def remove(self, name: str, by: int = 1) -> None:
        self.total -= by
        left = self._by_name.get(name, 0) - by  # a share of size 0 may have been dropped already
        assert left >= 0
        if left:
            self._by_name[name] = left
        else:
            self._by_name.pop(name, None)


class Places:
    """Calls of one kind under way, in total and per caller."""

    def __init__(self, what: str, of_whom: str, *, most: int, each: int) -> None:
        self._what = what
        self._of_whom = of_whom
        self._most = most
        self._each = each
        self.counts = Counts()

    @contextmanager
    def taken(self, name: str) -> Iterator[None]:
        """
        Raises:
            LimitReachedError: there is none left, or none for this caller.
        """
        if self.counts.total >= self._most:
            raise LimitReachedError(f"{self._what} of all callers", self._most)
        if self.counts.of(name) >= self._each:
            raise LimitReachedError(f"{self._what} {self._of_whom}", self._each)
        self.counts.add(name)
        try:
            yield
        finally:
            self.counts.remove(name)


class Connections:
    """Connections per address that have calls under way. An idle connection closes by itself after a while."""

    def __init__(self, *, each: int) -> None:
        self._each = each
        self._calls: dict[str, Counts] = {}

    @contextmanager
    def used(self, host: str, port: str) -> Iterator[None]:
        calls = self._calls.get(host)
        if calls is None:
            calls = self._calls[host] = Counts()
        if calls.names() >= self._each and not calls.of(port):
            raise LimitReachedError("connections from one address", self._each)
        calls.add(port)
        try:
            yield
        finally:
            calls.remove(port)
            if not calls.total:
                del self._calls[host]


class Bytes:
    """Bytes held for callers, by principal: requests read but not answered, or answers produced but not taken."""

    def __init__(self, *, most: int, each: int, what: str = "bytes of requests under way") -> None:
        self._most = most
        self._each = each
        self._what = what
        self.counts = Counts()
        self._waiting: dict[asyncio.Future[None], None] = {}

    def has_room(self, name: str) -> bool:
        return self.counts.total < self._most and self.counts.of(name) < self._each

    @property
    def are_wanted(self) -> bool:
        """True if a caller is waiting for others to give bytes back."""
        return bool(self._waiting)

    def refusal(self) -> LimitReachedError:
        return LimitReachedError(self._what, min(self._most, self._each))

    def check(self, name: str) -> None:
        """
        Raises:
            LimitReachedError: so much is under way that nothing more is read.
        """
        if not self.has_room(name):
            raise self.refusal()

    async def room_for_bytes(self, name: str) -> None:
        """Wait until there is room, which delays reading from a caller that sends too much."""
        while not self.has_room(name):
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting[waiting] = None
            try:
                await waiting
            finally:
                self._waiting.pop(waiting, None)

    async def room_in_time(self, name: str, patience_s: float) -> None:
        """
        Raises:
            LimitReachedError: there was none in time.
        """
        if not self.has_room(name):
            try:
                async with asyncio.timeout(patience_s):
                    await self.room_for_bytes(name)
            except TimeoutError:
                raise self.refusal() from None

    def take(self, name: str, size: int) -> None:
        self.counts.add(name, size)

    def give(self, name: str, size: int) -> None:
        self.counts.remove(name, size)
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    @contextmanager
    def held(self, name: str, size: int) -> Iterator[None]:
        self.take(name, size)
        try:
            yield
        finally:
            self.give(name, size)


class Rate:
    """Calls per second per principal, with a burst of one second's worth. None: unlimited."""

    def __init__(self, per_second: int | None, clock: Clock) -> None:
        self._per_second = per_second
        self._clock = clock
        self._paid_until_ms: dict[str, float] = {}

    @property
    def limits(self) -> bool:
        return self._per_second is not None

    def spend(self, name: str, calls: int) -> float:
        """Count these calls and return the seconds that the caller has to wait before its next ones."""
        if self._per_second is None:
            return 0.0
        now_ms = self._clock.monotonic_ms()
        paid = max(self._paid_until_ms.get(name, 0.0), now_ms - 1000.0) + calls * 1000 / self._per_second
        self._paid_until_ms[name] = paid
        return max((paid - now_ms) / 1000, 0.0)

    def check(self, name: str) -> None:
        """
        Raises:
            LimitReachedError: it has spent what it had.
        """
        if self._per_second is None:
            return
        if self._paid_until_ms.get(name, 0.0) > self._clock.monotonic_ms():
            raise LimitReachedError("calls in a second of one token", self._per_second)
        self.spend(name, 1)
