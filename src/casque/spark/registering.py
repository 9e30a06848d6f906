"""Makes the tables of a warehouse known to Spark's SQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from casque.errors import InvalidInputError
from casque.spark.delta import table_uri
from casque.spark.warehouse import Snapshot, Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register_tables(
    spark: SparkSession,
    warehouse: Warehouse | str,
    *,
    options: Mapping[str, str] | None = None,
    catalog: str | None = None,
) -> list[str]:
    """Let SQL find every table of a warehouse, and return their names there.

        register_tables(spark, "s3://bucket/warehouse", options={"region": "eu-west-1"})
        spark.sql("SELECT * FROM gold_minutes").show()

    Without `catalog` they become temporary views of this session, over exactly the files of the last complete run; call
    it again to see later runs. This needs no jar, whatever the format of the tables. With the name of a catalog of
    Spark they become external tables in it, `gold.minutes`, which every session of that catalog sees at their latest
    version. This is for Delta tables, and the session needs Delta's jars: a catalog of Spark keeps no list of files.

    Raises:
        InvalidInputError: there are no tables yet, the session has no Delta, or the tables are Iceberg tables, which
            are in a catalog already.
    """
    to = warehouse if isinstance(warehouse, Warehouse) else Warehouse(warehouse, options)
    snapshot = to.snapshot()
    snapshot.require("silver/jobs")
    if catalog is not None:
        return _in_catalog(spark, to, snapshot, catalog)
    names = {table: table.replace("/", "_") for table in snapshot.root.tables}
    for table, name in names.items():
        snapshot.read(spark, table).createOrReplaceTempView(name)
    return list(names.values())


def _in_catalog(spark: SparkSession, warehouse: Warehouse, snapshot: Snapshot, catalog: str) -> list[str]:
    if snapshot.root.iceberg is not None:
        raise InvalidInputError(
            "these are Iceberg tables and in a catalog already: configure it as a catalog of Spark, with Iceberg's jars"
        )
    names = []
    for table in snapshot.root.tables:
        layer, _, name = table.partition("/")
        place = table_uri(warehouse.store_ref, table).replace("'", r"\'")
        names.append(f"{catalog}.{layer}.{name}")
        try:
            spark.sql(f"CREATE NAMESPACE IF NOT EXISTS `{catalog}`.`{layer}`")
            spark.sql(f"CREATE TABLE IF NOT EXISTS `{catalog}`.`{layer}`.`{name}` USING delta LOCATION '{place}'")
        except Exception as error:
            if "DATA_SOURCE_NOT_FOUND" not in str(error):
                raise
            raise InvalidInputError(
                "this Spark cannot read Delta tables, so its catalog cannot hold them: start it with --conf "
                "spark.jars.packages=io.delta:delta-spark_2.13:VERSION, or read them with casque.spark.register_tables"
            ) from error
    return names
