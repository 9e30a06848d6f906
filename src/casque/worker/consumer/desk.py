"""The worker, as its consumer of zones sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from casque.client.job import Job
from casque.client.queue import Queue


class Desk(Protocol):
    """Accepts claimed jobs and says how many more fit."""

    reserved: int
    """Places reserved for claims under way."""

    @property
    def queue(self) -> Queue[bytes]: ...

    @property
    def names(self) -> tuple[str, ...]:
        """The entrypoints that have handlers."""
        ...

    @property
    def zones(self) -> tuple[str, ...] | None:
        """Only these zones; None for all."""
        ...

    def room(self) -> int:
        """Number of jobs that could be started now, without the reserved places."""
        ...

    async def wait_for_room(self) -> None:
        """Wait until `room` may have changed."""
        ...

    def take(self, jobs: Sequence[Job[Any]]) -> None: ...

    def holds(self, zone: str | None = None) -> bool:
        """Whether it has jobs of this zone, or of any, whose outcome is not settled yet."""
        ...
