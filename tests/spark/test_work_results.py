"""The table of what handlers return: a row for each job that is done, also if a driver dies in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from casque import InvalidInputError, Job
from casque.spark import process, results
from casque.spark.work import foreman
from tests.spark.test_work import archived, filled

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return (tmp_path / "queue").as_uri()


@pytest.fixture
def warehouse(tmp_path: Path) -> str:
    return (tmp_path / "warehouse").as_uri()


def measured(job: Job[bytes]) -> dict[str, Any] | None:
    text = job.payload.decode()
    if text == "nothing":
        return None
    return {"letters": len(text) if text != "bad" else "many", "words": text.split()}


SCHEMA = "letters int, words array<string>"


def test_what_handlers_return_is_in_the_table_under_the_claim_it_came_from(
    spark: SparkSession, url: str, warehouse: str
) -> None:
    filled(url, b"one two", b"three", b"nothing", b"bad", max_attempts=1)
    summary = process(spark, url, measured, results=warehouse, result_schema=SCHEMA)
    assert (summary.done, summary.failed) == (3, 1)
    jobs = archived(url)
    assert "what the handler returned for letters does not fit int" in str(jobs[b"bad"].error)
    assert {job.result for job in jobs.values()} == {None}
    rows = {row.job_id: row for row in results(spark, warehouse, url).collect()}
    assert set(rows) == {jobs[b"one two"].id, jobs[b"three"].id}
    row, job = rows[jobs[b"one two"].id], jobs[b"one two"]
    assert (row.token, row.attempt, row.entrypoint) == (job.token, 1, "work")
    assert (row.letters, row.words) == (7, ["one", "two"])
    assert str(row.date) == str(job.finished_at.date())

    def many(given: pa.Table) -> pa.Table:
        errors = ["no" if payload == b"four" else None for payload in given.column("payload").to_pylist()]
        return pa.table({"id": given.column("id"), "error": errors, "letters": [1] * given.num_rows})

    filled(url, b"four", b"five", max_attempts=1)
    assert process(spark, url, many, kind="arrow", results=warehouse, result_schema=SCHEMA).failed == 1
    assert sorted((row.letters, row.words) for row in results(spark, warehouse, url).collect() if row.letters == 1) == [
        (1, None)
    ]


def test_a_driver_that_dies_between_the_results_and_the_settling_leaves_no_result_twice(
    spark: SparkSession, url: str, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(url, *(b"%d" % n for n in range(5)))

    async def killed(*_: Any) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(foreman, "settle", killed)
        with pytest.raises(RuntimeError, match="killed"):
            process(spark, url, lambda job: job.payload, results=warehouse, lease=1.0)
    assert results(spark, warehouse, None).count() == 5
    assert results(spark, warehouse, url).count() == 0, "none of these jobs is done"

    summary = process(spark, url, lambda job: job.payload * 2, results=warehouse, until="empty")
    assert (summary.done, summary.lost) == (5, 0)
    assert results(spark, warehouse, None).count() == 10
    rows = results(spark, warehouse, url).collect()
    assert {row.job_id: bytes(row.result) for row in rows} == {
        job.id: payload * 2 for payload, job in archived(url).items()
    }
    assert len(rows) == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"results": "memory://x"}, "do not share this one's memory"),
        ({"result_schema": "a int"}, "add results=URL"),
        ({"results": "file:///tmp/none", "result_schema": "token int"}, "token is there already"),
        ({"results": "file:///tmp/none", "result_schema": "a interval day"}, "cannot be kept: cast it first"),
    ],
)
def test_results_that_could_not_be_kept_are_refused_before_anything_is_claimed(
    spark: SparkSession, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInputError, match=said):
        process(spark, "memory://", "pickle:dumps", **arguments)
