"""Where a queue can be in these tests, and how Spark is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.readwriter import DataFrameWriter
from pyspark.sql.streaming.readwriter import DataStreamWriter

from casque import Job
from tests.spark import looking


@dataclass(frozen=True)
class Place:
    url: str
    options: dict[str, str] = field(default_factory=dict)

    @property
    def for_spark(self) -> dict[str, str]:
        return {f"store.{name}": value for name, value in self.options.items()}

    def write(self, df: DataFrame, source: str = "casque", **options: Any) -> None:
        self.writer(df, source, **options).save(self.url)

    def writer(self, df: DataFrame, source: str = "casque", **options: Any) -> DataFrameWriter:
        return df.write.format(source).mode("append").options(**self.for_spark, **options)

    def stream(self, df: DataFrame, checkpoint: Path, source: str = "casque", **options: Any) -> DataStreamWriter:
        """One that ends when it has read all there is."""
        writer = df.writeStream.format(source).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        return writer.options(**self.for_spark, **options)

    def jobs(self, *, via: str | None = None) -> list[Job[bytes]]:
        return looking.jobs_in(self.url, self.options, via=via)

    def payloads(self, *, via: str | None = None) -> list[bytes]:
        return looking.payloads_in(self.url, self.options, via=via)

    def kinds(self) -> list[str]:
        return looking.commits_in(self.url, self.options)

    def keys(self, prefix: str = "") -> list[str]:
        return looking.keys_in(self.url, prefix, self.options)
