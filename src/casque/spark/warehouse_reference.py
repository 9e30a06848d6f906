"""The reference of the warehouse, from its tables.

python -m casque.spark.warehouse_reference > docs/reference/warehouse.md
"""

from __future__ import annotations

from casque.spark.tables import TABLES

INTRODUCTION = """# The warehouse

The tables that [`casque pipeline run`](../how-to/run-the-pipeline.md) makes. Made from `src/casque/spark/tables.py`.

Every table is kept by `date`, in UTC, and is found below the warehouse under its name:
`silver/jobs/date=2026-02-15/part-....parquet`. Which files a table is made of says its manifest, and which manifest
`_cursor.json`. Times are instants, spans are whole milliseconds. Tables only ever gain columns.
"""


def page() -> str:
    parts = [INTRODUCTION]
    for name, relation in TABLES.items():
        rows = [f"| `{column}` | {kind} | {meaning} |" for column, (kind, meaning) in relation.columns.items()]
        unique = ", ".join(f"`{column}`" for column in relation.unique)
        head = f"## {name}\n\nA row is {relation.rows}. Unique by {unique}.\n\n| column | type | |\n|---|---|---|\n"
        parts.append(head + "\n".join(rows) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    import sys

    sys.stdout.write(page())
