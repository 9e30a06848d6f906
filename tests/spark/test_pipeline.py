from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from benchmarks.spark_pipeline import History
from casque import Queue, SyncQueue
from casque.cli.main import app
from casque.codec.head import KEY
from casque.codec.log import decode_head
from casque.errors import CASConflictError, CorruptQueueError, HistoryGoneError, InvalidInputError
from casque.spark import pipeline
from casque.spark.options import OnGone
from casque.spark.pipeline import Settings, run
from casque.spark.tables import TABLES
from casque.spark.warehouse import Warehouse
from casque.storage.port import Store, Stored
from casque.storage.url import open_store
from tests.spark.histories import resized, ring_of
from tests.spark.servers import connect_server
from tests.support.servers import Server

pytestmark = pytest.mark.xdist_group("spark")


async def something_happens(url: str, jobs: int, options: Mapping[str, str] | None = None) -> None:
    """Some jobs are done, one fails and is tried again, one dies, one stays; at the end all of it is archived."""
    async with Queue.open(open_store(url, options=options)) as queue:
        for number in range(jobs):
            await queue.enqueue("send", b"x" * number, zone=f"zone-{number % 3}", max_attempts=2)
        await queue.enqueue("nobody", b"stays")
        for job in await queue.dequeue("send", batch_size=jobs - 1):
            await (job.nack(error="ValueError: of no use", delay=0) if job.payload == b"x" else job.ack(result=b"done"))
        for job in await queue.dequeue("send"):
            await job.nack(error="TimeoutError: no answer", delay=3600)


def rows(warehouse: Warehouse, table: str) -> list[tuple[Any, ...]]:
    """In an order that does not depend on how they were written."""
    found = warehouse.snapshot().arrow(table).to_pylist()
    return sorted((tuple(map(_plain, row.values())) for row in found), key=repr)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.9g}")
    return sorted(map(repr, value)) if isinstance(value, list) else value


def assert_same(one: Warehouse, other: Warehouse) -> None:
    for table in TABLES:
        assert rows(one, table) == rows(other, table), table


def objects(warehouse: Warehouse) -> dict[str, str]:
    async def listed(store: Store) -> dict[str, str]:
        found = {key: await store.get(key) async for key in store.list()}
        return {key: read.etag for key, read in found.items() if isinstance(read, Stored)}

    return warehouse.store_ref.run(listed)


@pytest.mark.long
def test_portions_add_up_to_what_one_run_makes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = (tmp_path / "queue").as_uri()
    often, once = Warehouse((tmp_path / "often").as_uri()), Warehouse((tmp_path / "once").as_uri())
    for portion in range(2):
        asyncio.run(something_happens(url, 6 + portion))
        assert run(spark, url, often).jobs > 0
    asyncio.run(something_happens(url, 8))
    monkeypatch.setattr(pipeline, "COMPACT_FILES", 2)
    summary = run(spark, url, often)
    assert summary.compacted >= 6, "two small files each of events, jobs and attempts"
    before = objects(often)
    again = run(spark, url, often)
    assert not again.changed
    assert objects(often) == before, "a run that finds nothing new writes nothing"

    monkeypatch.setattr(pipeline, "COMPACT_FILES", 100)
    whole = run(spark, url, once, settings=Settings(stretch_objects=2))
    assert whole.stretches == 2
    assert (whole.jobs, whole.position) == (len(rows(often, "silver/jobs")), summary.position)
    assert_same(often, once)
    run(spark, url, once, settings=Settings(rebuild=True))
    assert_same(often, once)


@pytest.mark.long
def test_portions_of_a_ring_that_grows_add_up_to_what_one_run_makes(spark: SparkSession, tmp_path: Path) -> None:
    url = (tmp_path / "ring").as_uri()
    often, once = Warehouse((tmp_path / "often").as_uri()), Warehouse((tmp_path / "once").as_uri())
    asyncio.run(ring_of(url, 2))
    asyncio.run(something_happens(url, 6))
    first = run(spark, url, often)
    assert first.jobs > 0
    asyncio.run(resized(url, 3))
    asyncio.run(something_happens(url, 8))
    summary = run(spark, url, often)
    before = objects(often)
    assert not run(spark, url, often).changed
    assert objects(often) == before, "a run that finds nothing new writes nothing"
    whole = run(spark, url, once, settings=Settings(stretch_objects=3))
    assert whole.stretches == 2
    assert (whole.before, whole.position, first.position) == (0, summary.position, summary.before)
    assert_same(often, once)
    run(spark, url, once, settings=Settings(rebuild=True))
    assert_same(often, once)
    assert {row[1] for row in rows(once, "bronze/events")} == {0, 1, 2}
    with SyncQueue.open(url) as queue:
        left = {job.id: job.token for job in queue.jobs()}
        finished = {job.id: (job.sequence, job.token) for job in queue.archive()}
    jobs = once.snapshot().arrow("silver/jobs").to_pylist()
    assert {row["id"]: (row["sequence"], row["token"]) for row in jobs} == finished
    waiting = once.snapshot().arrow("silver/queue").to_pylist()
    assert {row["id"]: row["token"] for row in waiting} == left
    assert len({row["as_of"] for row in waiting}) == 1
    other = (tmp_path / "other").as_uri()
    asyncio.run(ring_of(other, 2))
    with pytest.raises(InvalidInputError, match="this warehouse is that of the queue"):
        run(spark, other, once)
    with pytest.raises(InvalidInputError, match="a warehouse of its own"):
        run(spark, f"{url}/shards/0000", once, settings=Settings(adopt=True))


@pytest.mark.long
def test_late_jobs_go_to_their_hour_and_a_document_has_no_bronze(spark: SparkSession, tmp_path: Path) -> None:
    history = History(tmp_path / "queue")
    asyncio.run(history.grow(60, hours=30))
    late, whole = Warehouse((tmp_path / "late").as_uri()), Warehouse((tmp_path / "whole").as_uri())
    summary = run(spark, history.url, late)
    assert "document layout" in summary.notes[0]
    assert rows(late, "bronze/events") == rows(late, "gold/requests") == []
    begin = rows(late, "gold/hours")[0][:2]
    asyncio.run(history.grow(40, hours=1))
    summary = run(spark, history.url, late)
    assert summary.jobs == 40
    run(spark, history.url, whole)
    assert_same(late, whole)
    assert rows(late, "gold/hours")[0][:2] == begin


@pytest.mark.long
def test_of_two_runs_at_once_one_loses_and_the_tables_are_right(spark: SparkSession, tmp_path: Path) -> None:
    url, warehouse = (tmp_path / "queue").as_uri(), Warehouse((tmp_path / "warehouse").as_uri())
    asyncio.run(something_happens(url, 4))

    def interfere(what: str, _number: int, _total: int) -> None:
        if what == "save the cursor":
            run(spark, url, warehouse)

    with pytest.raises(CASConflictError, match="another run of the pipeline"):
        run(spark, url, warehouse, progress=interfere)
    assert not run(spark, url, warehouse).changed
    assert len(rows(warehouse, "silver/jobs")) == 2


@pytest.mark.long
def test_a_log_that_is_gone_stops_the_run_or_leaves_a_gap(spark: SparkSession, tmp_path: Path) -> None:
    url, warehouse = (tmp_path / "queue").as_uri(), Warehouse((tmp_path / "warehouse").as_uri())
    asyncio.run(something_happens(url, 4))
    first = run(spark, url, warehouse).position
    asyncio.run(something_happens(url, 5))
    # A queue that is converted, and back, keeps its positions and has a log that begins where it stands.
    for layout in ("document", "log"):
        assert CliRunner().invoke(app, ["convert", url, "--to", layout]).exit_code == 0
    floor = decode_head(KEY, (tmp_path / "queue" / KEY).read_bytes()).floor
    assert floor > first
    asyncio.run(something_happens(url, 3))
    before = objects(warehouse)
    with pytest.raises(InvalidInputError, match="--adopt"):
        run(spark, url, warehouse)
    with pytest.raises(HistoryGoneError, match="--on-gone skip"):
        run(spark, url, warehouse, settings=Settings(adopt=True))
    assert objects(warehouse) == before
    summary = run(spark, url, warehouse, settings=Settings(adopt=True, on_gone=OnGone.SKIP))
    assert summary.gaps == ((first + 1, floor),)
    archived = [line for path in tmp_path.rglob("*.jsonl") for line in path.read_text().splitlines()]
    assert len(rows(warehouse, "silver/jobs")) == 2 + summary.jobs == len(archived), "the archive misses nothing"
    positions = {row[2] for row in rows(warehouse, "bronze/events")}
    assert first in positions
    assert floor + 1 in positions
    assert not positions & set(range(first + 1, floor + 1))


@pytest.mark.long
def test_a_warehouse_belongs_to_one_queue(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = Warehouse((tmp_path / "warehouse").as_uri())
    for name in ("one", "other"):
        asyncio.run(something_happens((tmp_path / name).as_uri(), 3))
    run(spark, (tmp_path / "one").as_uri(), warehouse)
    with pytest.raises(InvalidInputError, match="--adopt"):
        run(spark, (tmp_path / "other").as_uri(), warehouse)
    with pytest.raises(InvalidInputError, match="there is no queue here"):
        run(spark, (tmp_path / "none").as_uri(), warehouse)


def test_damage_is_reported_as_the_executor_saw_it(spark: SparkSession, tmp_path: Path) -> None:
    asyncio.run(something_happens((tmp_path / "queue").as_uri(), 3))
    [archived] = (tmp_path / "queue" / "archive").rglob("*.jsonl")
    archived.write_text('{"id": 3}\n')
    with pytest.raises(CorruptQueueError, match="no part of an archive") as caught:
        run(spark, (tmp_path / "queue").as_uri(), Warehouse((tmp_path / "warehouse").as_uri()))
    assert caught.value.key.startswith("archive/")


def test_queue_and_warehouse_on_s3(spark: SparkSession, s3_server: Server) -> None:
    url, options = s3_server.fresh_url(), s3_server.options
    warehouse = Warehouse(s3_server.fresh_url(), options)
    asyncio.run(something_happens(url, 4, options))
    summary = run(spark, url, warehouse, options=options)
    assert (summary.before, summary.jobs, summary.attempts, summary.queued, summary.gaps) == (0, 2, 2, 3, ())
    hours = warehouse.read(spark, "gold/hours", columns=["enqueued", "finished"]).collect()
    assert (sum(row.enqueued for row in hours), sum(row.finished for row in hours)) == (5, 2)
    assert not run(spark, url, warehouse, options=options).changed


# --- Killed ---

KILLER = """
import os, signal
at, count, driver = int(os.environ["KILL_AT"]), os.environ["KILL_COUNT"], os.environ["KILL_PID"]

def patch():
    from casque.storage.local import LocalStore

    def counted(verb):
        async def write(self, key, body, **kwargs):
            outcome = await verb(self, key, body, **kwargs)
            with open(count, "ab") as file:
                file.write(key.encode() + b"\\n")
            if at == (-1 if key == "_cursor.json" else len(open(count, "rb").read().splitlines())):
                os.kill(int(open(driver).read()), signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
            return outcome
        return write
    LocalStore.create, LocalStore.replace = counted(LocalStore.create), counted(LocalStore.replace)

patch()
"""


@pytest.mark.long
def test_a_run_that_is_killed_anywhere_heals_with_the_next_one(spark: SparkSession, tmp_path: Path) -> None:
    url = (tmp_path / "queue").as_uri()
    clean, killed = Warehouse((tmp_path / "clean").as_uri()), Warehouse((tmp_path / "killed").as_uri())
    asyncio.run(something_happens(url, 4))
    for warehouse in (clean, killed):
        run(spark, url, warehouse)
    asyncio.run(something_happens(url, 6))
    before = {table: rows(killed, table) for table in TABLES}
    # In the middle of silver, in the middle of gold, and right after the last write but before anybody hears of it.
    for at in (2, 12):
        written = kill(tmp_path, url, at)
        assert len(written) >= at
        assert {table: rows(killed, table) for table in TABLES} == before, "nothing of it is seen"
    run(spark, url, clean)
    written = kill(tmp_path, url, -1)
    assert written[-1] == "_cursor.json"
    assert not run(spark, url, killed).changed, "everything was there"
    assert_same(killed, clean)


def kill(tmp_path: Path, url: str, at: int) -> list[str]:
    """Run the pipeline as a process that is killed with its n-th write; answers what it wrote."""
    (tmp_path / "sitecustomize.py").write_text(KILLER)
    count, driver = tmp_path / f"written-{at}", tmp_path / f"driver-{at}"
    script = (
        "import os, sys\n"
        f"open({str(driver)!r}, 'w').write(str(os.getpid()))\n"
        "from casque.spark.session import local_session\nfrom casque.spark.pipeline import run\n"
        "spark = local_session(master='local[2]', settings={'spark.sql.shuffle.partitions': '2'})\n"
        f"run(spark, {url!r}, {(tmp_path / 'killed').as_uri()!r})\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "KILL_AT": str(at),
        "KILL_COUNT": str(count),
        "KILL_PID": str(driver),
    }
    # The running session's gateway is not for others.
    environment.pop("PYSPARK_GATEWAY_PORT", None)
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=280)
    assert ended.returncode == -signal.SIGKILL, ended.stderr[-2000:]
    return count.read_text().splitlines()


# --- The command ---


@pytest.mark.long
def test_the_command_runs_on_a_connect_server_and_says_what_it_did(tmp_path: Path) -> None:
    url = (tmp_path / "queue").as_uri()
    asyncio.run(something_happens(url, 4))
    command = [sys.executable, "-m", "casque.cli", "pipeline", "run", url, (tmp_path / "warehouse").as_uri()]
    with connect_server() as remote:
        ended = subprocess.run(
            [*command, "--json", "--delta", "--remote", remote, "--put-price", "0.004"],
            capture_output=True,
            text=True,
            timeout=280,
        )
    assert ended.returncode == 0, ended.stderr
    summary = msgspec.json.decode(ended.stdout)
    assert (summary["jobs"], summary["queued"]) == (2, 3)
    deltalake = pytest.importorskip("deltalake")
    table = deltalake.DeltaTable((tmp_path / "warehouse" / "gold" / "requests").as_uri()).to_pyarrow_table()
    commits, dollars = sum(table["commits"].to_pylist()), sum(table["dollars"].to_pylist())
    assert dollars == pytest.approx(float(commits) * 0.004 / 1000)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["file:///nowhere/queue", "file:///nowhere/warehouse"], "there is no queue here"),
        (["file:///nowhere/queue", "memory://warehouse"], "do not share this one's memory"),
        (["file:///nowhere/queue", "file:///nowhere/w", "--trigger", "soon"], "--trigger takes a span such as"),
        (["ftp://x", "file:///nowhere/w"], "no store speaks ftp://"),
    ],
)
def test_what_cannot_be_done_is_said_before_spark_is_started(arguments: list[str], said: str) -> None:
    ended = CliRunner().invoke(app, ["pipeline", "run", *arguments])
    assert ended.exit_code == 2
    assert said in " ".join(ended.output.split())
