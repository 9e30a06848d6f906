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
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from benchmarks.spark_pipeline import History
from casque import Outcome, OutcomeKind, Queue, SyncQueue
from casque.cli.main import app
from casque.clock import Random
from casque.codec.archive import Range, archive_key, hour_of
from casque.codec.head import KEY
from casque.codec.log import decode_head
from casque.errors import CorruptQueueError, HistoryGoneError, InvalidInputError
from casque.spark import upkeep
from casque.spark.models import models, own_models
from casque.spark.options import OnGone
from casque.spark.pipeline import STEPS, Settings, run
from casque.spark.table_log import TableLog
from casque.spark.warehouse import Warehouse
from casque.storage.port import Store, Stored
from casque.storage.url import open_store
from casque.testing.clock import ManualClock
from tests.spark.histories import resized, ring_of
from tests.spark.oracle import Oracle
from tests.spark.servers import connect_server
from tests.support.servers import Server

pytestmark = pytest.mark.xdist_group("spark")


NOT_COMPARED = {"noticed_at", "as_of", "wait_sketch", "run_sketch"}
"""A sketch keeps its values in the order in which they came; its percentiles are compared."""


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
    names = [name for name in models()[table].columns if name not in NOT_COMPARED]
    return sorted((tuple(_plain(row[name]) for name in names) for row in found), key=repr)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.9g}")
    return sorted(map(repr, value)) if isinstance(value, list) else value


def assert_same(one: Warehouse, other: Warehouse) -> None:
    for table in models():
        if not table.startswith("quality/"):  # it tells of runs
            assert rows(one, table) == rows(other, table), table


def objects(warehouse: Warehouse) -> dict[str, str]:
    async def listed(store: Store) -> dict[str, str]:
        found = {key: await store.get(key) async for key in store.list()}
        return {key: read.etag for key, read in found.items() if isinstance(read, Stored)}

    return warehouse.store_ref.run(listed)


@pytest.mark.long
def test_portions_add_up_to_what_one_run_makes(spark: SparkSession, tmp_path: Path) -> None:
    url = (tmp_path / "queue").as_uri()
    often, once = Warehouse((tmp_path / "often").as_uri()), Warehouse((tmp_path / "once").as_uri())
    asyncio.run(something_happens(url, 6))
    assert run(spark, url, often).jobs > 0
    asyncio.run(something_happens(url, 7))
    found = run(spark, url, often)
    assert found.jobs > 0
    # Of an hour before all new commits: a run that lists it fails.
    trap = tmp_path / "queue" / archive_key(hour_of(0), Range(found.position + 1, found.position + 1))
    trap.parent.mkdir(parents=True)
    trap.write_bytes(b"of another time")
    asyncio.run(something_happens(url, 8))
    summary = run(spark, url, often)
    before = objects(often)
    again = run(spark, url, often)
    assert not again.changed
    assert objects(often) == before, "a run that finds nothing new writes nothing"
    whole = run(spark, url, once)
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
    whole = run(spark, url, once)
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
@pytest.mark.parametrize("step", STEPS[1:])
def test_two_runs_at_once_carry_out_the_same_plan(spark: SparkSession, tmp_path: Path, step: str) -> None:
    url, warehouse = (tmp_path / "queue").as_uri(), Warehouse((tmp_path / "warehouse").as_uri())
    alone = Warehouse((tmp_path / "alone").as_uri())
    asyncio.run(something_happens(url, 4))

    def interfere(what: str, _number: int, _total: int) -> None:
        if what == step:
            asyncio.run(something_happens(url, 3))  # which the other run does not wait for
            run(spark, url, warehouse)

    run(spark, url, warehouse, progress=interfere)
    assert not run(spark, url, warehouse).changed
    run(spark, url, alone)
    assert_same(warehouse, alone)
    assert Oracle(url).differences(warehouse.snapshot()) == []


class InterruptedRunError(Exception):
    pass


def interrupt(
    spark: SparkSession, url: str, warehouse: Warehouse, commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the pipeline until it has committed to this number of tables."""
    before = warehouse.snapshot()
    done: list[str] = []
    commit = TableLog.commit

    def interrupted(self: TableLog, *args: Any) -> bool:
        if len(done) == commits:
            raise InterruptedRunError
        done.append(self.name)
        return commit(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(TableLog, "commit", interrupted)
        with pytest.raises(InterruptedRunError):
            run(spark, url, warehouse)
    after = warehouse.snapshot()
    assert (after.root.run, after.root.tables) == (before.root.run, before.root.tables), "nothing of it is seen"
    assert after.root.plan is not None


@pytest.mark.parametrize(
    "commits", [pytest.param(1, marks=pytest.mark.long), 4, pytest.param(9, marks=pytest.mark.long)]
)
def test_a_run_that_ends_between_two_tables_is_completed_by_the_next(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    url = (tmp_path / "queue").as_uri()
    broken, alone = Warehouse((tmp_path / "broken").as_uri()), Warehouse((tmp_path / "alone").as_uri())
    asyncio.run(something_happens(url, 4))
    if commits > 1:
        run(spark, url, broken)
        asyncio.run(something_happens(url, 5))
    interrupt(spark, url, broken, commits, monkeypatch)
    asyncio.run(something_happens(url, 2))
    run(spark, url, broken)
    run(spark, url, alone)
    assert_same(broken, alone)


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


@pytest.mark.long
@pytest.mark.timeout(3600)  # a dozen processes, each with a Spark of its own
def test_a_run_that_is_killed_anywhere_is_completed_by_the_next(spark: SparkSession, tmp_path: Path) -> None:
    url = (tmp_path / "queue").as_uri()
    clean, killed = Warehouse((tmp_path / "clean").as_uri()), Warehouse((tmp_path / "killed").as_uri())
    asyncio.run(something_happens(url, 4))
    for warehouse in (clean, killed):
        run(spark, url, warehouse)
    asyncio.run(something_happens(url, 6))
    before = {table: rows(killed, table) for table in models()}
    kills = 0

    def kill(when: str) -> int:
        nonlocal kills
        kills += 1
        run_until_killed(url, killed, when, tmp_path / "said")
        assert {table: rows(killed, table) for table in models()} == before, "nothing of it is seen"
        return sum(killed.log(table).run == 2 for table in models())

    assert kill("plan") == 0
    # In the middle of what Spark writes, and after each commit: every process finds what the one before has done.
    committed = kill("bronze and silver")
    while committed < len(models()):
        earlier, committed = committed, kill("commit")
        assert committed > earlier
        if earlier < 6 <= committed:
            committed = kill("gold/hours")
    kill("root")
    assert kills >= 6
    run(spark, url, clean)
    run(spark, url, killed)
    assert_same(killed, clean)
    assert Oracle(url).differences(killed.snapshot()) == []


KILLED = """
import os, signal, sys, threading
from casque.spark.delta import DeltaLog
from casque.spark.pipeline import run
from casque.spark.session import local_session
from casque.spark.warehouse import Warehouse

url, warehouse, when = sys.argv[1:]
commit, write = DeltaLog.commit, Warehouse.write

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def commit_and_die(*args):
    commit(*args)
    die()

def write_or_die(self, snapshot, root):
    if root.plan is None:
        die()
    written = write(self, snapshot, root)
    if when == "plan":
        die()
    return written

def progress(what, number, total):
    if what == when:
        threading.Timer(0.3, die).start()

Warehouse.write = write_or_die
if when == "commit":
    DeltaLog.commit = commit_and_die
spark = local_session(master="local[2]", settings={"spark.sql.shuffle.partitions": "2"})
run(spark, url, Warehouse(warehouse), progress=progress)
"""


def run_until_killed(url: str, warehouse: Warehouse, when: str, said: Path) -> None:
    """Run the pipeline as a process that is killed: once it has written its `plan`, after its first `commit` to a
    table, before it writes the `root`, or a moment after a step of this name has begun."""
    environment = dict(os.environ)
    environment.pop("PYSPARK_GATEWAY_PORT", None)  # the running session's gateway is not for others
    command = [sys.executable, "-c", KILLED, url, warehouse.store_ref.url, when]
    # To a file and not to a pipe, which Java, its child, would keep open for a while.
    with said.open("wb") as file:
        ended = subprocess.run(command, env=environment, stdout=file, stderr=file, timeout=900)
    assert ended.returncode == -signal.SIGKILL, said.read_text()[-2000:]


# --- The command ---


@pytest.mark.long
def test_the_command_runs_on_a_connect_server_and_says_what_it_did(tmp_path: Path) -> None:
    url = (tmp_path / "queue").as_uri()
    asyncio.run(something_happens(url, 4))
    command = [sys.executable, "-m", "casque.cli", "pipeline", "run", url, (tmp_path / "warehouse").as_uri()]
    with connect_server() as remote:
        ended = subprocess.run(
            [*command, "--json", "--remote", remote, "--put-price", "0.004"],
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


def test_the_queue_may_be_the_one_that_the_environment_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASQUE_URL", (tmp_path / "gone").as_uri())
    ended = CliRunner().invoke(app, ["pipeline", "run", (tmp_path / "warehouse").as_uri()])
    assert ended.exit_code == 2
    assert "there is no queue here" in " ".join(ended.output.split())


# --- Single numbers that were wrong once ---


@pytest.mark.long
def test_values_at_the_ends_of_their_ranges_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    url, warehouse = (tmp_path / "queue").as_uri(), Warehouse((tmp_path / "warehouse").as_uri())
    ends = [(-(2**63), 1), (2**63 - 1, 2**63 - 1), (2**31, 2**31)]
    with SyncQueue.open(url) as queue:
        for entrypoint in ("send", "later"):
            for priority, limit in ends:
                queue.enqueue(entrypoint, b"", priority=priority, max_attempts=limit, max_crashes=limit)
        for job in queue.dequeue("send", batch_size=3):
            job.ack()
    run(spark, url, warehouse)
    snapshot = warehouse.snapshot()
    for table in ("silver/jobs", "silver/queue"):
        found = [
            (row["priority"], row["max_attempts"], row["max_crashes"]) for row in snapshot.arrow(table).to_pylist()
        ]
        assert sorted(found) == sorted((priority, limit, limit) for priority, limit in ends)
    added = [row for row in snapshot.arrow("bronze/events").to_pylist() if row["kind"] == "added"]
    assert sorted((row["priority"], row["max_attempts"]) for row in added) == sorted(ends * 2)


def test_the_shares_of_a_large_commit_add_up_to_one(spark: SparkSession, tmp_path: Path) -> None:
    url, warehouse = (tmp_path / "queue").as_uri(), Warehouse((tmp_path / "warehouse").as_uri())
    with SyncQueue.open(url) as queue:
        queue.enqueue_many([("send", b"")] * 701)
    run(spark, url, warehouse)
    [row] = warehouse.snapshot().arrow("gold/requests").to_pylist()
    assert (row["operations"], row["commits"]) == (701, 1)


@pytest.mark.long
def test_waits_of_jobs_that_were_put_off_and_tried_often_and_percentiles_of_two(
    spark: SparkSession, tmp_path: Path
) -> None:
    url, warehouse = (tmp_path / "queue").as_uri(), Warehouse((tmp_path / "warehouse").as_uri())

    async def play() -> None:
        clock = ManualClock()
        async with Queue.open(url, clock=clock, rng=Random(1)) as queue:
            await queue.enqueue("snoozed", b"")
            [job] = await queue.dequeue("snoozed")
            await queue.settle([Outcome(job.id, job.token, delay_ms=600_000, how=OutcomeKind.SNOOZED)])
            await clock.advance(600)
            [job] = await queue.dequeue("snoozed")
            await job.ack()
            await queue.enqueue("stubborn", b"", max_attempts=100)
            for _ in range(55):
                [job] = await queue.dequeue("stubborn")
                await job.nack(error="again", delay=1)
                await clock.advance(1)
            [job] = await queue.dequeue("stubborn")
            await job.ack()
            await queue.enqueue_many([("two", b"1"), ("two", b"2")])
            await clock.advance(0.001)
            [first] = await queue.dequeue("two", lease=3600)
            await clock.advance(600)
            [second] = await queue.dequeue("two")
            for one in (first, second):
                await one.ack()

    asyncio.run(play())
    run(spark, url, warehouse)
    jobs = {row["entrypoint"]: row for row in warehouse.snapshot().arrow("silver/jobs").to_pylist()}
    assert jobs["snoozed"]["wait_ms"] == 0
    assert jobs["snoozed"]["scheduled_ms"] == 600_000
    stubborn = jobs["stubborn"]
    assert (stubborn["attempts"], len(stubborn["tried"])) == (56, 50)
    assert stubborn["first_claimed_at"] is stubborn["wait_ms"] is None, "its first attempts are not kept"
    hours = [row for row in warehouse.snapshot().arrow("gold/hours").to_pylist() if row["wait_count"] == 2]
    [two] = [row for row in hours if row["entrypoint"] == "two"]
    assert (two["wait_p50_ms"], two["wait_p90_ms"], two["wait_p99_ms"]) == (1, 600_001, 600_001)


@pytest.mark.long
def test_small_files_are_merged_and_files_of_no_version_are_deleted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "WRITES_MANY", 2)
    url = (tmp_path / "queue").as_uri()
    merged, plain = Warehouse((tmp_path / "merged").as_uri()), Warehouse((tmp_path / "plain").as_uri())
    orphan = tmp_path / "merged" / "silver" / "jobs" / "run-000000001-dead" / "part.parquet"
    for _ in range(2):
        asyncio.run(something_happens(url, 4))
        run(spark, url, merged)
        orphan.parent.mkdir(exist_ok=True)
        orphan.write_bytes(b"of a run that died")
    [file] = merged.snapshot().files("silver/jobs")
    assert file.path.startswith("merged-")
    schema = pq.read_schema(tmp_path / "merged" / "silver" / "jobs" / file.path)
    assert str(schema.field("finished_at").type) == "timestamp[us, tz=UTC]"
    monkeypatch.setattr(upkeep, "WRITES_MANY", 1_000)
    asyncio.run(something_happens(url, 4))
    run(spark, url, merged)
    run(spark, url, plain)
    assert_same(merged, plain)
    os.utime(orphan, (0, 0))
    merged.log("silver/jobs").sweep(upkeep.KEEP)
    assert not orphan.exists()
    assert_same(merged, plain)


# --- Models of users ---

DAYS = """-- mine/days: one day of a zone
-- unique: date, zone
-- time: date
-- date date: the day, in UTC
-- zone string: whose jobs they are; null for none
-- done bigint: jobs that were done
-- waiting bigint: jobs of it that are in the queue, if they were enqueued on that day
SELECT date, zone, sum(done) AS done, sum(waiting) AS waiting FROM (
  SELECT date, zone, done, 0 AS waiting FROM gold_hours
  UNION ALL SELECT to_date(created_at), zone, 0, 1 FROM silver_queue WHERE state <> 'dead'
) GROUP BY date, zone
"""
TOTALS = """-- mine/totals: one day
-- unique: date
-- time: date
-- date date: the day, in UTC
-- zones int: how many zones had jobs done
SELECT date, count_if(done > 0) AS zones FROM mine_days GROUP BY date
"""


@pytest.mark.long
def test_models_of_users_are_kept_up_to_date_like_ours(spark: SparkSession, tmp_path: Path) -> None:
    url = (tmp_path / "queue").as_uri()
    often, once = Warehouse((tmp_path / "often").as_uri()), Warehouse((tmp_path / "once").as_uri())
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "totals.sql").write_text(TOTALS)
    (tmp_path / "models" / "days.sql").write_text(DAYS)
    settings = Settings(models=own_models(tmp_path / "models"))
    for number in range(4):
        asyncio.run(something_happens(url, 4 + number))
        run(spark, url, often, settings=Settings() if number == 2 else settings)  # one run does not know of them
    run(spark, url, once, settings=settings)
    for table in settings.models:
        one, other = (sorted(map(tuple, each.read(spark, table).collect()), key=repr) for each in (often, once))
        assert one == other != []
    [done] = often.read(spark, "mine/days").groupBy().sum("done").collect()[0]
    assert done == sum(row["state"] == "done" for row in often.snapshot().arrow("silver/jobs").to_pylist())
