"""Staged jobs are admitted together, in order and once."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import msgspec
import pytest

from casque.codec.staged import StagedJobs
from casque.errors import InvalidInputError
from casque.service import EventKind, QueueService
from casque.testing.service_suite.jobs import LONG_S, YEAR_9999_MS, a_job, staged
from casque.types import Admission, JobSpec, JobState


class AdmitTests:
    async def test_staged_jobs_are_admitted_together_and_in_order(self, service: QueueService, place: str) -> None:
        first = await staged(place, StagedJobs(["a", "b"], "task", [b"1", b"2"], priorities=[5, -5], zones="acme"))
        second = await staged(
            place, StagedJobs(["c"], "other", b"3", headers={"x": "y"}, max_attempts=4, tags=[("t",)])
        )

        admission = await service.admit("nightly", 0, [first, second])

        assert admission == Admission(3, position=(await service.stats()).position)
        assert [job.spec for job in await service.jobs()] == [
            JobSpec("a", "task", b"1", 5, zone="acme", max_attempts=25),
            JobSpec("b", "task", b"2", -5, zone="acme", max_attempts=25),
            JobSpec("c", "other", b"3", headers={"x": "y"}, max_attempts=4, tags=("t",)),
        ]
        claimed = await service.dequeue(entrypoints=None, limit=3)
        assert [job.id for job in claimed] == ["b", "c", "a"]

    async def test_a_batch_is_admitted_once(self, service: QueueService, other: QueueService, place: str) -> None:
        part = await staged(place, StagedJobs(["a", "b"], "task", b""))
        admission = await service.admit("nightly", 7, [part])

        assert await other.admit("nightly", 7, [part]) == Admission(2, repeated=True, position=admission.position)
        assert (await service.admit("nightly", 6, [part])).repeated

        assert (await service.stats()).totals.enqueued == 2
        later = await staged(place, StagedJobs(["c"], "task", b""))
        assert await service.admit("nightly", 8, [later]) == Admission(1, position=admission.position + 1)

    async def test_a_known_id_refuses_all_unless_it_is_to_be_skipped(self, service: QueueService, place: str) -> None:
        [known] = await service.enqueue([a_job(b"")])
        part = await staged(place, StagedJobs(["a", known.id, "b"], "task", b""))
        before = await service.stats()

        with pytest.raises(InvalidInputError, match="already in the queue"):
            await service.admit("nightly", 1, [part])

        assert await service.stats() == before
        admission = await service.admit("nightly", 1, [part], skip_known=True)
        assert (admission.jobs, admission.skipped, admission.repeated) == (2, 1, False)
        assert [job.id for job in await service.jobs()] == [known.id, "a", "b"]

    async def test_a_staged_job_whose_key_is_held_is_skipped(self, service: QueueService, place: str) -> None:
        await service.enqueue([a_job(b"", key="k")])
        part = await staged(place, StagedJobs(["a", "b", "c"], "task", b"", keys=["k", "l", "l"]))

        admission = await service.admit("nightly", 1, [part])

        assert (admission.jobs, admission.skipped) == (1, 2)
        assert await service.find("b") is not None

    async def test_staged_jobs_of_a_fifo_zone_come_one_after_the_other(self, service: QueueService, place: str) -> None:
        jobs = StagedJobs(["a", "b"], "task", b"", priorities=[5, -5], zones="acme", fifo=True, max_crashes=2)
        part = await staged(place, jobs)
        await service.admit("nightly", 1, [part])

        [first] = await service.dequeue(entrypoints=None, limit=2)
        assert (first.id, first.spec.fifo, first.spec.max_crashes) == ("a", True, 2)
        await service.ack("a", token=first.token)
        assert [job.id for job in await service.dequeue(entrypoints=None, limit=2)] == ["b"]

    async def test_staged_jobs_of_a_fifo_zone_cannot_be_delayed(self, service: QueueService, place: str) -> None:
        part = await staged(place, StagedJobs(["a"], "task", b"", zones="acme", fifo=True, run_at_ms=YEAR_9999_MS))
        before = await service.stats()
        with pytest.raises(InvalidInputError, match="FIFO"):
            await service.admit("nightly", 1, [part])
        assert await service.stats() == before

    async def test_staged_jobs_agree_with_their_zone_about_its_order(self, service: QueueService, place: str) -> None:
        await service.enqueue([a_job(b"", zone="acme")])
        part = await staged(place, StagedJobs(["a"], "task", b"", zones="acme", fifo=True))
        nowhere = await staged(place, StagedJobs(["b"], "task", b"", fifo=True))
        both = await staged(place, StagedJobs(["c", "d"], "task", b"", zones="initech", fifo=[True, False]))
        before = await service.stats()
        for refused in (part, nowhere, both):
            with pytest.raises(InvalidInputError, match=r"FIFO|which zone"):
                await service.admit("nightly", 1, [refused])
        assert await service.stats() == before

    async def test_staged_jobs_may_wait_for_their_time(self, service: QueueService, place: str) -> None:
        part = await staged(place, StagedJobs(["a", "b"], "task", b"", run_at_ms=[1, YEAR_9999_MS]))
        await service.admit("nightly", 1, [part])

        assert [job.id for job in await service.dequeue(entrypoints=None, limit=5)] == ["a"]
        waiting = await service.find("b")
        assert waiting is not None
        assert (waiting.state, waiting.due_ms) == (JobState.DELAYED, YEAR_9999_MS)

    async def test_large_payloads_of_staged_jobs_come_back_whole(self, service: QueueService, place: str) -> None:
        part = await staged(place, StagedJobs(["a"], "task", b"x" * 300_000))
        await service.admit("nightly", 1, [part])

        [job] = await service.dequeue(entrypoints=None, limit=1)

        assert job.spec.payload == b"x" * 300_000

    async def test_a_part_that_is_not_there_is_refused_with_its_name(self, service: QueueService, place: str) -> None:
        part = await staged(place, StagedJobs(["a"], "task", b""))
        gone = msgspec.structs.replace(part, key=part.key[:-16] + "0" * 16)
        changed = msgspec.structs.replace(part, sha256="0" * 64)
        before = await service.stats()

        for wrong, why in ((gone, "is not there"), (changed, "cut or changed")):
            with pytest.raises(InvalidInputError, match=why) as refused:
                await service.admit("nightly", 1, [part, wrong] if wrong is gone else [wrong])
            assert wrong.key in str(refused.value)

        assert await service.stats() == before
        assert (await service.admit("nightly", 1, [part])).jobs == 1

    async def test_a_dequeue_that_waits_gets_an_admitted_job(
        self, service: QueueService, other: QueueService, place: str
    ) -> None:
        part = await staged(place, StagedJobs(["a", "b"], "task", b""))
        waiting = asyncio.create_task(other.dequeue(entrypoints=("task",), limit=5, wait_s=LONG_S))

        await service.admit("nightly", 1, [part])

        assert [job.id for job in await waiting] == ["a", "b"]

    async def test_an_admission_is_an_event_before_those_of_its_jobs(self, service: QueueService, place: str) -> None:
        part = await staged(place, StagedJobs(["a", "b", "c"], "task", [b"1", b"2", b"3"], keys=["k", "k", None]))
        admission = await service.admit("nightly", 3, [part])

        async with aclosing(service.events(from_position=0, follow=False)) as feed:
            events = [event async for event in feed if event.position == admission.position]

        assert [(event.index, event.kind, event.job_id) for event in events] == [
            (0, EventKind.ADMITTED, None),
            (1, EventKind.ADDED, "a"),
            (2, EventKind.ADDED, "c"),
        ]
        assert events[0].fields == {
            "source": "nightly",
            "batch": 3,
            "parts": [msgspec.structs.asdict(part)],
            "added": 2,
            "first": 1,
            "skipped": [[1, 1]],
        }
        assert [event.fields["sequence"] for event in events[1:]] == [1, 2]
