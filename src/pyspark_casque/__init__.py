"""Lets Spark find the data source `casque` by itself: it looks for packages that are called `pyspark_*`.

One that fails to import would hide everybody's Python data sources, so nothing here may raise.
"""

try:
    from casque.spark.source import CasqueDataSource as DefaultSource
except Exception:  # noqa: BLE001  whatever is wrong with casque must not hide the sources of others
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
