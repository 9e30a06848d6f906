"""DataFrames become jobs: tasks stage objects beside the queue, and the driver makes one commit that names them all.

A task may fail, be retried, or run twice at the same time: each attempt stages objects of its own, and only those that
a commit message names are ever admitted. The commit names its writer and the number of its batch; the queue remembers
both, so the same batch again, after any crash, changes nothing. An abort deletes nothing: Spark may abort a write whose
commit has landed. Staged objects that no commit names are swept by their age.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from casque.client.staging import Stager
from casque.clock import new_id, system_random
from casque.errors import InvalidInputError
from casque.printable import printable
from casque.spark.admitting import admit
from casque.spark.columns import JobColumns
from casque.spark.executor import settle_in
from casque.spark.write_options import WriteOptions
from casque.telemetry import logger
from casque.types import StagedPart

log = logger("spark")


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """For the data source: rejects bad options and columns before anything runs."""
    return BatchWriter(WriteOptions.parse(options), schema, overwrite=overwrite)


class Staged(WriterCommitMessage):
    """The objects that one task has staged, and their query."""

    def __init__(self, parts: Sequence[StagedPart], query: str | None = None) -> None:
        self.parts = tuple(parts)
        self.query = query


class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("casque").mode("append").save(url)`."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        refuse_overwriting(overwrite)
        self._options = options.for_batch()
        self._columns = JobColumns(schema, options)
        # Tasks and the commit share this object, so they all have the name that is drawn here.
        self._source = f"txn:{options.txn_id}" if options.txn_id is not None else f"once:{new_id(system_random())}"
        self._batch = options.txn_version or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return Staged(stage(iterator, self._columns, self._options))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        parts, _ = gathered(messages)
        if not parts:
            log.info("nothing to enqueue: no rows")
            return
        done = admit(self._options, source=self._source, batch=self._batch, parts=parts)
        if done.skipped and not self._options.skips_known and not done.repeated:
            _say(
                f"{done.skipped} of {done.jobs + done.skipped} rows were not enqueued: their unique key is that of an "
                "unfinished job, or of an earlier row"
            )
        # Without a transaction id it was this same write, whose first answer got lost.
        if done.repeated and self._options.txn_id is not None:
            _say(
                f"nothing was enqueued: txnId={self._options.txn_id} has written txnVersion={self._batch}, or a later "
                f"one, before (position {done.position})"
            )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        left(messages)


def stage(batches: Iterable[pa.RecordBatch], columns: JobColumns, options: WriteOptions) -> list[StagedPart]:
    """In a task: rows in, staged objects out. Holds the rows of only one object in memory."""
    settle_in()
    with Stager(options.url, options=options.store, txn="spark") as stager:
        parts: list[StagedPart] = []
        first = 0
        for portion in _portions(batches, rows_max=options.rows_max, bytes_max=options.bytes_max):
            try:
                jobs = columns.jobs(portion, stager)
                # Cut again only payloads that grew as JSON, or that are one long text for all rows.
                fits = isinstance(jobs.payloads, list) and sum(map(len, jobs.payloads)) <= options.bytes_max
                parts += [stager.stage(jobs)] if fits else stager.stage_all(jobs)
            except InvalidInputError as error:
                context = TaskContext.get()
                raise columns.located(error, portion, first, context.partitionId() if context else 0) from error
            first += portion.num_rows
        return parts


def _portions(batches: Iterable[pa.RecordBatch], *, rows_max: int, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Join or cut batches until each makes one object."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for whole in batches:
        # Arrow only estimates the sizes of slices, which is good enough to limit memory.
        step = max(1, min(rows_max, whole.num_rows * bytes_max // max(1, whole.nbytes)))
        for start in range(0, whole.num_rows, step):
            batch = whole.slice(start, step)
            if held and (rows + batch.num_rows > rows_max or size + batch.nbytes > bytes_max):
                yield _joined(held)
                held, rows, size = [], 0, 0
            held.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def gathered(messages: Iterable[Any]) -> tuple[list[StagedPart], str | None]:
    staged = [message for message in messages if isinstance(message, Staged)]
    parts = [part for message in staged for part in message.parts]
    return parts, next((message.query for message in staged if message.query is not None), None)


def refuse_overwriting(overwrite: bool) -> None:
    if overwrite:
        raise InvalidInputError(
            'a queue is never overwritten: use mode("append"), or outputMode("append") for a stream. To empty a queue '
            "cancel or purge its jobs"
        )


def _say(message: str) -> None:
    """Logging is not configured in the process that Spark commits in; its stderr ends up in the driver's."""
    log.warning(message)
    sys.stderr.write(f"casque: {printable(message)}\n")


def left(messages: Iterable[Any]) -> None:
    parts, _ = gathered(messages)
    log.info("the write was aborted; %s staged objects are left to the sweeper", len(parts))
