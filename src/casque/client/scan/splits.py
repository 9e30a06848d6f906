"""What a plan consists of: pieces of a table that can be read anywhere, in any order, any number of times.

A split names what it reads, pinned when the plan was made, and holds no credentials. It is pickled to wherever it is
read.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from casque.client.scan.tables import Table
from casque.codec.log import SnapshotRef
from casque.codec.snapshot import Part


class Extent(msgspec.Struct, frozen=True):
    """How far a queue's history reaches, both ways."""

    queue_id: str | None
    layout: str
    floor: int
    """Events up to here may be gone."""
    end: int
    """The last commit."""
    archived: int
    """Jobs that finished up to here are in the archive, if it has not dropped them."""


class Taken(msgspec.Struct, frozen=True):
    """How far somebody gets with so many rows and bytes, and how many of them that takes."""

    position: int
    rows: int
    bytes: int


class ArchiveObject(msgspec.Struct, frozen=True):
    """Some finished jobs: those of a range of positions that finished in one hour."""

    key: str
    hour: str
    """As in the name: `2026-02-15T10`."""
    first: int
    last: int


class EventsSplit(msgspec.Struct, frozen=True):
    """The commits from `first` to `last`, and of these only what happened in the time between."""

    queue_id: str
    first: int
    last: int
    since_ms: int | None = None
    until_ms: int | None = None
    shard: int | None = None
    """Of which shard, if the queue is a ring of them."""


class ArchiveSplit(msgspec.Struct, frozen=True):
    """Some objects of the archive, as finished jobs or as their attempts."""

    table: Table
    objects: tuple[ArchiveObject, ...]
    after: int = 0
    """Only what finished after this position."""
    since_ms: int | None = None
    until_ms: int | None = None
    shard: int | None = None


class JobsSplit(msgspec.Struct, frozen=True):
    """Some of a snapshot's jobs as they stand at `position`, and as many of those that were added since."""

    queue_id: str
    base: SnapshotRef | None
    """None if the log begins with nothing."""
    chain: str
    """The digest of the segment that the snapshot ends with."""
    inline: bool
    """Whether the jobs in the snapshot's own object belong to this split."""
    parts: tuple[Part, ...]
    number: int
    """Which split this is, of how many: whose a job is that was added later follows from its id."""
    of: int
    position: int
    now_ms: int
    """Whether a delayed job is due is judged by this moment."""
    shard: int | None = None


class DocumentSplit(msgspec.Struct, frozen=True):
    """A whole document, as it was when the plan was made: the next commit will have replaced it."""

    packed: bytes
    position: int
    now_ms: int
    shard: None = None
    """Shards are always logs."""


Split: TypeAlias = EventsSplit | ArchiveSplit | JobsSplit | DocumentSplit
