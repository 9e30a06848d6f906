"""A queue's tables as Arrow columns, read from the bucket: its jobs, their events, and the archive.

Spark builds on this package, and it works without Spark: one process makes a plan, and any process reads its splits.
Nothing here writes, claims, or calls a broker. Needs `pyarrow`, which `import casque` does not.
"""

from __future__ import annotations

from casque.scan.scan import Scan
from casque.scan.shards import Point, Positions
from casque.scan.splits import (
    ArchiveObject,
    ArchiveSplit,
    DocumentSplit,
    EventsSplit,
    Extent,
    JobsSplit,
    Split,
    Taken,
)
from casque.scan.tables import COLUMNS, Table, arrow_schema, ddl

__all__ = [
    "COLUMNS",
    "ArchiveObject",
    "ArchiveSplit",
    "DocumentSplit",
    "EventsSplit",
    "Extent",
    "JobsSplit",
    "Point",
    "Positions",
    "Scan",
    "Split",
    "Table",
    "Taken",
    "arrow_schema",
    "ddl",
]
