"""Micro-batches become jobs: one commit for each, and a batch that comes again is recognised, whoever lost what."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from tests.spark.driver import lines
from tests.spark.faulty import Faults
from tests.spark.histories import ring_of
from tests.spark.places import Place

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return Feed(tmp_path / "input")


class Feed:
    """A directory of files, each of which is read as one batch. Lines are numbered through all of them."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        self.lines = 0

    def add(self, count: int = 4) -> None:
        numbers = range(self.lines, self.lines + count)
        self.lines += count
        path = self.directory / f"{self.lines:06d}.txt"
        path.with_suffix(".tmp").write_text("".join(f"{number}\n" for number in numbers))
        path.with_suffix(".tmp").rename(path)

    def all(self) -> list[bytes]:
        return sorted(b"%d" % number for number in range(self.lines))


def test_each_batch_is_one_commit_and_a_restart_goes_on_where_it_ended(
    spark: SparkSession, place: Place, feed: Feed, tmp_path: Path
) -> None:
    for _ in range(2):
        feed.add()
    df = lines(spark, str(feed.directory))
    place.stream(df, tmp_path / "checkpoint").start(place.url).awaitTermination()
    assert place.payloads() == feed.all()
    assert place.kinds().count("admitted") == 2
    feed.add()
    place.stream(df, tmp_path / "checkpoint").start(place.url).awaitTermination()
    assert place.payloads() == feed.all()
    assert place.kinds().count("admitted") == 3


@pytest.mark.parametrize("shards", [None, 3])
def test_a_batch_that_landed_and_was_not_noted_by_spark_is_not_enqueued_again(
    spark: SparkSession, files: Place, feed: Feed, faults: Faults, tmp_path: Path, shards: int | None
) -> None:
    if shards is not None:
        asyncio.run(ring_of(files.url, shards))
    feed.add()
    df = lines(spark, str(feed.directory))

    def run() -> None:
        options = {"faults": str(faults.directory)}
        query = files.stream(df, tmp_path / "checkpoint", "casque_faulty", **options).start(files.url)
        query.awaitTermination()

    faults.fail("committed")
    with pytest.raises(StreamingQueryException, match="a fault that was wanted"):
        run()
    assert files.payloads() == feed.all()
    feed.add()
    faults.fail("staged")  # and a task that fails on the way
    run()
    assert files.payloads() == feed.all()
    if shards is None:
        assert files.kinds().count("admitted") == 2


def test_a_writer_whose_checkpoint_was_deleted_is_refused_and_another_name_begins_anew(
    spark: SparkSession, place: Place, feed: Feed, tmp_path: Path
) -> None:
    feed.add()
    df = lines(spark, str(feed.directory))

    def run(writer: str) -> None:
        place.stream(df, tmp_path / "checkpoint", writerId=writer).start(place.url).awaitTermination()

    run("orders")
    shutil.rmtree(tmp_path / "checkpoint")
    # The new batch 0 is as long as the old one, and so looks like it.
    with pytest.raises(StreamingQueryException, match=r"writerId 'orders' belongs to the query .* another writerId"):
        run("orders")
    assert place.payloads() == feed.all()
    shutil.rmtree(tmp_path / "checkpoint")
    run("orders-2")
    assert place.payloads() == sorted(feed.all() * 2), "a new checkpoint reads everything again"


def test_without_a_name_a_new_checkpoint_is_a_new_writer(
    spark: SparkSession, files: Place, feed: Feed, tmp_path: Path
) -> None:
    feed.add()
    df = lines(spark, str(feed.directory))
    for number in range(2):
        files.stream(df, tmp_path / f"checkpoint-{number}").start(files.url).awaitTermination()
    assert files.payloads() == sorted(feed.all() * 2)


def test_a_checkpoint_that_was_put_back_is_noticed_before_rows_are_lost(
    spark: SparkSession, files: Place, feed: Feed, tmp_path: Path
) -> None:
    df = lines(spark, str(feed.directory), files_at_once=None)
    now, backup = tmp_path / "checkpoint", tmp_path / "backup"

    def run() -> None:
        files.stream(df, now).start(files.url).awaitTermination()

    feed.add()
    run()
    shutil.copytree(now, backup)
    feed.add()
    run()
    before = files.payloads()
    shutil.rmtree(now)
    shutil.copytree(backup, now)
    feed.add()
    # Batch 1 has two files now, one of which is in the queue.
    with pytest.raises(StreamingQueryException, match=r"batch 1 of query .* had 4 rows then, and has 8 now"):
        run()
    assert files.payloads() == before


def test_streams_are_refused_what_only_batches_have(
    spark: SparkSession, files: Place, feed: Feed, tmp_path: Path
) -> None:
    df = lines(spark, str(feed.directory))
    feed.add()
    with pytest.raises(PySparkException, match="txnId and txnVersion are for batches"):
        files.stream(df, tmp_path / "checkpoint", txnId="a").start(files.url).awaitTermination()
    assert files.keys() == []
