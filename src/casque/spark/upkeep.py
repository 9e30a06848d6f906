"""Keeps a warehouse small: merges the little files of many runs, and deletes files that no version needs any more."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from casque.clock import new_nonce, system_random
from casque.errors import CASConflictError
from casque.spark.files import frame, write
from casque.spark.models import models
from casque.spark.table_log import Known, TableLog
from casque.spark.warehouse import Snapshot, Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROWING = ("bronze/events", "silver/jobs", "silver/attempts", "quality/rules")
"""Tables to which every run adds files; in the others it replaces them."""
WRITES_MANY = 16
"""Merge the small files of a date once this many writes have left some of about one size, so that a row is rewritten
once for every time that its file grows sixteenfold."""
SMALL_BYTES = 16 * 1024 * 1024
TINY_BYTES = 64 * 1024
SWEEP_EVERY = timedelta(days=1)
KEEP = timedelta(days=7)
"""For how long replaced files are kept: they belong to older versions of their table, and may still be read."""


def keep_small(spark: SparkSession, warehouse: Warehouse, snapshot: Snapshot) -> Snapshot:
    """After a run. If another run is faster, the rest is left to the next one."""
    merged = [name for name in GROWING if _merge(spark, warehouse, warehouse.log(name))]
    now_ms = warehouse.now_ms()
    sweep = now_ms - snapshot.root.swept_ms >= SWEEP_EVERY / timedelta(milliseconds=1)
    if not merged and not sweep:
        return snapshot
    root = msgspec.structs.replace(
        snapshot.root,
        tables={**snapshot.root.tables, **{name: warehouse.log(name).version for name in merged}},
        swept_ms=now_ms if sweep else snapshot.root.swept_ms,
    )
    try:
        snapshot = warehouse.write(snapshot, root)
    except CASConflictError:
        return warehouse.snapshot()
    if sweep:
        for name in root.tables:
            warehouse.log(name).sweep(KEEP)
    return snapshot


def _merge(spark: SparkSession, warehouse: Warehouse, log: TableLog) -> bool:
    columns = models()[log.name].types
    merged = False
    for files in _alike(log.files()):
        df = frame(spark, warehouse.store_ref, log.name, [one.path for one in files], columns)
        # Not named like the folder of a run, whose files are what is new.
        folder = f"merged-{new_nonce(system_random())}"
        written = write(df.coalesce(1), warehouse.store_ref, log.name, folder)
        if not log.rewrite(written, files, warehouse.now_ms()):
            return merged
        merged = True
    return merged


def _alike(files: list[Known]) -> Iterator[list[Known]]:
    """Small files of one date and about one size."""
    groups: dict[tuple[str, int], list[Known]] = {}
    for one in files:
        if one.bytes < SMALL_BYTES and one.first == one.last:
            groups.setdefault((one.first, max(one.bytes, TINY_BYTES).bit_length() // 4), []).append(one)
    yield from (group for group in groups.values() if len({one.path.partition("/")[0] for one in group}) >= WRITES_MANY)
