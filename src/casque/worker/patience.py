"""How long a worker waits before it asks again after a queue could not answer."""

from __future__ import annotations

from casque.clock import Clock, Random
from casque.errors import (
    BrokerUnreachableError,
    CASConflictError,
    CasqueError,
    LimitReachedError,
    NoLeaderError,
    QueueReplacedError,
    StorageError,
    StoreAccessError,
    UnknownOutcomeError,
    UnsafeStoreError,
)

FIRST_S = 0.1
LONGEST_S = 5.0
_PASSING = (
    StorageError,
    CASConflictError,
    NoLeaderError,
    BrokerUnreachableError,
    LimitReachedError,
    UnknownOutcomeError,
)
_FOR_GOOD = (StoreAccessError, UnsafeStoreError, QueueReplacedError)


class Patience:
    def __init__(self, clock: Clock, rng: Random) -> None:
        self._clock = clock
        self._rng = rng
        self._pause_s = FIRST_S

    @staticmethod
    def is_hopeless(error: CasqueError) -> bool:
        """Whether a retry does not help."""
        return isinstance(error, _FOR_GOOD) or not isinstance(error, _PASSING)

    async def wait(self) -> None:
        await self._clock.sleep(self._pause_s * (1 - self._rng.random() / 2))
        self._pause_s = min(self._pause_s * 2, LONGEST_S)
