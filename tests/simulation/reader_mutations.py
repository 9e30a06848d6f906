"""Mistakes in what readers of a served queue are shown, each made in the real code for the length of a test."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from casque.client import remote
from casque.client.remote import ASKED_AGAIN, RemoteQueue
from casque.engine import archived
from casque.engine.embedded import EmbeddedService
from casque.engine.held_commits import HeldCommits, Stretch
from casque.engine.pulse import Pulse
from casque.errors import BrokerUnreachableError, CasqueError, NoLeaderError, StorageError
from casque.ring.service import RingService
from casque.ring.shards import Shard, Shards
from casque.service import QueueEvent
from casque.service.requests import ListJobs
from casque.storage.port import MISSING
from casque.transport.grpc import streams
from casque.transport.grpc.client import GrpcService
from casque.transport.grpc.streams import Outlet
from casque.transport.quotas import Bytes
from casque.types import JobRecord


async def _events(
    self: RemoteQueue, from_position: int | None, follow: bool, *, back: int, twice: bool
) -> AsyncGenerator[QueueEvent]:
    """`RemoteQueue.events`, but for where it goes on and whether it compares."""
    position = (await self.stats()).position if from_position is None else from_position
    seen = (position, -1)
    patience = self._patience()
    while True:
        broker = await self._found(patience)
        try:
            stream = broker.events(from_position=seen[0] - back if seen[1] >= 0 else position, follow=follow)
            async with aclosing(stream) as events:
                async for event in events:
                    if twice or (event.position, event.index) > seen:
                        seen = (event.position, event.index)
                        yield event
            if not follow:
                return
        except ASKED_AGAIN as error:
            await self._turn_away(broker, error, patience)


def followers_go_on_after_the_commit_that_was_cut(patch: pytest.MonkeyPatch) -> None:
    """What was left of it is never shown."""
    patch.setattr(
        RemoteQueue,
        "events",
        lambda self, *, from_position=None, follow=True: _events(self, from_position, follow, back=0, twice=False),
    )


def followers_are_shown_again_what_they_saw(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        RemoteQueue,
        "events",
        lambda self, *, from_position=None, follow=True: _events(self, from_position, follow, back=1, twice=True),
    )


def followers_wait_for_a_leader_that_was_deposed(patch: pytest.MonkeyPatch) -> None:
    """It commits nothing more, and tells nobody so."""
    patch.setattr(Pulse, "end", lambda self: None)


def stopping_brokers_end_streams_as_if_they_were_complete(patch: pytest.MonkeyPatch) -> None:
    together = streams._together

    async def complete(*args: Any) -> AsyncGenerator[Any]:
        try:
            async for batch in together(*args):
                yield batch
        except NoLeaderError:
            return

    patch.setattr(streams, "_together", complete)


def lists_that_break_off_taken_for_whole(patch: pytest.MonkeyPatch) -> None:
    stream = GrpcService._stream

    async def broken(self: GrpcService, *args: Any) -> AsyncGenerator[Any]:
        begun = False
        try:
            async for some in stream(self, *args):
                begun = True
                yield some
        except BrokerUnreachableError:
            if not begun:
                raise

    patch.setattr(GrpcService, "_stream", broken)


def archives_read_again_from_their_beginning(patch: pytest.MonkeyPatch) -> None:
    """A connection breaks, and what was read before is read again."""

    async def archive(self: RemoteQueue, **asked: Any) -> AsyncGenerator[Any]:
        patience = self._patience()
        while True:
            broker = await self._found(patience)
            try:
                async with aclosing(broker.archive(**asked)) as jobs:
                    async for job in jobs:
                        yield job
                return
            except remote.ASKED_AGAIN as error:
                await self._turn_away(broker, error, patience)

    patch.setattr(RemoteQueue, "archive", archive)


def archived_objects_that_cannot_be_read_left_out(patch: pytest.MonkeyPatch) -> None:
    async def get(store: Any, _patience: Any, key: str) -> Any:
        try:
            return await store.get(key)
        except StorageError:
            return MISSING

    patch.setattr(archived, "_get", get)


def first_shards_listed_alone(patch: pytest.MonkeyPatch) -> None:
    """A page that is full enough is not merged with what comes after it."""
    every = Shards.every

    async def some(self: Shards) -> list[Shard]:
        return (await every(self))[:2]

    async def jobs(self: RingService, request: ListJobs) -> list[JobRecord]:
        with pytest.MonkeyPatch.context() as only:
            only.setattr(self._shards, "every", lambda: some(self._shards))
            return await listed(self, request)

    listed = RingService._list_jobs
    patch.setattr(RingService, "_list_jobs", jobs)


# --- Readers who do not read ---


def readers_keep_what_others_need_room_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HeldCommits, "_has_room", lambda self, size: True)


def commits_that_were_taken_away_passed_over(patch: pytest.MonkeyPatch) -> None:
    """A reader that made way for another goes on after what it held."""
    patch.setattr(Stretch, "drop", lambda self: self.let_go())


def values_read_ahead_without_asking_for_room(patch: pytest.MonkeyPatch) -> None:
    async def hold(self: Outlet, weight: int) -> None:
        self._unsent.take(self._name, weight)
        self._held += weight

    patch.setattr(Outlet, "hold", hold)


def room_for_what_was_sent_never_given_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Outlet, "_let_go", lambda self, weight: self._written.set())


def readers_that_stall_never_make_way(patch: pytest.MonkeyPatch) -> None:
    """Who holds all there is, and takes nothing, is waited for."""

    async def write(self: Outlet, message: Any, weight: int) -> None:
        try:
            await self._context.write(message)
        finally:
            self._let_go(weight)

    async def room_in_time(self: Bytes, name: str, _patience_s: float) -> None:
        await self.room_for_bytes(name)

    patch.setattr(Outlet, "write", write)
    patch.setattr(Bytes, "room_in_time", room_in_time)


def large_jobs_that_ended_meanwhile_called_damaged(patch: pytest.MonkeyPatch) -> None:
    async def filled(self: EmbeddedService, records: Any) -> list[JobRecord]:
        assert self._blobs is not None
        found = await self._blobs.fetch(records)
        for one in found:
            if isinstance(one, CasqueError):
                raise one
        return [one for one in found if not isinstance(one, CasqueError)]

    patch.setattr(EmbeddedService, "_filled", filled)
