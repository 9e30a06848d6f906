"""The position of a stream, as its checkpoint keeps it: JSON, so that people can read it in the progress of a query."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from casque.scan.shards import shard_name

ALONE = "0"
"""The shard name for a queue without shards."""


class Offset(msgspec.Struct, frozen=True):
    """A position, and the data needed to replay the batch that ends there."""

    position: int = 0
    skipped: int = 0
    """Data up to here was deleted before the batch could read it."""
    hour: str = ""
    """The latest hour of the archive read so far."""
    objects: int | None = None
    """Number of archive objects in the batch."""


BEGINNING = Offset()


def lag(progress: Mapping[str, Any] | None) -> dict[str, int]:
    """How many commits a stream is behind in each shard: those after the last batch, according to `query.lastProgress`.
    Empty if that does not say what is the latest, as after a batch that was replayed. PySpark lets no Python source add
    metrics of its own to the progress.

    >>> source = {"endOffset": '{"positions": {"0": 41}}', "latestOffset": '{"positions": {"0": 44}}'}
    >>> lag({"sources": [source]})
    {'0': 3}
    """
    behind: dict[str, int] = {}
    for source in () if progress is None else progress["sources"]:
        latest, end = (_positions(source[name]) for name in ("latestOffset", "endOffset"))
        for shard, position in latest.items():
            behind[shard] = max(behind.get(shard, 0), position - end.get(shard, 0))
    return behind


def _positions(offset: Any) -> Mapping[str, int]:
    """None for offsets of other sources, which may be anything."""
    try:
        return msgspec.json.decode(offset, type=_Positions).positions
    except (msgspec.DecodeError, TypeError):
        return {}


class _Positions(msgspec.Struct):
    positions: dict[str, int]


class Offsets(msgspec.Struct, frozen=True):
    """The offset of each shard of a ring; under None that of a queue without shards.

    >>> Offsets({None: Offset(41)}, queue="q").json()
    {'positions': {'0': 41}, 'queue': 'q'}
    >>> Offsets({0: Offset(41), 1: Offset(7, skipped=5)}, queue="r").json()
    {'positions': {'0000': 41, '0001': 7}, 'queue': 'r', 'skipped': {'0001': 5}}
    """

    of: Mapping[int | None, Offset]
    queue: str | None = None
    """Id of the queue or ring that these positions belong to."""

    def at(self, shard: int | None) -> Offset:
        """A new shard is read from its beginning."""
        return self.of.get(shard, BEGINNING)

    def json(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"positions": {_name(shard): one.position for shard, one in self.of.items()}}
        if self.queue is not None:
            fields["queue"] = self.queue
        if skipped := {_name(shard): one.skipped for shard, one in self.of.items() if one.skipped}:
            fields["skipped"] = skipped
        fields |= self._by_shard("hour", lambda one: one.hour or None)
        fields |= self._by_shard("objects", lambda one: one.objects)
        return fields

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Offsets:
        def of(name: str) -> Offset:
            hour, objects = stored.get("hour", ""), stored.get("objects")
            return Offset(
                int(stored["positions"][name]),
                int(stored.get("skipped", {}).get(name, 0)),
                hour.get(name, "") if isinstance(hour, dict) else hour,
                objects.get(name) if isinstance(objects, dict) else objects,
            )

        return cls(
            {None if name == ALONE else int(name): of(name) for name in stored["positions"]}, stored.get("queue")
        )

    def _by_shard(self, what: str, value: Callable[[Offset], Any]) -> dict[str, Any]:
        """A field by shard, or its one value in a queue without shards; left out if unset."""
        found = {shard: value(one) for shard, one in self.of.items() if value(one) is not None}
        if not found:
            return {}
        return {what: found[None] if None in found else {_name(shard): one for shard, one in found.items()}}


def _name(shard: int | None) -> str:
    return ALONE if shard is None else shard_name(shard)
