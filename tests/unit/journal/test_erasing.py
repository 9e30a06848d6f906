"""Finished jobs are erased from the archive on request, in every form, and nothing brings them back."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from typer.testing import CliRunner

from casque import Queue
from casque.cli.main import app
from casque.client.erasing import Erasing, list_erasures
from casque.client.opening import Parts
from casque.clock import Random
from casque.codec.archive import FORMS, Form, Range, form_of, parse_key
from casque.codec.log import decode_head, encode_head
from casque.environment import Environment
from casque.errors import CorruptQueueError, InvalidInputError, StorageError
from casque.journal.archive import write_range
from casque.journal.copying import Copier
from casque.journal.verify import Verifier
from casque.scan import Scan, Table
from casque.settings import QueueSettings
from casque.storage.memory import MemoryStore
from casque.storage.port import Outcome, Store, Stored
from casque.types import Finished

SEEDS = count(1)
FORMATS = pytest.mark.parametrize("wanted", ["jsonl", "parquet", "both"])
LAYOUTS = pytest.mark.parametrize("layout", ["log", "document"])


def opened(store: Any, wanted: Any = "jsonl", layout: str | None = "log", **settings: Any) -> Queue[bytes]:
    return Queue.open(store, layout=layout, rng=Random(next(SEEDS)), archive_format=wanted, **settings)


async def finish(queue: Queue[bytes], *payloads: str) -> list[str]:
    """Each in a zone by its first letter."""
    for payload in payloads:
        await queue.enqueue("send", f"secret-{payload}".encode(), zone=payload[0])
    jobs = await queue.dequeue("send", batch_size=len(payloads))
    for job in jobs:
        await job.ack(result=job.payload)
    return [job.id for job in jobs]


async def archived(store: Store) -> list[str]:
    jobs = [job async for job in Queue.open(store).archive()]
    return sorted(job.payload.decode().removeprefix("secret-") for job in jobs)


async def scanned(store: Store) -> list[str]:
    def read() -> list[str]:
        with Scan(store) as scan:
            rows = scan.table(list(scan.plan_archive()), Table.ARCHIVE, columns=["payload"]).to_pylist()
            scan.table(list(scan.plan_archive(table=Table.ATTEMPTS)), Table.ATTEMPTS)
        return sorted(row["payload"].decode().removeprefix("secret-") for row in rows)

    return await asyncio.to_thread(read)


async def names(store: Store) -> list[str]:
    return [key async for key in store.list("archive/2")]


async def erase(store: Store, **asked: Any) -> int:
    return (await Erasing(store, by="ada", **asked).erase()).jobs


# --- What is erased ---


@FORMATS
@LAYOUTS
async def test_the_jobs_of_a_zone_are_in_no_form_any_more(wanted: str, layout: str) -> None:
    store = MemoryStore()
    for some in (("a1", "b1"), ("a2",), ("b2",)):
        async with opened(store, wanted, layout) as q:
            await finish(q, *some)
    before = await names(store)
    assert await erase(store, zone="a") == 2
    assert await archived(store) == await scanned(store) == ["b1", "b2"]
    assert set(before) <= set(await names(store))
    for key in await names(store):
        read = await store.get(key)
        assert isinstance(read, Stored)
        assert b"secret-a" not in read.body
    await Verifier(store, Environment()).verify()
    assert await erase(store, zone="a") == 0


@FORMATS
async def test_jobs_are_erased_by_their_ids(wanted: str) -> None:
    store = MemoryStore()
    async with opened(store, wanted) as q:
        first, second, _ = await finish(q, "a1", "b1", "a2")
    assert await erase(store, ids=[first, second, "unknown"]) == 2
    assert await archived(store) == await scanned(store) == ["a2"]
    [record] = await list_erasures(store)
    assert (record.by, record.zone, record.ids, record.jobs, record.done) == (
        "ada",
        None,
        (first, second, "unknown"),
        2,
        True,
    )


async def test_an_erasure_that_names_nothing_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="--zone ZONE, or --id ID"):
        Erasing(MemoryStore(), by="ada")


async def test_what_is_not_archived_yet_is_counted_and_left_alone() -> None:
    store = MemoryStore()
    async with opened(store) as q:
        await finish(q, "a1")
    async with opened(store, archive_interval=timedelta(hours=1)) as q:
        await finish(q, "a2")
        await q.enqueue("send", b"secret-a3", zone="a")
        found = await Erasing(store, by="ada", zone="a").find()
        assert (found.archived, found.ranges, found.waiting, found.queued) == (1, 1, 1, 1)
        assert await list_erasures(store) == []
        assert await erase(store, zone="a") == 1
    assert await archived(store) == ["a2"]


async def test_a_range_that_is_being_written_is_left_alone() -> None:
    store = MemoryStore()
    async with opened(store) as q:
        await finish(q, "a1")
    head_read = await store.get("queue.json")
    assert isinstance(head_read, Stored)
    head = decode_head("queue.json", head_read.body)
    begun = head.next("somebody", archived=0, archiving=head.archived)
    await store.replace("queue.json", encode_head(begun), expected=head_read.etag)
    assert await erase(store, zone="a") == 0
    assert await archived(store) == ["a1"]
    async with opened(store) as q:
        await finish(q, "b1")
    assert await erase(store, zone="a") == 1
    assert await archived(store) == ["b1"]


@pytest.mark.parametrize("late", ["jsonl", "parquet", "both"])
@FORMATS
async def test_a_late_archiver_does_not_bring_erased_jobs_back(wanted: str, late: str) -> None:
    """It slept before it wrote its own form of the range. What it finds then is no damage."""
    store = MemoryStore()
    async with opened(store, wanted) as q:
        await finish(q, "a1", "b1")
    [place] = {parse_key(key) for key in await names(store)}
    assert place is not None
    assert await erase(store, zone="a") == 1
    over = await _finished(store, place[1])
    await write_range(store, Environment().patience, place[1], over, FORMS[late])
    assert await archived(store) == await scanned(store) == ["b1"]


async def test_a_late_archiver_leaves_its_form_out_where_the_other_was_erased_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without pyarrow an erasure cannot take the name of the missing form."""
    store = MemoryStore()
    async with opened(store) as q:
        await finish(q, "a1", "b1")
    [place] = {parse_key(key) for key in await names(store)}
    assert place is not None
    with monkeypatch.context() as patch:
        patch.setattr("casque.codec.parquet.is_installed", lambda: False)
        assert await erase(store, zone="a") == 1
    over = await _finished(store, place[1])
    for late in ("parquet", "both"):
        await write_range(store, Environment().patience, place[1], over, FORMS[late])
    assert [form_of(key) for key in await names(store)] == [Form.LINES]
    assert await archived(store) == await scanned(store) == ["b1"]


async def test_a_late_archiver_reports_jobs_that_are_missing_and_were_not_erased() -> None:
    store = MemoryStore()
    async with opened(store) as q:
        await finish(q, "a1", "b1", "c1")
    [place] = {parse_key(key) for key in await names(store)}
    assert place is not None
    over = await _finished(store, place[1])
    assert await erase(store, zone="a") == 1
    [key] = [key for key in await names(store) if form_of(key) is Form.LINES]
    read = await store.get(key)
    assert isinstance(read, Stored)
    lines = [line for line in read.body.splitlines(keepends=True) if b'"zone":"b"' not in line]
    assert len(lines) == 1
    await store.replace(key, b"".join(lines), expected=read.etag)
    with pytest.raises(CorruptQueueError, match="something else in the place"):
        await write_range(store, Environment().patience, place[1], over, FORMS["jsonl"])


async def _finished(store: MemoryStore, range_: Range) -> list[Finished]:
    """What the log says was finished in this range."""
    from casque.codec.log import START, decode_segment, digest, replay, segment_key
    from casque.state import Limits, State

    state, chain, over = State(Limits(finished=True)), START, list[Finished]()
    head = await store.get("queue.json")
    assert isinstance(head, Stored)
    queue_id = decode_head("queue.json", head.body).queue_id or ""
    for position in range(1, range_.last + 1):
        read = await store.get(segment_key(position))
        assert isinstance(read, Stored)
        replay(state, decode_segment(read.body, queue_id=queue_id, position=position, prev=chain))
        chain = digest(read.body)
    over += state.finished
    return over


# --- Several, and broken off ---


@FORMATS
async def test_two_erasures_at_once_both_count(wanted: str) -> None:
    store = MemoryStore()
    for number in range(4):
        async with opened(store, wanted) as q:
            await finish(q, f"a{number}", f"b{number}", f"c{number}")
    done = await asyncio.gather(erase(store, zone="a"), erase(store, zone="b"), erase(store, zone="a"))
    assert (done[1], max(done[0], done[2])) == (4, 4)
    assert await archived(store) == await scanned(store) == ["c0", "c1", "c2", "c3"]
    assert len(await list_erasures(store)) == 3


class Failing(MemoryStore):
    """Refuses writes after a while."""

    left = 10**9

    async def create(self, key: str, body: bytes) -> Outcome:
        self._spend()
        return await super().create(key, body)

    async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
        self._spend()
        return await super().replace(key, body, expected=expected)

    def _spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise StorageError("the disk is full")


@pytest.mark.parametrize("writes", range(8))
async def test_repeating_an_erasure_that_broke_off_completes_it(writes: int) -> None:
    store = Failing()
    for number in range(3):
        async with opened(store, ("both", "parquet", "jsonl")[number]) as q:
            await finish(q, f"a{number}", f"b{number}")
    store.left = writes
    env = Environment(QueueSettings(storage_patience=QueueSettings().conflict_backoff))
    with pytest.raises(StorageError):
        await Erasing(store, by="ada", zone="a", env=env).erase()
    store.left = 10**9
    await Verifier(store, Environment()).verify()
    assert not any(one.done for one in await list_erasures(store))
    await erase(store, zone="a")
    assert await archived(store) == await scanned(store) == ["b0", "b1", "b2"]
    assert [one.done for one in await list_erasures(store)].count(True) == 1
    assert [form_of(key) for key in await names(store)] == [*Form] * 3  # no name is free for a late writer
    await Verifier(store, Environment()).verify()


async def test_verify_finds_jobs_that_are_missing_and_were_not_erased() -> None:
    store = MemoryStore()
    async with opened(store) as q:
        await finish(q, "a1", "b1", "c1")
    assert await erase(store, zone="a") == 1
    [key] = [key for key in await names(store) if form_of(key) == "jsonl"]
    read = await store.get(key)
    assert isinstance(read, Stored)
    await store.replace(key, read.body.splitlines(keepends=True)[0], expected=read.etag)
    with pytest.raises(CorruptQueueError, match="not what the log says"):
        await Verifier(store, Environment()).verify()


# --- Rings, copies, commands ---


async def test_all_shards_of_a_ring_are_erased_from() -> None:
    store = MemoryStore()
    await Parts(store, QueueSettings()).builder().create(3)
    async with opened(store, "both", layout=None) as q:
        await finish(q, *(f"{zone}1" for zone in "abcdef"))
    assert await erase(store, zone="d") == 1
    assert await archived(store) == [f"{zone}1" for zone in "abcef"]
    assert sum(one.jobs for one in await list_erasures(store)) == 1
    assert (await Verifier(store, Environment()).verify()).shards == 3


async def test_a_copy_knows_what_was_erased() -> None:
    store, copy = MemoryStore(), MemoryStore()
    async with opened(store) as q:
        await finish(q, "a1", "b1")
    await erase(store, zone="a")
    await Copier(store, copy, Environment()).copy()
    assert await list_erasures(copy) == await list_erasures(store)
    assert await archived(copy) == ["b1"]


def test_the_command_counts_asks_erases_and_lists(tmp_path: Any) -> None:
    url = f"file://{tmp_path}/queue"

    async def fill() -> None:
        async with opened(url, "both") as q:
            await finish(q, "a1", "b1", "a2")
            await q.enqueue("send", b"secret-a3", zone="a")

    asyncio.run(fill())
    run = CliRunner()
    dry = run.invoke(app, ["archive", "erase", url, "--zone", "a", "--dry-run"])
    assert (dry.exit_code, "would be erased: 2" in dry.output) == (0, True)
    no = run.invoke(app, ["archive", "erase", url, "--zone", "a"], input="n\n")
    assert (no.exit_code, "nothing was done" in no.output) == (1, True)
    assert run.invoke(app, ["archive", "erasures", url]).output == "nothing was erased from this archive\n"
    done = run.invoke(app, ["archive", "erase", url, "--zone", "a", "--yes"])
    assert (done.exit_code, "erased: 2 finished jobs" in done.output) == (0, True)
    assert "still in the queue, cancel or purge them first: 1" in done.output
    again = run.invoke(app, ["archive", "erase", url, "--zone", "a", "--yes", "--json"])
    assert json.loads(again.output)["erased"] == 0
    listed = run.invoke(app, ["archive", "erasures", url, "--json"]).output
    [record] = map(json.loads, listed.splitlines())
    assert (record["zone"], record["jobs"], record["done"]) == ("a", 2, True)
    assert "secret" not in run.invoke(app, ["archive", "erasures", url]).output
    assert run.invoke(app, ["archive", "erase", url]).exit_code == 2
