"""The data source behind `format("casque")`. Each of its roles has a module of its own."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from casque.errors import CasqueError
from casque.scan.tables import ddl
from casque.spark.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class CasqueDataSource(DataSource):
    """Tables of a queue: `spark.read.format("casque").option("table", "archive").load("s3://bucket/orders")`."""

    @classmethod
    def name(cls) -> str:
        return "casque"

    def schema(self) -> str:
        options = SourceOptions.parse(self.options)  # files come with their schema
        return ddl(options.table, metadata=options.metadata)

    def reader(self, schema: StructType) -> DataSourceReader:
        from casque.spark.bucket_files import FILES, files_reader
        from casque.spark.reader import CasqueReader

        if FILES in self.options:
            return files_reader(self.options)
        return CasqueReader(SourceOptions.parse(self.options).for_batch(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        from casque.spark.stream import RefusedStream, stream_reader

        try:
            return stream_reader(SourceOptions.parse(self.options).for_stream(), schema)
        except CasqueError as error:
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from casque.spark.bucket_files import FILES, files_writer
        from casque.spark.sink import batch_writer

        if FILES in self.options:
            return files_writer(self.options)
        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  Spark's name
        from casque.spark.stream_sink import stream_writer

        return stream_writer(self.options, schema, overwrite)


def register(spark: SparkSession) -> None:
    """Register `format("casque")` with a session. Spark finds the source by itself where casque is installed.

    On this machine tasks then use this Python. Without PYSPARK_PYTHON Spark would start the `python3` on the path,
    which is another one if this Python is of a venv that is not activated.
    """
    context = getattr(spark, "sparkContext", None)  # there is none on Spark Connect
    if context is not None and context.master.startswith("local") and not os.environ.get("PYSPARK_PYTHON"):
        context.pythonExec = sys.executable or context.pythonExec
    spark.dataSource.register(CasqueDataSource)
