"""Time, timers, randomness and ids: the only module that asks the machine for them.

All other code gets a `Clock` and a `random.Random`, so that tests and the simulator control time and randomness.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from random import Random
from typing import Protocol

__all__ = ["Clock", "Random", "SystemClock", "Timer", "new_id", "new_nonce", "system_random", "yield_once"]


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """A source of time."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch: for people and for ordering jobs, never for judging a lease."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds that only ever grow: for leases and retries."""
        ...

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own time."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(seconds, callback)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def yield_once() -> None:
    """Let other ready tasks run once."""
    await asyncio.sleep(0)


_shared = random.Random(os.urandom(32))  # ids and jitter, not secrets
# A forked child would otherwise continue with its parent's numbers and produce the same ids.
os.register_at_fork(after_in_child=lambda: _shared.seed(os.urandom(32)))


def system_random() -> Random:
    """The process's own randomness, seeded by the operating system and again after a fork."""
    return _shared


_VERSION_4 = (4 << 76) | (2 << 62)
_CLEARED = ~((0xF << 76) | (0x3 << 62))


def new_id(rng: Random) -> str:
    """A random UUID (version 4) as text."""
    pairs = (rng.getrandbits(128) & _CLEARED | _VERSION_4).to_bytes(16, "big").hex("-", 2)
    return f"{pairs[:4]}{pairs[5:29]}{pairs[30:34]}{pairs[35:]}"


def new_nonce(rng: Random) -> str:
    """A unique short random name: 64 bits."""
    return f"{rng.getrandbits(64):016x}"
