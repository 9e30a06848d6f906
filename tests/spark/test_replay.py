"""Finished jobs once more: what is selected, what is made of it, and that it happens once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from casque import InvalidInputError, NewJob, SyncQueue
from casque.spark import process, replay
from tests.spark.test_work import archived

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def url(spark: SparkSession, tmp_path: Path) -> str:
    """Three jobs that are done, two that are dead, and one of them large."""
    url = (tmp_path / "queue").as_uri()
    with SyncQueue.open(url, max_attempts=1, payload_max=100) as queue:
        queue.enqueue_many(
            [
                NewJob("mail", b"good", priority=2, headers={"a": "b"}, zone="north", key="k"),
                NewJob("mail", b"bad"),
                NewJob("print", b"well"),
                NewJob("print", b"fine"),
                NewJob("print", b"bad" * 100),
            ]
        )
        for job in queue.dequeue(batch_size=10):
            if job.payload.startswith(b"bad"):
                job.nack(error="TimeoutError: nobody there")
            else:
                job.ack()
    return url


def waiting(url: str) -> dict[tuple[str, bytes], str]:
    with SyncQueue.open(url) as queue:
        return {(job.entrypoint, job.payload): job.id for job in queue.jobs(states=["ready"])}  # type: ignore[list-item]


def test_what_is_selected_is_enqueued_again_and_once(spark: SparkSession, url: str) -> None:
    before = {job.id for job in archived(url).values()}
    where = "entrypoint = 'mail' AND finished_at > '2020-01-01'"
    looked = replay(spark, url, where, dry_run=True)
    assert [(one.entrypoint, one.state, one.jobs) for one in looked.selected] == [
        ("mail", "dead", 1),
        ("mail", "done", 1),
    ]
    assert (looked.jobs, looked.written, waiting(url)) == (2, False, {})

    assert replay(spark, url, where).written
    first = waiting(url)
    assert set(first) == {("mail", b"good"), ("mail", b"bad")}
    assert not before & set(first.values()), "new jobs with ids of their own"
    with SyncQueue.open(url) as queue:
        [good] = [job.job for job in queue.jobs() if job.payload == b"good"]
    assert (good.priority, good.zone, good.key, dict(good.headers), good.attempts) == (2, "north", "k", {"a": "b"}, 0)

    replay(spark, url, where)
    assert waiting(url) == first, "the same replay again"

    assert process(spark, url, lambda _job: None).done == 2
    replay(spark, url, where)
    assert waiting(url) == {}, "also when its jobs are done"

    replay(
        spark, url, "entrypoint = 'mail' AND state = 'dead'", txn_id="on purpose", entrypoint="letters", max_attempts=7
    )
    [(named, payload)] = waiting(url)
    assert (named, payload) == ("letters", b"bad")


def test_payloads_that_are_gone_are_counted_and_never_enqueued_empty(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInputError, match="1 of the selected jobs had payloads in objects of their own"):
        replay(spark, url, "state = 'dead'")
    assert waiting(url) == {}
    other = (tmp_path / "other").as_uri()
    found = replay(spark, url, "state = 'dead'", skip_missing_payloads=True, into=other)
    assert (found.jobs, found.without_payload, found.written) == (1, 1, True)
    assert set(waiting(other)) == {("mail", b"bad")}
    assert waiting(url) == {}


def test_a_filter_that_makes_no_sense_is_refused_and_times_limit_what_is_read(spark: SparkSession, url: str) -> None:
    for where in ("stat = 'dead'", "state ="):
        with pytest.raises(InvalidInputError, match="where makes no sense"):
            replay(spark, url, where)
    with pytest.raises(InvalidInputError, match="where must be an SQL condition"):
        replay(spark, url, " ")
    later = datetime.now(UTC) + timedelta(days=1)  # noqa: TID251
    assert replay(spark, url, "true", since=later).jobs == 0
    assert replay(spark, url, "true", until=later, dry_run=True).jobs == 4
