"""Spark in processes of its own, from the pip package: a Connect server, and a cluster of a master and two workers.

All of them listen on loopback addresses and end with the test run, whatever becomes of it: the keeper of the storage
servers sees to that.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark

from casque.spark.java import use_java
from casque.spark.session import SETTINGS
from tests.support import servers
from tests.support.servers import Server

SPARK = Path(pyspark.__file__).parent


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

    with servers._running("Spark Connect", command, _answers) as server:
        yield f"sc://{server.endpoint}"


@contextlib.contextmanager
def cluster() -> Iterator[str]:
    """A master, as `spark://host:port`, with two workers of one core each.

    Spark runs the second attempt of a slow task only on another host, so a process is not enough: each worker has a
    loopback address of its own.
    """
    use_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    start = [str(SPARK / "bin" / "spark-class")]

    def master(_directory: Path) -> tuple[list[str], Server]:
        port = servers._free_port()
        where = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        return [*start, "org.apache.spark.deploy.master.Master", *where], Server("spark", f"127.0.0.1:{port}")

    def worker(host: str, url: str) -> Callable[[Path], tuple[list[str], Server]]:
        def command(directory: Path) -> tuple[list[str], Server]:
            port = servers._free_port()
            where = ["--host", host, "--port", str(port), "--webui-port", "0", "-c", "1", "-m", "512m"]
            work = ["-d", str(directory / "work"), url]
            return [*start, "org.apache.spark.deploy.worker.Worker", *where, *work], Server("spark", f"{host}:{port}")

        return command

    with contextlib.ExitStack() as stack:
        url = f"spark://{stack.enter_context(servers._running('the master', master, _answers)).endpoint}"
        for host in ("127.0.0.2", "127.0.0.3"):
            stack.enter_context(servers._running("a worker", worker(host, url), _answers))
        yield url


def _answers(server: Server) -> None:
    host, _, port = server.endpoint.partition(":")
    socket.create_connection((host, int(port)), timeout=1).close()
