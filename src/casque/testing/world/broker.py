"""Brokers: one of them leads and commits, the others wait until they have seen no sign of it for a lease.

The journal does what matters: it takes the lead, commits as leader and loses the lead. Here is only the impatience
around it, which decides nothing about safety.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from casque.clock import Random, new_id, new_nonce
from casque.codec.head import FORMAT
from casque.codec.log import LogHead, Mode, Owner
from casque.engine.committer import Committer, Decide
from casque.engine.embedded import EmbeddedService
from casque.engine.group import GroupCommit
from casque.errors import CasqueError, LeadershipLostError, QueueLedError, StorageError, UnknownOutcomeError
from casque.journal.log import LogJournal
from casque.journal.port import Batch
from casque.testing.world.line import Line

if TYPE_CHECKING:
    from casque.testing.world.life import Life

ANYBODY = "*"
"""A broker claims for whoever asks it."""
LEASE_S = 1.5
"""How long a leader may show no sign of life before another broker tries to take over."""
BEAT_S = 0.4
POLL_S = 0.3


class Broker:
    """One process's part in the election, and its service while it leads."""

    def __init__(self, life: Life, line: Line) -> None:
        self._life = life
        self._line = line
        self._clock = life.clock
        self._rng = Random(f"{life.world.seed}/{life.name}/broker")
        self._settings = life.world.profile.settings
        self.service: EmbeddedService | None = None
        self.epoch = 0
        """Of its own lead, the last it had."""
        self._term: _Term | None = None

    async def run(self) -> None:
        while True:
            term = self._term = _Term(self._life, self._line, self._rng)
            try:
                await term.stand_by()
                if await term.lead():
                    self._life.world.trace.note(self._life.name, f"leads epoch {term.head.epoch}")
                    self.epoch = term.head.epoch
                    await self._serve(term)
            except CasqueError as error:
                self._life.world.trace.note(self._life.name, f"does not lead: {type(error).__name__}")
            await self._clock.sleep(self._rng.uniform(0.5, 1.0) * LEASE_S)

    async def resign(self) -> None:
        """A clean stop: whoever waits need not wait for a lease."""
        term, self._term = self._term, None
        if term is None or self.service is None:
            return
        self.service = None
        try:
            await term.group.stop()
            await term.journal.resign(term.committer.writer)
        except CasqueError as error:
            self._life.world.trace.note(self._life.name, f"could not resign: {type(error).__name__}")

    def leader_address(self) -> str | None:
        """Where the leader is, as far as this broker knows."""
        head = self._term.journal._head.known if self._term is not None else None  # noqa: SLF001
        return head.owner.address if head is not None and head.owner is not None else None

    async def _serve(self, term: _Term) -> None:
        await term.group.start()
        self.service = EmbeddedService(term.group, self._settings)
        try:
            while not term.over:
                position = term.position
                await self._clock.sleep(BEAT_S)
                if term.position == position:
                    await self._beat(term)
        finally:
            self.service = None
            await term.group.stop()

    async def _beat(self, term: _Term) -> None:
        try:
            await term.journal.beat(term.committer.writer)
        except LeadershipLostError:
            raise
        except (StorageError, UnknownOutcomeError):
            return  # whoever takes over for that will be in the way of the next commit


class _Term:
    """From waiting for the lead to losing it."""

    def __init__(self, life: Life, line: Line, rng: Random) -> None:
        settings = life.world.profile.settings
        self._life = life
        self._clock = life.clock
        self._rng = rng
        self.over = False
        self.journal = LogJournal(line, settings=settings, clock=life.clock, rng=rng)
        self.committer = Committer(self.journal, settings=settings, clock=life.clock, rng=rng)
        life.watch(self.committer, ANYBODY)
        self._end_with_the_lead(self.committer)
        self.group = GroupCommit(self.committer, settings=settings, clock=life.clock, rng=rng)

    @property
    def head(self) -> LogHead:
        head = self.journal._head.known  # noqa: SLF001
        assert head is not None
        return head

    @property
    def position(self) -> int | None:
        """How far it has got, unless it is in doubt about that itself."""
        return self.committer.known.position if self.committer.known is not None else None

    async def stand_by(self) -> None:
        """Until nothing that can be seen has changed for a lease, by this machine's own clock."""
        await self._found()
        await self.committer.open()
        seen, since_ms = self._observed(), self._clock.monotonic_ms()
        while self.head.mode is Mode.LED and self.head.owner is not None:
            await self._clock.sleep(self._rng.uniform(0.5, 1.0) * POLL_S)
            try:
                await self.committer.refresh()
            except StorageError:
                since_ms = self._clock.monotonic_ms()  # who sees nothing has not seen that nothing changes
                continue
            now = self._observed()
            if now != seen:
                seen, since_ms = now, self._clock.monotonic_ms()
            elif self._clock.monotonic_ms() - since_ms >= LEASE_S * 1000:
                return

    async def lead(self) -> bool:
        committer = self.committer
        committer._batches += 1  # noqa: SLF001  fences are numbered like any other batch
        batch = Batch(committer.writer, committer._batches, self._clock.wall_ms())  # noqa: SLF001
        owner = Owner(self._life.name, new_nonce(self._rng), self._life.node.name)
        refreshed = await self.journal.lead(committer.state, owner, batch)
        if refreshed is None:
            return False
        committer._take(refreshed)  # noqa: SLF001
        return True

    async def _found(self) -> None:
        """The first of all makes the queue."""
        register = self.journal._head  # noqa: SLF001
        if await self._insist() is None:
            head = LogHead(format=FORMAT, queue_id=new_id(self._rng), version=1, writer=self.committer.writer)
            await register.create(head)

    async def _insist(self) -> LogHead | None:
        return await self.journal._patience().insist(self.journal._head.find)  # noqa: SLF001

    def _observed(self) -> tuple[int, int, int]:
        return self.head.epoch, self.head.version, self.committer.state.position

    def _end_with_the_lead(self, committer: Committer) -> None:
        commit = committer.commit

        async def ending(decide: Decide) -> None:
            try:
                await commit(decide)
            except (UnknownOutcomeError, QueueLedError):
                # Lost, or in doubt about its own last commit: either way another term has to begin.
                self.over = True
                raise

        committer.commit = ending  # type: ignore[method-assign]
