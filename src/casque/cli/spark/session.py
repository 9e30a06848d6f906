"""The Spark session of a command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from casque.cli.command import Options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set where spark-submit runs this program: the session has the settings that were given there."""


class Via(StrEnum):
    AUTO = "auto"
    EMBEDDED = "embedded"
    BROKER = "broker"


ViaOption = Annotated[Via, typer.Option("--via", help="Reach the queue itself, or through the broker that leads it.")]


class SparkOptions(Options, frozen=True, kw_only=True):
    """Where Spark runs."""

    master: Annotated[
        str,
        typer.Option(
            "--master",
            metavar="MASTER",
            help="Where Spark runs, unless spark-submit or --remote says it: local[2], yarn, k8s://...",
        ),
    ] = "local[*]"
    remote: Annotated[
        str | None,
        typer.Option("--remote", metavar="sc://HOST", help="A Spark Connect server, instead of a local session."),
    ] = None

    @contextmanager
    def session(self, name: str, settings: dict[str, str] | None = None) -> Iterator[SparkSession]:
        """The session of spark-submit, one on a Connect server, or one on this machine."""
        from casque.spark.session import local_session

        if SUBMITTED in os.environ and self.remote is None:
            from pyspark.sql import SparkSession

            builder = SparkSession.builder.appName(name)
            for key, value in (settings or {}).items():
                builder = builder.config(key, value)
            spark = builder.getOrCreate()
        else:
            quiet = {} if self.remote else {"spark.log.level": "ERROR"}
            spark = local_session(name, master=self.master, remote=self.remote, settings={**quiet, **(settings or {})})
        try:
            yield spark
        finally:
            spark.stop()
