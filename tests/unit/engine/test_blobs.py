"""Large payloads: an object of their own beside the queue, there before their job and gone after it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from datetime import timedelta
from itertools import count
from typing import Any, cast

import msgspec
import pytest

from casque import (
    BrokerQueue,
    CorruptQueueError,
    DirectQueue,
    InMemoryStorage,
    InvalidInputError,
    JobState,
    NewJob,
    Queue,
    StorageError,
    UnknownOutcomeError,
)
from casque.clock import Random, yield_once
from casque.codec.blobs import blob_key
from casque.codec.staged import StagedJobs, checked
from casque.engine.embedded import EmbeddedService
from casque.engine.group import GroupCommit
from casque.environment import Environment
from casque.journal.convert import Converter
from casque.journal.log import pace
from casque.journal.verify import Verifier
from casque.service.requests import Enqueue, Nack, Purge
from casque.settings import QueueSettings
from casque.state import Command
from casque.storage.memory import MemoryStore
from casque.storage.port import MISSING, Outcome, Read, Store, Stored, Unknown
from casque.testing.clock import ManualClock, settle
from casque.testing.hosting import leading
from casque.testing.lossy import Fault, LossyStore, scripted
from casque.types import JobSpec

LARGE = b"x" * 300_000
SEEDS = count(1)
BOTH = pytest.mark.parametrize("layout", ["log", "document"])


def opened(store: Store, layout: str = "log", clock: ManualClock | None = None, **settings: Any) -> Queue[bytes]:
    return Queue.open(store, layout=layout, clock=clock, rng=Random(next(SEEDS)), **settings)


async def keys(store: Store, prefix: str = "blobs/") -> list[str]:
    return [key async for key in store.list(prefix)]


async def size_of(store: Store) -> int:
    """Of everything but the large payloads."""
    reads = [await store.get(key) for key in await keys(store, "") if not key.startswith("blobs/")]
    return sum(len(read.body) for read in reads if isinstance(read, Stored))


class Failing:
    """A store that fails where a test says so."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.fails: set[tuple[str, str]] = set()
        """Pairs of a verb and the beginning of a key."""

    def _check(self, verb: str, key: str) -> None:
        if any(verb == failing and key.startswith(prefix) for failing, prefix in self.fails):
            raise StorageError(f"no {verb} today")

    async def create(self, key: str, body: bytes) -> Outcome:
        self._check("create", key)
        return await self._store.create(key, body)

    async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
        self._check("replace", key)
        return await self._store.replace(key, body, expected=expected)

    async def get(self, key: str, *, unless: str | None = None) -> Read:
        self._check("get", key)
        return await self._store.get(key, unless=unless)

    async def delete(self, key: str) -> None:
        self._check("delete", key)
        await self._store.delete(key)

    def list(self, prefix: str = "", *, after: str | None = None) -> AsyncIterator[str]:
        return self._store.list(prefix, after=after)

    async def close(self) -> None:
        await self._store.close()


class Slow(Failing):
    """Something happens while a payload is on its way to whoever asked for it."""

    meanwhile: Awaitable[None] | None = None

    async def get(self, key: str, *, unless: str | None = None) -> Read:
        if key.startswith("blobs/") and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile
        return await super().get(key, unless=unless)


class Silent(Failing):
    """Writes land, and are not answered, where they cannot be read back either."""

    async def create(self, key: str, body: bytes) -> Outcome:
        return self._lost(key, await super().create(key, body))

    async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
        return self._lost(key, await super().replace(key, body, expected=expected))

    def _lost(self, key: str, outcome: Outcome) -> Outcome:
        unread = any(verb == "get" and key.startswith(prefix) for verb, prefix in self.fails)
        return Unknown(TimeoutError()) if unread else outcome


# --- There and back ---


@BOTH
async def test_a_large_payload_lies_beside_the_queue_and_comes_back_with_its_job(layout: str) -> None:
    store = MemoryStore()
    async with opened(store, layout) as q:
        added = await q.enqueue("send", LARGE)
        await q.enqueue("send", LARGE[:262_144])
        assert added.payload == LARGE
        [key] = await keys(store)
        assert added.id in key
        assert await size_of(store) < 2 * 400_000, "the smaller one only"
        found = await q.find(added.id)
        assert found is not None
        assert found.payload == LARGE
        assert [len(job.payload) for job in await q.jobs()] == [300_000, 262_144]
        first, second = await q.dequeue("send", batch_size=2)
        assert (first.payload, len(second.payload)) == (LARGE, 262_144)
        await first.nack(delay=0)
        [again] = await q.dequeue("send")
        assert again.payload == LARGE


@BOTH
async def test_large_payloads_of_a_bulk_and_of_a_typed_queue(layout: str) -> None:
    store = MemoryStore()
    async with Queue.open(store, type=list[int], layout=layout, payload_max=100) as q:
        await q.enqueue_many([("sum", list(range(n))) for n in (3, 100, 5, 200)])
        assert len(await keys(store)) == 2
        assert [len(job.payload) for job in await q.dequeue("sum", batch_size=4)] == [3, 100, 5, 200]


@BOTH
async def test_the_payload_goes_when_the_job_is_archived(layout: str) -> None:
    store = MemoryStore()
    async with opened(store, layout) as q:
        await q.enqueue("send", LARGE)
        await q.cancel((await q.enqueue("send", LARGE)).id)
        [job] = await q.dequeue("send")
        await job.ack()
        assert len(await keys(store)) == 2
    assert await keys(store) == []
    archived = [job async for job in Queue.open(store).archive()]
    assert [(job.payload, job.blob_bytes) for job in archived] == [(b"", 300_000)] * 2


@BOTH
async def test_a_dead_job_keeps_its_payload_until_it_is_done_or_purged(layout: str) -> None:
    store = MemoryStore()
    async with opened(store, layout) as q:
        await q.enqueue_many(
            [NewJob("send", LARGE + b"1", max_attempts=1), NewJob("send", LARGE + b"2", max_attempts=1)]
        )
        for job in await q.dequeue("send", batch_size=2):
            await job.nack()
        dead = await q.jobs(states=[JobState.DEAD])
        assert len(dead) == 2
    assert len(await keys(store)) == 2, "they are archived, and in the queue"
    async with opened(store, layout) as q:
        await q.retry(dead[0].id)
        [job] = await q.dequeue("send")
        assert job.payload == LARGE + b"1"
        assert await q.purge() == 1
        assert len(await keys(store)) == 1, "that of the job which is worked on"
        await job.ack()
    assert await keys(store) == []


async def test_a_storage_of_one_object_keeps_payloads_of_any_size_inline() -> None:
    storage = InMemoryStorage()
    async with Queue.open(storage) as q:
        await q.enqueue("send", LARGE)
        [job] = await q.dequeue("send")
        assert job.payload == LARGE


@pytest.mark.parametrize("kind", [BrokerQueue, DirectQueue])
async def test_the_small_api_gives_large_payloads_back(kind: Any) -> None:
    store = MemoryStore()
    q = kind(store, rng=Random(next(SEEDS)))
    if kind is BrokerQueue:
        await q.__aenter__()
    await q.enqueue("send", LARGE)
    assert len(await keys(store)) == 1
    [listed] = (await q.read_state()).jobs
    [job] = await q.dequeue("send")
    assert listed.payload == job.payload == LARGE
    await q.ack(job.id)
    await (q.__aexit__(None, None, None) if kind is BrokerQueue else q.close())
    assert await keys(store) == []


async def test_the_feed_says_where_a_payload_lies() -> None:
    store = MemoryStore()
    async with opened(store) as q:
        await q.enqueue_many([("send", b"small"), ("send", LARGE)])
        small, large = [event async for event in q.events(from_position=0, follow=False)]
    assert "blob" not in small.fields
    assert (large.fields["payload"], large.fields["blob_bytes"]) == (b"", 300_000)
    assert [large.fields["blob"]] == await keys(store)


# --- Not enqueued ---


@BOTH
async def test_a_payload_beyond_all_bounds_is_refused_and_nothing_is_written(layout: str) -> None:
    store = MemoryStore()
    async with opened(store, layout, blob_max=400_000) as q:
        with pytest.raises(InvalidInputError, match="at most 400,000 bytes, not 400,001; raise blob_max"):
            await q.enqueue_many([("send", LARGE), ("send", bytes(400_001))])
        assert await keys(store, "") == []
        await q.enqueue("send", bytes(400_000))


@BOTH
async def test_a_refused_enqueue_leaves_no_payload_behind(layout: str) -> None:
    store = MemoryStore()
    async with leading(store, layout=layout) as host:
        service = host.service()
        await service.enqueue([JobSpec("1", "send", LARGE)])
        with pytest.raises(InvalidInputError, match="already in the queue"):
            await service.enqueue([JobSpec("1", "send", LARGE + b"other")])
        assert len(await keys(store)) == 1
        [job] = await service.dequeue(entrypoints=None, limit=1)
        assert job.spec.payload == LARGE


@BOTH
async def test_a_job_that_holds_the_key_already_is_given_with_its_own_payload(layout: str) -> None:
    store = MemoryStore()
    async with opened(store, layout) as q:
        first = await q.enqueue("send", LARGE, key="k")
        for payload in (LARGE + b"other", b"small"):
            second = await q.enqueue("send", payload, key="k")
            assert (second.id, second.payload) == (first.id, LARGE)
        assert len(await keys(store)) == 1


@BOTH
async def test_a_store_that_takes_no_payload_enqueues_nothing(layout: str) -> None:
    store = MemoryStore()
    failing = Failing(store)
    async with opened(failing, layout, storage_patience=timedelta(milliseconds=1)) as q:
        failing.fails = {("create", "blobs/")}
        with pytest.raises(StorageError):
            await q.enqueue("send", LARGE)
        assert await q.jobs() == []
        failing.fails = set()
        await q.enqueue("send", LARGE)


# --- Twice ---


@BOTH
async def test_a_repeated_request_has_one_payload(layout: str) -> None:
    store = MemoryStore()
    async with opened(store, layout) as q:
        first = await q.enqueue("send", LARGE, request_id="r1")
        again = await q.enqueue("send", LARGE, request_id="r1")
        assert (again.id, again.payload) == (first.id, LARGE)
        assert len(await keys(store)) == 1
        [job] = await q.dequeue("send", request_id="r2")
        [same] = await q.dequeue("send", request_id="r2")
        assert job.payload == same.payload == LARGE
        await job.ack()
    async with opened(store, layout) as q:
        over = await q.enqueue("send", LARGE, request_id="r1")
        assert (over.id, over.payload) == (first.id, LARGE)
        assert await q.jobs() == []
    assert await keys(store) == []


@BOTH
async def test_beside_a_large_job_the_holder_of_a_key_is_shown_as_it_is(layout: str) -> None:
    async with opened(MemoryStore(), layout) as q:
        holder = await q.enqueue("mail", b"first", key="k", priority=3)

        large, found = await q.enqueue_many([NewJob("send", LARGE), NewJob("send", b"second", key="k")])

        assert large.payload == LARGE
        assert (found.id, found.payload, found.entrypoint, found.priority) == (holder.id, b"first", "mail", 3)


@BOTH
@pytest.mark.parametrize("payload", [LARGE, b"second"], ids=["large", "small"])
async def test_a_repeated_request_does_not_show_the_former_holder_of_its_key_with_its_own_payload(
    layout: str, payload: bytes
) -> None:
    jobs = [NewJob("send", LARGE), NewJob("send", payload, key="k")]
    async with opened(MemoryStore(), layout) as q:
        holder = await q.enqueue("send", b"first", key="k")
        large, _ = await q.enqueue_many(jobs, request_id="r1")
        await q.cancel(holder.id)
        await q.cancel(large.id)

        again, found = await q.enqueue_many(jobs, request_id="r1")

        assert (again.id, again.payload) == (large.id, LARGE)
        assert (found.id, found.payload) == (holder.id, b"")


@BOTH
async def test_after_an_unknown_outcome_the_repeated_request_finds_the_payload(layout: str) -> None:
    store = MemoryStore()
    target = "log/" if layout == "log" else "queue.json"
    silent = Silent(store)
    async with opened(silent, layout, storage_patience=timedelta(milliseconds=1)) as q:
        await q.enqueue("send", b"first")
        silent.fails = {("get", target)}
        with pytest.raises(UnknownOutcomeError):
            await q.enqueue("send", LARGE, request_id="r1")
        silent.fails = set()
        job = await q.enqueue("send", LARGE, request_id="r1")
        assert len(await keys(store)) == 1
        found = await q.find(job.id)
        assert found is not None
        assert found.payload == LARGE


async def test_a_lost_reply_to_a_payload_is_settled_by_sending_it_again() -> None:
    store = MemoryStore()
    lossy = LossyStore(store, scripted(*[Fault.NONE] * 2, Fault.AFTER, Fault.BEFORE))
    async with opened(lossy) as q:
        job = await q.enqueue("send", LARGE)
        assert job.payload == LARGE
    assert len(await keys(store)) == 1


# --- Missing ---


@BOTH
async def test_a_missing_payload_concerns_its_own_job_only(layout: str, caplog: pytest.LogCaptureFixture) -> None:
    store, clock = MemoryStore(), ManualClock()
    async with opened(store, layout, clock) as q:
        broken = await q.enqueue("send", LARGE, max_attempts=2)
        [key] = await keys(store)
        whole = await q.enqueue("send", LARGE)
        await store.delete(key)
        [job] = await q.dequeue("send", batch_size=5)
        assert job.id == whole.id
        assert key in caplog.text
        found = await q.find(broken.id)
        assert found is not None
        assert (found.state, found.attempts) == (JobState.DELAYED, 1)
        assert found.last_error is not None
        assert found.last_error.startswith(f"{key}: the payload of job")
        with pytest.raises(CorruptQueueError, match="Restore the object from a backup, or cancel the job") as caught:
            _ = found.payload
        assert caught.value.key == key
        assert {job.id for job in await q.jobs()} == {broken.id, whole.id}
        await clock.advance(5)
        assert await q.dequeue("send") == []
        found = await q.find(broken.id)
        assert found is not None
        assert found.state is JobState.DEAD


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_missing_payload_that_cannot_be_failed_leaves_the_other_claims_alone(
    cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, failing = MemoryStore(), asyncio.Event()
    execute = GroupCommit.execute

    async def failed() -> None:
        failing.set()
        if cancelled:
            await asyncio.Event().wait()
        raise StorageError("the store refuses")

    def refused(self: GroupCommit, command: Command) -> Awaitable[Any]:
        return failed() if isinstance(command, Nack) else execute(self, command)

    async with opened(store) as q:
        await q.enqueue("send", LARGE)
        [key] = await keys(store)
        whole = await q.enqueue("send", LARGE)
        await store.delete(key)
        monkeypatch.setattr(GroupCommit, "execute", refused)
        claiming = asyncio.create_task(q.dequeue("send", batch_size=5))
        await failing.wait()
        if not cancelled:
            assert [job.id for job in await claiming] == [whole.id]
            return
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming
        while (await q.find(whole.id)).state is not JobState.READY:  # type: ignore[union-attr]
            await yield_once()


async def test_over_a_wire_a_missing_payload_is_an_error_and_never_an_empty_one() -> None:
    store = MemoryStore()
    async with leading(store) as host:
        service = host.service()
        await service.enqueue([JobSpec("1", "send", LARGE)])
        [key] = await keys(store)
        await store.delete(key)
        for look in (service.find("1"), service.jobs()):
            with pytest.raises(CorruptQueueError) as caught:
                await look
            assert caught.value.key == key


@BOTH
async def test_a_job_that_ends_while_its_payload_is_read_is_not_there_and_no_damage(layout: str) -> None:
    store = Slow(MemoryStore())
    async with leading(store, layout=layout, archive=False) as host:
        service = host.service()
        await service.enqueue([JobSpec("1", "send", LARGE), JobSpec("2", "send", LARGE), JobSpec("3", "send", b"")])
        store.meanwhile = service.cancel("1")
        assert [(job.id, job.spec.payload) for job in await service.jobs()] == [("2", LARGE), ("3", b"")]
        store.meanwhile = service.cancel("2")
        assert await service.find("2") is None


@BOTH
async def test_a_page_is_full_although_one_of_its_jobs_ends_while_it_is_read(layout: str) -> None:
    store = Slow(MemoryStore())
    async with leading(store, layout=layout, archive=False) as host:
        service = host.service()
        await service.enqueue([JobSpec(str(number), "send", LARGE) for number in range(4)])
        store.meanwhile = service.cancel("0")
        assert [job.id for job in await service.jobs(limit=2)] == ["1", "2"]


@BOTH
async def test_claims_whose_payloads_cannot_be_read_go_back(layout: str) -> None:
    store = MemoryStore()
    failing = Failing(store)
    async with opened(failing, layout, storage_patience=timedelta(milliseconds=1)) as q:
        await q.enqueue("send", LARGE)
        failing.fails = {("get", "blobs/")}
        with pytest.raises(UnknownOutcomeError):  # they were claimed, and are on their way back
            await q.dequeue("send")
        failing.fails = set()
        [job] = await q.dequeue("send", wait=5)
        assert (job.payload, job.attempts) == (LARGE, 1)


async def test_the_past_shows_a_job_whose_payload_is_gone() -> None:
    store = MemoryStore()
    async with opened(store) as q:
        await q.enqueue("send", LARGE)
        [job] = await q.dequeue("send")
        await job.ack()
    async with opened(store, as_of=1) as past:
        [then] = await past.jobs()
        assert then.id == job.id
        with pytest.raises(CorruptQueueError):
            _ = then.payload


# --- Deleting ---


@BOTH
async def test_a_payload_that_cannot_be_deleted_is_deleted_later(layout: str) -> None:
    store, clock = MemoryStore(), ManualClock()
    failing = Failing(store)
    async with opened(failing, layout, clock) as q:
        await q.enqueue("send", LARGE)
        [job] = await q.dequeue("send")
        failing.fails = {("delete", "blobs/")}
        await job.ack()
        await clock.advance(30)
        assert len(await keys(store)) == 1
        failing.fails = set()
        await clock.advance(30)
        assert await keys(store) == []
        assert len([job async for job in q.archive()]) == 1


@BOTH
async def test_without_an_archive_payloads_go_with_their_jobs_all_the_same(layout: str) -> None:
    store = MemoryStore()
    async with opened(store, layout, archive=False) as q:
        await q.enqueue("send", LARGE)
        other = await q.enqueue("send", LARGE)
        [job] = await q.dequeue("send")
        await job.ack()
        await q.cancel(other.id)
        assert await keys(store) == []


@BOTH
async def test_orphans_are_swept_when_they_are_old_and_were_watched_for_long(layout: str) -> None:
    store, clock = MemoryStore(), ManualClock()
    async with opened(store, layout, clock) as q:

        async def work() -> None:
            await q.enqueue("send", b"small")
            [job] = await q.dequeue("send")
            await job.ack()
            await clock.advance(20)

        kept = await q.enqueue("keep", LARGE)
        [used] = await keys(store)
        orphan = used.replace(kept.id, "gone")
        await store.create(orphan, LARGE)
        for _ in range(3):
            await clock.advance(900)
            await work()
        assert len(await keys(store)) == 2, "it is not old yet"
        clock.jump_wall(366 * 24 * 3600)
        for _ in range(2):
            await clock.advance(6.1 * 3600)
            await work()
        assert len(await keys(store)) == 2, "a clock that is ahead makes nothing old"
        for _ in range(2):
            await clock.advance(8 * 3600)
            await work()
        assert await keys(store) == [used]


# --- Kept through everything ---


async def test_snapshots_conversions_and_verify_know_large_payloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "SNAPSHOT_SEGMENTS", 2)
    store = MemoryStore()
    async with opened(store) as q:
        for n in range(6):
            await q.enqueue("send", LARGE + b"%d" % n)
    for layout in ("document", "log"):
        settings, clock = QueueSettings(), ManualClock()
        await Converter(store, Environment(settings, clock, Random(layout)), say=lambda _: None).convert(layout)
        await Verifier(store, Environment(settings, clock, Random(1))).verify()
        async with opened(store) as q:
            assert [job.payload[-1:] for job in await q.jobs()] == [b"%d" % n for n in range(6)]
    first, *_ = await keys(store)
    read = await store.get(first)
    assert isinstance(read, Stored)
    await store.delete(first)
    await store.create(first + "0", read.body)
    verdict = await Verifier(store, Environment(clock=ManualClock(), rng=Random(1))).verify()
    missing, spare = verdict.notes[-2:]
    assert missing.startswith(f"{first} is missing: the payload of job")
    assert spare == "1 objects below blobs/ belong to no job, and are swept when they are old"


def test_a_job_without_a_large_payload_is_stored_as_before() -> None:
    spec = JobSpec("1", "send", b"hello")
    assert json.loads(msgspec.json.encode(spec)) == {"id": "1", "entrypoint": "send", "payload": "aGVsbG8="}


async def test_what_is_named_after_a_strange_id_is_still_a_good_name() -> None:
    store = MemoryStore()
    async with leading(store) as host:
        await host.service().enqueue([JobSpec("../../etc/passwd", "send", LARGE)])
    [key] = await keys(store)
    assert ".." not in key
    assert (await store.get("blobs/../../etc/passwd")) == MISSING


# --- What was committed is not called failed because a payload cannot be read ---


@BOTH
@pytest.mark.parametrize("payload", [b"small", LARGE], ids=["small", "large"])
async def test_an_enqueue_that_landed_is_answered_although_the_holder_of_a_key_cannot_be_read(
    layout: str, payload: bytes
) -> None:
    store = Failing(MemoryStore())
    async with opened(store, layout, storage_patience=timedelta(seconds=0.01)) as q:
        [holder] = await q.enqueue_many([NewJob("a", LARGE, key="once")])
        store.fails = {("get", "blobs/")}
        found, added = await q.enqueue_many([NewJob("a", payload, key="once"), NewJob("a", b"new")])
        assert (found.id, added.payload) == (holder.id, b"new")
        assert (await q.stats()).totals.ready == 2
        store.fails = set()
        again = await q.find(holder.id)
        assert again is not None
        assert again.payload == LARGE


@BOTH
async def test_a_purge_that_landed_is_answered_although_nothing_can_be_read_then(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Failing(MemoryStore())
    async with opened(store, layout, storage_patience=timedelta(seconds=0.01), archive=False) as q:
        await q.enqueue("a", LARGE, max_attempts=1)
        [job] = await q.dequeue("a")
        await job.nack()
        execute = GroupCommit.execute

        def then_blind(self: GroupCommit, command: Any) -> Any:
            if isinstance(command, Purge):
                monkeypatch.setattr(GroupCommit, "look", blind)
            return execute(self, command)

        async def blind(self: GroupCommit, look: Any) -> Any:
            raise StorageError("no look today")

        monkeypatch.setattr(GroupCommit, "execute", then_blind)
        assert await q.purge() == 1


@BOTH
async def test_claims_whose_payload_cannot_be_read_go_back_and_the_others_are_answered(layout: str) -> None:
    store = Failing(MemoryStore())
    async with opened(store, layout, storage_patience=timedelta(seconds=0.01)) as q:
        await q.enqueue("a", LARGE)
        await q.enqueue("a", b"small")
        store.fails = {("get", "blobs/")}
        assert [job.payload for job in await q.dequeue("a", batch_size=2)] == [b"small"]
        with pytest.raises(UnknownOutcomeError, match="claimed"):
            await q.dequeue("a", wait=5)
        store.fails = set()
        [job] = await q.dequeue("a", wait=5)
        assert (job.payload, job.attempts) == (LARGE, 1)


async def test_a_repeated_dequeue_gets_what_could_not_be_read_the_first_time() -> None:
    store = Failing(MemoryStore())
    async with opened(store, storage_patience=timedelta(seconds=0.01)) as q:
        await q.enqueue("a", LARGE)
        store.fails = {("get", "blobs/")}
        with pytest.raises(UnknownOutcomeError):
            await q.dequeue("a", request_id="r1")
        store.fails = set()
        [job] = await q.dequeue("a", request_id="r1")
        assert job.payload == LARGE


@BOTH
async def test_claims_whose_payload_cannot_be_read_go_back_although_the_queue_is_closed_at_once(layout: str) -> None:
    store = Failing(MemoryStore())
    async with opened(store, layout, storage_patience=timedelta(seconds=0.01)) as q:
        await q.enqueue("a", LARGE)
        await q.enqueue("a", b"small")
        store.fails = {("get", "blobs/")}
        assert len(await q.dequeue("a", batch_size=2)) == 1
    store.fails = set()
    async with opened(store, layout) as q:
        assert [job.payload for job in await q.dequeue("a")] == [LARGE]


@BOTH
async def test_a_repeated_dequeue_that_cannot_read_a_payload_leaves_the_lease_to_its_holder(layout: str) -> None:
    store = Failing(MemoryStore())
    async with opened(store, layout, storage_patience=timedelta(seconds=0.01)) as q:
        await q.enqueue("a", LARGE)
        await q.enqueue("a", b"small")
        large, _small = await q.dequeue("a", batch_size=2, request_id="r1")
        store.fails = {("get", "blobs/")}
        assert [job.payload for job in await q.dequeue("a", batch_size=2, request_id="r1")] == [b"small"]
        await settle()
        assert (await q.stats()).totals.running == 2
        await large.ack()


@pytest.mark.parametrize(
    "name",
    ["queue.json", "blobs/../queue.json", "blobs/x", "log/00000000000000000001", "blobs/2026-01-01T00/../../q-0"],
)
async def test_no_name_that_a_job_carries_has_another_object_read_or_deleted(name: str) -> None:
    """Of a job that came past the border, or that an earlier release let in."""
    store = MemoryStore()
    async with opened(store) as queue:
        await queue.enqueue("a", b"")
        service = cast(EmbeddedService, queue._service)
        await store.create(name, b"not a payload")
        read = await store.get(name)
        assert isinstance(read, Stored)
        spec = JobSpec("1", "film", b"", blob=name, blob_bytes=len(read.body))
        await service._executor.execute(Enqueue((spec,)))
        found = await service.find("1")
        assert found is not None
        assert found.spec.payload == b""
        assert await queue.dequeue("film") == []
        await queue.cancel("1")
    async with opened(store):
        """What is over is archived, and its payload deleted."""
    assert isinstance(await store.get(name), Stored)


def test_a_staged_job_names_its_large_payload_as_casque_makes_names() -> None:
    good = blob_key("film", 1_790_000_000_000, Random(1))
    assert checked(StagedJobs(["1"], "a", b"", blobs=[good], blob_bytes=3))
    for name in ("queue.json", "blobs/../queue.json", "blobs/x", f"{good}/..", f"x{good}", good.upper()):
        with pytest.raises(InvalidInputError, match="is no object with a large payload"):
            checked(StagedJobs(["1"], "a", b"", blobs=[name], blob_bytes=3))
