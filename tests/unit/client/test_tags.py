"""Tags: short texts that a producer gives a job, shown with it everywhere, and checked where they enter."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from casque import App, InvalidInputError, NewJob, Queue, SyncQueue
from casque.client.staging import StagedJobs, Stager
from casque.codec.archive import agree, encode_archived
from casque.codec.stored import encode_job
from casque.fields import TAG_MAX, TAGS_MAX, check_tags
from casque.storage.memory import MemoryStore
from casque.testing import in_memory
from casque.transport.border import Border
from casque.types import Finished, JobRecord, JobSpec, JobState
from simulation.world.crew import tags_of

ARCHIVED = "archive/2026-02-15T10/x.jsonl"
TAGS = ("urgent", "billing")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("urgent", "tags must be a list of str, such as"),
        (None, "tags must be a list of str"),
        ({"urgent"}, "tags must be a list of str"),
        ([7], "a tag must be a str, not int"),
        ([""], "a tag must be 1 to 64 printable characters"),
        (["x" * (TAG_MAX + 1)], "a tag must be 1 to 64 printable characters"),
        (["line\nbreak"], "printable"),
        (["a,b"], "a tag must have no comma, not 'a,b'; give several tags instead"),
        (["a", "b", "a"], "names one twice; leave it out once"),
        ([f"t{n}" for n in range(TAGS_MAX + 1)], "tags must be at most 16, not 17; use headers or the payload"),
    ],
)
def test_bad_tags_are_refused_with_what_to_write_instead(bad: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message.replace("'", "['\"]")):
        check_tags(bad)


def test_tags_may_be_as_many_and_as_long_as_is_said_and_keep_their_order() -> None:
    most = [f"{n:x}".rjust(TAG_MAX, "ä") for n in range(TAGS_MAX, 0, -1)]
    assert check_tags(most) == tuple(most)
    assert check_tags(()) == ()


@pytest.mark.parametrize("bad", [("a", "a"), ("a,b",), ("",), (7,), ["a"], tuple(f"t{n}" for n in range(17))])
async def test_a_broker_refuses_bad_tags_and_adds_nothing(bad: Any) -> None:
    async with Queue.open("memory://") as q:
        border = Border(q._service)
        with pytest.raises(InvalidInputError, match="tag"):
            await border.enqueue([JobSpec("1", "send", b""), JobSpec("2", "send", b"", tags=bad)])
        assert (await q.stats()).totals.enqueued == 0
        await border.enqueue([JobSpec("2", "send", b"", tags=TAGS)])
        assert [job.tags for job in await q.jobs()] == [TAGS]


async def test_tags_are_given_in_every_way_and_come_back_with_the_job() -> None:
    async with Queue.open("memory://") as q:
        added = await q.enqueue("send", b"1", tags=list(TAGS))
        shared = ["bulk"]
        many = await q.enqueue_many([NewJob("send", b"%d" % n, tags=shared) for n in range(3)])
        differ = await q.enqueue_many([NewJob("send", b"", tags=["a"]), NewJob("send", b"", tags=["b"]), ("send", b"")])
        assert added.tags == TAGS
        assert [job.tags for job in many] == [("bulk",)] * 3
        assert [job.tags for job in differ] == [("a",), ("b",), ()]
        [claimed] = await q.dequeue("send")
        assert claimed.tags == TAGS
        before = await q.stats()
        with pytest.raises(InvalidInputError, match="no comma"):
            await q.enqueue_many([NewJob("send", b"", tags=["fine"]), NewJob("send", b"", tags=["a,b"])])
        assert await q.stats() == before
        await claimed.ack()
        events = [event async for event in q.events(from_position=0, follow=False)]
    assert events[0].fields["tags"] == TAGS


def test_tags_without_asyncio() -> None:
    with SyncQueue.open("memory://tags-sync") as q:
        assert q.enqueue("send", b"", tags=TAGS).job.tags == TAGS


async def test_schedules_pass_their_tags_on() -> None:
    async with Queue.open("memory://") as q:
        await q.set_schedule("nightly", "@daily", NewJob("report", b"", tags=TAGS))
        assert (await q.trigger_schedule("nightly")).tags == TAGS


async def test_functions_have_tags_and_a_call_may_have_others() -> None:
    shop = App("memory://")

    @shop.job(tags=["shop"])
    async def pack(order: int) -> None: ...

    with pytest.raises(InvalidInputError, match="tags must be a list"):
        shop.job(tags="shop")
    async with in_memory(shop) as (queue, _):
        await pack.enqueue(1)
        await pack.using(tags=TAGS).enqueue(2)
        await pack.using(tags=[]).enqueue(3)
        assert [job.tags for job in await queue.jobs()] == [("shop",), TAGS, ()]


def test_staged_jobs_have_tags_by_row() -> None:
    store = MemoryStore()
    with Stager(store) as stager:
        part = stager.stage(StagedJobs(["1", "2"], "send", b"", tags=[TAGS, ()]))
        with pytest.raises(InvalidInputError, match="row 1: tags must differ from each other"):
            stager.stage(StagedJobs(["1", "2"], "send", b"", tags=[(), ("a", "a")]))
        with pytest.raises(InvalidInputError, match="the column tags must be a list with a value for each job"):
            stager.stage(StagedJobs(["1", "2"], "send", b"", tags="urgent"))  # type: ignore[arg-type]

    async def admit() -> list[tuple[str, ...]]:
        async with Queue.open(store) as q:
            await q.admit("nightly", 1, [part])
            return [job.tags for job in await q.jobs()]

    assert asyncio.run(admit()) == [TAGS, ()]


def test_a_job_without_tags_costs_no_bytes() -> None:
    record = JobRecord(JobSpec("1", "send", b""), 1, 0, JobState.READY, 0)
    assert b"tags" not in encode_job(record)
    assert b"tags" not in msgspec.json.encode(record.spec)
    assert b"tags" not in b"".join(encode_archived([Finished(1, 0, record, JobState.DONE)]))


def test_a_range_that_a_release_without_tags_began_is_the_same_range() -> None:
    def body(*tags: str) -> bytes:
        record = JobRecord(JobSpec("1", "send", b"", tags=tags), 1, 0, JobState.READY, 0)
        return b"".join(encode_archived([Finished(1, 0, record, JobState.DONE)]))

    assert body("urgent") != body()
    assert agree(ARCHIVED, body("urgent"), body())
    assert not agree(ARCHIVED, body(), body().replace(b'"send"', b'"sent"'))


def test_some_simulated_jobs_have_tags_and_some_do_not() -> None:
    drawn = [tags_of(number, item) for number in range(6) for item in range(3)]
    assert () in drawn
    assert all(check_tags(tags) == tags for tags in drawn)
    assert any(drawn)
