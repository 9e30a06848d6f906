"""Reschedule jobs that wait."""

from __future__ import annotations

import pytest

from casque.errors import InvalidInputError, JobNotFoundError, JobStateError
from casque.service import QueueService
from casque.service.requests import Reschedule
from casque.testing.service_suite.jobs import YEAR_9999_MS, a_claim, a_dead_job, a_job, assert_same
from casque.types import JobState


class RescheduleTests:
    async def test_a_delayed_job_can_be_brought_forward(self, service: QueueService) -> None:
        [job] = await service.enqueue([a_job(b"1", run_at_ms=YEAR_9999_MS)])

        moved = await service.call(Reschedule(job.id, run_at_ms=1))

        assert moved is not None
        assert (moved.id, moved.state, moved.spec.run_at_ms) == (job.id, JobState.READY, 1)
        assert [one.id for one in await service.dequeue(entrypoints=None, limit=2)] == [job.id]

    async def test_a_job_that_is_due_can_be_put_off(self, service: QueueService) -> None:
        [job] = await service.enqueue([a_job(b"1")])

        moved = await service.call(Reschedule(job.id, run_at_ms=YEAR_9999_MS))

        assert moved is not None
        assert (moved.state, moved.due_ms) == (JobState.DELAYED, YEAR_9999_MS)
        assert await service.find(job.id) == moved
        assert await service.dequeue(entrypoints=None, limit=1) == []
        assert (await service.stats()).totals.delayed == 1

    async def test_a_job_can_be_given_another_priority(self, service: QueueService) -> None:
        zone = "one"  # shards take turns, and a zone is in one of them
        first, second, third = await service.enqueue([a_job(b"%d" % n, priority=5, zone=zone) for n in range(3)])

        await service.call(Reschedule(third.id, priority=-1))
        await service.call(Reschedule(first.id, priority=9))

        claimed = await service.dequeue(entrypoints=None, limit=3)
        assert [job.id for job in claimed] == [third.id, second.id, first.id]
        assert [job.spec.priority for job in claimed] == [-1, 5, 9]

    async def test_what_is_not_given_stays_as_it_is(self, service: QueueService) -> None:
        [job] = await service.enqueue([a_job(b"1", priority=3, run_at_ms=YEAR_9999_MS, zone="z", key="k")])

        urgent = await service.call(Reschedule(job.id, priority=1))
        assert urgent is not None
        assert (urgent.state, urgent.due_ms, urgent.spec.priority) == (JobState.DELAYED, YEAR_9999_MS, 1)
        sooner = await service.call(Reschedule(job.id, run_at_ms=YEAR_9999_MS - 1))
        assert sooner is not None
        assert (sooner.due_ms, sooner.spec.priority) == (YEAR_9999_MS - 1, 1)
        assert (sooner.spec.key, sooner.spec.zone, sooner.sequence) == ("k", "z", job.sequence)

    async def test_only_jobs_that_wait_are_rescheduled(self, service: QueueService) -> None:
        runs = await a_claim(service)
        with pytest.raises(JobStateError) as raised:
            await service.call(Reschedule(runs.id, run_at_ms=1))
        assert_same(raised.value, JobStateError(runs.id, "running", "waiting"))
        await service.ack(runs.id, token=runs.token)
        with pytest.raises(JobNotFoundError):
            await service.call(Reschedule(runs.id, run_at_ms=1))
        dead = await a_dead_job(service)
        with pytest.raises(JobStateError):
            await service.call(Reschedule(dead.id, priority=1))
        assert await service.find(dead.id) == dead

    async def test_a_repeated_reschedule_does_not_undo_a_later_one(self, service: QueueService) -> None:
        [job] = await service.enqueue([a_job(b"1")])
        asked = Reschedule(job.id, run_at_ms=YEAR_9999_MS, request_id="first")

        await service.call(asked)
        later = await service.call(Reschedule(job.id, run_at_ms=YEAR_9999_MS - 5))
        again = await service.call(asked)

        assert again == later
        assert await service.find(job.id) == later
        with pytest.raises(InvalidInputError, match="first"):
            await service.call(Reschedule(job.id, run_at_ms=YEAR_9999_MS - 9, request_id="first"))

    async def test_a_job_of_a_fifo_zone_keeps_its_place(self, service: QueueService) -> None:
        first, _ = await service.enqueue([a_job(b"%d" % n, zone="line", fifo=True) for n in range(2)])

        with pytest.raises(InvalidInputError, match="FIFO"):
            await service.call(Reschedule(first.id, run_at_ms=YEAR_9999_MS))
        await service.call(Reschedule(first.id, run_at_ms=1, priority=9))

        assert [job.id for job in await service.dequeue(entrypoints=None, limit=2)] == [first.id]
