"""Documents written by jqueue 1.0 open here, and every job in them can be worked on."""

from __future__ import annotations

import base64
import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from casque import BrokerQueue, DirectQueue, InMemoryStorage, JobState, LeaseLostError, LocalFileSystemStorage, Queue
from casque.testing.clock import ManualClock

KEPT = {path.stem: path.read_bytes() for path in sorted((Path(__file__).parent / "jqueue-1.0").glob("*.json"))}
FIELDS = ("id", "entrypoint", "payload", "status", "priority", "created_at", "heartbeat_at")

every_document = pytest.mark.parametrize("kept", list(KEPT.values()), ids=list(KEPT))


def stored(kept: bytes) -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = json.loads(kept)["jobs"]
    return jobs


def moment(text: str | None) -> datetime | None:
    """As casque keeps it: to the millisecond."""
    if text is None:
        return None
    exact = datetime.fromisoformat(text)
    return exact.replace(microsecond=exact.microsecond // 1000 * 1000)


def test_there_is_a_document_of_every_kind() -> None:
    assert set(KEPT) == {
        "binary", "dead", "empty", "in-progress", "priorities", "queued", "unicode", "worked",
    }  # fmt: skip


@every_document
async def test_every_field_of_every_job_is_read(kept: bytes) -> None:
    document = json.loads(kept)

    state = await DirectQueue(InMemoryStorage(initial_content=kept)).read_state()

    assert state.version == document["version"]
    assert [
        (j.id, j.entrypoint, j.payload, j.status.value, j.priority, j.created_at, j.heartbeat_at) for j in state.jobs
    ] == [
        (
            j["id"],
            j["entrypoint"],
            base64.b64decode(j["payload"]),
            j["status"],
            j["priority"],
            moment(j["created_at"]),
            moment(j["heartbeat_at"]),
        )
        for j in document["jobs"]
    ]


@every_document
async def test_looking_at_it_changes_nothing(kept: bytes, tmp_path: Path) -> None:
    copy = tmp_path / "queue.json"
    copy.write_bytes(kept)

    async with BrokerQueue(LocalFileSystemStorage(copy)) as q:
        await q.read_state()
        assert await q.dequeue("no such entrypoint") == []

    assert copy.read_bytes() == kept


@every_document
async def test_every_job_can_be_finished(kept: bytes) -> None:
    jobs = stored(kept)
    waiting = [j for j in jobs if j["status"] == "queued"]
    in_order = sorted(waiting, key=lambda j: (j["priority"], moment(j["created_at"])))

    async with Queue.open(InMemoryStorage(initial_content=kept)) as q:
        claimed = await q.dequeue(batch_size=100)
        assert [job.id for job in claimed] == [j["id"] for j in in_order]
        for job in claimed:
            await job.heartbeat()
            await job.ack()
        for j in jobs:
            if j["status"] == "in_progress":
                await q.ack(j["id"])
        for dead in await q.jobs(states=[JobState.DEAD]):
            await q.retry(dead.id)
            [revived] = await q.dequeue()
            assert revived.id == dead.id
            await revived.ack()

        totals = (await q.stats()).totals
        assert (totals.enqueued, totals.done) == (len(jobs), len(jobs))
        assert await q.jobs() == []


@every_document
async def test_a_job_that_jqueue_left_in_progress_is_taken_back(kept: bytes) -> None:
    clock = ManualClock()
    running = {j["id"] for j in stored(kept) if j["status"] == "in_progress"}

    async with BrokerQueue(InMemoryStorage(initial_content=kept), clock=clock, stale_timeout=timedelta(minutes=5)) as q:
        await clock.advance(299)
        assert {job.id for job in (await q.read_state()).in_progress_jobs()} == running
        await clock.advance(60)
        state = await q.read_state()

        assert state.in_progress_jobs() == ()
        assert running <= {job.id for job in state.queued_jobs()}


@every_document
async def test_what_casque_makes_of_it_still_has_jqueues_fields(kept: bytes, tmp_path: Path) -> None:
    copy = tmp_path / "queue.json"
    copy.write_bytes(kept)
    q = DirectQueue(LocalFileSystemStorage(copy))
    await q.enqueue("added", b"here")
    await q.dequeue(batch_size=2)

    document = json.loads(copy.read_bytes())

    assert document["version"] == json.loads(kept)["version"] + 2
    assert {j["id"] for j in stored(kept)} < {j["id"] for j in document["jobs"]}
    for job in document["jobs"]:
        assert set(FIELDS) <= set(job)


async def test_a_nacked_job_of_jqueue_keeps_its_place_by_priority_and_age() -> None:
    q = DirectQueue(InMemoryStorage(initial_content=KEPT["worked"]))

    payloads = [job.payload for job in await q.dequeue(batch_size=10)]

    assert payloads == [b"payload 0", b"last", b"payload 4", b"payload 2"]


async def test_a_token_is_never_given_twice_though_jqueue_forgets_tokens() -> None:
    storage = InMemoryStorage()
    async with Queue.open(storage) as q:
        await q.enqueue_many([("task", b"%d" % n) for n in range(10)])
        mine = await q.dequeue("task", batch_size=10)
    content, etag = await storage.read()
    document = json.loads(content)
    rewritten = [{name: job[name] for name in FIELDS} for job in document["jobs"]]
    for job in rewritten:
        job.update(status="queued", heartbeat_at=None)  # as its stale sweep leaves them
    await storage.write(json.dumps({"jobs": rewritten, "version": document["version"] + 1}).encode(), if_match=etag)
    theirs = await DirectQueue(storage).dequeue("task", batch_size=10)

    assert not {job.token for job in mine} & {job.token for job in theirs}


async def test_an_old_claim_is_no_longer_good_after_jqueue_gave_the_job_away() -> None:
    storage = InMemoryStorage()
    q = DirectQueue(storage)
    await q.enqueue("task", b"data")
    [mine] = await q.dequeue("task")
    content, etag = await storage.read()
    document = json.loads(content)
    [job] = [{name: job[name] for name in FIELDS} for job in document["jobs"]]
    await storage.write(json.dumps({"jobs": [job], "version": document["version"] + 1}).encode(), if_match=etag)

    with pytest.raises(LeaseLostError):
        await mine.ack()

    assert len((await q.read_state()).jobs) == 1
