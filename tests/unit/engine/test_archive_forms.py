"""The archive as JSON lines, as Parquet, or as both, by processes that differ: every finish is read once."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pandas as pd
import polars as pl
import pytest

from casque import NotInstalledError, Queue
from casque.client.opening import Parts
from casque.clock import Random
from casque.codec.archive import Form, Range, archive_key, decode_archived, encode_lines, form_of, parse_key
from casque.codec.log import decode_head, encode_head
from casque.environment import Environment
from casque.errors import CorruptQueueError
from casque.journal import archive as journal_archive
from casque.journal.copying import Copier
from casque.journal.verify import Verifier
from casque.scan import Scan, Table
from casque.service import ArchivedJob
from casque.settings import QueueSettings
from casque.storage.memory import MemoryStore
from casque.storage.port import Store, Stored
from casque.testing.clock import ManualClock

NEARLY_ELEVEN_MS = int(datetime(2026, 2, 15, 10, 59, 50, tzinfo=UTC).timestamp() * 1000)
SEEDS = count(1)
BOTH_LAYOUTS = pytest.mark.parametrize("layout", ["log", "document"])
FORMATS = pytest.mark.parametrize("wanted", ["jsonl", "parquet", "both"])
LINES, PARQUET = [Form.LINES], [Form.PARQUET]


def opened(
    store: Any, wanted: Any, layout: str | None = "log", clock: ManualClock | None = None, **more: Any
) -> Queue[bytes]:
    return Queue.open(store, layout=layout, clock=clock, rng=Random(next(SEEDS)), archive_format=wanted, **more)


async def finish(queue: Queue[bytes], *payloads: bytes) -> None:
    await queue.enqueue_many([("send", payload) for payload in payloads])
    for job in await queue.dequeue("send", batch_size=len(payloads)):
        await job.ack(result=b'{"sent": true}')


async def archive_of(store: Store) -> list[bytes]:
    return [job.payload async for job in Queue.open(store).archive()]


async def names(store: Store) -> list[str]:
    return [key async for key in store.list("archive/")]


async def body_of(store: Store, key: str) -> bytes:
    read = await store.get(key)
    assert isinstance(read, Stored)
    return read.body


async def begin_again(store: Store, *, archived: int = 0) -> None:
    """As if the process that archived last had died before it could say so."""
    head = decode_head("queue.json", await body_of(store, "queue.json"))
    read = await store.get("queue.json")
    assert isinstance(read, Stored)
    again = head.next("somebody", archived=archived, archiving=head.archived)
    await store.replace("queue.json", encode_head(again), expected=read.etag)


def scanned(store: Store) -> list[dict[str, Any]]:
    with Scan(store) as scan:
        rows = scan.table(list(scan.plan_archive()), Table.ARCHIVE).to_pylist()
    return sorted(rows, key=lambda row: (row["position"], row["sequence"]))


# --- What is written ---


@BOTH_LAYOUTS
@FORMATS
async def test_jobs_are_archived_in_the_form_that_is_set(layout: str, wanted: str) -> None:
    store, clock = MemoryStore(), ManualClock(NEARLY_ELEVEN_MS)
    async with opened(store, wanted, layout, clock) as q:
        await finish(q, b"a", b"b")
        await clock.advance(20)
        await finish(q, b"c")
    expected = {"jsonl": LINES, "parquet": PARQUET, "both": LINES + PARQUET}[wanted]
    places = {parse_key(key) for key in await names(store)}
    assert [hour for hour, _ in sorted(filter(None, places))] == ["2026-02-15T10", "2026-02-15T11"]
    assert sorted(map(form_of, await names(store))) == sorted(expected * 2)
    assert await archive_of(store) == [b"a", b"b", b"c"]
    verdict = await Verifier(store, Environment()).verify()
    assert (verdict.archived, verdict.notes) == (2 * len(expected), ())


@FORMATS
async def test_a_closed_queue_has_archived_thousands(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("casque.codec.archive.PIECE_JOBS", 100)
    store = MemoryStore()
    payloads = [b"%d" % number for number in range(1_000)]
    async with opened(store, wanted) as q:
        await finish(q, *payloads)
    assert await archive_of(store) == payloads


async def test_commits_go_on_while_parquet_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    store, begun, end = MemoryStore(), asyncio.Event(), asyncio.Event()
    aside = journal_archive.aside

    async def slowly(work: Any) -> Any:
        begun.set()
        await end.wait()
        return await aside(work)

    monkeypatch.setattr(journal_archive, "aside", slowly)
    async with opened(store, "parquet", archive_interval=timedelta(milliseconds=1)) as q:
        await finish(q, b"a")
        await begun.wait()
        await finish(q, b"b")
        end.set()
    assert await archive_of(store) == [b"a", b"b"]


async def test_what_parquet_cannot_hold_is_archived_as_lines(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(hour: str, jobs: Any) -> Any:
        raise OverflowError("too large")

    monkeypatch.setattr("casque.codec.parquet.batch_of", refuse)
    for wanted in ("parquet", "both"):
        store = MemoryStore()
        async with opened(store, wanted) as q:
            await finish(q, b"a")
        assert list(map(form_of, await names(store))) == LINES
        assert await archive_of(store) == [b"a"]
    assert "is archived as lines" in caplog.text


# --- Processes that differ ---


@FORMATS
@pytest.mark.parametrize("before", ["jsonl", "parquet", "both"])
async def test_a_range_that_another_form_began_is_read_once(before: str, wanted: str) -> None:
    store, clock = MemoryStore(), ManualClock(NEARLY_ELEVEN_MS)
    async with opened(store, before, clock=clock, archive_interval=timedelta(hours=1)) as q:
        await finish(q, b"a")
        await clock.advance(20)
        await finish(q, b"b")
    # It died after the first hour.
    for key in await names(store):
        if key.startswith("archive/2026-02-15T11"):
            await store.delete(key)
    await begin_again(store)
    async with opened(store, wanted, clock=clock) as q:
        await finish(q, b"c")
    assert await archive_of(store) == [b"a", b"b", b"c"]
    assert [row["payload"] for row in await asyncio.to_thread(scanned, store)] == [b"a", b"b", b"c"]
    await Verifier(store, Environment()).verify()


async def test_two_forms_by_turns_are_one_archive() -> None:
    store = MemoryStore()
    for number in range(9):
        async with opened(store, ("jsonl", "parquet", "both")[number % 3]) as q:
            await finish(q, b"%d" % number)
    assert await archive_of(store) == [b"%d" % number for number in range(9)]
    assert len(await names(store)) == 12


async def test_parquet_of_another_writer_of_the_same_range_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another release of pyarrow makes other bytes of the same rows."""
    store = MemoryStore()
    async with opened(store, "parquet") as q:
        await finish(q, b"a")
    [key] = await names(store)
    await begin_again(store)
    from casque.codec import parquet

    monkeypatch.setattr(parquet, "ROWS_MAX", 1)
    file_of = parquet.file_of
    monkeypatch.setattr(parquet, "file_of", lambda batches: file_of(batches) if batches else b"")
    async with opened(store, "parquet") as q:
        await finish(q, b"b", b"c")
    assert (await names(store))[0] == key
    assert await archive_of(store) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("squats", [Form.LINES, Form.PARQUET])
@pytest.mark.parametrize("wanted", ["parquet", "both"])
async def test_something_else_in_the_place_of_either_form_loses_nothing(
    squats: Form, wanted: str, caplog: pytest.LogCaptureFixture
) -> None:
    store, clock = MemoryStore(), ManualClock(NEARLY_ELEVEN_MS)
    squatter = archive_key("2026-02-15T10", Range(1, 3), squats)
    await store.create(squatter, b"{}\n")
    async with opened(store, wanted, clock=clock) as q:
        await finish(q, b"a")
    assert "something else in the place" in caplog.text
    await store.delete(squatter)
    async with opened(store, wanted, clock=clock) as q:
        await q.stats()
    assert await archive_of(store) == [b"a"]


# --- Other readers ---


async def test_a_copy_has_both_forms(tmp_path: Path) -> None:
    store, copy = MemoryStore(), MemoryStore()
    for wanted in ("both", "parquet", "jsonl"):
        async with opened(store, wanted) as q:
            await finish(q, wanted.encode())
    await Copier(store, copy, Environment()).copy()
    assert await names(copy) == await names(store)
    assert await archive_of(copy) == [b"both", b"parquet", b"jsonl"]


async def test_the_archives_of_a_ring_are_merged_whatever_their_forms() -> None:
    store = MemoryStore()
    await Parts(store, QueueSettings()).builder().create(3)
    for number, wanted in enumerate(("both", "jsonl", "parquet")):
        async with opened(store, wanted, layout=None) as q:
            for zone in "abcdef":
                await q.enqueue("send", f"{zone}{number}".encode(), zone=zone)
            for job in await q.dequeue("send", batch_size=6):
                await job.ack()
    expected = sorted(f"{zone}{number}".encode() for zone in "abcdef" for number in range(3))
    assert sorted(await archive_of(store)) == expected
    assert sorted(row["payload"] for row in await asyncio.to_thread(scanned, store)) == expected
    assert (await Verifier(store, Environment()).verify()).shards == 3


async def test_both_forms_expire() -> None:
    store, clock = MemoryStore(), ManualClock(NEARLY_ELEVEN_MS)
    async with opened(store, "both", clock=clock, archive_retention=timedelta(hours=2)) as q:
        await finish(q, b"a")
        for _ in range(5):
            await clock.advance(3600)
            await finish(q, b"b")
    async with opened(store, "parquet", clock=clock, archive_retention=timedelta(hours=2)) as q:
        await clock.advance(3600)
        await finish(q, b"c")
    hours = sorted({found[0] for key in await names(store) if (found := parse_key(key)) is not None})
    assert hours[0] > "2026-02-15T10"
    assert (await archive_of(store))[-1] == b"c"


async def test_damage_of_either_form_is_found_by_verify() -> None:
    for damaged in Form:
        store = MemoryStore()
        async with opened(store, "both", retention=timedelta(hours=1)) as q:
            await finish(q, b"a", b"b")
        [key] = [key for key in await names(store) if form_of(key) is damaged]
        jobs = decode_archived(key, await body_of(store, key))
        from casque.codec import parquet

        fewer = encode_lines(jobs[:1])
        if damaged is Form.PARQUET:
            fewer = parquet.file_of([parquet.batch_of("2026-02-15T10", jobs[:1])])
        await store.delete(key)
        await store.create(key, fewer)
        with pytest.raises(CorruptQueueError, match=f"{key}.*not what the log says"):
            await Verifier(store, Environment()).verify()
        await store.delete(key)
        await Verifier(store, Environment()).verify()  # the other form is enough
        for other in await names(store):
            await store.delete(other)
        # An archive without any object is taken for one that has expired, as it always was.


async def test_rows_and_bytes_of_a_stream_are_measured_in_either_form() -> None:
    found = []
    for wanted in ("jsonl", "parquet"):
        store = MemoryStore()
        for number in range(3):
            async with opened(store, wanted) as q:
                await finish(q, b"%d" % number, b"x")

        def measure(store: Store = store) -> int:
            with Scan(store) as scan:
                objects = scan.archive_objects()
                assert len(objects) == 3
                return scan.archive_within(objects, 0, rows_max=4).rows

        found.append(await asyncio.to_thread(measure))
    assert found == [4, 4]


# --- Without pyarrow ---


def without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("wanted", ["parquet", "both"])
def test_parquet_without_pyarrow_is_refused_when_the_queue_is_opened(
    wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_pyarrow(monkeypatch)
    with pytest.raises(NotInstalledError, match=rf"archive_format is '{wanted}'.*pip install .casque\[parquet\]"):
        opened(MemoryStore(), wanted)
    opened(MemoryStore(), wanted, archive=False)
    opened(MemoryStore(), "jsonl")


async def test_a_reader_without_pyarrow_takes_lines_and_leaves_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    for wanted in ("jsonl", "both"):
        async with opened(store, wanted) as q:
            await finish(q, wanted.encode())
    both = await names(store)
    async with opened(store, "parquet") as q:
        await finish(q, b"alone")
    [alone] = set(await names(store)) - set(both)
    without_pyarrow(monkeypatch)
    with pytest.raises(NotInstalledError, match=rf"{alone}.*pip install"):
        await archive_of(store)
    with pytest.raises(NotInstalledError, match="pip install"):
        await Verifier(store, Environment()).verify()
    await store.delete(alone)
    assert await archive_of(store) == [b"jsonl", b"both"]


# --- Programs that know nothing of casque ---


async def test_duckdb_polars_and_pandas_read_the_objects(tmp_path: Path) -> None:
    clock = ManualClock(NEARLY_ELEVEN_MS)
    async with opened(f"file://{tmp_path}", "parquet", clock=clock) as q:
        await q.enqueue("send", b'{"order": 7}', headers={"trace": "1"}, tags=["urgent"], zone="acme")
        [job] = await q.dequeue("send")
        await job.nack(error="421 later", delay=0)
        [job] = await q.dequeue("send")
        await job.ack(result=b"[1, 2]")
        await clock.advance(20)
        await finish(q, b"\xff\x00")
    files = f"{tmp_path}/archive/**/*.parquet"
    archived = [job async for job in Queue.open(f"file://{tmp_path}").archive()]
    assert len(archived) == 2
    base = duckdb.connect()
    base.execute(f"CREATE VIEW archive AS FROM read_parquet('{files}')")
    _check(archived, base.sql("FROM archive ORDER BY position").to_arrow_table().to_pylist())
    asked = "SELECT payload_json->>'$.order', len(tries), tries[1].error, headers['trace'], tags[1], hour"
    [row] = base.execute(f"{asked} FROM archive WHERE zone = 'acme'").fetchall()
    assert row[:5] == ("7", 1, "421 later", "1", "urgent")
    _check(archived, pl.read_parquet(files).sort("position").to_dicts())
    paths = await asyncio.to_thread(lambda: sorted(tmp_path.rglob("*.parquet")))
    frame = pd.concat(map(pd.read_parquet, paths))
    _check(archived, frame.sort_values("position").to_dict("records"))
    assert str(frame["finished_at"].dtype) == "datetime64[us, UTC]"


def _check(archived: list[ArchivedJob], rows: list[dict[str, Any]]) -> None:
    for job, row in zip(archived, rows, strict=True):
        assert (row["id"], row["entrypoint"], bytes(row["payload"])) == (job.id, job.entrypoint, job.payload)
        assert row["finished_at"] == job.finished_at
        assert (row["state"], row["attempts"], row["zone"]) == (job.state.value, job.attempts, job.zone)
    assert rows[0]["result_json"] == "[1, 2]"
    assert msgspec.json.decode(rows[0]["payload_json"]) == {"order": 7}
    assert rows[1]["payload_json"] is None
