"""Drivers that are killed with -9 at every point that matters, and those who take over: each row becomes one job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.driver import follow, write
from tests.spark.drivers import driving
from tests.spark.faulty import Faults
from tests.spark.places import Place
from tests.spark.test_write_stream import Feed

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]


def told(place: Place, faults: Faults, **more: Any) -> dict[str, Any]:
    options = {**place.for_spark, "faults": str(faults.directory), **more}
    return {"url": place.url, "options": options}


@pytest.mark.long
def test_a_stream_whose_driver_is_killed_before_and_after_its_commit_enqueues_each_row_once(
    spark: SparkSession, files: Place, faults: Faults, tmp_path: Path
) -> None:
    feed = Feed(tmp_path / "input")
    feed.add()
    feed.add()
    given = {**told(files, faults, checkpointLocation=str(tmp_path / "checkpoint")), "input": str(feed.directory)}
    for point in ("committing", "committed"):
        stop = faults.stop(point)
        with driving("stream", given, tmp_path) as driver:
            stop.reached()
            driver.kill()
        stop.forget()
        # Batch 0 is staged and no more, then in the queue and not in Spark's own books.
        assert len(files.payloads()) == (0 if point == "committing" else 4)
        assert not list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    assert follow(spark, given) == {"batches": [0, 1]}
    assert files.payloads() == feed.all()
    assert files.kinds().count("admitted") == 2


@pytest.mark.long
def test_a_batch_whose_driver_is_killed_before_and_after_its_commit_is_run_again_and_enqueues_each_row_once(
    spark: SparkSession, on_s3: Place, faults: Faults, tmp_path: Path
) -> None:
    given = {**told(on_s3, faults, txnId="import", txnVersion="1"), "rows": 30}
    for point, there in (("committing", 0), ("committed", 30)):
        stop = faults.stop(point)
        with driving("batch", given, tmp_path) as driver:
            stop.reached()
            driver.kill()
        stop.forget()
        assert len(on_s3.payloads()) == there
    write(spark, given)
    assert on_s3.payloads() == sorted(b"%d" % n for n in range(30))
    assert on_s3.kinds().count("admitted") == 1


@pytest.mark.long
def test_two_drivers_on_one_checkpoint_enqueue_each_row_once_and_one_of_them_ends(
    spark: SparkSession, files: Place, faults: Faults, tmp_path: Path
) -> None:
    feed = Feed(tmp_path / "input")
    feed.add()
    feed.add()
    given = {**told(files, faults, checkpointLocation=str(tmp_path / "checkpoint")), "input": str(feed.directory)}
    stop = faults.stop("committing")
    with driving("stream", given, tmp_path) as other:
        stop.reached()
        # It sleeps with batch 0 staged. This one does that batch too, and the next.
        assert follow(spark, given) == {"batches": [0, 1]}
        assert files.payloads() == feed.all()
        stop.go()
        said = other.result()
    assert "error" in said
    assert "was enqueued before" in said["error"], said
    assert files.payloads() == feed.all()
    assert files.kinds().count("admitted") == 2
