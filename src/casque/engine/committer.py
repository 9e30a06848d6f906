"""One batch at a time: decide it, make it durable, decide it again if somebody else was first."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from casque.clock import Clock, Random, new_nonce
from casque.errors import CASConflictError
from casque.journal.patience import Patience
from casque.journal.port import Batch, Conflict, Journal, Landed
from casque.settings import QueueSettings, milliseconds
from casque.state import Event, State

Decide = Callable[[State, int], None]
"""Runs a batch's commands on the state. Called again on a newer state when the batch has to be decided anew."""


class Committer:
    """The queue's state in memory and the only hand that changes it. Not for concurrent use."""

    def __init__(self, journal: Journal, *, settings: QueueSettings, clock: Clock, rng: Random) -> None:
        self._journal = journal
        self._settings = settings
        self._clock = clock
        self._rng = rng
        # Random per start: host and process number would come back and be taken for somebody else.
        self.writer = new_nonce(rng)
        self._batches = 0
        self.known: State | None = None
        """The state as last seen; None before it was loaded, and after a write that nobody knows the fate of."""

    @property
    def state(self) -> State:
        assert self.known is not None, "open() comes first"
        return self.known

    async def open(self) -> None:
        if self.known is None:
            self.known = await self._patience().insist(self._journal.load)

    async def refresh(self) -> None:
        """Take in what others have committed."""
        known = self.known
        if known is None:
            await self.open()
        else:
            self.known = await self._patience().insist(lambda: self._journal.refresh(known))

    async def commit(self, decide: Decide) -> list[Event]:
        """Decide a batch and make it durable. What it decided holds when this returns, and only then.

        Returns the batch's events if they are the only news since the last call; otherwise look at `state`.

        Raises:
            CASConflictError: every retry lost its race; nothing was done.
            UnknownOutcomeError: the store did not say, and reading back did not settle it.
            StorageError: the store failed; nothing was done.
        """
        await self.open()
        conflicts = 0
        # A batch that writes proves by winning that it was decided on the latest state. One that changes nothing
        # proves nothing, so it is decided on a state that was read after its callers asked.
        current = False
        while True:
            state = self.state
            now_ms = self._clock.wall_ms()
            decide(state, now_ms)
            if not state.events:
                if current:
                    return []
                await self.refresh()
                if self.known is state:
                    return []
                current = True
                continue
            events = state.events
            outcome = await self._append(state, now_ms)
            match outcome:
                case Landed():
                    self.known = outcome.state
                    return events
                case Conflict(state=newer):
                    self._journal.undo(state)
                    self.known = newer or state
                case _ as never:
                    assert_never(never)
            if conflicts >= self._settings.conflict_retries:
                raise CASConflictError(
                    f"lost the race for the next commit {conflicts + 1} times in a row: too many processes write this "
                    "queue at once. Nothing was done; try again, or raise conflict_retries"
                )
            # Wait first, read then: what is read and then waited with is out of date when it is written.
            if conflicts:
                await self._clock.sleep(self._conflict_delay_s(conflicts - 1))
            conflicts += 1
            await self.refresh()
            current = True

    async def _append(self, state: State, now_ms: int) -> Landed | Conflict:
        self._batches += 1
        batch = Batch(writer=self.writer, number=self._batches, at_ms=now_ms)
        try:
            return await self._journal.append(state, batch)
        except BaseException:
            # Whatever happened, cancellation included, it may yet land: start from what the store says.
            self._journal.undo(state)
            self.known = None
            raise

    def _patience(self) -> Patience:
        return Patience(self._settings, self._clock, self._rng)

    def _conflict_delay_s(self, conflicts: int) -> float:
        # Half of it is chance, so that writers who collided once do not collide again.
        full_ms = milliseconds(self._settings.conflict_backoff) << min(conflicts, 6)
        return full_ms * (0.5 + self._rng.random() / 2) / 1000
