from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from casque.spark import warehouse_reference
from casque.spark.tables import TABLES, ddl

pytestmark = pytest.mark.xdist_group("spark")


def test_the_reference_is_what_the_code_says() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "warehouse.md"
    assert page.read_text() == warehouse_reference.page(), (
        "run python -m casque.spark.warehouse_reference > docs/reference/warehouse.md"
    )


@pytest.mark.parametrize("table", TABLES)
def test_the_tables_are_what_spark_understands(spark: SparkSession, table: str) -> None:
    columns = spark.createDataFrame([], ddl(table)).dtypes
    assert columns == [(name, column.type) for name, column in TABLES[table].columns.items()]
    assert columns[0] == ("date", "date")
    assert set(TABLES[table].unique) <= set(TABLES[table].columns)
