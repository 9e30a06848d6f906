from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from casque.errors import CASConflictError, CorruptQueueError, InvalidInputError
from casque.scan.arrow_types import arrow_schema
from casque.spark import parquet
from casque.spark.delta import publish, storage_options, table_uri
from casque.spark.parquet import File
from casque.spark.store_ref import StoreRef
from casque.spark.warehouse import Change, Warehouse
from casque.storage.local import LocalStore
from casque.storage.port import Outcome, Store, Unknown, Won
from casque.testing.clock import ManualClock
from tests.support.servers import Server

pytestmark = pytest.mark.xdist_group("spark")
TABLE = "gold/things"
COLUMNS = {"date": "date", "name": "string", "count": "bigint", "at": "timestamp", "sketch": "map<int,bigint>"}
DAY, NEXT = "2026-02-15", "2026-02-16"


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse((tmp_path / "warehouse").as_uri(), clock=ManualClock(1_771_150_000_000))


def write(change: Change, day: str, names: list[str], columns: Mapping[str, str] = COLUMNS) -> File:
    """A file written without Spark, as a task would."""
    rows: list[dict[str, Any]] = [{"name": name, "count": len(name), "sketch": [(1, 2)]} for name in names]
    table = pa.Table.from_pylist(rows, schema=arrow_schema({k: v for k, v in columns.items() if k != "date"}))
    writer = change.writer(TABLE)
    return writer.store_ref.run(lambda store: writer.write(store, day, table))


def put(warehouse: Warehouse, day: str, names: list[str], columns: Mapping[str, str] = COLUMNS) -> None:
    change = warehouse.begin()
    change.replace(TABLE, columns, [write(change, day, names, columns)], dates=[day])
    change.commit()


def names(warehouse: Warehouse) -> list[tuple[str, str]]:
    return sorted((str(row["date"]), row["name"]) for row in warehouse.snapshot().arrow(TABLE).to_pylist())


def objects(warehouse: Warehouse) -> set[str]:
    async def listed(store: Store) -> set[str]:
        return {key async for key in store.list()}

    return warehouse.store_ref.run(listed)


# --- With Spark ---


def test_a_frame_comes_back_as_it_was_written(spark: SparkSession, warehouse: Warehouse) -> None:
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        df = spark.sql("""
            SELECT DATE'2026-02-15' AS date, id, timestamp_millis(1771150000123 + id) AS at, map(1, id) AS counts,
                CAST(id / 3 AS DECIMAL(28, 9)) AS share, if(id = 3, NULL, array(struct(id AS x, 'y' AS y))) AS more
            FROM range(5) UNION ALL SELECT DATE'2026-02-16', 9, NULL, NULL, NULL, NULL
        """)
        warehouse.overwrite(df, TABLE)
        back = warehouse.read(spark, TABLE)
        assert back.dtypes == df.dtypes
        assert sorted(back.collect(), key=lambda row: row.id) == sorted(df.collect(), key=lambda row: row.id)
        some = warehouse.read(spark, TABLE, dates=["2026-02-16"], columns=["id", "date"]).collect()
        assert [(row.id, row.date) for row in some] == [(9, date(2026, 2, 16))]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    stored = {str(row["at"]) for row in warehouse.snapshot().arrow(TABLE).to_pylist()}
    assert "2026-02-15 10:06:40.123000+00:00" in stored
    replaced = df.where("id = 2")
    warehouse.overwrite(replaced, TABLE, ["2026-02-15"])
    assert sorted(row.id for row in warehouse.read(spark, TABLE).collect()) == [2, 9]
    with pytest.raises(InvalidInputError, match="2026-02-15, which are not among the partitions"):
        warehouse.overwrite(replaced, TABLE, ["2026-02-16"])
    with pytest.raises(InvalidInputError, match="missing here: more"):
        warehouse.overwrite(df.drop("more"), TABLE)
    with pytest.raises(InvalidInputError, match="needs a column 'date'"):
        warehouse.overwrite(df.drop("date"), TABLE)
    assert sorted(row.id for row in warehouse.read(spark, TABLE).collect()) == [2, 9]


def test_what_is_not_there_is_named(spark: SparkSession, warehouse: Warehouse) -> None:
    with pytest.raises(InvalidInputError, match=r"no table 'gold/hours'.*casque pipeline run"):
        warehouse.read(spark, "gold/hours")
    put(warehouse, DAY, ["a"])
    with pytest.raises(InvalidInputError, match="has no column colour"):
        warehouse.read(spark, TABLE, columns=["name", "colour"])


# --- Without ---


def test_nothing_is_seen_before_the_commit_and_everything_after_it(warehouse: Warehouse) -> None:
    put(warehouse, DAY, ["old"])
    put(warehouse, NEXT, ["kept"])
    before = warehouse.snapshot()
    change = warehouse.begin()
    change.replace(TABLE, COLUMNS, [write(change, DAY, ["new", "newer"])], dates=[DAY])
    assert names(warehouse) == [(DAY, "old"), (NEXT, "kept")]
    change.commit({"position": 7})
    assert names(warehouse) == [(DAY, "new"), (DAY, "newer"), (NEXT, "kept")]
    assert warehouse.snapshot().root.cursor == {"position": 7}
    assert before.arrow(TABLE).num_rows == 2, "a snapshot stays what it was"


def test_of_two_changes_at_once_one_loses_and_changes_nothing(warehouse: Warehouse) -> None:
    put(warehouse, DAY, ["first"])
    one, other = warehouse.begin(), warehouse.begin()
    for change, name in ((one, "one"), (other, "other")):
        change.replace(TABLE, COLUMNS, [write(change, DAY, [name])], dates=[DAY])
    one.commit()
    with pytest.raises(CASConflictError, match="somebody else changed the warehouse"):
        other.commit()
    assert names(warehouse) == [(DAY, "one")]


def test_of_two_who_make_a_warehouse_at_once_one_loses(warehouse: Warehouse) -> None:
    one, other = warehouse.begin(), warehouse.begin()
    for change in (one, other):
        change.replace(TABLE, COLUMNS, [write(change, DAY, ["x"])])
    other.commit()
    with pytest.raises(CASConflictError):
        one.commit()


class Forgetful(LocalStore):
    """Writes, and does not say so, the first time each object is written."""

    asked: set[str]

    async def create(self, key: str, body: bytes) -> Outcome:
        return self._answer(key, await super().create(key, body))

    async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
        return self._answer(f"{key} {expected}", await super().replace(key, body, expected=expected))

    def _answer(self, what: str, outcome: Outcome) -> Outcome:
        if isinstance(outcome, Won) and what not in self.asked:
            self.asked.add(what)
            return Unknown(ConnectionError("cut off"))
        return outcome


def test_a_write_whose_answer_is_lost_is_neither_repeated_nor_given_up(
    warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Forgetful(tmp_path / "warehouse")
    store.asked = set()
    monkeypatch.setattr("casque.spark.store_ref.open_store", lambda url, options: store)
    put(warehouse, DAY, ["a"])
    put(warehouse, DAY, ["b"])
    assert len(store.asked) == 6, "of each change a file, a manifest and the root"
    assert names(warehouse) == [(DAY, "b")]


def test_a_table_only_gains_columns(warehouse: Warehouse) -> None:
    put(warehouse, DAY, ["a"])
    wider = {**COLUMNS, "colour": "string"}
    put(warehouse, NEXT, ["b"], wider)
    rows = warehouse.snapshot().arrow(TABLE).to_pylist()
    assert [(row["name"], row["colour"], row["sketch"]) for row in rows] == [
        ("a", None, [(1, 2)]),
        ("b", None, [(1, 2)]),
    ]
    with pytest.raises(InvalidInputError, match=r"missing here: colour.*only ever gains columns"):
        put(warehouse, DAY, ["c"])
    with pytest.raises(InvalidInputError, match=r"count \(bigint, here int\)"):
        put(warehouse, DAY, ["c"], {**wider, "count": "int"})
    assert names(warehouse) == [(DAY, "a"), (NEXT, "b")]


def test_what_no_root_names_is_swept_by_age_after_a_later_commit(tmp_path: Path) -> None:
    clock = ManualClock(1_771_150_000_000)
    warehouse = Warehouse((tmp_path / "warehouse").as_uri(), clock=clock, keep=timedelta(hours=6))
    put(warehouse, DAY, ["a"])
    abandoned = warehouse.begin()
    orphan = write(abandoned, DAY, ["nobody's"])
    foreign = tmp_path / "warehouse" / TABLE / "date=2026-02-15" / "mine.txt"
    foreign.write_text("not casque's")
    clock.jump_wall(5 * 3600)
    put(warehouse, DAY, ["b"])
    assert orphan.key in objects(warehouse), "young enough to be somebody's who is about to commit"
    clock.jump_wall(2 * 3600)
    put(warehouse, NEXT, ["c"])
    left = objects(warehouse)
    assert orphan.key not in left
    assert len([key for key in left if key.endswith(".parquet")]) == 2
    assert f"{TABLE}/date=2026-02-15/mine.txt" in left
    assert names(warehouse) == [(DAY, "b"), (NEXT, "c")]


def test_damage_is_named(warehouse: Warehouse, tmp_path: Path) -> None:
    put(warehouse, DAY, ["a"])
    [file] = warehouse.snapshot().manifest(TABLE).files
    (tmp_path / "warehouse" / file.key).unlink()
    with pytest.raises(CorruptQueueError, match="this file of the warehouse is gone"):
        names(warehouse)
    (tmp_path / "warehouse" / "_cursor.json").write_text("{")
    with pytest.raises(CorruptQueueError, match="no part of a warehouse"):
        warehouse.snapshot()
    (tmp_path / "warehouse" / "_cursor.json").write_text('{"format": 99}')
    with pytest.raises(CorruptQueueError, match="newer casque"):
        warehouse.snapshot()


def test_executors_do_not_share_memory() -> None:
    with pytest.raises(InvalidInputError, match="use file://"):
        Warehouse("memory://tables")


def test_credentials_are_not_shown() -> None:
    store_ref = StoreRef("s3://bucket/prefix?region=eu", {"secret_access_key": "hush"})
    assert "hush" not in repr(store_ref) + repr(Warehouse(store_ref.url, store_ref.options))


def test_dates_between() -> None:
    assert list(parquet.days("2026-02-27", "2026-03-01")) == ["2026-02-27", "2026-02-28", "2026-03-01"]


# --- Delta ---


def test_a_table_is_a_delta_table_over_the_same_files(warehouse: Warehouse) -> None:
    deltalake = pytest.importorskip("deltalake")
    put(warehouse, DAY, ["a", "b"])
    put(warehouse, NEXT, ["c"])
    assert publish(warehouse) == {TABLE: 2}
    files = {key for key in objects(warehouse) if key.endswith(".parquet")}
    table = deltalake.DeltaTable(table_uri(warehouse, TABLE))
    rows = table.to_pyarrow_table().to_pylist()
    assert sorted((str(row["date"]), row["name"], row["count"]) for row in rows) == [
        (DAY, "a", 1),
        (DAY, "b", 1),
        (NEXT, "c", 1),
    ]
    assert publish(warehouse) == {}, "again changes nothing"
    assert table.transaction_version("casque-pipeline") == warehouse.snapshot().root.version
    put(warehouse, DAY, ["d"], {**COLUMNS, "colour": "string"})
    assert publish(warehouse) == {TABLE: 2}, "one file more, one less"
    table = deltalake.DeltaTable(table_uri(warehouse, TABLE))
    assert sorted(row["name"] for row in table.to_pyarrow_table().to_pylist()) == ["c", "d"]
    assert "colour" in {field.name for field in table.schema().fields}
    assert len({key for key in objects(warehouse) if key.endswith(".parquet")} - files) == 1


def test_delta_and_the_warehouse_on_s3(s3_server: Server) -> None:
    deltalake = pytest.importorskip("deltalake")
    warehouse = Warehouse(s3_server.fresh_url(), s3_server.options)
    put(warehouse, DAY, ["a"])
    one, other = warehouse.begin(), warehouse.begin()
    for change, name in ((one, "one"), (other, "other")):
        change.replace(TABLE, COLUMNS, [write(change, NEXT, [name])], dates=[NEXT])
    one.commit()
    with pytest.raises(CASConflictError):
        other.commit()
    assert names(warehouse) == [(DAY, "a"), (NEXT, "one")]
    assert publish(warehouse) == {TABLE: 2}
    table = deltalake.DeltaTable(table_uri(warehouse, TABLE), storage_options=storage_options(warehouse))
    assert sorted(row["name"] for row in table.to_pyarrow_table().to_pylist()) == ["a", "one"]
