"""Drivers that are killed, executors that are lost, a broker in between: every job once, none acknowledged twice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from casque import EventKind, Queue
from casque.spark import process
from tests.integration.test_serve_command import FREE, serving
from tests.spark.servers import connect_server
from tests.spark.test_work import archived, filled, until_seen, wait_for

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

DRIVER = Path(__file__).with_name("work_driver.py")


@contextmanager
def driving(tmp_path: Path, *runs: dict[str, Any], **given: Any) -> Iterator[subprocess.Popen[str]]:
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_WORKER_DIR": str(tmp_path / "spark-work"),
    }
    with (
        (tmp_path / "driver.log").open("a") as log,
        subprocess.Popen(
            [sys.executable, str(DRIVER), json.dumps({**given, "runs": runs})],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            cwd=tmp_path,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def told(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    out, _ = process.communicate()
    assert process.returncode == 0
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def acknowledged(url: str) -> Counter[str | None]:
    async def count() -> Counter[str | None]:
        events = Queue.open(url).events(from_position=0, follow=False)
        return Counter([event.job_id async for event in events if event.kind is EventKind.ACKED])

    return asyncio.run(count())


@pytest.mark.long
def test_a_driver_killed_anywhere_leaves_every_job_to_be_done_once(tmp_path: Path) -> None:
    """On a Connect server, which goes on after each of them."""
    url = (tmp_path / "queue").as_uri()
    filled(url, *(b"%d" % n for n in range(12)))
    common = {"url": url, "batch": 4, "lease": 1.0, "until": "empty", "place": str(tmp_path)}
    with connect_server() as remote:
        # In the middle of handlers, which go on without it for a while.
        with driving(tmp_path, {**common, "handler": "waiting"}, remote=remote) as driver:
            wait_for(tmp_path / "begun")
            driver.kill()
        (tmp_path / "go").touch()
        for where in ("before the settling", "after the settling"):
            with driving(tmp_path, {**common, "handler": "noting"}, remote=remote, dies=where) as driver:
                assert driver.wait() == -signal.SIGKILL
        with driving(tmp_path, {**common, "handler": "noting"}, remote=remote) as driver:
            [summary] = told(driver)
    assert (summary["failed"], summary["lost"], summary["left"]) == (0, 0, 0)
    assert 0 < summary["done"] < 12, "one of the others had settled a batch"
    jobs = archived(url)
    assert sorted(jobs, key=int) == [b"%d" % n for n in range(12)]
    assert set(acknowledged(url).values()) == {1}
    assert max(job.attempts for job in jobs.values()) > 1


@pytest.mark.long
def test_the_jobs_of_an_executor_that_is_lost_are_settled_once(tmp_path: Path) -> None:
    """Executors are processes of their own here; the first call takes its executor with it."""
    url = (tmp_path / "queue").as_uri()
    filled(url, *(b"%d" % n for n in range(8)))
    with driving(tmp_path, {"url": url, "place": str(tmp_path), "handler": "losing", "batch": 8}) as driver:
        [summary] = told(driver)
    assert (summary["jobs"], summary["done"], summary["lost"]) == (8, 8, 0)
    assert (tmp_path / "lost").exists()
    assert {job.attempts for job in archived(url).values()} == {1}
    assert set(acknowledged(url).values()) == {1}


def test_a_queue_that_a_broker_leads_is_reached_through_it(spark: SparkSession, tmp_path: Path) -> None:
    url = (tmp_path / "queue").as_uri()
    with serving(url, *FREE, "--no-http") as broker:
        broker.until("role +leader")
        filled(url, *(b"%d" % n for n in range(5)), via="broker")

        def handler(job: Any) -> bytes:
            if job.payload == b"3":
                raise ValueError("three")
            return bytes(job.payload)

        summary = process(spark, url, handler, lease=1.0)
        assert (summary.done, summary.failed) == (4, 1)
        assert broker.end()[0] == 0
    assert {job.result for job in archived(url).values()} == {b"0", b"1", b"2", b"4"}
    until_seen(url, EventKind.NACKED, 1)
