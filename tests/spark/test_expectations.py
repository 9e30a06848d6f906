from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from casque import Queue
from casque.cli.main import app
from casque.errors import CorruptQueueError, InvalidInputError
from casque.spark.expectations import UNIQUE, Expect, check
from casque.spark.files import described
from casque.spark.models import models, own_models, parse
from casque.spark.pipeline import Settings, run
from casque.spark.warehouse import Warehouse
from tests.spark.known_answers import Made

pytestmark = pytest.mark.xdist_group("spark")

ENDS = """-- mine/ends: one finished job
-- unique: id
-- time: finished_at
-- date date: the day, in UTC
-- id string: the job
-- zone string: whose job it is; null for none
-- finished_at timestamp: when it finished
-- expect owned: zone IS NOT NULL
-- expect known_zone: zone <> 'stranger'
SELECT * FROM silver_jobs
"""


async def some_finish(url: str, *zones: str | None) -> None:
    async with Queue.open(url) as queue:
        for zone in zones:
            await queue.enqueue("send", b"", zone=zone)
        for job in await queue.dequeue(batch_size=len(zones)):
            await job.ack()


def found(warehouse: Warehouse, table: str, *columns: str) -> list[tuple[Any, ...]]:
    rows = warehouse.snapshot().arrow(table).to_pylist()
    return sorted((tuple(row[name] for name in columns) for row in rows), key=repr)


@pytest.mark.long
def test_rows_that_break_a_rule_are_reported_stop_the_run_or_are_set_aside(spark: SparkSession, tmp_path: Path) -> None:
    folder, url = tmp_path / "models", (tmp_path / "queue").as_uri()
    folder.mkdir()
    (folder / "ends.sql").write_text(ENDS)
    mine = own_models(folder)
    warehouse = Warehouse((tmp_path / "warehouse").as_uri())
    asyncio.run(some_finish(url, "acme", "stranger", None))
    with pytest.raises(CorruptQueueError, match=r"1 of 3 rows break the rule 'owned'.*--expect quarantine"):
        run(spark, url, warehouse, settings=Settings(models=mine, expect=Expect.FAIL))
    with pytest.raises(InvalidInputError, match="no tables yet"):
        warehouse.read(spark, "mine/ends")
    summary = run(spark, url, warehouse, settings=Settings(models=mine))
    # Null is not true: the job without a zone breaks both.
    assert [str(one) for one in summary.broken] == [
        "mine/ends: 1 of 3 rows break the rule 'owned'",
        "mine/ends: 2 of 3 rows break the rule 'known_zone'",
    ]
    assert found(warehouse, "mine/ends", "zone") == [("acme",), ("stranger",), (None,)]
    told = found(warehouse, "quality/rules", "table", "rule", "rows", "broken", "action")
    assert ("mine/ends", "known_zone", 3, 2, "warn") in told
    assert [row for row in told if row[3]] == [row for row in told if row[0] == "mine/ends"]

    asyncio.run(some_finish(url, "acme", "stranger"))
    run(spark, url, warehouse, settings=Settings(models=mine, expect=Expect.QUARANTINE))
    assert found(warehouse, "mine/ends", "zone") == [("acme",), ("acme",)]
    aside = [(table, rules, json.loads(row).get("zone")) for table, rules, row in _aside(warehouse)]
    assert aside == [
        ("mine/ends", ["known_zone"], "stranger"),
        ("mine/ends", ["known_zone"], "stranger"),
        ("mine/ends", ["owned", "known_zone"], None),
    ]

    asyncio.run(some_finish(url, "stranger"))
    assert run(spark, url, warehouse, settings=Settings(models=mine, expect=Expect.OFF)).broken == ()
    assert ("stranger",) in found(warehouse, "mine/ends", "zone")


def _aside(warehouse: Warehouse) -> list[tuple[Any, ...]]:
    return found(warehouse, "quality/rows", "table", "rules", "row")


@pytest.mark.long
def test_a_check_of_the_whole_warehouse_finds_rows_that_are_there_twice(spark: SparkSession, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    url, warehouse = (tmp_path / "queue").as_uri(), Warehouse((tmp_path / "warehouse").as_uri())
    nothing = CliRunner().invoke(app, ["pipeline", "check", str(warehouse.store_ref.url)])
    assert nothing.exit_code == 2
    assert "casque pipeline run" in nothing.output
    asyncio.run(some_finish(url, "acme", "other"))
    run(spark, url, warehouse)
    sound = check(spark, warehouse)
    assert {one.broken for one in sound} == {0}
    assert {"unique", "known_state", "ends_add_up", "enqueued_are_finished_or_waiting"} <= {one.rule for one in sound}

    [file] = warehouse.snapshot().files("silver/jobs")
    path = tmp_path / "warehouse" / "silver" / "jobs" / file.path
    twin = path.with_name("twin.parquet")
    twin.write_bytes(path.read_bytes())
    name = file.path.rpartition("/")[0] + "/twin.parquet"
    warehouse.log("silver/jobs").append([described(name, twin.stat().st_size, pq.read_metadata(twin))], 0)
    snapshot = warehouse.snapshot()
    tables = {**snapshot.root.tables, "silver/jobs": warehouse.log("silver/jobs").version}
    warehouse.write(snapshot, type(snapshot.root)(**{**_fields(snapshot.root), "tables": tables}))
    broken = {(one.table, one.rule): (one.rows, one.broken) for one in check(spark, warehouse) if one.broken}
    assert broken == {
        ("silver/jobs", UNIQUE): (4, 2),
        ("gold/hours", "enqueued_are_finished_or_waiting"): (4, 2),
        ("gold/hours", "finished_are_jobs"): (4, 2),
    }


@pytest.mark.long
def test_the_command_that_checks_tells_by_its_exit_code(tmp_path: Path) -> None:
    url, tables = (tmp_path / "queue").as_uri(), (tmp_path / "warehouse").as_uri()
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "ends.sql").write_text(ENDS)
    asyncio.run(some_finish(url, "acme", "stranger"))
    made = casque("run", url, tables, "--models", str(folder))
    assert made.returncode == 0
    assert "mine/ends: 1 of 2 rows break the rule 'known_zone'" in made.stdout
    sound = casque("check", tables)
    assert (sound.returncode, "rules hold" in sound.stdout) == (0, True)
    broken = casque("check", tables, "--models", str(folder))
    assert broken.returncode == 1
    assert "mine/ends: 1 of 2 rows break the rule 'known_zone'" in broken.stdout


def casque(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: a command ends its Spark session, which is that of all tests here."""
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_GATEWAY_PORT"}
    command = [sys.executable, "-m", "casque.cli", "pipeline", *arguments, "--master", "local[2]"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)


def _fields(root: Any) -> dict[str, Any]:
    return {name: getattr(root, name) for name in root.__struct_fields__}


def test_a_known_history_breaks_no_rule(known_warehouse: Made) -> None:
    told = found(Warehouse(known_warehouse.warehouse), "quality/rules", "table", "rule", "rows", "broken")
    assert {(table, rule) for table, rule, _, _ in told} == {
        (model.name, rule) for model in models().values() for rule in model.rules
    }
    assert sum(rows for *_, rows, _ in told) > 1_000
    assert [row for row in told if row[3]] == []


def test_a_rule_belongs_to_its_model() -> None:
    model = parse(ENDS, "ends.sql")
    assert model.rules == {"owned": "zone IS NOT NULL", "known_zone": "zone <> 'stranger'"}
    assert list(model.columns) == ["date", "id", "zone", "finished_at"]
