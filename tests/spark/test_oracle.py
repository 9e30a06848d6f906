"""Every column of every table against what DuckDB makes of the archive and the feed: see `tests/spark/oracle`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from casque.spark.pipeline import Settings, Summary, run
from casque.spark.warehouse import Warehouse
from casque.testing.clock import ManualClock
from tests.spark.generated import GeneratedHistory
from tests.spark.histories import complete
from tests.spark.known_answers import Made
from tests.spark.oracle import Oracle
from tests.spark.test_pipeline import assert_same, objects

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(1800)]
TIME_ZONES = ("Asia/Kathmandu", "America/St_Johns", "UTC")


def run_in(
    spark: SparkSession, time_zone: str, url: str, warehouse: Warehouse, settings: Settings | None = None
) -> Summary:
    spark.conf.set("spark.sql.session.timeZone", time_zone)
    try:
        return run(spark, url, warehouse, settings=settings)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def assert_right(url: str, warehouse: Warehouse) -> Oracle:
    oracle = Oracle(url)
    assert oracle.differences(warehouse.snapshot()) == []
    return oracle


@pytest.mark.parametrize("of", ["known_warehouse", "ring_warehouse"])
def test_a_known_history(request: pytest.FixtureRequest, of: str) -> None:
    made: Made = request.getfixturevalue(of)
    assert_right(made.queue, Warehouse(made.warehouse))


def test_a_history_with_every_kind_of_event(spark: SparkSession, tmp_path: Path) -> None:
    url, warehouse = (tmp_path / "ring").as_uri(), Warehouse((tmp_path / "warehouse").as_uri())
    asyncio.run(complete(url, ManualClock()))
    run_in(spark, "America/St_Johns", url, warehouse)
    oracle = assert_right(url, warehouse)
    # Where nothing was put off, moved or revived, a job was due when the feed says so.
    plain = "failures <= 50 AND moves = 0"
    [(count, wrong)] = oracle.ask(f"SELECT count(*), count_if(first_due_at <> came_due_at) FROM lives WHERE {plain}")
    assert (count > 30, wrong) == (True, 0)


def assert_sketches_fit(spark: SparkSession, warehouse: Warehouse) -> None:
    """A sketch has as many values as were counted, and the percentiles beside it are its own."""
    for table in ("gold/minutes", "gold/hours"):
        warehouse.read(spark, table).createOrReplaceTempView("figures")
        for kind in ("wait", "run"):
            [row] = spark.sql(f"""
                SELECT count(*) AS rows, count_if(({kind}_sketch IS NULL) <> ({kind}_count = 0)) AS missing,
                  count_if(kll_sketch_get_n_bigint({kind}_sketch) <> {kind}_count) AS unequal,
                  count_if(kll_sketch_get_quantile_bigint({kind}_sketch, array(0.5D, 0.9D, 0.99D))
                    <> array({kind}_p50_ms, {kind}_p90_ms, {kind}_p99_ms)) AS others
                FROM figures""").collect()
            assert row.rows > 0
            assert (row.missing, row.unequal, row.others) == (0, 0, 0), (table, kind)


@pytest.mark.long
@pytest.mark.parametrize(("seed", "shards", "portions"), [(1, 0, 2), *((seed, seed % 3, 5) for seed in range(2, 10))])
def test_a_generated_history_in_portions(
    spark: SparkSession, tmp_path: Path, seed: int, shards: int, portions: int
) -> None:
    url, often = (tmp_path / "queue").as_uri(), Warehouse((tmp_path / "often").as_uri())
    history = GeneratedHistory(url, seed, shards=shards)
    for portion in range(portions):
        history.play()
        run_in(spark, TIME_ZONES[(seed + portion) % 3], url, often)
        assert_right(url, often)
    assert_sketches_fit(spark, often)
    before = objects(often)
    assert not run(spark, url, often).changed
    assert objects(often) == before


@pytest.mark.long
@pytest.mark.parametrize("shards", [0, 2])
def test_one_run_in_any_time_zone_and_a_rebuild_make_the_tables_of_many_runs(
    spark: SparkSession, tmp_path: Path, shards: int
) -> None:
    url, often = (tmp_path / "queue").as_uri(), Warehouse((tmp_path / "often").as_uri())
    history = GeneratedHistory(url, 30 + shards, shards=shards)
    for _ in range(8):
        history.play(steps=25)
        run(spark, url, often)
    assert_right(url, often)
    once = [Warehouse((tmp_path / f"once-{number}").as_uri()) for number in range(3)]
    for time_zone, warehouse in zip(TIME_ZONES, once, strict=True):
        run_in(spark, time_zone, url, warehouse)
        assert_same(often, warehouse)
    run_in(spark, TIME_ZONES[0], url, often, Settings(rebuild=True))
    assert_same(often, once[0])
