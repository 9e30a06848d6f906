from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from casque.errors import InvalidInputError
from casque.spark import warehouse_reference
from casque.spark.models import ddl, models, own_models, parse

pytestmark = pytest.mark.xdist_group("spark")


def test_the_reference_is_what_the_sql_files_say() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "warehouse.md"
    assert page.read_text() == warehouse_reference.page(), (
        "run python -m casque.spark.warehouse_reference > docs/reference/warehouse.md"
    )


@pytest.mark.parametrize("table", models())
def test_the_columns_are_what_spark_understands(spark: SparkSession, table: str) -> None:
    model = models()[table]
    columns = spark.createDataFrame([], ddl(model.types)).dtypes
    assert columns == [(name, column.type) for name, column in model.columns.items()]
    assert columns[0] == ("date", "date")
    assert {*model.unique, model.time} <= set(model.columns)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("SELECT 1", "it should begin with comments"),
        ("-- other: a row\n-- unique: id\n-- time: at\n-- id int: x\n", "should be the table and what a row is"),
        ("-- gold/mine: a row\n-- key: id\n-- time: at\n-- id int: x\n", "should begin with 'unique: '"),
        ("-- gold/mine: a row\n-- unique: id\n-- time: at\n-- id: no type\n", "is no column"),
    ],
)
def test_a_file_that_does_not_describe_its_table_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidInputError, match=f"mine.sql does not say what its table is: .*{problem}"):
        parse(text, "mine.sql")


HEAD = "-- mine/{0}: one day\n-- unique: date\n-- time: date\n-- date date: the day\nSELECT date FROM "


def test_models_of_users_come_after_those_that_they_read(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text(HEAD.format("a") + "mine_b")
    (tmp_path / "b.sql").write_text(HEAD.format("b") + "gold_hours")
    assert list(own_models(tmp_path)) == ["mine/b", "mine/a"]
    (tmp_path / "b.sql").write_text(HEAD.format("b") + "mine_a")
    with pytest.raises(InvalidInputError, match="in a circle: mine/a, mine/b"):
        own_models(tmp_path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (HEAD.format("x").replace("mine/x", "gold/hours") + "x", "there is a table gold/hours already"),
        (HEAD.format("x").replace("date date", "date string") + "x", "needs a column `date` of type date"),
        (None, "there are no .sql files"),
    ],
)
def test_models_of_users_that_cannot_be_are_refused(tmp_path: Path, text: str | None, problem: str) -> None:
    if text is not None:
        (tmp_path / "x.sql").write_text(text)
    with pytest.raises(InvalidInputError, match=problem):
        own_models(tmp_path)
