"""Spark in processes of its own, from the pip package: a Connect server, and a session whose executors are processes.

Both run on loopback ports and end with the test run, whatever becomes of it: the keeper of the storage servers sees
to that.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark

from casque.spark.java import use_java
from casque.spark.session import SETTINGS
from casque.testing import servers
from casque.testing.servers import Server

SPARK = Path(pyspark.__file__).parent
SEPARATE_WORKERS = "local-cluster[2,1,512]"
"""Two executors of one core each, as processes: with threads of one process Spark never speculates."""


@contextlib.contextmanager
def connect_server() -> Iterator[str]:
    """Where it listens, as `sc://host:port`. Its Python is ours, and so is the casque it finds."""
    use_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

    def command(directory: Path) -> tuple[list[str], Server]:
        port = servers._free_port()
        settings = {
            **SETTINGS,
            "spark.connect.grpc.binding.port": str(port),
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            "spark.sql.shuffle.partitions": "2",
            "spark.log.level": "ERROR",
        }
        options = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
        serve = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        return [
            str(SPARK / "bin" / "spark-submit"),
            *("--master", "local[2,3]"),
            *options,
            *serve,
            "spark-internal",
        ], Server("sc", f"127.0.0.1:{port}")

    def answers(server: Server) -> None:
        host, _, port = server.endpoint.partition(":")
        socket.create_connection((host, int(port)), timeout=1).close()

    with servers._running("Spark Connect", command, answers) as server:
        yield f"sc://{server.endpoint}"
