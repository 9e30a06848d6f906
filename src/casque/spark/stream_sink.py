"""Micro-batches become jobs: like `sink.py`, and each batch once across crashes of the driver.

After a crash Spark runs its last batch again, with the same number and rows. The queue remembers the last batch of
every query, so this one changes nothing. Any other batch with an old number is refused: see `_check_replay` and
`bind_writer`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from casque.errors import CheckpointError, InvalidInputError, NotInstalledError
from casque.spark.admitting import admit, bind_writer
from casque.spark.columns import JobColumns
from casque.spark.sink import Staged, gathered, left, refuse_overwriting, stage
from casque.spark.write_options import WriteOptions
from casque.telemetry import logger
from casque.types import Admission

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError as error:
    raise NotInstalledError("PySpark 4.0 writes streams row by row only", 'pip install "pyspark>=4.1"') from error

log = logger("spark")

QUERY_PROPERTY = "sql.streaming.queryId"


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """For the data source: rejects bad options and columns before anything runs."""
    return StreamWriter(WriteOptions.parse(options), schema, overwrite=overwrite)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("casque").option("checkpointLocation", ...).start(url)`."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        refuse_overwriting(overwrite)
        self._options = options.for_stream()
        self._columns = JobColumns(schema, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(QUERY_PROPERTY)
        return Staged(stage(iterator, self._columns, self._options), query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        parts, query = gathered(messages)
        if not parts:
            return
        if query is None:
            raise InvalidInputError(
                "Spark did not say which query this is, so a repeated batch could not be recognised"
            )
        writer = self._options.writer_id
        if writer is not None:
            bind_writer(self._options, writer, query)
        done = admit(self._options, source=f"stream:{writer or query}", batch=batchId, parts=parts, stay_open=True)
        if done.repeated:
            rows = None if self._options.skips_known else sum(part.jobs for part in parts)
            _check_replay(done, query, batchId, rows)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        left(messages)


def _check_replay(done: Admission, query: str, batch: int, rows: int | None) -> None:
    """After a crash Spark replays its last batch with the same rows, which the queue has. Any other batch with an old
    number comes from a restored checkpoint; its rows would silently be lost.

    The number of rows is not known if some were left out because others have the same id."""
    before = done.jobs + done.skipped
    if before and rows in (before, None):
        log.info("batch %s of query %s is already enqueued: nothing to do", batch, query)
        return
    how = f"had {before} rows then, and has {rows} now" if before else "was followed by later ones"
    raise CheckpointError(
        f"batch {batch} of query {query} was enqueued before at position {done.position}, and {how}: another driver "
        "works on this checkpoint, it was put back to an older state, or the query gives other rows for the same "
        "input. Nothing was enqueued. Stop the other driver, or go on with a new checkpoint"
    )
