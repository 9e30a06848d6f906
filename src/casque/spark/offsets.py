"""Where a stream stands, as its checkpoint keeps it: JSON, so that people can read it in the progress of a query."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from casque.client.scan.shards import shard_name

ALONE = "0"
"""What the one root of a queue without shards is called here."""


class Offset(msgspec.Struct, frozen=True):
    """A position, and what a replay of the batch that ends there has to know."""

    position: int = 0
    skipped: int = 0
    """Up to here the batch had nothing to read: it was gone."""
    hour: str = ""
    """The latest hour of the archive that was read so far."""
    objects: int | None = None
    """How many objects of the archive the batch consists of."""


BEGINNING = Offset()


class Offsets(msgspec.Struct, frozen=True):
    """The offset of each shard of a ring; under None that of a queue without shards.

    >>> Offsets({None: Offset(41)}, queue="q").json()
    {'positions': {'0': 41}, 'queue': 'q'}
    >>> Offsets({0: Offset(41), 1: Offset(7, skipped=5)}, queue="r").json()
    {'positions': {'0000': 41, '0001': 7}, 'queue': 'r', 'skipped': {'0001': 5}}
    """

    of: Mapping[int | None, Offset]
    queue: str | None = None
    """Whose positions these are: the id of the queue, or of the ring."""

    def at(self, shard: int | None) -> Offset:
        """A shard that was not there yet is read from its beginning."""
        return self.of.get(shard, BEGINNING)

    def json(self) -> dict[str, Any]:
        told: dict[str, Any] = {"positions": {_name(shard): one.position for shard, one in self.of.items()}}
        if self.queue is not None:
            told["queue"] = self.queue
        if skipped := {_name(shard): one.skipped for shard, one in self.of.items() if one.skipped}:
            told["skipped"] = skipped
        told |= self._told("hour", lambda one: one.hour or None)
        told |= self._told("objects", lambda one: one.objects)
        return told

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Offsets:
        def of(name: str) -> Offset:
            hour, objects = told.get("hour", ""), told.get("objects")
            return Offset(
                int(told["positions"][name]),
                int(told.get("skipped", {}).get(name, 0)),
                hour.get(name, "") if isinstance(hour, dict) else hour,
                objects.get(name) if isinstance(objects, dict) else objects,
            )

        return cls({None if name == ALONE else int(name): of(name) for name in told["positions"]}, told.get("queue"))

    def _told(self, what: str, value: Callable[[Offset], Any]) -> dict[str, Any]:
        """By shard, if there are any."""
        found = {shard: value(one) for shard, one in self.of.items() if value(one) is not None}
        if not found:
            return {}
        return {what: found[None] if None in found else {_name(shard): one for shard, one in found.items()}}


def _name(shard: int | None) -> str:
    return ALONE if shard is None else shard_name(shard)
