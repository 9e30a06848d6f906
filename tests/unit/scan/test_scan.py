"""A queue's tables, read from the bucket: exact, pinned when they are planned, and never a write."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import msgspec
import pytest

from casque import (
    CorruptQueueError,
    HistoryGoneError,
    InvalidInputError,
    NoHistoryError,
    Queue,
    RingError,
    StorageError,
)
from casque.client.staging import StagedJobs, Stager
from casque.clock import Random
from casque.codec.archive import Range, archive_key
from casque.codec.log import decode_head, encode_head, segment_key
from casque.codec.ring import shard_prefix
from casque.engine.embedded import state_at
from casque.fields import GAINED
from casque.journal.log import pace, snapshots
from casque.ring.numbers import outer
from casque.scan import Scan, Split, Table, arrow_schema
from casque.service import ArchivedAttempt, ArchivedJob, QueueEvent
from casque.storage.memory import MemoryStore
from casque.storage.port import Stored, Won
from casque.storage.prefixed import PrefixedStore
from casque.testing.clock import ManualClock
from casque.testing.gated import GatedStore
from casque.types import Attempt, JobRecord
from simulation.known_history import write_known_history
from tests.spark.histories import play, resized, ring_of

SEEDS = count(1)
START = datetime.fromtimestamp(1_700_000_000, UTC)
Row = dict[str, Any]


def opened(store: Any, clock: ManualClock, **more: Any) -> Queue[bytes]:
    return Queue.open(store, rng=Random(next(SEEDS)), clock=clock, worker="w1", **more)


async def varied(store: Any, clock: ManualClock, rounds: int = 6, **settings: Any) -> None:
    """Jobs of every kind, with every kind of end, an hour for each round."""
    async with opened(store, clock, stale_timeout=timedelta(minutes=2), payload_max=64, **settings) as q:
        await play(q, clock, rounds)


def rows(scan: Scan, splits: list[Any], table: Table, columns: list[str] | None = None) -> list[Row]:
    found: list[Row] = scan.table(splits, table, columns=columns).to_pylist()
    return found


def events_of(store: Any, clock: ManualClock, after: int = 0) -> list[QueueEvent]:
    async def listen() -> list[QueueEvent]:
        return [e async for e in opened(store, clock).events(from_position=after, follow=False)]

    return asyncio.run(listen())


def plain(value: Any) -> Any:
    """As a column has it: a list, and null for one without elements."""
    return (list(value) or None) if isinstance(value, tuple) else value


def event_row(event: QueueEvent) -> Row:
    """The same event as the table shows it."""
    fields = dict(event.fields)
    row: Row = {name: fields.get(name) for name in arrow_schema(Table.EVENTS).names}
    row |= {"shard": 0, "position": event.position, "index": event.index, "at": event.at, "kind": event.kind.value}
    row |= {"count": fields.get("added", fields.get("count"))}
    row |= {"job_id": event.job_id, "max_attempts": fields.get("attempts_max")}
    row |= {"due_at": moment(fields.get("due_ms")), "run_at": moment(fields.get("run_at_ms"))}
    if event.kind.value == "added":
        blob = fields.get("blob")
        row["payload_bytes"] = fields["blob_bytes"] if blob else len(fields["payload"])
        row["payload"] = None if blob else fields["payload"]
        row["headers"] = fields["headers"] and list(fields["headers"].items())
        row |= {field.name: plain(fields[field.name]) for field in GAINED}
    return row


def job_row(job: JobRecord, position: int, now_ms: int) -> Row:
    spec = job.spec
    return {
        "shard": 0,
        "position": position,
        "id": spec.id,
        "entrypoint": spec.entrypoint,
        "zone": spec.zone,
        "state": state_at(job, now_ms).value,
        "priority": spec.priority,
        "payload": None if spec.blob else spec.payload,
        "payload_bytes": spec.blob_bytes if spec.blob else len(spec.payload),
        "key": spec.key,
        "headers": spec.headers and list(spec.headers.items()),
        "run_at": moment(spec.run_at_ms),
        "created_at": moment(job.created_ms),
        "due_at": moment(job.due_ms),
        "sequence": job.sequence,
        "token": job.token,
        "attempts": job.attempts,
        "max_attempts": spec.max_attempts,
        "worker": job.worker,
        "lease_ms": job.lease_ms,
        "claimed_at": moment(job.claimed_ms),
        "beat_at": moment(job.beat_ms),
        "error": job.error,
        "max_crashes": spec.max_crashes,
        "fifo": spec.fifo,
        "crashes": job.crashes,
        "tries": [attempt_row(one, moment(one.claimed_ms), moment(one.ended_ms)) for one in job.tries] or None,
        **{field.name: plain(getattr(spec, field.name)) for field in GAINED},
    }


def attempt_row(one: Attempt | ArchivedAttempt, claimed_at: datetime | None, ended_at: datetime | None) -> Row:
    told = {"outcome": one.how.value, "worker": one.worker, "token": one.token, "error": one.error}
    return {"claimed_at": claimed_at, "ended_at": ended_at, **told}


def moment(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


def without(names: set[str], found: list[Row]) -> list[Row]:
    return [{name: value for name, value in row.items() if name not in names} for row in found]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    """With everything in it, and nothing collected."""
    store = MemoryStore()
    asyncio.run(varied(store, clock, retention=timedelta(days=30)))
    return store


@pytest.fixture
def scan(store: MemoryStore, clock: ManualClock) -> Iterator[Scan]:
    with Scan(store, clock=clock) as scan:
        yield scan


def head_of(store: MemoryStore) -> Any:
    read = asyncio.run(store.get("queue.json"))
    assert isinstance(read, Stored)
    return decode_head("queue.json", read.body)


# --- Events ---


def test_events_are_those_that_the_change_feed_tells(scan: Scan, store: MemoryStore, clock: ManualClock) -> None:
    expected = [event_row(event) for event in events_of(store, clock)]
    assert {row["kind"] for row in expected} >= {"added", "claimed", "acked", "nacked", "died", "expired", "cancelled"}
    for splits in (1, 7, 1000):
        found = rows(scan, scan.plan_events(splits=splits), Table.EVENTS)
        assert without({"epoch", "writer", "batch"}, found) == without({"epoch", "writer", "batch"}, expected)
    assert all(row["batch"] > 0 and row["writer"] for row in rows(scan, scan.plan_events(), Table.EVENTS))


def test_events_between_two_positions(scan: Scan, store: MemoryStore, clock: ManualClock) -> None:
    everything = events_of(store, clock)
    end = scan.extent().end
    for start, upto in ((0, 1), (3, 9), (9, 9), (5, end)):
        found = rows(scan, scan.plan_events(start=start, end=upto), Table.EVENTS, ["position", "index"])
        expected = [(e.position, e.index) for e in everything if start < e.position <= upto]
        assert [(row["position"], row["index"]) for row in found] == expected


def test_a_position_that_is_not_there_is_told(scan: Scan) -> None:
    end = scan.extent().end
    wrongs: list[dict[str, Any]] = [{"start": end + 1}, {"end": end + 1}]
    for wrong in wrongs:
        with pytest.raises(InvalidInputError, match=f"position {end + 1} is in the future: .* this queue is {end}"):
            scan.plan_events(**wrong)


def test_spans_of_time_that_meet_share_no_event_and_lose_none_though_clocks_step_back(clock: ManualClock) -> None:
    store = MemoryStore()
    wall = [0, 60, 30, 90, 10, 120, 115, 180, 170, 240]

    async def write() -> None:
        for seconds in wall:
            async with opened(store, ManualClock(1_700_000_000_000 + seconds * 1000)) as q:
                await q.enqueue("send", b"")

    asyncio.run(write())
    with Scan(store, clock=clock) as scan:
        for cut in range(-10, 260, 5):
            at = START + timedelta(seconds=cut)
            skew = timedelta(seconds=80)  # as far as these clocks are apart
            before = rows(scan, scan.plan_events(end=at, clock_skew=skew), Table.EVENTS, ["position", "at"])
            after = rows(scan, scan.plan_events(start=at, clock_skew=skew), Table.EVENTS, ["position", "at"])
            assert all(row["at"] < at for row in before)
            assert all(row["at"] >= at for row in after)
            assert sorted(row["position"] for row in before + after) == [p + 1 for p in range(len(wall))]


def test_far_from_the_time_that_is_asked_for_nothing_is_read(store: MemoryStore, clock: ManualClock) -> None:
    watched = GatedStore(store)
    with Scan(watched, clock=clock) as scan:
        splits = scan.plan_events(start=START + timedelta(hours=5), clock_skew=timedelta(seconds=1))
        everything = scan.extent().end
        watched.requests.clear()
        assert rows(scan, splits, Table.EVENTS, ["position"])
        assert watched.requests["get"] < everything * 2 / 3


def test_events_that_were_collected_since_they_were_planned_are_missed_loudly(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "SNAPSHOT_SEGMENTS", 5)
    store = MemoryStore()
    asyncio.run(varied(store, clock, 2, retention=timedelta(seconds=1)))
    with Scan(store, clock=clock) as scan:
        [split] = scan.plan_events(splits=1)
        assert rows(scan, [split], Table.EVENTS)
        asyncio.run(varied(store, clock, 4, retention=timedelta(seconds=1)))
        floor = scan.extent().floor
        assert floor >= split.first
        with pytest.raises(HistoryGoneError, match=f"is gone: the history of this queue begins at position {floor}"):
            rows(scan, [split], Table.EVENTS)
        with pytest.raises(HistoryGoneError, match="`retention`"):
            scan.plan_events(start=floor - 1)
        kept = rows(scan, scan.plan_events(), Table.EVENTS, ["position"])
        assert min(row["position"] for row in kept) == floor + 1


def test_a_missing_or_changed_segment_is_damage_and_not_an_empty_one(scan: Scan, store: MemoryStore) -> None:
    splits = scan.plan_events(splits=1)
    read = asyncio.run(store.get(segment_key(1)))
    assert isinstance(read, Stored)
    asyncio.run(store.delete(segment_key(1)))
    with pytest.raises(CorruptQueueError, match="missing"):
        rows(scan, splits, Table.EVENTS)
    asyncio.run(store.create(segment_key(1), read.body.replace(b"w1", b"w2").replace(b"send", b"SEND")))
    with pytest.raises(CorruptQueueError, match="checksum"):
        rows(scan, splits, Table.EVENTS)


# --- Jobs ---


def jobs_then(store: Any, clock: ManualClock, as_of: Any) -> tuple[int, list[JobRecord]]:
    async def look() -> tuple[int, list[JobRecord]]:
        async with opened(store, clock, as_of=as_of) as q:
            records = [job.record for job in await q.jobs()]
            return (await q.stats()).position, records

    return asyncio.run(look())


@pytest.mark.parametrize("parts", [None, 300], ids=["one object", "parts"])
@pytest.mark.parametrize("segments", [0, 7], ids=["segments", "snapshots"])
def test_jobs_are_those_that_the_queue_shows_at_every_position(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, segments: int, parts: int | None
) -> None:
    if segments:
        monkeypatch.setattr(pace, "SNAPSHOT_SEGMENTS", segments)
    if parts:
        monkeypatch.setattr(snapshots, "PART_BYTES", parts)
        monkeypatch.setattr("casque.codec.snapshot.PIECE_JOBS", 1)
    store = MemoryStore()
    asyncio.run(varied(store, clock, retention=timedelta(days=30)))
    times = {e.position: e.at for e in events_of(store, clock)}
    split_up = 0
    with Scan(store, clock=clock) as scan:
        for position, at in times.items():
            now_ms = round(at.timestamp() * 1000)
            expected = [job_row(_bare(job), position, now_ms) for job in jobs_then(store, clock, position)[1]]
            for as_of in (position, at) if position == max(p for p in times if times[p] == at) else (position,):
                splits = scan.plan_jobs(as_of, splits=3)
                found = rows(scan, splits, Table.JOBS)
                assert sorted(found, key=lambda row: row["sequence"]) == expected
                split_up = max(split_up, len(splits))
    assert split_up == (3 if parts else 1)  # a queue that is closed leaves a snapshot, if there is something to it


@pytest.mark.parametrize("segments", [512, 1], ids=["segments", "snapshots"])
def test_priorities_and_limits_of_64_bits_are_in_every_table(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, segments: int
) -> None:
    monkeypatch.setattr(pace, "SNAPSHOT_SEGMENTS", segments)
    least, most = -(2**63), 2**63 - 1
    numbers = [(least, most, most), (-(2**31) - 1, 2**31, 2**31), (0, 25, None), (most, 1, 1)]
    store = MemoryStore()

    async def fill() -> None:
        async with opened(store, clock, retention=timedelta(days=30)) as q:
            for priority, attempts, crashes in numbers * 2:
                await q.enqueue("send", b"", priority=priority, max_attempts=attempts, max_crashes=crashes)
            for job in await q.dequeue(batch_size=4):
                await job.ack()

    asyncio.run(fill())
    wanted = ["sequence", "priority", "max_attempts", "max_crashes"]
    with Scan(store, clock=clock) as scan:
        finished = rows(scan, scan.plan_archive(), Table.ARCHIVE, wanted)
        added = [row for row in rows(scan, scan.plan_events(), Table.EVENTS, wanted) if row["sequence"] is not None]
        tables = [rows(scan, scan.plan_jobs(), Table.JOBS, wanted) + finished, added]
    assert len(finished) == 4
    for table in tables:
        table.sort(key=lambda row: row["sequence"])
        assert [(row["priority"], row["max_attempts"], row["max_crashes"]) for row in table] == numbers * 2


def _bare(job: JobRecord) -> JobRecord:
    """Whether a payload lies elsewhere is told by its size here: `jobs` has fetched it."""
    if len(job.spec.payload) > 64:
        spec = msgspec.structs.replace(job.spec, payload=b"", blob="blobs/x", blob_bytes=len(job.spec.payload))
        return msgspec.structs.replace(job, spec=spec)
    return job


def test_an_id_that_is_used_again_belongs_to_one_split(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "PART_BYTES", 1)
    monkeypatch.setattr("casque.codec.snapshot.PIECE_JOBS", 1)
    monkeypatch.setattr(pace, "SNAPSHOT_SEGMENTS", 4)
    store = MemoryStore()

    async def write() -> None:
        from casque.types import JobSpec

        async with opened(store, clock) as q:
            specs = tuple(JobSpec(f"job-{n}", "send", b"1") for n in range(6))
            await q._service.enqueue(specs)
            for _ in range(5):
                await q.enqueue("other", b"")
            await clock.advance(1)
        monkeypatch.setattr(pace, "SNAPSHOT_SEGMENTS", 1000)
        async with opened(store, clock) as q:
            for job in await q.dequeue("send", batch_size=6):
                await job.ack()
            await q._service.enqueue(tuple(msgspec.structs.replace(spec, payload=b"2") for spec in specs))
            for job in await q.dequeue("send", batch_size=3):
                await job.nack()

    asyncio.run(write())
    position, expected = jobs_then(store, clock, scan_end(store, clock))
    with Scan(store, clock=clock) as scan:
        splits = scan.plan_jobs(splits=4)
        assert len(splits) == 4
        found = rows(scan, splits, Table.JOBS)
    assert sorted((row["id"], row["payload"], row["attempts"]) for row in found) == sorted(
        (job.id, job.spec.payload, job.attempts) for job in expected
    )
    assert {row["position"] for row in found} == {position}


def scan_end(store: Any, clock: ManualClock) -> int:
    with Scan(store, clock=clock) as scan:
        return scan.extent().end


def test_jobs_that_were_admitted_in_bulk_are_told_like_any_other(clock: ManualClock) -> None:
    store = MemoryStore()

    async def admit() -> None:
        async with opened(store, clock) as q:
            await q.enqueue("send", b"one by one")
            with Stager(store, clock=clock) as stager:
                parts = await asyncio.to_thread(
                    lambda: [
                        stager.stage(StagedJobs([f"{n}-{m}" for m in range(4)], "bulk", b"x" * n)) for n in range(3)
                    ]
                )
            await q.admit("nightly", 1, parts)
            for job in await q.dequeue("bulk", batch_size=5):
                await job.ack()

    asyncio.run(admit())
    expected = [event_row(event) for event in events_of(store, clock)]
    assert [row["count"] for row in expected if row["kind"] == "admitted"] == [12]
    with Scan(store, clock=clock) as scan:
        found = rows(scan, scan.plan_events(), Table.EVENTS)
        assert without({"epoch", "writer", "batch"}, found) == without({"epoch", "writer", "batch"}, expected)
        position, records = jobs_then(store, clock, scan.extent().end)
        shown = rows(scan, scan.plan_jobs(), Table.JOBS)
        assert sorted(shown, key=lambda row: row["sequence"]) == [
            job_row(job, position, clock.wall_ms()) for job in records
        ]
        assert len(shown) == 8


def test_a_plan_is_not_changed_by_what_happens_after_it(scan: Scan, store: MemoryStore, clock: ManualClock) -> None:
    plans: list[tuple[Table, list[Any]]] = [
        (Table.JOBS, scan.plan_jobs()),
        (Table.EVENTS, list(scan.plan_events())),
        (Table.ARCHIVE, list(scan.plan_archive())),
        (Table.ATTEMPTS, list(scan.plan_archive(table=Table.ATTEMPTS))),
    ]
    before = [rows(scan, splits, table) for table, splits in plans]
    asyncio.run(varied(store, clock, 2, retention=timedelta(days=30)))
    again = pickle.loads(pickle.dumps((plans, Scan("memory://elsewhere"))))[0]
    assert [rows(scan, splits, table) for table, splits in again] == before
    assert all(before)


def test_a_snapshot_that_was_collected_since_is_missed_loudly(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "SNAPSHOT_SEGMENTS", 5)
    store = MemoryStore()
    asyncio.run(varied(store, clock, 2, retention=timedelta(seconds=1)))
    with Scan(store, clock=clock) as scan:
        splits = scan.plan_jobs()
        asyncio.run(varied(store, clock, 4, retention=timedelta(seconds=1)))
        with pytest.raises(HistoryGoneError, match="is gone"):
            rows(scan, splits, Table.JOBS)
        with pytest.raises(HistoryGoneError, match="`retention`"):
            scan.plan_jobs(1)
        with pytest.raises(HistoryGoneError, match="the oldest moment left"):
            scan.plan_jobs(START)


def test_the_future_has_no_jobs(scan: Scan, clock: ManualClock) -> None:
    with pytest.raises(InvalidInputError, match="in the future"):
        scan.plan_jobs(scan.extent().end + 1)
    with pytest.raises(InvalidInputError, match="in the future"):
        scan.plan_jobs(START + timedelta(days=365))
    assert rows(scan, scan.plan_jobs(0), Table.JOBS) == []


def test_the_jobs_of_a_document(clock: ManualClock) -> None:
    store = MemoryStore()
    asyncio.run(varied(store, clock, 2, layout="document"))
    with Scan(store, clock=clock) as scan:
        splits = scan.plan_jobs()

        async def look() -> tuple[int, list[JobRecord]]:
            async with opened(store, clock, layout="document") as q:
                return (await q.stats()).position, [job.record for job in await q.jobs()]

        position, records = asyncio.run(look())
        expected = [job_row(_bare(job), position, clock.wall_ms()) for job in records]
        asyncio.run(varied(store, clock, 1, layout="document"))  # the document is another one by now
        assert rows(scan, splits, Table.JOBS) == expected
        assert rows(scan, scan.plan_archive(), Table.ARCHIVE)
        with pytest.raises(NoHistoryError, match="casque queue convert"):
            scan.plan_jobs(1)
        with pytest.raises(NoHistoryError):
            scan.plan_events()


# --- The archive ---


def archived(store: Any, clock: ManualClock, **asked: Any) -> list[Row]:
    async def read() -> list[Any]:
        return [job async for job in opened(store, clock).archive(**asked)]

    found = []
    for job in asyncio.run(read()):
        row = {name: getattr(job, name, None) for name in arrow_schema(Table.ARCHIVE).names}
        row |= {"shard": 0, "state": job.state.value, "headers": job.headers and list(job.headers.items())}
        row |= {"hour": job.finished_at.replace(minute=0, second=0, microsecond=0)}
        row |= {"payload_bytes": len(job.payload) if job.blob_bytes is None else job.blob_bytes}
        row |= {"payload": job.payload if job.blob_bytes is None else None}
        row |= {"result_bytes": None if job.result is None else len(job.result)}
        row |= {"tries": [attempt_row(one, one.claimed_at, one.ended_at) for one in job.tries] or None}
        row |= {field.name: plain(getattr(job, field.name)) for field in GAINED}
        found.append(row)
    return found


def by_finish(found: list[Row]) -> list[Row]:
    return sorted(found, key=lambda row: (row["position"], row["id"]))


def test_the_archive_is_what_the_queue_tells_of_it(scan: Scan, store: MemoryStore, clock: ManualClock) -> None:
    expected = by_finish(archived(store, clock))
    assert {row["state"] for row in expected} == {"done", "dead", "cancelled"}
    for splits in (1, 100):
        assert by_finish(rows(scan, scan.plan_archive(splits=splits), Table.ARCHIVE)) == expected
    for column in arrow_schema(Table.ARCHIVE).names:
        assert rows(scan, scan.plan_archive(), Table.ARCHIVE, [column])


def test_the_archive_by_time_reads_only_the_objects_of_those_hours(store: MemoryStore, clock: ManualClock) -> None:
    since, until = START + timedelta(hours=2), START + timedelta(hours=3, minutes=7)
    watched = GatedStore(store)
    with Scan(watched, clock=clock) as scan:
        splits = scan.plan_archive(since=since, until=until)
        hours = {one.hour for split in splits for one in split.objects}
        assert len(hours) == 2
        watched.requests.clear()
        found = rows(scan, splits, Table.ARCHIVE)
        assert watched.requests == {"get": sum(len(split.objects) for split in splits)}
    assert by_finish(found) == by_finish(archived(store, clock, since=since, until=until))
    assert found


def test_the_archive_by_position(scan: Scan) -> None:
    everything = by_finish(rows(scan, scan.plan_archive(), Table.ARCHIVE))
    objects = scan.archive_objects()
    for after in (0, objects[0].last, objects[1].first):
        for upto in (objects[2].last, None):
            found = by_finish(rows(scan, scan.plan_archive(start=after, end=upto), Table.ARCHIVE))
            assert found == [row for row in everything if after < row["position"] <= (upto or 10**9)]


def test_a_range_that_is_being_archived_is_not_read_yet(scan: Scan, store: MemoryStore) -> None:
    before = rows(scan, scan.plan_archive(), Table.ARCHIVE)
    head = head_of(store)
    begun = Range(head.archived + 1, head.archived + 5)

    async def begin() -> None:
        read = await store.get("queue.json")
        assert isinstance(read, Stored)
        newer = head.next("w", archiving=begun.last)
        assert isinstance(await store.replace("queue.json", encode_head(newer), expected=read.etag), Won)
        await store.create(archive_key("2023-11-15T04", begun), b'{"half": ')

    asyncio.run(begin())
    assert rows(scan, scan.plan_archive(), Table.ARCHIVE) == before


def test_an_hour_that_was_deleted_since_it_was_planned_is_missed_loudly(scan: Scan, store: MemoryStore) -> None:
    splits = scan.plan_archive()
    asyncio.run(store.delete(scan.archive_objects()[1].key))
    with pytest.raises(StorageError, match=r"archive/.* is gone: `archive_retention`.*Run the query again"):
        rows(scan, splits, Table.ARCHIVE)


def test_what_is_no_archive_is_named(scan: Scan, store: MemoryStore) -> None:
    [first, *_] = scan.archive_objects()
    asyncio.run(store.delete(first.key))
    asyncio.run(store.create(first.key, b"<html>"))
    for table in (Table.ARCHIVE, Table.ATTEMPTS):
        with pytest.raises(CorruptQueueError, match=first.key):
            rows(scan, scan.plan_archive(table=table), table)


def test_every_job_that_somebody_was_at_work_on_when_it_ended_has_a_last_attempt(scan: Scan) -> None:
    finished = {(row["position"], row["id"]): row for row in rows(scan, scan.plan_archive(), Table.ARCHIVE)}
    last = [row for row in rows(scan, scan.plan_archive(table=Table.ATTEMPTS), Table.ATTEMPTS) if row["last"]]
    assert {row["outcome"] for row in last} == {"done", "dead"}  # those that were cancelled were never claimed
    assert len(last) == sum(row["state"] != "cancelled" for row in finished.values())
    for row in last:
        job = finished[row["position"], row["job_id"]]
        assert (row["attempt"], row["token"], row["worker"]) == (job["attempts"], job["token"], job["worker"])
        assert (row["claimed_at"], row["ended_at"]) == (job["claimed_at"], job["finished_at"])
        assert (row["outcome"], row["zone"], row["hour"]) == (job["state"], job["zone"], job["hour"])
        assert row["error"] == (job["error"] if job["state"] == "dead" else None)


def test_every_attempt_of_a_finished_job_is_told_once_and_as_it_was() -> None:
    store = MemoryStore()
    known = asyncio.run(write_known_history(store))
    with Scan(store) as scan:
        told = {
            (row["job_id"], row["token"]): row
            for row in rows(scan, scan.plan_archive(table=Table.ATTEMPTS), Table.ATTEMPTS)
        }
        assert len(told) == sum(
            batch.num_rows for s in scan.plan_archive(table=Table.ATTEMPTS) for batch in scan.read(s)
        )
    ended = {end.job_id: end.finished_ms for end in known.ends}  # the last end of each, of those that ended twice
    tries = [one for one in known.tries if one.ended_ms is not None and one.ended_ms <= ended.get(one.job_id, 0)]
    assert {(one.job_id, one.token) for one in tries} == set(told)
    assert {one.outcome for one in tries} == {"failed", "expired", "done", "dead", "cancelled"}
    for one in tries:
        row = told[one.job_id, one.token]
        assert (row["attempt"], row["worker"], row["outcome"]) == (one.number, one.worker, one.outcome)
        assert (row["claimed_at"], row["ended_at"]) == (moment(one.claimed_ms), moment(one.ended_ms))
        assert row["error"] == one.error
        assert row["last"] == (one.outcome in ("done", "dead", "cancelled"))
        assert (row["zone"], row["entrypoint"]) == (known.zone(one.job_id), known.entrypoint(one.job_id))


# --- All of them ---


def test_nothing_is_ever_written(store: MemoryStore, clock: ManualClock) -> None:
    watched = GatedStore(store)
    with Scan(watched, clock=clock) as scan:
        scan.extent()
        splits: list[Split] = [*scan.plan_jobs(), *scan.plan_events(), *scan.plan_archive()]
        for split in splits:
            list(scan.read(split))
    assert watched.writes == watched.requests["delete"] == 0


def test_an_object_that_is_not_a_table_is_refused_with_what_to_do() -> None:
    for address in ("grpc://host:7700", "https://host"):
        with pytest.raises(InvalidInputError, match="tables are read from the bucket, not through a broker"):
            Scan(address)
    with Scan("memory://nobody-was-here") as scan, pytest.raises(InvalidInputError, match="there is no queue here"):
        scan.plan_events()


def test_an_unknown_column_is_refused_with_the_nearest(scan: Scan) -> None:
    [split] = scan.plan_events(splits=1)
    with pytest.raises(InvalidInputError, match="no column 'entrypont': did you mean 'entrypoint'"):
        next(scan.read(split, columns=["entrypont"]))


def test_the_path_that_was_documented_first_still_works() -> None:
    from casque.client import scan as earlier

    assert earlier.Scan is Scan
    assert earlier.Table is Table


def test_secrets_are_not_shown() -> None:
    scan = Scan("s3://bucket/orders?region=eu", options={"secret_access_key": "hush", "access_key_id": "me"})
    assert repr(scan) == "Scan('s3://bucket/orders')"


# --- A ring of shards ---


def played_ring(clock: ManualClock) -> MemoryStore:
    """Of two shards, then of four."""
    store = MemoryStore()
    asyncio.run(ring_of(store, 2))
    asyncio.run(varied(store, clock, 2, retention=timedelta(days=30)))
    asyncio.run(resized(store, 4))
    asyncio.run(varied(store, clock, 2, retention=timedelta(days=30)))
    return store


def of_shards(store: MemoryStore, clock: ManualClock, plan: Callable[[Scan], list[Any]], table: Table) -> list[Row]:
    """What each shard says for itself, in the numbers of the ring."""
    found: list[Row] = []
    for shard in range(4):
        with Scan(PrefixedStore(store, shard_prefix(shard)), clock=clock) as scan:
            for row in rows(scan, plan(scan), table):
                numbers: Row = {
                    name: outer(row[name], shard) for name in ("sequence", "token") if row.get(name) is not None
                }
                if row.get("tries"):
                    numbers["tries"] = [{**one, "token": outer(one["token"], shard)} for one in row["tries"]]
                found.append({**row, "shard": shard, **numbers})
    return found


def test_the_tables_of_a_ring_are_those_of_its_shards_in_numbers_of_the_ring(clock: ManualClock) -> None:
    store = played_ring(clock)
    then = START + timedelta(hours=1, seconds=30)

    async def asked() -> tuple[list[JobRecord], list[ArchivedJob]]:
        async with opened(store, clock) as q:
            return [job.record for job in await q.jobs()], [job async for job in q.archive()]

    with Scan(store, clock=clock) as scan:
        events = rows(scan, scan.plan_events(), Table.EVENTS)
        jobs, archive = rows(scan, scan.plan_jobs(), Table.JOBS), rows(scan, scan.plan_archive(), Table.ARCHIVE)
        attempts = rows(scan, scan.plan_archive(table=Table.ATTEMPTS), Table.ATTEMPTS)
        earlier = rows(scan, scan.plan_jobs(then), Table.JOBS)
        some = rows(scan, scan.plan_events(start={0: 3, 1: 2}, end={0: 5, 1: 2}), Table.EVENTS)
        late = rows(scan, scan.plan_archive(start={0: 1, 1: 2**40, 2: 2**40, 3: 2**40}, end={0: 2**40}), Table.ARCHIVE)
    with Scan(store, clock=clock) as fresh:
        assert rows(fresh, fresh.plan_events(start={0: 3, 1: 2}, end={0: 5, 1: 2}), Table.EVENTS) == some
    with Scan(store, clock=clock) as scan:
        with pytest.raises(InvalidInputError, match="each of the 4 shards of this ring has positions of its own"):
            scan.plan_jobs(3)
        with pytest.raises(RingError):
            scan.extent()
        queue_id, extents = scan.extents()
    assert events == of_shards(store, clock, lambda one: list(one.plan_events()), Table.EVENTS)
    assert jobs == of_shards(store, clock, lambda one: one.plan_jobs(), Table.JOBS)
    assert earlier == of_shards(store, clock, lambda one: one.plan_jobs(then), Table.JOBS) != []
    assert archive == of_shards(store, clock, lambda one: list(one.plan_archive()), Table.ARCHIVE)
    assert attempts == of_shards(store, clock, lambda one: list(one.plan_archive(table=Table.ATTEMPTS)), Table.ATTEMPTS)
    assert {(row["shard"], row["position"]) for row in some} == {(0, 4), (0, 5)}
    assert late == [row for row in archive if row["shard"] == 0 and row["position"] > 1] != []
    assert {row["token"] for row in events if row["kind"] == "ringed"} == {None}
    records, finished = asyncio.run(asked())
    assert sorted((row["sequence"], row["token"], row["id"]) for row in jobs) == sorted(
        (job.sequence, job.token, job.id) for job in records
    )
    assert sorted((row["sequence"], row["token"], outer(row["position"], row["shard"])) for row in archive) == sorted(
        (job.sequence, job.token, job.position) for job in finished
    )
    assert [shard for shard in extents if extents[shard].end] == [0, 1, 2, 3]
    assert queue_id is not None


@pytest.mark.parametrize("layout", ["log", "document"])
def test_what_a_producer_set_can_be_read_in_every_table(clock: ManualClock, layout: str) -> None:
    store = MemoryStore()
    asked: Row = {
        "zone": "acme",
        "fifo": True,
        "max_crashes": 3,
        "max_attempts": 4,
        "tags": ["urgent", "billing"],
        "expires_ms": 60_000,
    }

    async def fill() -> None:
        async with opened(store, clock, layout=layout) as q:
            given = {name: value for name, value in asked.items() if name != "expires_ms"}
            await q.enqueue("send", b"1", **given, expires=60)
            await q.enqueue("send", b"2")

    async def finish() -> None:
        async with opened(store, clock) as q:
            for job in await q.dequeue("send", batch_size=2):
                await job.ack()

    def read(table: Table, plan: Callable[[Scan], Any]) -> list[Row]:
        with Scan(store, clock=clock) as scan:
            return rows(scan, list(plan(scan)), table, ["zone", *(name for name in asked if name != "zone")])

    none = dict.fromkeys(asked) | {"fifo": False, "max_attempts": 25}
    asyncio.run(fill())  # leaves a snapshot, whose lines are read as columns
    assert read(Table.JOBS, lambda scan: scan.plan_jobs()) == [asked, none]
    if layout == "log":
        assert read(Table.EVENTS, lambda scan: scan.plan_events(end=2)) == [asked, none]
        asyncio.run(finish())
        assert read(Table.ARCHIVE, lambda scan: scan.plan_archive()) == [asked, none]
