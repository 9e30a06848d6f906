"""One Spark session for all tests of a run: starting one takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark", reason='needs pip install "casque[spark]"')

from pyspark.sql import SparkSession

from casque.spark.session import local_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # Three tries for a task: with plain local[2] Spark never retries any.
    session = local_session(
        "casque-tests",
        master="local[2,3]",
        settings={
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            "spark.log.level": "ERROR",
        },
    )
    yield session
    session.stop()
