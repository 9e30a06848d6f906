"""One Spark session for all tests of a run: starting one takes longer than most of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason='needs pip install "casque[spark]"')

import pyspark
from pyspark.sql import SparkSession

from casque.codec.head import FORMAT
from casque.codec.ring import RingHead, encode_ring
from casque.spark import pipeline
from casque.spark.report import Report, build
from casque.spark.session import local_session
from simulation.known_history import write_known_history
from tests.spark.faulty import Faults, FaultyDataSource
from tests.spark.known_answers import Made, of_ring
from tests.spark.places import Place
from tests.support.servers import Server


def pytest_configure(config: pytest.Config) -> None:
    if tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 3):
        # Before 4.3, PySpark left the sockets of `collect` to the garbage collector.
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket.socket:ResourceWarning")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # Three tries for a task: with plain local[2] Spark never retries any.
    session = local_session(
        "casque-tests",
        master="local[2,3]",
        settings={
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            "spark.log.level": "ERROR",
            # A machine that is busy with other tests is no reason for Spark to end itself.
            "spark.executor.heartbeat.maxFailures": "1000000",
        },
    )
    java = session.sparkContext._gateway.proc  # type: ignore[union-attr]
    yield session
    assert java.poll() is None, f"Java ended before the session, with exit code {java.returncode}"
    session.stop()


@pytest.fixture(params=["files", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where a queue may be: on local files, and on the S3 server."""
    if request.param == "files":
        return Place((tmp_path / "queue").as_uri())
    server: Server = request.getfixturevalue("s3_server")
    return Place(server.fresh_url(), server.options)


@pytest.fixture
def files(tmp_path: Path) -> Place:
    return Place((tmp_path / "queue").as_uri())


@pytest.fixture
def on_s3(s3_server: Server) -> Place:
    return Place(s3_server.fresh_url(), s3_server.options)


@pytest.fixture
def faults(tmp_path: Path, spark: SparkSession) -> Faults:
    """Faults for writes with `casque_faulty`."""
    (tmp_path / "faults").mkdir()
    spark.dataSource.register(FaultyDataSource)
    return Faults(tmp_path / "faults")


@pytest.fixture(scope="session")
def known_warehouse(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """To be looked at, not to be changed. Made in a session whose time zone is far from UTC, which must not matter."""
    at = tmp_path_factory.mktemp("known")
    queue, warehouse = f"file://{at}/queue", f"file://{at}/warehouse"
    known = asyncio.run(write_known_history(queue))
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        pipeline.run(spark, queue, warehouse)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    return Made(known, queue, warehouse)


@pytest.fixture(scope="session")
def ring_warehouse(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A ring of two shards, each with a known history of its own."""
    at = tmp_path_factory.mktemp("known-ring")
    ring, warehouse = f"file://{at}/ring", f"file://{at}/warehouse"
    shards = [asyncio.run(write_known_history(f"{ring}/shards/{n:04d}", seed=5 + n)) for n in range(2)]
    head = RingHead(format=FORMAT, queue_id="of two", sizes=(2,), shards=2)
    (at / "ring" / "queue.json").write_bytes(encode_ring(head))
    pipeline.run(spark, ring, warehouse)
    return Made(of_ring(shards), ring, warehouse)


@pytest.fixture(scope="session")
def whole_report(spark: SparkSession, known_warehouse: Made) -> Report:
    return build(spark, known_warehouse.warehouse)
