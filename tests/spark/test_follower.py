"""The pipeline as a streaming query. What its runs write is tested in test_pipeline."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from benchmarks.spark_pipeline import History
from casque.cli.main import app
from casque.errors import CASConflictError, CorruptQueueError
from casque.spark import lag
from casque.spark.follower import Follower
from casque.spark.pipeline import Batch, Summary, run
from casque.spark.warehouse import Warehouse
from tests.spark.histories import resized, ring_of
from tests.spark.test_pipeline import assert_same, objects, rows, something_happens

pytestmark = pytest.mark.xdist_group("spark")

SOON = timedelta(milliseconds=100)


class Followed:
    """A queue, its warehouse, and what the runs of followers have done."""

    def __init__(self, spark: SparkSession, at: Path) -> None:
        self.spark = spark
        self.url = (at / "queue").as_uri()
        self.warehouse = Warehouse((at / "warehouse").as_uri())
        self.done: list[Summary] = []

    def carry_out(self, batch: Batch | None) -> None:
        self.done.append(run(self.spark, self.url, self.warehouse, batch=batch))

    def follow(self, carry_out: Callable[[Batch | None], object] | None = None, **options: Any) -> Follower:
        follower = Follower(self.spark, self.url, self.warehouse, carry_out or self.carry_out, **options)
        follower.run()
        return follower


@pytest.fixture
def followed(spark: SparkSession, tmp_path: Path) -> Followed:
    return Followed(spark, tmp_path)


def test_a_query_carries_out_its_batches_and_reports_their_rows(followed: Followed, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    asyncio.run(something_happens(followed.url, 4))
    query = followed.follow(checkpoint=checkpoint.as_uri()).query
    assert query is not None
    [summary] = followed.done
    progress = query.lastProgress
    assert progress is not None
    assert (summary.jobs, progress["numInputRows"]) == (2, summary.events)
    assert msgspec.json.decode(progress["sources"][0]["endOffset"])["positions"] == {"0": summary.position}
    assert lag(progress) == {"0": 0}
    assert progress["durationMs"]["addBatch"] > 0

    # Spark replays a batch if it does not know that the batch is done.
    before = objects(followed.warehouse)
    for path in (checkpoint / "commits").iterdir():
        path.unlink()
    followed.follow(checkpoint=checkpoint.as_uri())
    assert len(followed.done) == 3
    assert not any(one.changed for one in followed.done[1:])
    assert objects(followed.warehouse) == before


@pytest.mark.long
def test_a_checkpoint_that_is_lost_or_of_another_warehouse_loses_nothing(followed: Followed, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    asyncio.run(something_happens(followed.url, 4))
    followed.follow(checkpoint=checkpoint.as_uri())
    shutil.rmtree(checkpoint)
    asyncio.run(something_happens(followed.url, 5))
    followed.follow(checkpoint=checkpoint.as_uri())
    assert followed.done[1].before == followed.done[0].position

    other = Followed(followed.spark, tmp_path / "other")
    other.url = followed.url
    other.follow(checkpoint=checkpoint.as_uri())
    assert other.done[0].before == 0
    assert_same(other.warehouse, followed.warehouse)


@pytest.mark.long
def test_portions_of_a_stream_add_up_to_what_one_run_makes(followed: Followed, tmp_path: Path) -> None:
    once = Warehouse((tmp_path / "once").as_uri())
    asyncio.run(ring_of(followed.url, 2))
    asyncio.run(something_happens(followed.url, 6))
    portions: list[Callable[[], Any]] = [
        lambda: something_happens(followed.url, 5),
        lambda: resized(followed.url, 3),
        lambda: something_happens(followed.url, 8),
    ]

    def carry_out(batch: Batch | None) -> None:
        followed.carry_out(batch)
        if len(followed.done) == 2:  # another run is faster, so that the next batch begins before the cursor
            asyncio.run(something_happens(followed.url, 3))
            run(followed.spark, followed.url, followed.warehouse)
        if portions:
            asyncio.run(portions.pop(0)())
            if len(portions) == 1:
                asyncio.run(portions.pop(0)())
        else:
            follower.stop()

    follower = Follower(followed.spark, followed.url, followed.warehouse, carry_out, every=SOON)
    follower.run()
    assert len(followed.done) >= 3
    run(followed.spark, followed.url, followed.warehouse)
    run(followed.spark, followed.url, once)
    assert_same(followed.warehouse, once)
    assert {row[1] for row in rows(once, "bronze/events")} == {0, 1, 2}


@pytest.mark.long
def test_a_queue_without_a_log_is_followed_too(followed: Followed, tmp_path: Path) -> None:
    history = History(tmp_path / "queue")
    asyncio.run(history.grow(30, hours=3))
    followed.url = history.url
    followed.follow()
    asyncio.run(history.grow(10, hours=1))
    followed.follow()
    assert [one.jobs for one in followed.done] == [30, 10]


def test_an_error_of_a_batch_ends_the_query_as_it_was_raised(followed: Followed, tmp_path: Path) -> None:
    asyncio.run(something_happens(followed.url, 3))
    [archived] = (tmp_path / "queue" / "archive").rglob("*.jsonl")
    archived.write_text('{"id": 3}\n')
    with pytest.raises(CorruptQueueError, match="no part of an archive"):
        followed.follow(every=SOON)


def test_a_batch_that_lost_to_another_writer_is_tried_again(followed: Followed) -> None:
    asyncio.run(something_happens(followed.url, 3))
    tries: list[Batch | None] = []
    warnings: list[str] = []

    def carry_out(batch: Batch | None) -> None:
        tries.append(batch)
        if len(tries) < 3:
            raise CASConflictError("another run was first")
        follower.stop()

    follower = Follower(followed.spark, followed.url, followed.warehouse, carry_out, every=SOON, warn=warnings.append)
    follower.run()
    assert len(warnings) == 2
    assert tries == [tries[0]] * 3
    tries.clear()
    with pytest.raises(CASConflictError):
        followed.follow(carry_out)


def test_a_query_that_is_stopped_in_a_batch_ends_after_it(followed: Followed) -> None:
    asyncio.run(something_happens(followed.url, 3))
    counted: list[int] = []

    def carry_out(batch: Batch | None) -> None:
        assert batch is not None
        follower.stop()
        asyncio.run(something_happens(followed.url, 3))  # for which there would be a batch
        counted.append(batch.events.count())

    follower = Follower(followed.spark, followed.url, followed.warehouse, carry_out, every=SOON)
    follower.run()
    assert len(counted) == 1
    assert follower.query is not None
    assert not follower.query.isActive


# --- The command ---


@pytest.mark.long
@pytest.mark.parametrize("order", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_the_command_stops_after_the_batch_that_it_carries_out(tmp_path: Path, order: signal.Signals) -> None:
    url, warehouse = (tmp_path / "queue").as_uri(), Warehouse((tmp_path / "warehouse").as_uri())
    asyncio.run(something_happens(url, 4))
    environment = dict(os.environ)
    environment.pop("PYSPARK_GATEWAY_PORT", None)  # the running session's gateway is not for others
    command = [sys.executable, "-m", "casque.cli", "pipeline", "run", url, (tmp_path / "warehouse").as_uri()]
    with subprocess.Popen(
        [*command, "--json", "--trigger", "1s", "--master", "local[2]"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            while warehouse.snapshot().root.plan is None:  # the first run has begun
                assert process.poll() is None
            # A terminal signals the whole group; who stops a service, the process.
            (os.killpg if order is signal.SIGINT else os.kill)(process.pid, order)
            said, _ = process.communicate(timeout=240)
        finally:
            process.kill()
    assert process.returncode == 0
    summary = msgspec.json.decode(said)
    assert summary["jobs"] == 2
    root = warehouse.snapshot().root
    assert (root.run, root.plan) == (1, None)


def test_a_checkpoint_without_a_trigger_is_refused() -> None:
    ended = CliRunner().invoke(app, ["pipeline", "run", "file:///nowhere/q", "file:///nowhere/w", "--checkpoint", "/x"])
    assert ended.exit_code == 2
    assert "--checkpoint is for the query of --trigger" in " ".join(ended.output.split())
