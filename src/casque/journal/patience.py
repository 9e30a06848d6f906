"""How long a failing store is retried, and how the attempts are spaced."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from casque.clock import Clock, Random
from casque.errors import StorageError, StoreAccessError, UnsafeStoreError
from casque.settings import QueueSettings, milliseconds

R = TypeVar("R")


class Patience:
    """Capped exponential back-off with jitter, until a deadline on the monotonic clock."""

    def __init__(self, settings: QueueSettings, clock: Clock, rng: Random) -> None:
        self._clock = clock
        self._rng = rng
        self._delay_ms = milliseconds(settings.storage_backoff)
        self._cap_ms = milliseconds(settings.storage_backoff_cap)
        self.is_over = False
        """True if there was no time left at the last call of `wait`."""
        self._deadline_ms = clock.monotonic_ms() + milliseconds(settings.storage_patience)

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
