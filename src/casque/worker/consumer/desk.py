"""What a consumer needs of the worker that it claims for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from casque.client.job import Job
from casque.client.queue import Queue


class Desk(Protocol):
    """Takes claimed jobs, and says how many more it can take."""

    reserved: int
    """Places that are spoken for by claims under way."""

    @property
    def queue(self) -> Queue[bytes]: ...

    @property
    def names(self) -> tuple[str, ...]:
        """The entrypoints that there are handlers for."""
        ...

    @property
    def zones(self) -> tuple[str, ...] | None:
        """Only these zones; None for all."""
        ...

    def room(self) -> int:
        """How many more jobs could be started now, without those places."""
        ...

    async def wait_for_room(self) -> None:
        """Until that may have changed."""
        ...

    def take(self, jobs: Sequence[Job[Any]]) -> None: ...

    def holds(self, zone: str | None = None) -> bool:
        """Whether it has jobs that are not over and told yet: of this zone, or any."""
        ...
