"""casque on Spark: queues as DataFrames, DataFrames as jobs, history as a warehouse, executors as workers.

Stands on `casque.client` and `casque.scan`, never on the codec, the journal or the state, and uses only PySpark's
public interfaces: nothing here needs a jar. Stores are read and written through casque's own adapters, on the driver
and on the executors. All code that an executor runs is importable there.

Layout: `source.py` is the entry point for Spark. Reading: `options`, `reader`, `arrow`, and for streams
`stream`, `offsets`, all on top of `casque.scan`. Writing: `write_options`, `columns`, `sink`, `stream_sink`,
`admitting`. The pipeline: `pipeline` makes the tables of `models`, whose queries are in `sql/`, in a `warehouse`
(`table_log` with `delta` and `iceberg`, `files`, `bucket_files`, `upkeep`); `follower` runs it as a stream,
`expectations` checks rows, `lineage` reports runs. `report/` makes the page, `work/` runs jobs on executors,
`replaying` enqueues again. `session`, `java` and `doctor` are for starting.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from casque.errors import NotInstalledError

_WHERE = {
    "CasqueDataSource": "casque.spark.source",
    "Summary": "casque.spark.work",
    "lag": "casque.spark.offsets",
    "process": "casque.spark.work",
    "register": "casque.spark.source",
    "register_tables": "casque.spark.registering",
    "replay": "casque.spark.replaying",
    "results": "casque.spark.work",
}
"""Module of each public name. Imported on first use: the search for Java must not need PySpark."""

__all__ = ["CasqueDataSource", "Summary", "lag", "process", "register", "register_tables", "replay", "results"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_WHERE[name]), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("pyspark", "pyarrow", "numpy", "pandas"):
            raise
        raise NotInstalledError(f"{error.name} is not installed", 'pip install "casque[spark]"') from error
