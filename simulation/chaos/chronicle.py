"""Follows the log of a queue from outside, event by event, and checks that it is a history that can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from casque.service import EventKind, QueueEvent


class Life(msgspec.Struct):
    """One job, as the log tells it."""

    payload: str
    added: int
    token: int = 0
    """Of its last claim."""
    held: bool = False
    """Whether that claim still holds."""
    finished: int | None = None
    """The position that finished it."""
    dead: bool = False
    """It may be retried, and until then nothing else happens to it."""
    deaths: list[int] = []
    """The positions at which it died."""


class Chronicle:
    """What the log says happened."""

    def __init__(self) -> None:
        self.lives: dict[str, Life] = {}
        self.seen: tuple[int, int] = (0, -1)
        self.kinds: Counter[EventKind] = Counter()
        self.problems: list[str] = []

    @property
    def position(self) -> int:
        return self.seen[0]

    async def follow(self, events: AsyncGenerator[QueueEvent]) -> None:
        """Take in events that may begin before the last one known: a commit can be cut in the middle."""
        async with aclosing(events) as stream:
            async for event in stream:
                if (event.position, event.index) > self.seen:
                    self.take(event)
                    self.seen = (event.position, event.index)

    def take(self, event: QueueEvent) -> None:
        self.kinds[event.kind] += 1
        if event.job_id is None:
            return
        if event.kind is EventKind.ADDED:
            if event.job_id in self.lives:
                self._wrong(event, "was added before")
            payload = event.fields["payload"]
            text = payload.decode() if isinstance(payload, bytes) else str(payload)
            self.lives[event.job_id] = Life(text, event.position)
        elif (life := self.lives.get(event.job_id)) is None:
            self._wrong(event, "was never added")
        elif life.finished is not None:
            self._wrong(event, f"was finished at position {life.finished}")
        else:
            self._go_on(life, event)

    def _go_on(self, life: Life, event: QueueEvent) -> None:
        token = event.fields.get("token")
        if life.dead is not (event.kind is EventKind.REVIVED):
            self._wrong(event, "is dead" if life.dead else "is not dead")
        if event.kind is EventKind.REVIVED:
            life.dead = False
            return
        if event.kind is EventKind.CANCELLED:
            life.held, life.finished = False, event.position
            return
        if event.kind is EventKind.CLAIMED:
            if life.held:
                self._wrong(event, f"is still claimed with token {life.token}")
            if token is None or token <= life.token:
                self._wrong(event, f"has token {life.token} already, and {token} is no later one")
            life.token, life.held = int(token or 0), True
            return
        if not life.held or token != life.token:
            held = f"its claim is {life.token}" if life.held else "nobody holds it"
            self._wrong(event, f"with token {token}, but {held}")
        if event.kind in (EventKind.BEATEN, EventKind.ADVANCED, EventKind.WATCHED):
            return
        life.held = False
        if event.kind is EventKind.ACKED:
            life.finished = event.position
        elif event.kind is EventKind.DIED:
            life.dead = True
            life.deaths.append(event.position)
        elif event.kind not in (EventKind.NACKED, EventKind.RETURNED, EventKind.EXPIRED):
            self._wrong(event, "which nobody asked for")

    def _wrong(self, event: QueueEvent, what: str) -> None:
        self.problems.append(f"position {event.position}: {event.kind.value} {event.job_id}, {what}")
