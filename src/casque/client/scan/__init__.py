"""A queue's tables as columns, read from the bucket: its jobs, what happened to them, and what became of them.

Below Spark, and useful without it: a plan is made in one process, and its splits are read wherever there is room.
Nothing here writes, claims, or asks a broker. Needs `pyarrow`, which `import casque` does not.
"""

from __future__ import annotations

from casque.client.scan.planning import Chosen
from casque.client.scan.scan import Scan
from casque.client.scan.shards import Point, Positions
from casque.client.scan.splits import (
    ArchiveObject,
    ArchiveSplit,
    DocumentSplit,
    EventsSplit,
    Extent,
    JobsSplit,
    Split,
    Taken,
)
from casque.client.scan.tables import COLUMNS, Table, arrow_schema, ddl

__all__ = [
    "COLUMNS",
    "ArchiveObject",
    "ArchiveSplit",
    "Chosen",
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
