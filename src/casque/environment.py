"""What every part of a queue needs, as one value: settings, time, randomness, and patience with a failing store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from casque.clock import Clock, Random, SystemClock, system_random
from casque.errors import StorageError, StoreAccessError, UnsafeStoreError
from casque.request_budget import RequestBudget
from casque.settings import QueueSettings, milliseconds

R = TypeVar("R")


@dataclass(frozen=True)
class Environment:
    """Passed from part to part unchanged. Tests and the simulator bring their own clock and randomness."""

    settings: QueueSettings = field(default_factory=QueueSettings)
    clock: Clock = field(default_factory=SystemClock)
    rng: Random = field(default_factory=system_random)
    budget: RequestBudget = field(default_factory=RequestBudget)
    """The requests that this process may make to the store."""

    def patience(self) -> Patience:
        """Patience for one attempt at something: its deadline counts from now."""
        return Patience(self)


class Patience:
    """Capped exponential back-off with jitter, until a deadline on the monotonic clock."""

    def __init__(self, env: Environment) -> None:
        self._clock = env.clock
        self._rng = env.rng
        self._delay_ms = milliseconds(env.settings.storage_backoff)
        self._cap_ms = milliseconds(env.settings.storage_backoff_cap)
        self.is_over = False
        """True if there was no time left at the last call of `wait`."""
        self._deadline_ms = env.clock.monotonic_ms() + milliseconds(env.settings.storage_patience)

    async def wait(self) -> bool:
        """Wait before the next attempt; False if there is no time for one."""
        delay_ms = self._delay_ms * (0.5 + self._rng.random() / 2)
        if self._clock.monotonic_ms() + delay_ms > self._deadline_ms:
            self.is_over = True
            return False
        self._delay_ms = min(self._delay_ms * 2, self._cap_ms)
        await self._clock.sleep(delay_ms / 1000)
        return True

    async def insist(self, read: Callable[[], Awaitable[R]]) -> R:
        """Read until the store answers, or there is no time left. For reads only: a write is never simply repeated.

        Raises:
            StorageError: the last error of the store.
        """
        while True:
            try:
                return await read()
            except (StoreAccessError, UnsafeStoreError):
                raise
            except StorageError:
                if not await self.wait():
                    raise
