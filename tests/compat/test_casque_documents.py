"""Documents written by casque 0.1 (format 1) still mean what they meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from casque import CorruptQueueError, DirectQueue, InMemoryStorage, JobState, Queue
from casque.codec.document import DocumentCodec
from casque.state import Limits
from casque.testing.clock import ManualClock

DIRECTORY = Path(__file__).parent / "casque-0.1"
NAMES = ("direct", "drained", "everything")
START_MS = 1_790_000_000_000


def kept(name: str) -> bytes:
    return (DIRECTORY / f"{name}.json").read_bytes()


def decoded(body: bytes) -> dict[str, Any]:
    state = DocumentCodec("queue.json", "").decode(body, Limits())
    plain: dict[str, Any] = msgspec.to_builtins(
        {
            "position": state.position,
            "jobs": list(state.jobs.values()),
            "counters": state.counters,
            "writers": state.writers,
            "requests": state.requests,
        }
    )
    return plain


def assert_holds(expected: Any, actual: Any, where: str = "state") -> None:
    """Everything that was there is there; fields that later releases added may be there too."""
    if isinstance(expected, dict):
        assert isinstance(actual, dict), where
        for name, value in expected.items():
            assert name in actual, f"{where}.{name} is gone"
            assert_holds(value, actual[name], f"{where}.{name}")
    elif isinstance(expected, list):
        assert isinstance(actual, list | tuple), where
        assert len(actual) == len(expected), where
        for index, value in enumerate(expected):
            assert_holds(value, actual[index], f"{where}[{index}]")
    else:
        assert actual == expected, where


@pytest.mark.parametrize("name", NAMES)
def test_a_kept_document_decodes_to_the_state_that_was_written(name: str) -> None:
    expected = json.loads((DIRECTORY / f"{name}.state").read_text())

    assert_holds(expected, decoded(kept(name)))


@pytest.mark.parametrize("name", NAMES)
def test_a_kept_document_has_nothing_in_it_that_is_not_understood(name: str) -> None:
    codec = DocumentCodec("queue.json", "")
    state = codec.decode(kept(name), Limits())
    codec.touch(state.jobs)

    again = codec.encode(state, version=state.position, writers=state.writers)

    assert_holds(json.loads(kept(name)), json.loads(again))


async def test_every_job_of_a_kept_document_can_be_worked_on() -> None:
    clock = ManualClock(START_MS + 60_000)

    async with Queue.open(InMemoryStorage(initial_content=kept("everything")), clock=clock) as q:
        jobs = {job.entrypoint: job for job in await q.jobs()}
        assert [(name, job.state) for name, job in jobs.items() if job.state is not JobState.READY] == [
            ("delayed", JobState.DELAYED),
            ("running", JobState.RUNNING),
            ("beaten", JobState.RUNNING),
            ("failed", JobState.DELAYED),
            ("dying", JobState.DEAD),
        ]
        assert jobs["größe"].payload == "ünïcode".encode()
        assert jobs["größe"].headers == {"trace": "00-ab", "Sprache": "Deutsch"}
        assert jobs["größe"].zone == "acme"
        assert (jobs["running"].worker, jobs["running"].token, jobs["running"].max_attempts) == ("worker", 1, 3)
        assert jobs["failed"].last_error == "ValueError: no such user"
        assert jobs["dying"].last_error == "the mailbox does not exist"

        ready = await q.dequeue(batch_size=100)
        assert [job.entrypoint for job in ready] == ["many", "keyed", "größe", "asked", "many", "failed", "ready"]
        assert ready[0].payload == bytes(range(256))
        for job in ready:
            await job.ack()
        for name in ("running", "beaten"):
            await q.ack(jobs[name].id, jobs[name].token)
        await q.cancel(jobs["delayed"].id)
        await q.retry(jobs["dying"].id)
        [revived] = await q.dequeue("dying")
        await revived.ack()

        assert await q.jobs() == []
        totals = (await q.stats()).totals
        assert (totals.enqueued, totals.done, totals.cancelled, totals.purged) == (14, 11, 2, 1)


async def test_a_kept_document_remembers_keys_and_requests() -> None:
    clock = ManualClock(START_MS + 60_000)

    async with Queue.open(InMemoryStorage(initial_content=kept("everything")), clock=clock) as q:
        before = await q.stats()
        holder = await q.enqueue("keyed", b"another", key="order-17")
        asked = await q.enqueue("asked", b"by request", request_id="enqueue-1")
        [running] = await q.dequeue("running", request_id="dequeue-1")
        await q.ack("whatever", request_id="ack-1")

        assert (holder.payload, asked.payload) == (b"only one of these", b"by request")
        assert (running.token, running.state) == (1, JobState.RUNNING)
        assert await q.purge("purged", request_id="purge-1") == 1
        assert await q.stats() == before


async def test_a_job_nobody_finished_goes_on_after_its_lease() -> None:
    clock = ManualClock(START_MS + 60_000)

    async with Queue.open(InMemoryStorage(initial_content=kept("everything")), clock=clock) as q:
        await clock.advance(400)
        assert await q.jobs(states=[JobState.RUNNING]) == []
        [running] = await q.dequeue("running")

        assert (running.attempts, running.token) == (2, 7)


async def test_a_document_of_a_later_format_is_refused_and_left_alone() -> None:
    body = kept("direct").replace(b'"format": 1', b'"format": 2')
    assert body != kept("direct")
    storage = InMemoryStorage(initial_content=body)

    with pytest.raises(CorruptQueueError, match="newer casque") as caught:
        await DirectQueue(storage).enqueue("task", b"data")

    assert caught.value.key == "queue.json"
    assert (await storage.read())[0] == body


@pytest.mark.parametrize(
    "body",
    [b"not json", b"[]", b'{"version": 1, "jobs": [{}]}', b'{"version": "one"}', b"\xff\xfe", kept("direct")[:-40]],
)
async def test_what_is_no_document_is_refused_and_left_alone(body: bytes) -> None:
    storage = InMemoryStorage(initial_content=body)

    with pytest.raises(CorruptQueueError):
        await DirectQueue(storage).enqueue("task", b"data")

    assert (await storage.read())[0] == body


async def test_a_document_from_which_a_job_was_cut_is_refused() -> None:
    lines = kept("direct").splitlines(keepends=True)
    cut = b"".join(line for line in lines if b'"payload":"MA=="' not in line)
    assert cut != kept("direct")

    with pytest.raises(CorruptQueueError, match="counters"):
        await DirectQueue(InMemoryStorage(initial_content=cut)).read_state()


async def test_a_document_lists_its_jobs_in_the_order_they_were_enqueued() -> None:
    storage = InMemoryStorage()
    async with Queue.open(storage) as q:
        added = await q.enqueue_many([("task", b"%d" % n) for n in range(50)])

    document = json.loads((await storage.read())[0])

    assert [job["id"] for job in document["jobs"]] == [job.id for job in added]


async def test_jobs_are_listed_in_the_order_they_were_enqueued_by_whoever_opens_the_queue() -> None:
    storage = InMemoryStorage()
    async with Queue.open(storage) as q:
        added = await q.enqueue_many([("task", b"%d" % n) for n in range(50)])

    async with Queue.open(storage) as q:
        listed = await q.jobs()

    assert [job.id for job in listed] == [job.id for job in added]
