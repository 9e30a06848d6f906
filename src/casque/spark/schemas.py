"""The columns of the tables that Spark sees: those that a scan gives, whoever asks for them."""

from __future__ import annotations

from casque.client.scan.tables import COLUMNS, Table, arrow_schema, check_columns, ddl

__all__ = ["COLUMNS", "Table", "arrow_schema", "check_columns", "ddl"]
