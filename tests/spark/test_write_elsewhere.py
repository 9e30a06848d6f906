"""Writes where Spark is more than one process: separate workers that speculate, a Connect server, brokers that fail."""

from __future__ import annotations

import asyncio
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from casque.spark.via import is_led
from tests.integration.shell import casque
from tests.integration.test_serve_command import FREE, serving
from tests.spark.driver import write
from tests.spark.drivers import driving
from tests.spark.faulty import Faults
from tests.spark.places import Place
from tests.spark.servers import cluster, connect_server
from tests.spark.test_write_stream import Feed

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]


@pytest.mark.long
def test_a_task_that_runs_twice_because_it_is_slow_enqueues_its_rows_once(
    faults: Faults, files: Place, tmp_path: Path
) -> None:
    """One attempt stops when it has staged everything; Spark starts another one elsewhere, and goes on with that."""
    stop = faults.stop("staged")
    given = {"url": files.url, "options": {"faults": str(faults.directory)}, "rows": 20}
    with cluster() as master, driving("speculate", {**given, "master": master}, tmp_path) as driver:
        stop.reached()
        assert driver.result() == {"rows": 20}, "it did not wait for the slow one"
    assert faults.happened("staged") == 5, "four tasks, one of them twice"
    assert files.payloads() == sorted(b"%d" % n for n in range(20))


@pytest.mark.long
def test_a_connect_server_writes_batches_and_streams(spark: SparkSession, files: Place, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "input")
    feed.add()
    streamed = Place((tmp_path / "streamed").as_uri())
    given = {
        "write": {"url": files.url, "source": "casque", "options": {"txnId": "a", "txnVersion": "1"}, "rows": 20},
        "stream": {
            "url": streamed.url,
            "source": "casque",
            "options": {"checkpointLocation": str(tmp_path / "checkpoint"), "writerId": "w"},
            "input": str(feed.directory),
        },
    }
    with connect_server() as remote, driving("connect", {**given, "remote": remote}, tmp_path) as client:
        said = client.result()
    assert said["write"] == {"rows": 20}
    assert "error" not in said["stream"], said
    assert files.payloads() == sorted(b"%d" % n for n in range(20))
    assert streamed.payloads() == feed.all()


@pytest.mark.long
def test_a_leader_that_fails_in_the_middle_of_a_bulk_enqueue_is_replaced_and_each_row_is_there_once(
    spark: SparkSession, files: Place, faults: Faults
) -> None:
    timing = ["--no-http", "--heartbeat", "0.2", "--lease", "1"]
    with serving(files.url, *FREE, *timing) as first:
        first.until("role +leader")
        with serving(files.url, *FREE, *timing) as second:
            second.until("role +standby")
            stop = faults.stop("committing")

            def fail_over() -> None:
                stop.reached()
                # It accepts connections and says nothing: whoever asks it now is in the middle of the call.
                first.process.send_signal(signal.SIGSTOP)
                stop.go()
                second.until(r"leader, epoch \d+")
                first.process.kill()

            with ThreadPoolExecutor(1) as aside:  # Spark's sessions belong to threads, so this goes there
                failing = aside.submit(fail_over)
                options = {**files.for_spark, "faults": str(faults.directory)}
                write(spark, {"url": files.url, "options": options, "rows": 40})
                failing.result()
            assert files.payloads(via="broker") == sorted(b"%d" % n for n in range(40))
            assert second.end()[0] == 0
    assert files.kinds().count("admitted") == 1


def test_a_ring_that_brokers_lead_is_written_through_them(spark: SparkSession, files: Place) -> None:
    casque("queue", "create", files.url, "--shards", "2")
    assert not asyncio.run(is_led(files.url, None))
    with serving(files.url, *FREE, "--no-http") as broker:
        broker.until(r"role +leads 2 of 2 shards")
        assert asyncio.run(is_led(files.url, None)), "so that via=auto, the default, asks it"
        files.write(spark.range(20).selectExpr("'send' AS entrypoint", "CAST(id AS STRING) AS payload"))
        assert files.payloads(via="broker") == sorted(b"%d" % n for n in range(20))
