"""Commits one batch at a time: decide it, make it durable, and decide it again if another writer was first."""

from __future__ import annotations

import errno
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from casque.clock import new_nonce
from casque.codec.head import Head, Owner
from casque.engine.operation import UnexpectedError
from casque.engine.request_watch import RequestWatch
from casque.environment import Environment
from casque.errors import CASConflictError, CasqueError, LeadershipLostError, StorageError, UnknownOutcomeError
from casque.journal.port import Appended, Batch, Journal, Landed, Opener, Refreshed, Sighting, Work
from casque.settings import milliseconds
from casque.state import Event, State
from casque.telemetry import logger

log = logger("engine")

Decide = Callable[[State, int], None]
"""Runs a batch's commands on the state. Called again on a newer state when the batch has to be decided again."""


BURST = 4
"""Attempts between two back-offs. The best moment to retry is right after a loss: the winner has just finished."""
FAILURE_MS = 30_000
"""How long a failed commit counts as a sign that the next one fails, too."""
SHARED_MS = 5_000
"""How long after another writer's commit a queue counts as shared."""
STREAK_COMMITS = 128
STREAK_MS = 1_000
WIND_UPS_MAX = 4
"""Claim, write, report: more rounds are only needed if other writers are active."""


class Committer:
    """Holds the queue's state in memory, and is the only one to change it. Not for concurrent use.

    Where a commit writes the whole queue, a writer that is alone never reads first, which would let it win every race
    against one that must. To avoid starvation, all writers of a shared queue read first, and a writer that has been
    busy and alone for a while pauses for long enough to let a newcomer commit.
    """

    def __init__(self, opener: Opener, env: Environment) -> None:
        self._open = opener
        self._head: Head | None = None
        """The head when the queue was last opened; None if there was no queue yet."""
        self._journal: Journal
        self._env = env
        self._clock = env.clock
        # Random per start: host and process number are reused, and would identify another writer.
        self.writer = new_nonce(env.rng)
        self._batches = 0
        self._requests = RequestWatch(env.clock)
        self.known: State | None = None
        """The state as last seen; None before it was loaded, and after a write with an unknown outcome."""
        self._news: list[Event] | None = None
        self._shared_until_ms = 0
        self._streak = _Streak()
        self.races_lost = 0
        """How often another writer's commit took the position of one of ours."""
        self._failure: tuple[StorageError, int] | None = None
        self.leads = False
        """True if this process leads among brokers, as far as it knows."""
        self.on_lost: Callable[[], object] = lambda: None
        """Called when it no longer leads."""

    @property
    def state(self) -> State:
        assert self.known is not None, "open() comes first"
        return self.known

    async def open(self) -> None:
        if self.known is None:
            opened = await self._env.patience().insist(lambda: self._open(self._head))
            self._journal, self._head, self.known = opened.journal, opened.head, opened.state
            self._requests.saw(self.known)

    async def refresh(self) -> None:
        """Read what others have committed.

        Raises:
            LeadershipLostError: this process led, and another one leads now.
        """
        known = self.known
        if known is None:
            await self.open()
            return
        try:
            self._take(await self._env.patience().insist(lambda: self._journal.refresh(known)))
        except UnknownOutcomeError:
            self.begin_anew()
            raise

    # --- Leading ---

    @property
    def sole(self) -> bool:
        """True if no other process can have committed since the last commit of this one."""
        return self.known is not None and self._journal.sole

    def sighting(self) -> Sighting:
        return self._journal.sighting(self.state)

    async def lead(self, owner: Owner, *, lease_ms: int, seen: Sighting | None) -> bool:
        """Take the lead, unless the current leader shows activity. False if another process was faster."""
        await self.open()
        try:
            taken = await self._journal.lead(self.state, owner, self._next(), lease_ms=lease_ms, seen=seen)
        except BaseException:
            self.begin_anew()
            raise
        if taken is None:
            self.begin_anew()
            return False
        self._take(taken)
        self.leads = True
        return True

    async def beat(self) -> None:
        """Renew the leadership when there is nothing to commit.

        Raises:
            LeadershipLostError: another process leads.
            StorageError: the store failed. The next commit shows whether another broker has taken over.
        """
        if not self.leads:
            raise LeadershipLostError(None)  # lost with a commit just before; the head is the other's now
        try:
            self._take(await self._journal.beat(self.state, self._next()))
            self._recovered()
        except UnknownOutcomeError:
            self.begin_anew()
            raise

    async def resign(self) -> None:
        """Give up the lead after the last commit."""
        if self.leads and self.known is not None:
            self.leads = False
            await self._journal.resign(self.state, self._next())

    def begin_anew(self) -> None:
        """Forget the state in memory: the next operation reads the store."""
        self.known = self._news = None
        if self.leads:
            self.leads = False
            self.on_lost()

    @property
    def batches(self) -> int:
        """How many writes it has begun."""
        return self._batches

    def _next(self) -> Batch:
        self._batches += 1
        return Batch(writer=self.writer, number=self._batches, at_ms=self._clock.wall_ms())

    # --- Committing ---

    def news(self) -> list[Event] | None:
        """The events since the last call, of all writers; None if only the whole `state` can say."""
        news, self._news = self._news, []
        return news

    async def commit(self, decide: Decide) -> None:
        """Decide a batch and make it durable. Its decisions hold when this returns, and only then.

        Raises:
            CASConflictError: every retry lost its race; nothing was done.
            UnknownOutcomeError: the store did not say, and reading back did not settle it.
            StorageError: the store failed; nothing was done.
        """
        await self.open()
        losses, attempts = 0, _Attempts(self._batches + 1)
        # A batch that writes proves by winning that it was decided on the latest state. A batch that changes nothing
        # proves nothing, so it is decided on a state that was read after its callers asked.
        current = self._journal.sole
        if current:
            pass  # a leader's state in memory is the latest
        elif self._journal.whole:
            current = await self._be_fair()
        elif (hesitation_s := self._journal.hesitation_s()) > 0:
            await self._clock.sleep(hesitation_s)
        while True:
            if self.known is None:
                await self.open()
                self._refuse_if_landed(attempts)
            state, position = self.state, self.state.position
            now_ms = self._clock.wall_ms()
            try:
                decide(state, now_ms)
            except Exception as error:
                self._undo_decision(state)
                if isinstance(error, UnexpectedError):
                    log.error("an operation failed unexpectedly, and its batch goes on without it", exc_info=error)
                    continue
                raise
            if not state.events and not self._journal.wants_a_commit(state):
                if current:
                    return
                await (self._refresh_after_loss() if losses else self.refresh())
                self._refuse_if_landed(attempts)
                if self.known is state and state.position == position:
                    return
                current = True
                continue
            events = state.events
            attempts.tried = attempts.tried or position + 1
            outcome = await self._append(state, now_ms, doubt=losses > 0 and not current)
            if isinstance(outcome, Landed):
                self._failure = None
                self._take(Refreshed(outcome.state, events))
                self._streak.grew(self._clock.monotonic_ms())
                return
            losses += 1
            self.races_lost += 1
            if outcome.refreshed is not None:
                self._take(outcome.refreshed)
            gives_up = losses >= (self._env.settings.conflict_retries + 1) * BURST
            # Wait first, then read: a state that was read before the wait is out of date when it is written.
            backs_off = losses % BURST == 0
            if backs_off and not gives_up:
                await self._clock.sleep(self._conflict_delay_s(losses // BURST - 1))
            current = outcome.refreshed is not None and outcome.refreshed.certain and not backs_off
            if backs_off or outcome.refreshed is None:
                current = await self._refresh_after_loss()
            self._shared_until_ms = self._clock.monotonic_ms() + SHARED_MS
            if self._landed_since(attempts) is not False and (current or await self._refresh_after_loss()):
                if self._landed_since(_Attempts(self._batches, attempts.tried)):
                    return  # it had landed after all: a layer below retried
                self._refuse_if_landed(attempts)
                current = True
            if current:
                # Others' commits hold all the slots that were tried: those attempts are settled, and the state may
                # forget writers from now on without affecting them.
                attempts = _Attempts(self._batches + 1)
            if gives_up:
                raise CASConflictError(
                    f"lost the race for the next commit {losses} times in a row: too many processes write this queue "
                    "at once. Nothing was done; try again, or raise conflict_retries"
                )

    def _undo_decision(self, state: State) -> None:
        """Undo a batch that was not written. Data derived from the jobs is rebuilt: it may be half changed."""
        try:
            self._journal.undo(state)
            state.reindex()
        except Exception:
            log.exception("a failed batch could not be undone in memory; the queue is read again")
            self.begin_anew()

    async def hold(self) -> None:
        """Between two commits: a writer that has been alone for a while takes the queue for itself.

        No caller waits for this, so no caller sees its failures: the next operation reads the store.
        """
        if self.known is None or not self._journal.takes_hold:
            return
        try:
            self._take(await self._journal.hold(self.known, self._next()))
        except CasqueError as error:
            self.begin_anew()
            log.warning("the queue could not be taken by a writer that is alone, and stays open to all: %s", error)
        except BaseException:
            self.begin_anew()
            raise

    def _landed_since(self, attempts: _Attempts) -> bool | None:
        """True if one of these attempts is part of the state; None if the state may have forgotten it."""
        if not attempts.tried:
            return False
        return self.state.fate(self.writer, attempts.first, tried=attempts.tried)

    def _refuse_if_landed(self, attempts: _Attempts) -> None:
        """Refuse to decide the batch again: that would apply it twice, and its first answers are no longer known."""
        landed = self._landed_since(attempts)
        if landed is None:
            raise UnknownOutcomeError(
                "an attempt at this commit was thought lost, and the queue no longer remembers whether it landed: too "
                "many other writers have committed since"
            )
        if landed:
            raise UnknownOutcomeError("an attempt at this commit was thought lost, and landed after all")

    async def _refresh_after_loss(self) -> bool:
        try:
            await self.refresh()
            return True
        except StorageError as error:
            raise _unconfirmed(error) from error

    def maintenance(self) -> Coroutine[Any, Any, None] | None:
        """Work that the journal wants to do alongside the next commits. Callers do not see its failures."""
        work = self._journal.maintenance(self.state, self.writer)
        return _logged(work) if work is not None else None

    def due_ms(self) -> int | None:
        """When, on the monotonic clock, maintenance alone needs a turn."""
        return self._journal.due_ms() if self.known is not None else None

    def listen(self, heard: Callable[[int], None]) -> Callable[[], None] | None:
        """Subscribe to commits, if the store can notify; None if it cannot, or not yet."""
        return self._journal.listen(heard) if self.known is not None else None

    async def wind_up(self) -> None:
        """A clean shutdown: archive the finished jobs, as far as the store allows."""
        if self.known is None or not self.known.finished:
            return
        self._journal.hurry(True)
        try:
            for _ in range(WIND_UPS_MAX):
                await self.commit(_nothing)
                work = self._journal.maintenance(self.state, self.writer)
                if work is None:
                    return
                await work()
        finally:
            self._journal.hurry(False)

    def _take(self, refreshed: Refreshed) -> None:
        if refreshed.certain:
            self._requests.saw(refreshed.state)
        if refreshed.state is not self.known:
            self.known = refreshed.state
            self._news = None
            self._shared_until_ms = self._clock.monotonic_ms() + SHARED_MS
        elif self._news is not None:
            self._news += refreshed.events

    async def _be_fair(self) -> bool:
        """Pause or read first, to be fair to other writers; True if the state was read."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._shared_until_ms:
            await self.refresh()
            return True
        pause_ms = self._streak.pause_due_ms(now_ms)
        if pause_ms:
            await self._clock.sleep(pause_ms / 1000)
            self._streak.began(self._clock.monotonic_ms())
        return False

    async def _append(self, state: State, now_ms: int, *, doubt: bool) -> Appended:
        """`doubt`: an earlier attempt lost to an object that may not be part of the history."""
        self._batches += 1
        forgets = self._requests.old(state)
        batch = Batch(writer=self.writer, number=self._batches, at_ms=now_ms, forgets=forgets)
        try:
            return await self._journal.append(state, batch)
        except BaseException as error:
            self._journal.undo(state)
            if isinstance(error, StorageError):
                self._failed(error)
            # Even after a cancellation the write may still land: read the store next. But a leader whose write
            # certainly did not happen keeps leading: a store that fails for a while is no reason to resign.
            if doubt or not (self.leads and isinstance(error, StorageError)):
                self.begin_anew()
            if doubt and isinstance(error, StorageError):
                raise _unconfirmed(error) from error
            raise

    def _failed(self, error: StorageError) -> None:
        if self._failure is None:
            log.warning("commits fail, and callers are refused: %s", error)
        self._failure = error, self._clock.monotonic_ms()

    def _recovered(self) -> None:
        # On a disk that is nearly full the head still fits, and the next commit does not.
        if self._failure is not None and not _is_full(self._failure[0]):
            self._failure = None

    @property
    def failure(self) -> str | None:
        """Why commits have failed lately, such as a full disk; None after a success, and after a while without a
        failure."""
        if self._failure is None or self._clock.monotonic_ms() - self._failure[1] > FAILURE_MS:
            return None
        return str(self._failure[0])

    def _conflict_delay_s(self, conflicts: int) -> float:
        # Half of it is random, so that writers that collided once do not collide again.
        full_ms = milliseconds(self._env.settings.conflict_backoff) << min(conflicts, 6)
        return full_ms * (0.5 + self._env.rng.random() / 2) / 1000


def _is_full(error: StorageError) -> bool:
    cause: BaseException | None = error
    while isinstance(cause, StorageError):
        cause = cause.cause or cause.__cause__
    return isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)


def _unconfirmed(error: StorageError) -> UnknownOutcomeError:
    # A lost race may have been our own success, seen by a retry below us. Only reading could have shown that.
    return UnknownOutcomeError(f"a commit lost its race, and the store cannot be read to confirm it: {error}")


def _nothing(_state: State, _now_ms: int) -> None:
    """An empty batch, which only reads others' commits."""


async def _logged(work: Work) -> None:
    try:
        await work()
    except CasqueError as error:
        # Commits do not depend on it, and the next chance comes soon.
        log.warning("maintenance failed and is put off: %s", error)
    except Exception:
        log.exception("maintenance failed unexpectedly and is put off")


@dataclass
class _Attempts:
    """The attempts at one commit whose outcome is not known."""

    first: int
    """The number of the first attempt."""
    tried: int = 0
    """The position of the attempts; 0 before the first one."""


class _Streak:
    """How long this writer has been committing back to back."""

    def __init__(self) -> None:
        self._commits = 0
        self._began_ms = 0
        self._ended_ms = 0

    def began(self, now_ms: int) -> None:
        self._commits = 0
        self._began_ms = self._ended_ms = now_ms

    def grew(self, now_ms: int) -> None:
        self._commits += 1
        self._ended_ms = now_ms

    def pause_due_ms(self, now_ms: int) -> float:
        """How long to pause before the next commit to be fair; 0 for no pause."""
        if not self._commits:
            self.began(now_ms)
            return 0
        each_ms = (self._ended_ms - self._began_ms) / self._commits
        if now_ms - self._ended_ms > 3 * each_ms + 1:
            self.began(now_ms)  # there was a pause already
            return 0
        if self._commits < STREAK_COMMITS or now_ms - self._began_ms < STREAK_MS:
            return 0
        return min(max(2 * each_ms, 2), 500)
