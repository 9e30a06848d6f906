from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from casque.clock import Random
from casque.spark import sketch

pytestmark = pytest.mark.xdist_group("spark")
SPANS = st.lists(st.integers(0, 10**10), min_size=1, max_size=200)


@given(SPANS, st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]))
def test_a_percentile_of_a_sketch_is_within_one_percent(spans: list[int], q: float) -> None:
    true = sorted(spans)[int(q * (len(spans) - 1))]
    found = sketch.quantile(sketch.sketch(spans), q)
    assert found is not None
    assert abs(found - true) <= true * sketch.ERROR * 1.0001


@given(SPANS, SPANS)
def test_sketches_merge_to_the_sketch_of_everything(some: list[int], others: list[int]) -> None:
    both = sketch.merge([sketch.sketch(some), None, sketch.sketch(others)])
    assert both == sketch.sketch(some + others)


def test_nothing_has_no_percentile() -> None:
    assert sketch.quantile({}, 0.5) is None
    assert sketch.quantile(None, 0.5) is None


def test_spark_counts_and_merges_and_finds_the_same_as_python(spark: SparkSession) -> None:
    rng = Random(5)
    groups = {name: [int(rng.lognormvariate(5, 3)) for _ in range(300)] for name in ("one", "two")}
    groups["none"] = []
    rows = [(name, span) for name, spans in groups.items() for span in spans] + [("none", None)]
    spark.createDataFrame(rows, "name string, span bigint").createOrReplaceTempView("spans")
    found = spark.sql(f"""
        WITH counted AS (
            SELECT name, {sketch.sql_bucket("span")} AS place, count(span) AS spans FROM spans GROUP BY 1, 2
        ), sketched AS (SELECT name, {sketch.sql_merge("place", "spans")} AS s FROM counted GROUP BY name)
        SELECT name, s, {sketch.sql_quantile("s", 0.5)} AS p50, {sketch.sql_quantile("s", 0.99)} AS p99 FROM sketched
        UNION ALL
        SELECT 'all', {sketch.sql_merged("s")} AS s, NULL, NULL FROM sketched
    """)
    by_name = {row.name: row for row in found.collect()}
    for name, spans in groups.items():
        row = by_name[name]
        assert row.s == sketch.sketch(spans)
        assert row.p50 == pytest.approx(sketch.quantile(row.s, 0.5))
        assert row.p99 == pytest.approx(sketch.quantile(row.s, 0.99))
    assert by_name["all"].s == sketch.merge(by_name[name].s for name in groups)
