"""The reference of the warehouse, from the heads of its SQL files.

python -m casque.spark.warehouse_reference > docs/reference/warehouse.md
"""

from __future__ import annotations

from casque.spark.models import models

INTRODUCTION = """# The warehouse

The tables that [`casque pipeline run`](../how-to/run-the-pipeline.md) makes. Each is a Delta table below the warehouse,
or an Iceberg table, under its name (`silver/jobs`), and is made by the SQL file of that name in
`src/casque/spark/sql`, whose head is the source of this page. Times are instants, days are those of UTC,
spans are whole milliseconds. Tables only ever gain columns.
"""


def page() -> str:
    parts = [INTRODUCTION]
    for model in models().values():
        rows = [f"| `{name}` | {column.type} | {column.meaning} |" for name, column in model.columns.items()]
        unique = ", ".join(f"`{name}`" for name in model.unique)
        head = f"## {model.name}\n\nA row is {model.rows}. Unique by {unique}.\n\n| column | type | |\n|---|---|---|\n"
        rules = [f"- `{name}`: `{rule}`" for name, rule in model.rules.items()]
        parts.append(head + "\n".join(rows) + "\n" + ("\nRules:\n\n" + "\n".join(rules) + "\n" if rules else ""))
    return "\n".join(parts)


if __name__ == "__main__":
    import sys

    sys.stdout.write(page())
