"""Reads a queue's tables as a batch. The driver plans, which fixes what is read; tasks read splits as Arrow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from casque.scan import Scan, Split, Table
from casque.scan.planning import SPLITS
from casque.spark.arrow import fitted, wanted_schema
from casque.spark.executor import settle_in
from casque.spark.options import SourceOptions


class SplitPartition(InputPartition):
    """One split, or several small ones, for one task."""

    def __init__(self, *splits: Split) -> None:
        super().__init__(splits)


def partitions_of(splits: Sequence[Split], wanted: int | None) -> list[InputPartition]:
    """One partition for each split. If a ring has more shards than wanted tasks, splits that are the only one of their
    shard share tasks: most of them are small."""
    count = Counter(split.shard for split in splits)
    alone = [split for split in splits if split.shard is not None and count[split.shard] == 1]
    size = -(-len(alone) // (wanted or SPLITS))
    if size < 2:
        return [SplitPartition(split) for split in splits]
    together = [SplitPartition(*alone[at : at + size]) for at in range(0, len(alone), size)]
    return [*together, *(SplitPartition(split) for split in splits if count[split.shard] > 1)]


class CasqueReader(DataSourceReader):
    """Takes no filters from Spark (`pushFilters`). Spark keeps what a Python source has planned with the frame: a query
    without filters would be given the objects that an earlier one with a filter had left over, and lose rows."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = wanted_schema(options.table, schema)

    def partitions(self) -> list[InputPartition]:
        with self._options.scan() as scan:
            return partitions_of(plan(scan, self._options), self._options.splits)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_batches(self._options, partition, self._schema)


def plan(scan: Scan, options: SourceOptions) -> Sequence[Split]:
    """The splits of a table within the bounds of options."""
    match options.table:
        case Table.EVENTS:
            return scan.plan_events(
                start=options.start_from,
                end=options.upto,
                splits=options.splits,
                clock_skew=options.clock_skew,
            )
        case Table.ARCHIVE | Table.ATTEMPTS:
            return scan.plan_archive(
                table=options.table,
                since=options.since,
                until=options.until,
                start=options.start_from,
                end=options.upto,
                splits=options.splits,
            )
        case Table.JOBS:
            return scan.plan_jobs(options.as_of, splits=options.splits)


def read_batches(options: SourceOptions, partition: InputPartition, schema: Any) -> Iterator[Any]:
    """Runs in a task."""
    settle_in()
    if partition.value is None:  # Spark's partition for a table without splits
        return
    with options.scan() as scan:
        for split in partition.value:
            for batch in scan.read(split, columns=schema.names):
                yield fitted(batch, schema)
