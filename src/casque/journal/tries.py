"""One conditional write, tried until its outcome is known."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from casque.environment import Patience
from casque.errors import StorageError, StoreAccessError, UnknownOutcomeError, UnsafeStoreError
from casque.storage.port import Lost, Outcome, Unknown, Won, is_full


class Tries:
    """Tracks the attempts at one write: whether one of them may have arrived, and how long to go on.

    The same bytes go to the same place each time, so trying again is always safe; only the final outcome needs care.
    """

    def __init__(self, what: str, patience: Callable[[], Patience]) -> None:
        self._what = what
        self._new_patience = patience
        self._patience: Patience | None = None
        self.sent = False
        """True if an attempt went unanswered: it may have landed, or land later."""

    async def attempt(self, send: Callable[[], Awaitable[Outcome]]) -> Won | Lost | None:
        """Send it once. None without an answer, after a pause: read back, or send the same again.

        Raises:
            UnknownOutcomeError: time is up, and an attempt may have landed.
            StorageError: time is up or the store refuses, and certainly nothing was written.
        """
        try:
            outcome = await send()
        except (StoreAccessError, UnsafeStoreError) as error:
            if self.sent:
                raise self.gave_up(error) from error
            raise
        except StorageError as error:
            if is_full(error) and not self.sent:
                text = (
                    f"the disk is full, and {self._what} was not written: {error}. Free some space, and repeat the call"
                )
                raise StorageError(text, error.cause) from error
            trouble: BaseException = error  # certainly nothing was written by this attempt
        else:
            if not isinstance(outcome, Unknown):
                return outcome
            trouble, self.sent = outcome.cause, True
        await self.pause(trouble)
        return None

    async def pause(self, trouble: BaseException) -> None:
        """Wait before the next attempt, if there is time for one."""
        if self._patience is None:
            self._patience = self._new_patience()
        if not await self._patience.wait():
            raise self.gave_up(trouble) from trouble

    def gave_up(self, cause: BaseException) -> StorageError | UnknownOutcomeError:
        if self.sent:
            return UnknownOutcomeError(f"the store did not say whether {self._what} landed: {cause}")
        return StorageError(f"the store keeps failing, and {self._what} was not written: {cause}", cause)
