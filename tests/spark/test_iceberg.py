"""Warehouses of Iceberg tables: the same rows as Delta's, commits that are as safe, and tables that others read."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from typer.testing import CliRunner

from casque.arrow_types import arrow_schema
from casque.cli.main import app
from casque.client.objects import create_new
from casque.errors import CASConflictError, CorruptQueueError, InvalidInputError
from casque.spark import iceberg, register_tables, upkeep
from casque.spark.delta import storage_options
from casque.spark.files import File, described, frame, write
from casque.spark.iceberg import Catalog, IcebergLog, table_location
from casque.spark.models import models
from casque.spark.pipeline import run
from casque.spark.report import build
from casque.spark.store_ref import StoreRef
from casque.spark.warehouse import Root, Warehouse
from tests.spark.known_answers import Made
from tests.spark.test_pipeline import assert_same, interrupt, run_until_killed, something_happens
from tests.spark.test_report import differences
from tests.spark.test_warehouse import COLUMNS, ROWS, TABLE
from tests.support.servers import Server, moto

pytest.importorskip("pyiceberg", reason='needs pip install "casque[iceberg]"')
pytestmark = pytest.mark.xdist_group("spark")


class Tables:
    """A place for tables, and their catalog."""

    def __init__(self, place: StoreRef, catalog: Any) -> None:
        self.place = place
        self.catalog = catalog

    def log(self, name: str = TABLE, **more: str) -> IcebergLog:
        columns = {**COLUMNS, **more}
        return IcebergLog(self.catalog, Catalog().identifier(name), self.place, name, columns, "one thing")

    def table(self) -> Any:
        return self.catalog.load_table(Catalog().identifier(TABLE))

    def file(self, name: str, *, statistics: bool = True, **more: Any) -> File:
        rows = [{"date": date(2026, 2, 15), "id": 7, "at": datetime(2026, 2, 15, tzinfo=UTC), **more}]
        types = {**COLUMNS, **dict.fromkeys(more, "string")}
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, schema=arrow_schema(types)), sink, write_statistics=statistics)
        body = bytes(sink.getvalue())
        self.place.run(lambda store: create_new(store, f"{TABLE}/{name}.parquet", body))
        return described(f"{name}.parquet", len(body), pq.read_metadata(pa.BufferReader(body)))


@pytest.fixture(params=["files", "s3"])
def tables(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tables]:
    if request.param == "files":
        (tmp_path / "a warehouse").mkdir()
        place = StoreRef((tmp_path / "a warehouse").as_uri())
        catalog = Catalog().open(place)
    else:
        server: Server = request.getfixturevalue("s3_server")
        place = StoreRef(server.fresh_url(), server.options)
        configure(monkeypatch, "lake", uri=f"sqlite:///{tmp_path / 'lake.db'}")
        catalog = Catalog("lake").open(place)
    yield Tables(place, catalog)
    catalog.close()


def configure(monkeypatch: pytest.MonkeyPatch, name: str, **properties: str) -> None:
    """As a user does by variables, which PyIceberg reads when it is imported."""
    from pyiceberg import catalog
    from pyiceberg.utils.config import Config

    for key, value in properties.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__{name}__{key}".upper(), value)
    monkeypatch.setattr(catalog, "_ENV_CONFIG", Config())


def paths(log: IcebergLog, version: int | None = None) -> list[str]:
    return sorted(one.path for one in log.files(version))


def test_a_run_commits_once_to_a_table_and_on_the_version_it_was_made_for(tables: Tables) -> None:
    log, file = tables.log, tables.file
    first, late = log(), log()
    assert (first.exists, first.version, first.run, first.files()) == (False, -1, 0, [])
    assert first.commit(1, [file("a")], [], 0)
    assert late.commit(1, [file("again")], [], 0) is False, "another process has carried out this run"
    one, other = log(), log()
    before = one.version
    assert (one.run, other.run) == (1, 1)
    [old] = one.files()
    assert (old.path, old.rows, old.first, old.last) == ("a.parquet", 1, "2026-02-15", "2026-02-15")
    assert other.files() == [old]
    assert one.commit(2, [file("b"), file("b2")], [old], 0)
    assert other.commit(2, [file("c")], [old], 0) is False
    assert paths(log()) == ["b.parquet", "b2.parquet"], "replaced in one commit"
    assert len(tables.table().snapshots()) == 2
    slow, merging = log(), log()
    both = slow.files()
    assert merging.files() == both
    assert log().rewrite([file("merged")], both, 0)
    assert log().run == 2, "merging files is no run"
    assert merging.rewrite([file("late")], both, 0) is False, "another has merged it"
    with pytest.raises(CASConflictError, match="another writer changed gold/things"):
        slow.commit(3, [file("d")], both, 0)
    slow = log()
    assert slow.run == 2
    assert log().rewrite([file("remerged")], log().files(), 0)
    assert slow.commit(3, [file("e")], [], 0), "a run that only adds files adds them to whatever is there"
    assert paths(log()) == ["e.parquet", "remerged.parquet"]
    version = log().version
    assert log().commit(4, [], [], 0), "a run that changes nothing leaves its mark"
    assert (log().run, log().version == version, paths(log())) == (4, False, ["e.parquet", "remerged.parquet"])
    assert paths(log(), before) == ["a.parquet"], "an older version stays readable"
    assert log().arrow(before, ["id"]).to_pylist() == [{"id": 7}]
    with pytest.raises(CorruptQueueError, match="snapshot 12345 of this table is gone"):
        log().files(12345)


@pytest.mark.parametrize("tables", ["files"], indirect=True)
def test_of_processes_that_commit_the_same_run_at_once_one_wins(tables: Tables) -> None:
    assert tables.log().commit(1, [tables.file("first")], [], 0)
    files = [tables.file(f"run-{number}") for number in range(8)]
    logs = [tables.log() for _ in files]
    old = [log.files() for log in logs]

    def commit(number: int) -> bool:
        return logs[number].commit(2, [files[number]], old[number], 0)

    with ThreadPoolExecutor(len(logs)) as pool:
        won = list(pool.map(commit, range(len(logs))))
    assert won.count(True) == 1
    assert paths(tables.log()) == [files[won.index(True)].path]
    assert len(tables.table().snapshots()) == 2


def test_glue_takes_the_tables_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One commit after the other: the Glue of moto does not compare versions, as that of AWS does."""
    place = StoreRef((tmp_path / "warehouse").as_uri())
    with moto() as server:
        configure(monkeypatch, "aws", type="glue", **{f"glue__{name}": value for name, value in server.options.items()})
        tables = Tables(place, Catalog("aws").open(place))
        assert tables.log().commit(1, [tables.file("a")], [], 0)
        first, late = tables.log(), tables.log()
        old = first.files()
        assert late.files() == old
        assert first.commit(2, [tables.file("b")], old, 0)
        assert late.commit(2, [tables.file("c")], old, 0) is False
        assert (tables.log().run, paths(tables.log())) == (2, ["b.parquet"])


def test_a_table_gains_columns_and_keeps_those_it_has(tables: Tables) -> None:
    assert tables.log().commit(1, [tables.file("a")], [], 0)
    wider = tables.log(colour="string")
    assert len(wider.files()) == 1
    assert tables.log().columns() == COLUMNS, "reading changes nothing"
    assert wider.commit(2, [tables.file("b", colour="red")], [], 0)
    assert tables.log().columns() == {**COLUMNS, "colour": "string"}
    assert len(tables.table().snapshots()) == 2
    found = wider.arrow(wider.version, ["id", "colour"]).to_pylist()
    assert sorted(found, key=str) == [{"id": 7, "colour": "red"}, {"id": 7, "colour": None}]
    with pytest.raises(InvalidInputError, match=r"missing here: colour\. A table only ever gains columns"):
        tables.log().check_columns()


@pytest.mark.parametrize("tables", ["files"], indirect=True)
def test_a_file_without_statistics_may_hold_any_date(tables: Tables) -> None:
    assert tables.log().commit(1, [tables.file("a"), tables.file("plain", statistics=False)], [], 0)
    found = {one.path: one.holds({"2026-02-16"}) for one in tables.log().files()}
    assert found == {"a.parquet": False, "plain.parquet": True}


@pytest.mark.parametrize("tables", ["files"], indirect=True)
def test_a_table_of_many_runs_has_few_manifests(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg, "MANIFESTS_MANY", 4)
    monkeypatch.setitem(iceberg._PROPERTIES, "commit.manifest.min-count-to-merge", "4")
    tables.log().commit(1, [tables.file("stays")], [], 0)
    for number in range(2, 16):
        log = tables.log()
        replaced = [one for one in log.files() if one.path != "stays.parquet"]
        assert log.commit(number, [tables.file(f"run-{number}")], replaced, 0)
        table = tables.table()
        assert len(table.current_snapshot().manifests(table.io)) <= 6
        assert paths(tables.log()) == [f"run-{number}.parquet", "stays.parquet"]


def test_files_of_no_version_are_deleted_once_they_are_old(tables: Tables) -> None:
    log = tables.log()
    log.commit(1, [tables.file("a")], [], 0)
    log.commit(2, [tables.file("b")], log.files(), 0)
    tables.file("of-a-run-that-died")
    versions = [one.snapshot_id for one in tables.table().snapshots()]

    def stored() -> list[str]:
        async def listed(store: Any) -> list[str]:
            return [key async for key in store.list(f"{TABLE}/")]

        return [Path(key).name for key in tables.place.run(listed) if key.endswith(".parquet")]

    log.sweep(timedelta(days=7))
    assert (stored(), paths(tables.log(), versions[0])) == (
        ["a.parquet", "b.parquet", "of-a-run-that-died.parquet"],
        ["a.parquet"],
    )
    table = tables.table()
    table.manage_snapshots().create_tag(versions[0], "mine").commit()
    tables.log().sweep(timedelta(0))
    assert stored() == ["a.parquet", "b.parquet"], "a user's tag keeps its files"
    tables.table().manage_snapshots().remove_tag("mine").commit()
    tables.log().sweep(timedelta(0))
    assert stored() == ["b.parquet"]
    assert tables.log().arrow(versions[1])["id"].to_pylist() == [7]
    assert tables.log().commit(3, [tables.file("c")], [], 0), "and it can be written to"
    assert tables.table().scan().to_arrow().num_rows == 2


@pytest.mark.parametrize("tables", ["files", pytest.param("s3", marks=pytest.mark.long)], indirect=True)
def test_a_frame_comes_back_as_it_was_written_and_others_read_it(
    spark: SparkSession, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    df = spark.sql(ROWS)
    log = tables.log()
    assert log.commit(1, write(df, tables.place, TABLE, "run-1"), [], 0)
    known = log.files()
    assert max((one.first, one.last) for one in known) == ("2026-02-16", "2026-02-16"), "a date to a file"
    assert sum(one.rows for one in known) == 6
    back = frame(spark, tables.place, TABLE, [one.path for one in known], COLUMNS)
    assert sorted(back.collect(), key=lambda row: row.id) == sorted(df.collect(), key=lambda row: row.id)
    table = tables.table()
    plain = {row["id"]: row for row in log.arrow(log.version).to_pylist()}
    assert plain == {row["id"]: row for row in back.toArrow().to_pylist()}
    # PyIceberg 0.12 reads a null list of structs as an empty one.
    theirs = [{**row, "more": row["more"] or None} for row in table.scan().to_arrow().to_pylist()]
    assert plain == {row["id"]: row for row in theirs}
    assert str(plain[0]["at"]) == "2026-02-15 10:06:40.123000+00:00"
    assert table.scan(row_filter="date = '2026-02-16'").to_arrow()["id"].to_pylist() == [9]
    theirs = polars.scan_iceberg(table, storage_options=storage_options(tables.place)).collect()
    assert {row["id"]: {**row, "counts": None} for row in theirs.to_dicts()} == {
        number: {**row, "counts": None} for number, row in plain.items()
    }, "Polars shows maps otherwise"
    with duckdb.connect() as connection:
        table.scan().to_duckdb("things", connection)
        assert connection.sql("SELECT count(*), sum(id) FROM things").fetchall() == [(6, 19)]


def iceberg_at(path: Path) -> Warehouse:
    return Warehouse(path.as_uri(), tables="iceberg")


@pytest.fixture(scope="module")
def same_in_iceberg(spark: SparkSession, known_warehouse: Made, tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """The history of `known_warehouse`. To be looked at, not to be changed."""
    made = iceberg_at(tmp_path_factory.mktemp("iceberg") / "warehouse")
    run(spark, known_warehouse.queue, made)
    return made


@pytest.mark.long
def test_a_run_makes_the_rows_of_delta_and_others_read_them(known_warehouse: Made, same_in_iceberg: Warehouse) -> None:
    assert_same(same_in_iceberg, Warehouse(known_warehouse.warehouse))
    catalog = Catalog().open(same_in_iceberg.store_ref)
    snapshot = Warehouse(same_in_iceberg.store_ref.url).snapshot()
    assert set(snapshot.root.tables) == set(models())
    for name, version in snapshot.root.tables.items():
        table = catalog.load_table(name.replace("/", "."))
        assert table.current_snapshot().snapshot_id == version
        assert table.scan().to_arrow().num_rows == snapshot.arrow(name).num_rows, name
        assert table.properties["comment"] == models()[name].rows
    catalog.close()


@pytest.mark.long
def test_a_report_of_iceberg_tables_has_the_right_figures(
    spark: SparkSession, known_warehouse: Made, same_in_iceberg: Warehouse
) -> None:
    figures = build(spark, same_in_iceberg.store_ref.url).figures
    assert differences(figures, known_warehouse.answers(known_warehouse.extent)) == []


@pytest.mark.long
def test_tables_become_views_of_a_session_without_a_jar(
    spark: SparkSession, known_warehouse: Made, same_in_iceberg: Warehouse
) -> None:
    for warehouse in (known_warehouse.warehouse, same_in_iceberg):
        session = spark.newSession()
        assert set(register_tables(session, warehouse)) == {model.view for model in models().values()}
        [(found,)] = session.sql("SELECT sum(finished) FROM gold_minutes").collect()
        expected = Warehouse(known_warehouse.warehouse).snapshot().arrow("gold/minutes", ["finished"])
        assert found == sum(expected["finished"].to_pylist()) > 0


@pytest.mark.long
def test_tables_in_a_catalog_of_spark_need_delta(
    spark: SparkSession, known_warehouse: Made, same_in_iceberg: Warehouse, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInputError, match="configure it as a catalog of Spark"):
        register_tables(spark, same_in_iceberg, catalog="spark_catalog")
    with pytest.raises(InvalidInputError, match="no tables yet"):
        register_tables(spark, tmp_path.as_uri())
    session = spark.newSession()
    layers = {name.partition("/")[0] for name in models()}
    try:
        with pytest.raises(InvalidInputError, match=r"cannot read Delta tables.*delta-spark"):
            register_tables(session, known_warehouse.warehouse, catalog="spark_catalog")
        # In the place of Delta's jar, which cannot be had here: what Spark keeps of a table is the same.
        session.dataSource.register(StandIn)
        names = register_tables(session, known_warehouse.warehouse, catalog="spark_catalog")
        assert register_tables(session, known_warehouse.warehouse, catalog="spark_catalog") == names
        assert "spark_catalog.gold.minutes" in names
        assert len(names) == len(models())
        jvm: Any = session._jvm
        kept = session._jsparkSession.sessionState().catalog()
        identifier = jvm.org.apache.spark.sql.catalyst.TableIdentifier.apply("minutes", jvm.scala.Option.apply("gold"))
        table = kept.getTableMetadata(identifier)
        facts = (table.provider().get(), table.tableType().name(), table.location().toString())
        place = known_warehouse.warehouse.replace("file:///", "file:/")
        assert facts == ("delta", "EXTERNAL", f"{place}/gold/minutes")
    finally:
        for layer in layers:
            session.sql(f"DROP DATABASE IF EXISTS {layer} CASCADE")


class StandIn(DataSource):
    @classmethod
    def name(cls) -> str:
        return "delta"

    def schema(self) -> str:
        return "x int"


@pytest.mark.long
def test_a_run_that_ends_between_two_tables_is_completed_and_the_rows_are_those_of_delta(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = (tmp_path / "queue").as_uri()
    broken, delta = iceberg_at(tmp_path / "broken"), Warehouse((tmp_path / "delta").as_uri())
    asyncio.run(something_happens(url, 4))
    run(spark, url, broken)
    asyncio.run(something_happens(url, 5))
    interrupt(spark, url, broken, 7, monkeypatch)
    run(spark, url, Warehouse(broken.store_ref.url))  # which finds out that they are Iceberg tables
    run(spark, url, delta)
    assert_same(broken, delta)
    assert not run(spark, url, broken).changed
    catalog = Catalog().open(broken.store_ref)
    snapshot = broken.snapshot()
    for name, version in snapshot.root.tables.items():
        table = catalog.load_table(name.replace("/", "."))
        assert table.current_snapshot().snapshot_id == version, "the tables are as the root names them"
        assert table.properties["casque.run"] == str(snapshot.root.run) == "2"
        assert table.scan().to_arrow().num_rows == broken.read(spark, name).count() == snapshot.arrow(name).num_rows
    catalog.close()
    assert not list(tmp_path.glob("broken/*/*/_delta_log"))


@pytest.mark.long
def test_portions_merged_files_and_rebuilds_are_those_of_delta(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = (tmp_path / "queue").as_uri()
    often, delta = iceberg_at(tmp_path / "often"), Warehouse((tmp_path / "delta").as_uri())
    monkeypatch.setattr(upkeep, "WRITES_MANY", 2)
    for number in range(3):
        asyncio.run(something_happens(url, 4 + number))
        run(spark, url, often)
    assert any(one.path.startswith("merged-") for one in often.snapshot().files("silver/jobs"))
    run(spark, url, delta)
    assert_same(often, delta)
    orphan = tmp_path / "often" / "silver" / "jobs" / "run-000000001-dead.parquet"
    orphan.write_bytes(b"of a run that died")
    os.utime(orphan, (0, 0))
    for name in models():
        often.log(name).sweep(upkeep.KEEP)
    assert not orphan.exists()
    assert_same(often, delta)


@pytest.mark.long
def test_a_bucket_with_a_catalog_of_its_own(
    spark: SparkSession, tmp_path: Path, s3_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch, "lake", uri=f"sqlite:///{tmp_path / 'lake.db'}")
    url = (tmp_path / "queue").as_uri()
    delta = Warehouse((tmp_path / "delta").as_uri())
    place = s3_server.fresh_url()
    bucket = Warehouse(place, s3_server.options, tables="iceberg", catalog="lake", namespace_prefix="orders.")
    for number in range(2):
        asyncio.run(something_happens(url, 4 + number))
        run(spark, url, bucket)
    run(spark, url, delta)
    assert_same(Warehouse(place, s3_server.options), delta)
    catalog = Catalog("lake").open(bucket.store_ref)
    assert catalog.load_table("orders.gold.minutes").location() == f"{place.partition('?')[0]}/gold/minutes"
    catalog.close()


@pytest.mark.long
def test_a_run_of_the_command_that_is_killed_is_completed_by_the_next(spark: SparkSession, tmp_path: Path) -> None:
    url, killed = (tmp_path / "queue").as_uri(), (tmp_path / "killed").as_uri()
    asyncio.run(something_happens(url, 4))
    command = [sys.executable, "-m", "casque.cli", "pipeline", "run", url, killed, "--master", "local[2]", "--json"]
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_GATEWAY_PORT"}
    arguments = ["--format", "iceberg", "--namespace-prefix", "orders_"]
    ended = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stderr
    assert Warehouse(killed).snapshot().root.iceberg == Catalog(prefix="orders_")
    asyncio.run(something_happens(url, 6))
    run_until_killed(url, Warehouse(killed), "gold/hours", tmp_path / "said")
    run(spark, url, killed)
    delta = Warehouse((tmp_path / "delta").as_uri())
    run(spark, url, delta)
    assert_same(Warehouse(killed), delta)


# --- Refusals ---


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["{}/new", "--format", "iceberg", "--catalog", "mine"], "there is no catalog 'mine'"),
        (["{}/made", "--format", "delta"], "are Iceberg tables and stay so"),
        (["{}/made", "--catalog", "mine"], "are registered in the catalog 'iceberg.db'"),
        (["{}/new", "--format", "hudi"], "'hudi' is not one of"),
    ],
)
def test_the_command_refuses_before_spark_starts(tmp_path: Path, arguments: list[str], problem: str) -> None:
    made = iceberg_at(tmp_path / "made")
    made.write(made.snapshot(), made.snapshot().root)
    given = [one.format(tmp_path.as_uri()) for one in arguments]
    ended = CliRunner().invoke(app, ["pipeline", "run", (tmp_path / "queue").as_uri(), *given])
    assert ended.exit_code == 2
    assert problem in " ".join(ended.output.split())
    assert not (tmp_path / "new").exists()


def test_the_format_of_a_warehouse_is_fixed_by_its_first_run(tmp_path: Path) -> None:
    url = (tmp_path / "warehouse").as_uri()
    made = Warehouse(url, tables="iceberg", namespace_prefix="orders_")
    made.write(made.snapshot(), made.snapshot().root)
    assert Warehouse(url).snapshot().root.iceberg == Catalog(prefix="orders_")
    assert b'"format": 3' in (tmp_path / "warehouse" / "casque.json").read_bytes(), "earlier releases refuse it"
    with pytest.raises(InvalidInputError, match="are Iceberg tables and stay so: drop --format delta"):
        Warehouse(url, tables="delta").snapshot()
    with pytest.raises(InvalidInputError, match=r"catalog 'iceberg.db' with the prefix 'orders_' and stay so"):
        Warehouse(url, catalog="lake").snapshot()
    plain = Warehouse((tmp_path / "plain").as_uri())
    plain.write(plain.snapshot(), Root(run=1))
    assert b"format" not in (tmp_path / "plain" / "casque.json").read_bytes(), "earlier releases read it"
    with pytest.raises(InvalidInputError, match="are Delta tables and stay so: drop --format iceberg"):
        iceberg_at(tmp_path / "plain").snapshot()


def test_a_catalog_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"in a bucket need a catalog that is a server.*--catalog"):
        Catalog().open(StoreRef("s3://bucket/warehouse"))
    with pytest.raises(InvalidInputError, match=r"no catalog 'mine': describe it in .pyiceberg.yaml.*_MINE__URI"):
        Catalog("mine").open(StoreRef("s3://bucket/warehouse"))
    with pytest.raises(InvalidInputError, match="use --format delta here"):
        table_location(StoreRef("az://container/warehouse"), TABLE)


@pytest.mark.parametrize("tables", ["files"], indirect=True)
def test_a_table_of_another_warehouse_is_left_alone(tables: Tables, tmp_path: Path) -> None:
    assert tables.log().commit(1, [tables.file("a")], [], 0)
    other = Tables(StoreRef((tmp_path / "other").as_uri()), tables.catalog)
    with pytest.raises(InvalidInputError, match=r"gold.things is in the catalog already, at .*--namespace-prefix"):
        other.log().commit(2, [other.file("b")], [], 0)
    assert (tables.log().run, paths(tables.log())) == (1, ["a.parquet"])


@pytest.mark.parametrize("tables", ["files"], indirect=True)
def test_a_table_that_its_catalog_has_lost_is_named(tables: Tables) -> None:
    name = Catalog().identifier(TABLE)
    lost = IcebergLog(tables.catalog, name, tables.place, TABLE, COLUMNS, "", expected=True)
    with pytest.raises(CorruptQueueError, match=r"gold.things is not in the catalog any more"):
        lost.commit(1, [], [], 0)
    assert not tables.catalog.namespace_exists("gold"), "and no other is made in its place"
