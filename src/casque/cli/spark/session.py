"""The Spark session of a command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set where spark-submit runs this program: the session has the settings that were given there."""


class Via(StrEnum):
    AUTO = "auto"
    EMBEDDED = "embedded"
    BROKER = "broker"


Master = Annotated[
    str, typer.Option("--master", metavar="MASTER", help="Where Spark runs, unless spark-submit has said it.")
]
Remote = Annotated[
    str | None,
    typer.Option("--remote", metavar="sc://HOST", help="A Spark Connect server, instead of a local session."),
]
ViaOption = Annotated[Via, typer.Option("--via", help="Reach the queue itself, or through the broker that leads it.")]


@contextmanager
def spark_session(
    name: str, master: str, remote: str | None, settings: dict[str, str] | None = None
) -> Iterator[SparkSession]:
    """The session of spark-submit, one on a Connect server, or one on this machine."""
    from casque.spark.session import local_session

    if SUBMITTED in os.environ and remote is None:
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.appName(name).getOrCreate()
    else:
        quiet = {} if remote else {"spark.log.level": "ERROR"}
        spark = local_session(name, master=master, remote=remote, settings={**quiet, **(settings or {})})
    try:
        yield spark
    finally:
        spark.stop()
