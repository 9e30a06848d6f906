"""Splits: pieces of a table that can be read anywhere, in any order, any number of times.

A split names what it reads, pinned when the plan was made, and holds no credentials. It is pickled to wherever it is
read.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from casque.codec.log import LAYOUT, SnapshotRef
from casque.codec.snapshot import Part
from casque.scan.tables import Table


class Extent(msgspec.Struct, frozen=True):
    """The bounds of a queue's history."""

    queue_id: str | None
    layout: str
    floor: int
    """Events up to here may be gone."""
    end: int
    """The last commit."""
    archived: int
    """Jobs that finished up to here are in the archive, if it has not dropped them."""

    @property
    def has_log(self) -> bool:
        """False for a document, which keeps no events."""
        return self.layout == LAYOUT


class Taken(msgspec.Struct, frozen=True):
    """How far row and byte limits reach, and how many rows and bytes that is."""

    position: int
    rows: int
    bytes: int


class ArchiveObject(msgspec.Struct, frozen=True):
    """Finished jobs of a range of positions that finished in one hour."""

    key: str
    hour: str
    """As in the name: `2026-02-15T10`."""
    first: int
    last: int


class EventsSplit(msgspec.Struct, frozen=True):
    """The commits from `first` to `last`, filtered by time."""

    queue_id: str
    first: int
    last: int
    since_ms: int | None = None
    until_ms: int | None = None
    shard: int | None = None
    """The shard, if the queue is a ring."""


class ArchiveSplit(msgspec.Struct, frozen=True):
    """Some objects of the archive, as finished jobs or as their attempts."""

    table: Table
    objects: tuple[ArchiveObject, ...]
    after: int = 0
    """Only jobs that finished after this position."""
    since_ms: int | None = None
    until_ms: int | None = None
    shard: int | None = None


class JobsSplit(msgspec.Struct, frozen=True):
    """Some of a snapshot's jobs as of `position`, and a share of those added since."""

    queue_id: str
    base: SnapshotRef | None
    """None if the log starts empty."""
    chain: str
    """The digest of the segment that the snapshot ends with."""
    inline: bool
    """True if the jobs in the snapshot's own object belong to this split."""
    parts: tuple[Part, ...]
    number: int
    """The index of this split among `of`: a job that was added later belongs to a split by its id."""
    of: int
    position: int
    now_ms: int
    """The time that decides whether a delayed job is due."""
    shard: int | None = None


class DocumentSplit(msgspec.Struct, frozen=True):
    """A whole document, as of the plan: the next commit replaces it."""

    packed: bytes
    position: int
    now_ms: int
    shard: None = None
    """Shards are always logs."""


Split: TypeAlias = EventsSplit | ArchiveSplit | JobsSplit | DocumentSplit
