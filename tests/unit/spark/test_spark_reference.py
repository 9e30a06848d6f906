"""The reference of Spark's tables and options says what the code says."""

from __future__ import annotations

from pathlib import Path

from casque.scan.tables import COLUMNS
from casque.spark.reference import MEANING, OTHERWISE, page

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "spark.md"


def test_the_page_is_what_the_code_makes_of_it() -> None:
    assert PAGE.read_text() == page(), "run `python -m casque.spark.reference > docs/reference/spark.md`"


def test_every_column_has_a_meaning_and_no_other() -> None:
    named = {name for columns in COLUMNS.values() for name in columns}
    assert named == MEANING.keys()
    assert all(name in COLUMNS[table] for table, name in OTHERWISE)
