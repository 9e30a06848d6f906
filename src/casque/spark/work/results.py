"""A table of handler results: written by executors, published by the driver before it settles the jobs.

A row belongs to one claim: (`job_id`, `token`) is unique, because only the files of the trip whose outcomes reached the
driver are ever named. If the driver dies between naming them and settling, the job comes back, runs again under another
token, and leaves a second row; the archive says which token was acknowledged, and `results` shows only that row. Read
that way, a result is neither lost nor duplicated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from casque.arrow_types import INSTANT, arrow_schema, arrow_type
from casque.clock import SystemClock, new_nonce, system_random
from casque.errors import InvalidInputError
from casque.spark.bucket_files import put
from casque.spark.delta import DeltaLog
from casque.spark.files import File, frame
from casque.spark.store_ref import StoreRef
from casque.storage.port import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLE = "results"
PLAIN = {"result": "binary"}
"""The columns without a schema: the handler's bytes."""
OWN = {
    "date": "date",
    "job_id": "string",
    "token": "bigint",
    "attempt": "int",
    "entrypoint": "string",
    "finished_at": "timestamp",
}
_REFUSALS = (pa.ArrowException, TypeError, ValueError, OverflowError)


class Keeping(msgspec.Struct, frozen=True):
    """How a task keeps results; sent with the handler."""

    warehouse: StoreRef
    table: str
    folder: str
    columns: dict[str, str]
    """The columns that handlers fill."""

    @property
    def schema(self) -> pa.Schema:
        return arrow_schema(self.columns)

    def accept(self, returned: Any) -> Mapping[str, Any] | None:
        """The return value of a handler of one job as a row; None for no row.

        Raises:
            InvalidInputError: the value does not fit the columns.
        """
        if returned is None:
            return None
        if type(returned) is bytes and self.columns == PLAIN:
            return {"result": returned}
        names = ", ".join(self.columns)
        if not isinstance(returned, Mapping):
            raise InvalidInputError(
                f"the handler returned {type(returned).__name__}: return a dict with {names}, or None"
            )
        if unknown := [str(name) for name in returned if name not in self.columns]:
            raise InvalidInputError(f"the handler returned {', '.join(unknown)}, and the columns are {names}")
        for name, kind in self.columns.items():
            try:
                pa.scalar(returned.get(name), arrow_type(kind))
            except _REFUSALS as error:
                raise InvalidInputError(f"what the handler returned for {name} does not fit {kind}: {error}") from error
        return returned

    def rows(self, jobs: pa.Table, values: Sequence[Mapping[str, Any] | None]) -> pa.Table:
        """The rows of the jobs that have one."""
        said = [value is not None for value in values]
        given = pa.Table.from_pylist([dict(value) for value in values if value is not None], schema=self.schema)
        return self._with_jobs(jobs.filter(pa.array(said, pa.bool_())), given)

    def rows_of(self, jobs: pa.Table, returned: pa.Table, places: pa.Array, done: pa.Array) -> pa.Table:
        """The same from the table that a handler of many returned: `places` is the row of each job in it.

        Raises:
            InvalidInputError: a column does not fit.
        """
        found = jobs.filter(done)
        where = places.filter(done)
        columns = []
        for name, kind in self.columns.items():
            wanted = arrow_type(kind)
            if name not in returned.column_names:
                columns.append(pa.nulls(found.num_rows, wanted))
                continue
            try:
                columns.append(returned.column(name).take(where).cast(wanted))
            except _REFUSALS as error:
                raise InvalidInputError(f"the handler's column {name} does not fit {kind}: {error}") from error
        return self._with_jobs(found, pa.table(columns, schema=self.schema))

    async def write(self, store: Store, rows: pa.Table) -> File:
        return await put(store, self.table, self.folder, str(rows.column("date")[0].as_py()), rows)

    def _with_jobs(self, jobs: pa.Table, given: pa.Table) -> pa.Table:
        now = pa.scalar(SystemClock().wall_ms() * 1000, pa.int64()).cast(INSTANT)
        own = {
            "date": pa.repeat(now.cast(pa.timestamp("us")).cast(pa.date32()), jobs.num_rows),
            "job_id": jobs.column("id"),
            "token": jobs.column("token"),
            "attempt": jobs.column("attempts"),
            "entrypoint": jobs.column("entrypoint"),
            "finished_at": pa.repeat(now, jobs.num_rows),
        }
        return pa.table({**own, **{name: given.column(name) for name in self.columns}})


class ResultsTable:
    """The table on the driver's side."""

    def __init__(
        self, spark: SparkSession, url: str, options: Mapping[str, str] | None, schema: str | None, table: str = TABLE
    ) -> None:
        """
        Raises:
            InvalidInputError: no such store, or a column has a type that cannot be kept.
        """
        self._warehouse = StoreRef(url, options)
        self._table = table
        columns = dict(PLAIN) if schema is None else dict(spark.createDataFrame([], schema).dtypes)
        if taken := [name for name in columns if name in OWN]:
            raise InvalidInputError(f"result_schema: {', '.join(taken)} is there already; call it something else")
        for kind in columns.values():
            arrow_type(kind)
        self._given = columns
        self._log = DeltaLog(self._warehouse, table, {**OWN, **columns}, "the result of one claim")
        self._log.check_columns()

    def keeping(self) -> Keeping:
        """For one trip."""
        return Keeping(self._warehouse, self._table, f"trip-{new_nonce(system_random())}", self._given)

    def add(self, files: Sequence[File]) -> None:
        """Publish files as part of the table.

        Raises:
            CASConflictError: other writers kept changing the table.
        """
        self._log.append(files, SystemClock().wall_ms())


def results(
    spark: SparkSession,
    warehouse: str,
    queue: str | None,
    *,
    table: str = TABLE,
    options: Mapping[str, str] | None = None,
    queue_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The results that `process` kept, one row for each done job: that of the acknowledged claim.

    The archive of `queue` knows which claim that was. Without a queue, returns every row: also those of claims whose
    driver died, or whose lease was lost, before the job was settled.

    Raises:
        InvalidInputError: there is no such table, or no such store.
    """
    place = StoreRef(warehouse, options)
    log = DeltaLog(place, table, OWN, "")
    rows = frame(spark, place, table, [one.path for one in log.files()], log.columns())
    if queue is None:
        return rows
    from casque.spark.source import register

    register(spark)
    archive = spark.read.format("casque").option("table", "archive")
    for name, value in (queue_options or {}).items():
        archive = archive.option(f"store.{name}", value)
    done = archive.load(queue).where("state = 'done'").selectExpr("id AS job_id", "token")
    return rows.join(done, ["job_id", "token"], "left_semi")
