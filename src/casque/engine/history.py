"""What happened to a queue: its log as a feed of events, and its finished jobs. Reads the store, never writes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import datetime

from casque.clock import Clock, Random
from casque.engine import feed
from casque.engine.pulse import Pulse
from casque.service import ArchivedJob, QueueEvent
from casque.settings import QueueSettings
from casque.storage.port import Store
from casque.types import JobState


class History:
    """Beside whatever else goes on: it needs no commit and waits for none."""

    def __init__(
        self, store: Store, *, settings: QueueSettings, clock: Clock, rng: Random, pulse: Pulse | None = None
    ) -> None:
        self._store = store
        self._pulse = pulse
        self._settings = settings
        self._clock = clock
        self._rng = rng

    def events(self, *, from_position: int | None = None, follow: bool = True) -> AsyncGenerator[QueueEvent]:
        return feed.follow(
            self._store,
            from_position,
            for_ever=follow,
            settings=self._settings,
            clock=self._clock,
            rng=self._rng,
            pulse=self._pulse,
        )

    def at_pulse(self, pulse: Pulse) -> History:
        """The same, for those who follow in the leader's own process."""
        return History(self._store, settings=self._settings, clock=self._clock, rng=self._rng, pulse=pulse)

    async def archive(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        entrypoint: str | None = None,
        states: frozenset[JobState] | None = None,
    ) -> AsyncGenerator[ArchivedJob]:
        for job in self._archived(since, until):
            if entrypoint in (None, job.entrypoint) and (states is None or job.state in states):
                yield job

    def _archived(self, since: datetime | None, until: datetime | None) -> list[ArchivedJob]:  # noqa: ARG002
        return []  # nothing is archived yet
