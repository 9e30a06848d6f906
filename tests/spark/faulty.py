"""The data source `casque` with faults: the real writers, and at chosen points one that fails, or stops.

A fault is a file in a directory that the test and all processes of Spark share. `<point>.fail` makes the first one to
get there raise, once. `<point>.stop` makes it say so through a pipe and wait until the test answers, or kills it.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from casque.spark.sink import BatchWriter, Staged
from casque.spark.stream_sink import StreamWriter
from casque.spark.write_options import WriteOptions

REACHED_S_MAX = 180.0

# Spark's workers cannot import this module: it travels with the class.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class Faults:
    """What is to happen, by point: `staged`, `committing`, `committed`."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)

    # --- The test's side ---

    def fail(self, point: str) -> None:
        (self.directory / f"{point}.fail").touch()

    def stop(self, point: str) -> Stop:
        for name in ("here", "go"):
            os.mkfifo(self.directory / f"{point}.{name}")
        (self.directory / f"{point}.stop").touch()
        return Stop(self.directory, point)

    def happened(self, what: str) -> int:
        return len(list(self.directory.glob(f"{what}.*.happened")))

    # --- Spark's side ---

    def at(self, point: str) -> None:
        (self.directory / f"{point}.{os.urandom(8).hex()}.happened").touch()
        if self._takes(f"{point}.fail"):
            raise OSError(f"a fault that was wanted: {point}")
        if self._takes(f"{point}.stop"):
            with (self.directory / f"{point}.here").open("w") as here:
                here.write("here\n")
            with (self.directory / f"{point}.go").open() as go:
                go.read()

    def _takes(self, name: str) -> bool:
        try:
            (self.directory / name).unlink()
        except FileNotFoundError:
            return False
        return True


class Stop:
    """A process that waits at a point."""

    def __init__(self, directory: Path, point: str) -> None:
        self._directory = directory
        self._point = point

    def reached(self) -> None:
        """Wait until somebody is there. If the driver dies before, nobody will be: hence the limit."""
        here = os.open(self._directory / f"{self._point}.here", os.O_RDWR)
        try:
            assert select.select([here], [], [], REACHED_S_MAX)[0], "nobody got there"
            assert os.read(here, 5) == b"here\n"
        finally:
            os.close(here)

    def go(self) -> None:
        with (self._directory / f"{self._point}.go").open("w") as go:
            go.write("go\n")

    def forget(self) -> None:
        """Whoever was there is dead; the point may be used again."""
        for name in ("here", "go"):
            (self._directory / f"{self._point}.{name}").unlink()


class FaultyDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "casque_faulty"

    def writer(self, schema: StructType, overwrite: bool) -> FaultyBatchWriter:
        return FaultyBatchWriter(self._plain(), schema, overwrite=overwrite, faults=self._faults())

    def streamWriter(self, schema: StructType, overwrite: bool) -> FaultyStreamWriter:  # noqa: N802
        return FaultyStreamWriter(self._plain(), schema, overwrite=overwrite, faults=self._faults())

    def _faults(self) -> Faults:
        return Faults(self.options["faults"])

    def _plain(self) -> WriteOptions:
        return WriteOptions.parse({name: value for name, value in self.options.items() if name != "faults"})


class FaultyBatchWriter(BatchWriter):
    def __init__(self, *arguments: Any, faults: Faults, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._faults = faults

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        staged = super().write(iterator)
        self._faults.at("staged")
        return staged

    def commit(self, messages: list[Any]) -> None:
        self._faults.at("committing")
        super().commit(messages)
        self._faults.at("committed")

    def abort(self, messages: list[Any]) -> None:
        super().abort(messages)
        self._faults.at("aborted")


class FaultyStreamWriter(StreamWriter):
    def __init__(self, *arguments: Any, faults: Faults, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._faults = faults

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        staged = super().write(iterator)
        self._faults.at("staged")
        return staged

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        self._faults.at("committing")
        super().commit(messages, batchId)
        self._faults.at("committed")
