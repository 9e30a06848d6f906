"""Long or endless answers: the feed as server-sent events, the archive as lines of JSON.

An error before the first line becomes a status, like in any other call. Later, a feed ends with a `failure` event, and
the archive breaks off without its end marker, so that no client takes it for a complete answer.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from datetime import datetime
from typing import TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from casque.clock import Clock
from casque.errors import CasqueError, InvalidInputError, NoLeaderError
from casque.service import QueueEvent
from casque.transport.errors import to_wire
from casque.transport.http.messages import ArchiveQuery, EventsQuery, Moment
from casque.transport.http.simple_verbs import Call
from casque.transport.http.verbs import given

T = TypeVar("T")

_EVENT_ID = re.compile(r"([0-9]{1,19})(?:\.([0-9]{1,19}))?")


class FeedPosition(msgspec.Struct, frozen=True):
    """A reader's position in the feed: after a whole commit, or after one of its events."""

    position: int
    index: int | None = None

    def __str__(self) -> str:
        return str(self.position) if self.index is None else f"{self.position}.{self.index}"

    def is_past(self, event: QueueEvent) -> bool:
        if event.position != self.position:
            return event.position < self.position
        return self.index is None or event.index <= self.index

    @property
    def from_position(self) -> int:
        """The commit to start after. In the middle of a commit, the reader has to start with all of it."""
        return self.position if self.index is None else max(0, self.position - 1)


def parse_position(event_id: str) -> FeedPosition:
    if (found := _EVENT_ID.fullmatch(event_id)) is None:
        raise InvalidInputError(f"Last-Event-ID is the id of an event, like 17.0, or a position, not {event_id!r}")
    return FeedPosition(int(found[1]), None if found[2] is None else int(found[2]))


async def feed(call: Call, *, clock: Clock, quiet_s: float, leaving: asyncio.Event) -> AsyncGenerator[bytes]:
    """Server-sent events. The first piece comes once the feed is known to be readable from that position."""
    asked: EventsQuery = call.query
    begin = await _begin(call)
    seen = begin.from_position
    # Reading existing events first shows whether the history reaches back far enough; only then follow.
    async with aclosing(call.service.events(from_position=seen, follow=False)) as past:
        first = await anext(past, None)
        yield _frame(id=str(begin))  # without data: a reader cut off before the first event resumes here
        while first is not None:
            seen = first.position
            if not begin.is_past(first):
                yield _event(first)
            first = await anext(past, None)
    if not asked.follow:
        yield _frame(event="end", data=b"{}")
        return
    try:
        async with aclosing(call.service.events(from_position=seen, follow=True)) as events:
            async for event in _with_pauses(events, clock, quiet_s, leaving):
                yield b": still here\n\n" if event is None else _event(event)
    except CasqueError as error:
        yield failure(error)


def failure(error: CasqueError) -> bytes:
    """The last event of a feed that cannot continue."""
    return _frame(event="failure", data=msgspec.json.encode(to_wire(error)))


async def _begin(call: Call) -> FeedPosition:
    asked: EventsQuery = call.query
    if call.last_event_id is not None:
        return parse_position(call.last_event_id)
    if asked.from_position is not UNSET:
        return FeedPosition(asked.from_position)
    return FeedPosition((await call.service.stats()).position)


async def _with_pauses(
    items: AsyncGenerator[T], clock: Clock, quiet_s: float, leaving: asyncio.Event
) -> AsyncIterator[T | None]:
    """Yield the items, and None after each quiet period. Raises NoLeaderError when the server stops."""
    stop = asyncio.ensure_future(leaving.wait())
    item: asyncio.Future[T] | None = None
    try:
        while True:
            item = item or asyncio.ensure_future(anext(items))
            pause = asyncio.ensure_future(clock.sleep(quiet_s))
            try:
                await asyncio.wait((item, pause, stop), return_when=asyncio.FIRST_COMPLETED)
            finally:
                pause.cancel()
            if item.done():
                taken, item = item, None
                yield taken.result()
            elif stop.done():
                raise NoLeaderError("this broker is stopping")
            else:
                yield None
    except StopAsyncIteration:
        return
    finally:
        stop.cancel()
        if item is not None:
            item.cancel()
            with suppress(asyncio.CancelledError, StopAsyncIteration, CasqueError):
                await item  # the generator must not be closed while it runs


async def archive(call: Call) -> AsyncGenerator[bytes]:
    """Lines of JSON. The first piece, empty if there are no lines, comes once the archive is known to be readable."""
    asked: ArchiveQuery = call.query
    jobs = call.service.archive(
        since=_moment("since", asked.since),
        until=_moment("until", asked.until),
        entrypoint=given(asked.entrypoint),
        states=None if asked.state is UNSET else frozenset(asked.state),
    )
    async with aclosing(jobs):
        async for job in jobs:
            yield msgspec.json.encode(job) + b"\n"


def _moment(name: str, text: str | UnsetType) -> datetime | None:
    if text is UNSET:
        return None
    try:
        return msgspec.convert(text, Moment)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"{name} must be like 2026-02-15T10:00:00Z, with its time zone: {error}") from error


def _event(event: QueueEvent) -> bytes:
    here = FeedPosition(event.position, event.index)
    # Unnamed, so that a listener for `message` gets every kind, also those of later releases.
    return _frame(id=str(here), data=msgspec.json.encode(event))


def _frame(*, id: str | None = None, event: str | None = None, data: bytes | None = None) -> bytes:  # noqa: A002
    lines = [f"id: {id}".encode()] if id is not None else []
    if event is not None:
        lines.append(f"event: {event}".encode())
    if data is not None:
        lines.append(b"data: " + data)  # encoded JSON contains no newlines
    return b"\n".join(lines) + b"\n\n"
