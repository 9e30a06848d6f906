"""The change feed as programs see it: what happened to which job, in which commit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from casque.client.opening import Parts
from casque.codec.log import Segment
from casque.codec.stored import from_ms
from casque.journal.log.follower import Follower
from casque.settings import milliseconds
from casque.state import Added, Event
from casque.state.events import subject


class EventKind(StrEnum):
    """What can happen. Later releases may add kinds; programs pass over those they do not know."""

    ADDED = "added"
    CLAIMED = "claimed"
    BEATEN = "beaten"
    ACKED = "acked"
    NACKED = "nacked"
    RETURNED = "returned"
    EXPIRED = "expired"
    DIED = "died"
    CANCELLED = "cancelled"
    REVIVED = "revived"
    PURGED = "purged"
    REMEMBERED = "remembered"


class QueueEvent(msgspec.Struct, frozen=True):
    """One thing that happened to a queue. `position` and `index` together are unique, and in order.

    >>> import asyncio
    >>> from casque import Queue
    >>> async def main():
    ...     async with Queue.open("memory://feed-example") as q:
    ...         await q.enqueue("send", b"hello")
    ...         for job in await q.dequeue("send"):
    ...             await job.ack()
    ...         async for event in q.events(from_position=0, follow=False):
    ...             print(event.position, event.kind.value)
    >>> asyncio.run(main())
    1 added
    2 claimed
    3 acked
    """

    position: int
    """The commit. All of its events become true at once."""
    index: int
    """Its place among the events of the commit, from 0."""
    at: datetime
    """The time of the commit by its writer's clock, in UTC. It is for people: the order is that of the positions."""
    kind: EventKind
    job_id: str | None
    """None for `remembered`, which is about a request."""
    fields: Mapping[str, Any]
    """Everything else that the event says, by name: see the log format in the reference."""


async def follow(parts: Parts, position: int | None, *, for_ever: bool) -> AsyncIterator[QueueEvent]:
    """The events after a position, or from now on."""
    settings, clock, rng = parts.settings, parts.clock, parts.rng
    follower = Follower(parts.store, settings=settings, clock=clock, rng=rng)
    poll_min, poll_max = milliseconds(settings.poll_min), milliseconds(settings.poll_max)
    delay_ms = poll_min
    started = False
    while True:
        if not started and not (started := await follower.start(position)):
            position = position or 0  # of a queue that is yet to be made nothing is to be missed
        commits = await follower.read() if started else []
        for commit in commits:
            for event in events_of(commit):
                yield event
        if commits:
            delay_ms = poll_min
            continue
        if not for_ever:
            return
        await clock.sleep(delay_ms * (0.5 + rng.random() / 2) / 1000)
        delay_ms = min(delay_ms * 2, poll_max)


def events_of(commit: Segment) -> list[QueueEvent]:
    at = from_ms(commit.at)
    return [
        QueueEvent(commit.position, index, at, _kind(event), subject(event), _fields(event))
        for index, event in enumerate(commit.events)
    ]


def _kind(event: Event) -> EventKind:
    return EventKind(str(event.__struct_config__.tag))


def _fields(event: Event) -> dict[str, Any]:
    fields = msgspec.structs.asdict(event)
    fields.pop("job_id", None)
    if isinstance(event, Added):
        # The job as it was asked for is what one wants to see, not how it is wrapped.
        del fields["spec"]
        fields = msgspec.structs.asdict(event.spec) | fields
        del fields["id"]
    return fields
