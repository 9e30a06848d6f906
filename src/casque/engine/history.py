"""A queue's history: its log as a feed of events, and its finished jobs. Reads the store, never writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Unpack

from casque.codec.head import KEY, check_single, read_layout
from casque.engine import feed
from casque.engine.archived import read_archive
from casque.engine.held_commits import HeldCommits
from casque.engine.pulse import Pulse
from casque.environment import Environment
from casque.service import ArchivedJob, ArchiveFilter, QueueEvent
from casque.storage.port import Store, Stored, locate
from casque.types import ms_of

READERS_AT_ONCE = 4
"""Followers that read and decode at the same time; the others wait for their turn."""


class History:
    """Independent of the commit loop: reading needs no commit and waits for none."""

    def __init__(self, store: Store, env: Environment, *, pulse: Pulse | None = None) -> None:
        self._store = store
        self._pulse = pulse
        self._env = env
        self._turns = asyncio.Semaphore(READERS_AT_ONCE)
        self._held = HeldCommits(env.clock)

    def events(self, *, from_position: int | None = None, follow: bool = True) -> AsyncGenerator[QueueEvent]:
        return feed.follow(
            self._store,
            from_position,
            self._env,
            for_ever=follow,
            pulse=self._pulse,
            turns=self._turns,
            held=self._held,
        )

    def at_pulse(self, pulse: Pulse) -> History:
        """The same, for readers in the leader's own process."""
        return History(self._store, self._env, pulse=pulse)

    async def archive(self, **asked: Unpack[ArchiveFilter]) -> AsyncGenerator[ArchivedJob]:
        since, until = asked.get("since"), asked.get("until")
        entrypoint, states = asked.get("entrypoint"), asked.get("states")
        jobs = read_archive(self._store, self._env.patience, since_ms=ms_of(since), until_ms=ms_of(until))
        found = False
        async with aclosing(jobs):
            async for job in jobs:
                found = True
                if since is not None and job.finished_at < since:
                    continue
                if until is not None and job.finished_at >= until:
                    continue
                if entrypoint in (None, job.entrypoint) and (states is None or job.state in states):
                    yield job
        if not found:
            await self._check_single()

    async def _check_single(self) -> None:
        """Refuse a ring: it has no archive of its own, and must not look as if no job had ever finished.

        Raises:
            RingError: it is one.
        """
        read = await self._env.patience().insist(lambda: self._store.get(KEY))
        if isinstance(read, Stored):
            check_single(read_layout(KEY, read.body, locate(self._store, KEY)))
