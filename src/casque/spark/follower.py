"""The pipeline as a Structured Streaming query: events are its source, and each batch is carried out by one run.

The checkpoint is no second truth. How far the tables are stands in the warehouse alone: a run begins at its cursor, and
takes the events from the batch if the batch has all of them. A batch that Spark replays ends before the cursor, and its
run does nothing. Without its checkpoint the query begins at the cursor.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING

import msgspec

from casque.errors import CASConflictError
from casque.scan import Table
from casque.spark.offsets import Offset, Offsets
from casque.spark.options import OnGone
from casque.spark.pipeline import WITHOUT_PAYLOADS, Batch, Settings, columns_without, cursor_of, look, positions
from casque.spark.session import activate, own_session
from casque.spark.store_ref import StoreRef
from casque.spark.task_errors import as_raised
from casque.spark.warehouse import Warehouse
from casque.telemetry import logger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logger("spark")

NAME = "casque-pipeline"
POLL_SECONDS = 0.5
_OFFSETS_VERSION = "v1"


class Follower:
    """Follows a queue with a streaming query, and calls `carry_out` with every batch.

    `carry_out` is meant to call `casque.spark.pipeline.run(..., batch=batch)`. It is called with None first if there
    is a checkpoint already. A batch that lost to another writer is tried again after `every`; any other error ends the
    query. Without `every` the query ends once it has carried out what is there now (`availableNow`).

    Works with sessions of this process. On Spark Connect the server would call `carry_out`, in a process of its own.
    """

    def __init__(
        self,
        spark: SparkSession,
        url: str,
        warehouse: Warehouse,
        carry_out: Callable[[Batch | None], object],
        *,
        every: timedelta | None = None,
        checkpoint: str | None = None,
        options: Mapping[str, str] | None = None,
        settings: Settings | None = None,
        warn: Callable[[str], object] = log.warning,
    ) -> None:
        self._spark = spark
        self._queue = StoreRef(url, options)
        self._warehouse = warehouse
        self._carry_out = carry_out
        self._every = every
        self._checkpoint = checkpoint
        self._settings = settings or Settings()
        self._warn = warn
        self._query: StreamingQuery | None = None
        self._before: Offsets | None = None
        """Where the next batch starts."""
        self._stopping = Event()
        self._busy = Lock()
        """Held while a batch is carried out."""
        self._error: Exception | None = None

    @property
    def query(self) -> StreamingQuery | None:
        """The query, while it runs and after: its `lastProgress` has the rows, the offsets and the durations."""
        return self._query

    def run(self) -> None:
        """Returns when everything is carried out, or after `stop`.

        Raises:
            CasqueError: as a run raises it.
        """
        with self._checkpoint_folder() as checkpoint, suppress(_StoppedError):
            try:
                self._query = self._start(checkpoint)
                self._wait(self._query)
            finally:
                if self._query is not None:
                    self._query.stop()
                activate(self._spark)

    def stop(self) -> None:
        """Have `run` return after the current batch. Only sets a mark, so a signal handler may call it."""
        self._stopping.set()

    def _start(self, checkpoint: str) -> StreamingQuery:
        session = own_session(self._spark)
        is_new = self._checkpoint is None or _offsets(session, checkpoint, 0) is None
        if not is_new:
            # A new query has a batch in any case. This one has none if nothing is new to its checkpoint, although a run
            # may have died, or the checkpoint be that of another warehouse.
            self._carry_out_or_wait(None)
        cursor = cursor_of(self._warehouse.snapshot())
        sight = look(self._queue, cursor, adopt=self._settings.adopt)
        begin = {shard: cursor.of(shard).position for shard in sight.shards}
        if is_new:
            self._before = Offsets({shard: Offset(position) for shard, position in begin.items()})
        without = () if self._settings.payloads else WITHOUT_PAYLOADS
        reader = session.readStream.format("casque").schema(columns_without(Table.EVENTS, without))
        # The run decides about gaps, which its cursor shows.
        given = {"table": Table.EVENTS, "archived": "true", "start": positions(begin), "onGone": OnGone.SKIP}
        for name, value in {**given, **{f"store.{name}": value for name, value in self._queue.options.items()}}.items():
            reader = reader.option(name, value)
        writer = reader.load(self._queue.url).writeStream.queryName(NAME).option("checkpointLocation", checkpoint)
        if self._every is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{self._every // timedelta(milliseconds=1)} milliseconds")
        return writer.foreachBatch(lambda df, number: self._batch(df, number, checkpoint)).start()

    def _batch(self, events: DataFrame, number: int, checkpoint: str) -> None:
        with self._busy:
            end = _offsets(events.sparkSession, checkpoint, number)
            start, self._before = self._before, end
            try:
                self._carry_out_or_wait(Batch(events, start, end))
            except Exception as error:
                self._error = error  # Spark hands it on as text
                raise

    def _carry_out_or_wait(self, batch: Batch | None) -> None:
        while not self._stopping.is_set():
            try:
                self._carry_out(batch)
            except CASConflictError as error:
                if self._every is None:
                    raise
                self._warn(str(error))
                self._stopping.wait(self._every.total_seconds())
            else:
                return
        # Not carried out, so Spark must not count it as done.
        raise _StoppedError

    def _wait(self, query: StreamingQuery) -> None:
        from pyspark.errors import StreamingQueryException

        try:
            while not query.awaitTermination(POLL_SECONDS):  # type: ignore[arg-type]  # it takes parts of a second
                if self._stopping.is_set():
                    with self._busy:
                        pass  # the last batch is over: one that begins now raises
                    query.stop()
        except StreamingQueryException:
            if self._error is None:  # an error of the source, not of a batch
                with as_raised():
                    raise
        if self._error is not None:
            raise self._error

    @contextmanager
    def _checkpoint_folder(self) -> Iterator[str]:
        if self._checkpoint is not None:
            yield self._checkpoint.rstrip("/")
            return
        with tempfile.TemporaryDirectory(prefix="casque-pipeline-", ignore_cleanup_errors=True) as folder:
            yield Path(folder).as_uri()


class _StoppedError(Exception):
    """The query is being stopped, and a batch was not carried out."""


def _offsets(spark: SparkSession, checkpoint: str, batch: int) -> Offsets | None:
    """Where a batch ends, as Spark wrote it to the checkpoint before; None if that cannot be read. Spark tells a
    function of `foreachBatch` only the number."""
    from pyspark.errors import PySparkException

    with suppress(PySparkException, msgspec.DecodeError, KeyError, ValueError):
        version, _, offset = (row[0] for row in spark.read.text(f"{checkpoint}/offsets/{batch}").collect())
        if version == _OFFSETS_VERSION:
            return Offsets.read(msgspec.json.decode(offset))
    return None
