"""Following a queue's events and its archive: every row once, whatever stops in between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from casque import Queue
from casque.errors import HistoryGoneError, InvalidInputError
from casque.journal.log import pace
from casque.scan import Scan, Table
from casque.spark import lag, register
from casque.spark.offsets import Offset, Offsets
from casque.spark.options import SourceOptions
from casque.spark.stream import ArchiveStream, EventsStream, TableStream, stream_reader
from casque.testing.clock import ManualClock
from tests.spark.histories import resized, ring_of, varied
from tests.spark.test_read import Place, expected, in_order
from tests.support.servers import Server

pytestmark = pytest.mark.xdist_group("spark")

START = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
Sink = Callable[[DataFrame, int], None]


class Following:
    """One checkpoint, and what a sink has that takes each batch as a whole, under its number."""

    def __init__(self, spark: SparkSession, place: Place, at: Path, **options: Any) -> None:
        self._spark = spark
        self._place = place
        self._options = options
        self.checkpoint = at / "checkpoint"
        self.attempts: list[tuple[int, list[dict[str, Any]]]] = []
        """Batches as they came, with their numbers: one that is replayed comes again."""
        self.taken: dict[int, list[dict[str, Any]]] = {}
        self.fails_after: int | None = None

    def run(self, **trigger: Any) -> StreamingQuery:
        url, store = self._place
        reader = self._spark.readStream.format("casque").option("splits", 2)
        for name, value in {**{f"store.{name}": value for name, value in store.items()}, **self._options}.items():
            reader = reader.option(name, value)
        query = (
            reader.load(url)
            .writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(**(trigger or {"availableNow": True}))
            .start()
        )
        query.awaitTermination(240)
        return query

    @property
    def rows(self) -> list[dict[str, Any]]:
        return in_order([row for rows in self.taken.values() for row in rows])

    def _take(self, frame: DataFrame, number: int) -> None:
        rows = frame.toArrow().to_pylist()
        self.attempts.append((number, in_order(rows)))
        if self.fails_after is not None and number > self.fails_after:
            raise RuntimeError("the sink is out of order")
        self.taken[number] = rows


def last_offset(query: StreamingQuery) -> dict[str, Any]:
    assert query.lastProgress is not None
    offset: dict[str, Any] = json.loads(query.lastProgress["sources"][0]["endOffset"])
    return offset


@pytest.fixture(scope="module")
def registered(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


@pytest.fixture
def place(tmp_path: Path) -> Place:
    url = (tmp_path / "queue").as_uri()
    asyncio.run(varied(url, ManualClock(), retention=timedelta(days=30)))
    return url, {}


def test_events_come_once_though_the_sink_fails_and_the_stream_starts_again(
    registered: SparkSession, place: Place, tmp_path: Path
) -> None:
    following = Following(registered, place, tmp_path, table="events", maxRowsPerTrigger=15)
    following.fails_after = 0
    with pytest.raises(PySparkException, match="out of order"):
        following.run()
    following.fails_after = None
    query = following.run()
    assert lag(query.lastProgress) == {"0": 0}
    # A replayed batch does not look for what is the latest.
    assert [lag(one) for one in query.recentProgress if lag(one)][-1] == {"0": 0}
    (failed, again) = [rows for number, rows in following.attempts if number == 1]
    assert failed == again
    assert all(len(rows) <= 15 for rows in following.taken.values())
    assert len(following.taken) >= 3
    assert following.rows == expected(place, Table.EVENTS)
    offset = last_offset(query)
    with Scan(place[0]) as scan:
        assert offset == {"positions": {"0": scan.extent().end}, "queue": scan.extent().queue_id}
    # More is written, and the same checkpoint goes on from there.
    asyncio.run(varied(place[0], ManualClock(1_700_100_000_000), 1, seed=2, retention=timedelta(days=30)))
    following.run()
    assert following.rows == expected(place, Table.EVENTS)
    following.run()
    assert following.rows == expected(place, Table.EVENTS)


def test_the_archive_comes_once_from_s3(registered: SparkSession, s3_server: Server, tmp_path: Path) -> None:
    place = s3_server.fresh_url(), s3_server.options
    asyncio.run(varied(place[0], ManualClock(), options=place[1]))
    following = Following(registered, place, tmp_path, table="archive", maxBytesPerTrigger=1)
    following.run()
    assert following.rows == expected(place, Table.ARCHIVE)
    with Scan(place[0], options=place[1]) as scan:
        ranges = {(one.first, one.last) for one in scan.archive_objects()}
    # A range is never taken apart. A last batch may be empty: commits that finished nothing are behind the archive too.
    assert len([rows for rows in following.taken.values() if rows]) == len(ranges) >= 3
    checkpoint = "".join(path.read_text(errors="replace") for path in following.checkpoint.rglob("*") if path.is_file())
    assert "casque-test-secret" not in checkpoint


# --- Where a stream begins, and what it does when that is gone: what Spark asks, asked directly ---


OPEN: list[TableStream] = []


@pytest.fixture(autouse=True)
def _stopped() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().stop()


def stream(place: Place, table: str, **options: Any) -> Any:
    given = {"path": place[0], "table": table, **{name: str(value) for name, value in options.items()}}
    reader = stream_reader(SourceOptions.parse(given), StructType([StructField("position", LongType())]))
    assert isinstance(reader, TableStream)
    OPEN.append(reader)
    return reader


def positions(reader: TableStream, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    found: list[int] = []
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            found += batch.column("position").to_pylist()
    return sorted(set(found))


@pytest.mark.parametrize("table", list(Table))
def test_every_table_is_read_and_streamed_or_refused_in_a_sentence(
    registered: SparkSession, place: Place, tmp_path: Path, table: Table
) -> None:
    url, _ = place
    assert registered.read.format("casque").option("table", table.value).load(url).count() > 0
    frame = registered.readStream.format("casque").option("table", table.value).load(url)
    stream = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "at"))
    if table is not Table.JOBS:
        query = stream.trigger(availableNow=True).start()
        query.awaitTermination()
        assert sum(progress["numInputRows"] for progress in query.recentProgress) > 0
        return
    with pytest.raises(PySparkException, match="jobs change in place and cannot be followed: read the t") as caught:
        stream.start().awaitTermination()
    assert "UnboundLocalError" not in str(caught.value)


def test_a_wrong_option_of_a_stream_with_a_schema_of_its_own_is_named(
    registered: SparkSession, place: Place, tmp_path: Path
) -> None:
    url, _ = place
    source = registered.readStream.format("casque").schema("position bigint")
    stream = source.option("table", "evnts").load(url).writeStream.format("noop")
    with pytest.raises(PySparkException, match="table must be one of jobs, events") as caught:
        stream.option("checkpointLocation", str(tmp_path / "at")).start().awaitTermination()
    assert "UnboundLocalError" not in str(caught.value)


def test_where_a_stream_begins(place: Place) -> None:
    with Scan(place[0]) as scan:
        extent, objects = scan.extent(), scan.archive_objects()
        times = {row["position"]: row["at"] for row in scan.table(scan.plan_events(), Table.EVENTS).to_pylist()}
    middle = START + timedelta(hours=1)
    first = min(position for position, at in times.items() if at >= middle)
    for start, position in {"earliest": 0, "latest": extent.end, "7": 7, middle.isoformat(): first - 1}.items():
        begins = stream(place, "events", start=start).initialOffset()
        assert begins == {"positions": {"0": position}, "queue": extent.queue_id}
    later = min(one.first for one in objects if one.hour >= f"{middle:%Y-%m-%dT%H}")
    for start, position in {"earliest": 0, "latest": extent.archived, "7": 7, middle.isoformat(): later - 1}.items():
        assert stream(place, "archive", start=start).initialOffset() == {"positions": {"0": position}}
    for table in ("events", "archive"):
        with pytest.raises(InvalidInputError, match="position 999"):
            stream(place, table, start=999).initialOffset()
    with pytest.raises(InvalidInputError, match="cannot be followed"):
        stream(place, "jobs")


@pytest.mark.parametrize("table", ["events", "archive"])
def test_all_that_is_there_now_is_not_what_comes_later(place: Place, table: str) -> None:
    reader = stream(place, table)
    begin = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(begin, reader.getDefaultReadLimit())
    before = positions(reader, begin, end)
    asyncio.run(varied(place[0], ManualClock(1_700_100_000_000), 1, seed=2, retention=timedelta(days=30)))
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end
    assert reader.reportLatestOffset() != end
    assert positions(reader, begin, end) == before  # a replay, by whoever comes after


def test_the_lag_of_a_stream_is_of_its_own_sources_and_of_each_shard() -> None:
    def source(end: str | None, latest: str | None) -> dict[str, Any]:
        return {"endOffset": end, "latestOffset": latest}

    ring = source('{"positions": {"0000": 4}, "queue": "q"}', '{"positions": {"0000": 9, "0001": 2}}')
    others = [source("7", "9"), source(None, None), source('{"topic": {"0": 1}}', "null"), source("x", "{")]
    assert lag({"sources": [*others, ring]}) == {"0000": 5, "0001": 2}
    assert lag({"sources": others}) == lag(None) == {}


def test_a_queue_that_another_one_took_the_place_of_is_not_followed(place: Place, tmp_path: Path) -> None:
    end = stream(place, "events").latestOffset(stream(place, "events").initialOffset())
    other = (tmp_path / "other").as_uri(), dict[str, str]()
    asyncio.run(varied(other[0], ManualClock(), 1))
    with pytest.raises(InvalidInputError, match="Start it with a new checkpoint"):
        stream(other, "events").latestOffset(end)
    with pytest.raises(InvalidInputError, match="Start it with a new checkpoint"):
        stream(other, "archive").latestOffset(Offsets({None: Offset(900)}).json())


@pytest.fixture
def collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A queue that forgets quickly."""
    monkeypatch.setattr(pace, "SNAPSHOT_SEGMENTS", 5)
    url = (tmp_path / "short").as_uri()
    asyncio.run(varied(url, ManualClock(), 2, retention=timedelta(seconds=1)))
    return url, {}


def test_a_slow_stream_whose_log_was_collected_stops_with_what_to_do(collected: Place) -> None:
    reader = stream(collected, "events")
    begin = reader.initialOffset()
    end = reader.latestOffset(begin)
    asyncio.run(varied(collected[0], ManualClock(1_700_100_000_000), 4, seed=2, retention=timedelta(seconds=1)))
    told = r"onGone=skip.*begins at position \d+.*`retention`"
    with pytest.raises(HistoryGoneError, match=told):
        reader.latestOffset(begin)
    with pytest.raises(HistoryGoneError, match=told):
        reader.partitions(begin, end)


def test_a_slow_stream_that_may_skip_goes_on_and_says_what_it_skipped(
    registered: SparkSession, collected: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    following = Following(registered, collected, tmp_path, table="events", onGone="skip")
    following.run()
    before = len(following.rows)
    asyncio.run(varied(collected[0], ManualClock(1_700_100_000_000), 4, seed=2, retention=timedelta(seconds=1)))
    query = following.run()
    offset = last_offset(query)
    with Scan(collected[0]) as scan:
        floor = scan.extent().floor
        left = in_order(scan.table(scan.plan_events(), Table.EVENTS).to_pylist())
    assert offset["skipped"] == {"0": floor}
    assert in_order(following.taken[max(following.taken)]) == left
    assert before
    # The same asked directly, where the warning can be heard.
    reader = stream(collected, "events", onGone="skip")
    reader.latestOffset(Offsets({None: Offset(1)}).json())
    assert (
        f"what followed position 1 is gone, and skipped as onGone=skip asks for: the stream goes on at position {floor}"
        in caplog.text
    )


def test_an_archive_that_was_deleted_before_it_was_read_is_not_passed_over_silently(place: Place) -> None:
    reader: ArchiveStream = stream(place, "archive")
    with Scan(place[0]) as scan:
        objects = scan.archive_objects()
    root = Path(place[0].removeprefix("file://"))
    begin = reader.initialOffset()
    first = stream(place, "archive", maxRowsPerTrigger=1).latestOffset(begin)
    whole = reader.latestOffset(begin)
    assert whole["objects"] == len(objects) == 3
    for one in objects[:2]:
        (root / one.key).unlink()
    with pytest.raises(HistoryGoneError, match=r"of 3 objects of the archive.*onGone=skip"):
        reader.partitions(begin, whole)
    with pytest.raises(HistoryGoneError, match="what the archive held after position"):
        reader.latestOffset(first)
    skipping = stream(place, "archive", onGone="skip")
    on = skipping.latestOffset(first)
    assert on["skipped"] == {"0": objects[2].first - 1}
    assert positions(skipping, first, on)


def test_a_limit_takes_whole_commits_and_at_least_one(place: Place) -> None:
    reader: EventsStream = stream(place, "events", maxRowsPerTrigger=2, maxBytesPerTrigger=10**9)
    offset, steps = reader.initialOffset(), 0
    while (after := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        count = len(positions(reader, offset, after))
        assert 1 <= count <= 2
        offset, steps = after, steps + 1
    latest = reader.reportLatestOffset()
    assert latest is not None
    first = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert first != offset
    for end, behind in ((first, latest["positions"]["0"] - first["positions"]["0"]), (offset, 0)):
        source = {"endOffset": json.dumps(end), "latestOffset": json.dumps(latest)}
        assert lag({"sources": [source]}) == {"0": behind}
    assert offset["positions"] == latest["positions"]
    assert steps > 5


# --- A ring of shards: an offset for each ---


def test_every_shard_of_a_ring_is_followed_once_also_one_that_comes_later(
    registered: SparkSession, tmp_path: Path
) -> None:
    place = (tmp_path / "ring").as_uri(), dict[str, str]()
    asyncio.run(ring_of(place[0], 2))
    asyncio.run(varied(place[0], ManualClock(), 1, retention=timedelta(days=30)))
    following = Following(registered, place, tmp_path, table="events", maxRowsPerTrigger=10)
    first = last_offset(following.run())
    assert set(first["positions"]) == {"0000", "0001"}
    assert all(len({row["shard"] for row in rows}) == 2 for rows in list(following.taken.values())[:1])
    asyncio.run(resized(place[0], 5))
    asyncio.run(varied(place[0], ManualClock(1_700_100_000_000), 1, seed=2, retention=timedelta(days=30)))
    offset = last_offset(following.run())
    assert following.rows == expected(place, Table.EVENTS)
    with Scan(place[0]) as scan:
        queue, extents = scan.extents()
    assert offset == {"positions": {f"{shard:04d}": one.end for shard, one in extents.items()}, "queue": queue}
    assert len(offset["positions"]) == 5


def ring_reads(reader: TableStream, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int]]:
    schema = StructType([StructField("shard", IntegerType()), StructField("position", LongType())])
    other = stream_reader(reader._options, schema)
    assert isinstance(other, TableStream)
    OPEN.append(other)
    return [
        (row["shard"], row["position"])
        for partition in other.partitions(start, end)
        for batch in other.read(partition)
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize("table", [Table.EVENTS, Table.ARCHIVE])
def test_limits_are_shared_out_among_shards_and_none_is_left_behind(tmp_path: Path, table: Table) -> None:
    place = (tmp_path / "ring").as_uri(), dict[str, str]()
    asyncio.run(ring_of(place[0], 3))
    asyncio.run(varied(place[0], ManualClock(), 2, retention=timedelta(days=30)))
    rows = [(row["shard"], row["position"]) for row in expected(place, table)]
    reader = stream(place, table, maxRowsPerTrigger=6)
    reader.prepareForTriggerAvailableNow()
    asyncio.run(resized(place[0], 4))
    asyncio.run(varied(place[0], ManualClock(1_700_100_000_000), 1, seed=2, retention=timedelta(days=30)))
    offset, read, steps = reader.initialOffset(), list[tuple[int, int]](), 0
    while (after := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        read += ring_reads(reader, offset, after)
        offset, steps = after, steps + 1
    assert sorted(read) == sorted(rows)  # and nothing of what came after the run had begun
    assert steps > 1
    on = stream(place, table).latestOffset(offset)
    assert sorted(read + ring_reads(reader, offset, on)) == sorted(
        (row["shard"], row["position"]) for row in expected(place, table)
    )


def test_where_a_stream_of_a_ring_begins(tmp_path: Path) -> None:
    place = (tmp_path / "ring").as_uri(), dict[str, str]()
    asyncio.run(ring_of(place[0], 2))
    asyncio.run(varied(place[0], ManualClock(), 1, retention=timedelta(days=30)))
    with Scan(place[0]) as scan:
        _, extents = scan.extents()
        moment = START + timedelta(seconds=1)
        before = [scan.position_before(moment, shard=shard) for shard in extents]
    latest = [one.end for one in extents.values()]
    begun = {"latest": latest, '{"0001": 2}': [0, 2], moment.isoformat(): before}
    for start, wanted in begun.items():
        told = stream(place, "events", start=start).initialOffset()["positions"]
        assert told == {"0000": wanted[0], "0001": wanted[1]}
    with pytest.raises(InvalidInputError, match="each of the 2 shards"):
        stream(place, "events", start=7).initialOffset()
    with pytest.raises(InvalidInputError, match="none with number 9"):
        stream(place, "events", start='{"0009": 1}').initialOffset()
    other = (tmp_path / "other").as_uri(), dict[str, str]()
    asyncio.run(ring_of(other[0], 2))
    end = stream(place, "archive").latestOffset(stream(place, "archive").initialOffset())
    with pytest.raises(InvalidInputError, match="Start it with a new checkpoint"):
        stream(other, "archive").latestOffset(end)


# --- As far as the archive ---


def test_archived_events_end_before_the_first_finish_that_is_not_archived(tmp_path: Path) -> None:
    place: Place = (tmp_path / "queue").as_uri(), {}

    async def play() -> tuple[int, dict[str, Any], dict[str, Any]]:
        async with Queue.open(place[0], archive_interval=timedelta(hours=1)) as queue:
            await queue.enqueue("work", b"")
            [job] = await queue.dequeue()
            await job.ack()
            [acked] = [one async for one in queue.events(from_position=0, follow=False) if one.kind.value == "acked"]
            reader = stream(place, "events", archived="true")
            begin = await asyncio.to_thread(reader.initialOffset)
            end = await asyncio.to_thread(reader.latestOffset, begin)
            latest = await asyncio.to_thread(reader.reportLatestOffset)
        return acked.position, end, latest

    finish, end, latest = asyncio.run(play())
    assert end["positions"] == {"0": finish - 1}
    assert latest["positions"]["0"] >= finish, "the lag counts what waits for the archive"
    reader = stream(place, "events", archived="true")
    later = reader.latestOffset(end)
    assert later["positions"]["0"] >= finish
    assert positions(reader, end, later)[0] == finish
    with pytest.raises(InvalidInputError, match="archived is for the table events"):
        stream(place, "archive", archived="true")
