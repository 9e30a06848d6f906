"""Jobs as Arrow columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from casque.engine.embedded import state_at
from casque.scan.arrays import attempt_lists, column, each
from casque.scan.event_columns import Specs
from casque.scan.splits import DocumentSplit, JobsSplit
from casque.scan.tables import Table, arrow_schema
from casque.types import JobRecord

OF_RECORD = {
    "created_at": "created_ms",
    "due_at": "due_ms",
    "sequence": "sequence",
    "token": "token",
    "attempts": "attempts",
    "worker": "worker",
    "lease_ms": "lease_ms",
    "claimed_at": "claimed_ms",
    "beat_at": "beat_ms",
    "error": "error",
    "crashes": "crashes",
}
"""Columns that the queue fills, and the fields of a record that they come from. The others come from the job's spec."""


def job_batches(
    records: Sequence[JobRecord], split: JobsSplit | DocumentSplit, columns: Sequence[str], *, rows: int
) -> Iterator[Any]:
    """`pyarrow` batches of `rows` rows each."""
    schema = arrow_schema(Table.JOBS, columns)
    for start in range(0, len(records), rows):
        some = records[start : start + rows]
        specs = Specs(each("spec", some))
        arrays = [
            _array(name, some, specs, split, wanted) for name, wanted in zip(schema.names, schema.types, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(name: str, records: Sequence[JobRecord], specs: Specs, split: JobsSplit | DocumentSplit, wanted: Any) -> Any:
    if name in ("shard", "position"):
        return pa.repeat(pa.scalar(0 if name == "shard" else split.position, wanted), len(records))
    if name == "state":
        return column([state_at(job, split.now_ms).value for job in records], wanted)
    if name == "tries":
        return attempt_lists(each(name, records), wanted)
    if name not in OF_RECORD:
        return specs.column(name, wanted)
    return column(each(OF_RECORD[name], records), wanted)
