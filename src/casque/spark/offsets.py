"""Where a stream stands, as its checkpoint keeps it: JSON, so that people can read it in the progress of a query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

SHARD = "0"
"""A queue has one root as yet."""


class Offset(msgspec.Struct, frozen=True):
    """A position, and what a replay of the batch that ends there has to know.

    >>> Offset.read(Offset(41, queue="q").json()).position
    41
    """

    position: int
    queue: str | None = None
    """Whose position it is."""
    skipped: int = 0
    """Up to here the batch had nothing to read: it was gone."""
    hour: str = ""
    """The latest hour of the archive that was read so far."""
    objects: int | None = None
    """How many objects of the archive the batch consists of."""

    def json(self) -> dict[str, Any]:
        told: dict[str, Any] = {"positions": {SHARD: self.position}}
        if self.queue is not None:
            told["queue"] = self.queue
        if self.skipped:
            told["skipped"] = {SHARD: self.skipped}
        if self.hour:
            told["hour"] = self.hour
        if self.objects is not None:
            told["objects"] = self.objects
        return told

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Offset:
        return cls(
            int(told["positions"][SHARD]),
            told.get("queue"),
            int(told.get("skipped", {}).get(SHARD, 0)),
            told.get("hour", ""),
            told.get("objects"),
        )
