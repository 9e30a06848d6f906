"""A Spark session on this machine, for callers that have none: the command line, tests and examples."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from casque.errors import InvalidInputError, NotInstalledError
from casque.spark.java import use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    # For short sessions: half the processor time at the start goes into compiling code that runs once. Without the last
    # option Java reserves little room for compiled code here, and compiles nothing more once it is full.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m",
}


OWN = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.adaptive.enabled": "true",
}
"""Settings under which the tables of a warehouse are read and written."""


def own_session(spark: SparkSession) -> SparkSession:
    """A session beside the caller's, with views, functions and settings of its own."""
    return prepare(spark.newSession())


def prepare(session: SparkSession) -> SparkSession:
    """Prepare a session that is not shared for the tables of a warehouse."""
    from casque.spark.source import register

    for name, value in OWN.items():
        session.conf.set(name, value)
    register(session)
    return session


def activate(spark: SparkSession) -> None:
    """Make a session the active one of this thread, which is where Spark looks for data sources. Making a frame from
    local rows does so."""
    spark.createDataFrame([], "nothing int")


def check_remote(url: str) -> None:
    """
    Raises:
        InvalidInputError: this is not the URL of a Connect server.
    """
    if not url.startswith("sc://"):
        raise InvalidInputError(f"a Spark Connect server is named by a URL such as sc://{url or 'host'}, not {url!r}")


def local_session(
    name: str = "casque",
    *,
    master: str = "local[*]",
    settings: Mapping[str, str] | None = None,
    remote: str | None = None,
    plain: bool = False,
) -> SparkSession:
    """The existing session, or a new one: on this machine, or with `remote` (`sc://host`) on a Connect server. A
    `plain` one has only the given settings.

    Raises:
        InvalidInputError: `remote` is not the URL of a Connect server.
        NotInstalledError: PySpark or a Java for it is missing, or Spark does not start.
    """
    if remote is not None:
        check_remote(remote)
    try:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise NotInstalledError("PySpark is not installed", 'pip install "casque[spark]"') from error
    builder = SparkSession.builder.appName(name)
    if remote is not None:
        builder = builder.remote(remote)
    else:
        use_java()
        # Executors of a local session use this Python, not the `python3` on the path.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        builder = builder.master(master)
    for key, value in {**({} if plain or remote else SETTINGS), **(settings or {})}.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise NotInstalledError(
            "Spark's Java did not start; what it said stands above", "casque spark doctor looks at what it needs"
        ) from error
