"""Leases of jobs: renewed by heartbeats, given back, taken back, and refused by an old token."""

from __future__ import annotations

import msgspec
import pytest

from casque.errors import JobNotFoundError, LeaseLostError
from casque.service import Lease, QueueService
from casque.testing.service_suite.jobs import UNICODE, a_claim, a_job, assert_same
from casque.types import Ending, JobRecord, JobSpec, JobState, Progress


class LeaseTests:
    async def test_a_heartbeat_renews_the_lease(self, service: QueueService) -> None:
        job = await a_claim(service)

        beaten = await service.heartbeat(job.id, token=job.token)
        again = await service.heartbeat(job.id)

        assert beaten.token == again.token == job.token
        assert job.beat_ms is not None
        assert beaten.beat_ms is not None
        assert again.beat_ms is not None
        assert job.beat_ms < beaten.beat_ms < again.beat_ms
        assert await service.find(job.id) == again

    async def test_many_heartbeats_have_an_answer_each(self, service: QueueService) -> None:
        first, second = await a_claim(service), await a_claim(service)
        [waits] = await service.enqueue([a_job(b"")])

        answers = await service.heartbeats(
            [
                Lease(first.id, first.token),
                Lease("no-such-job", 7),
                Lease(second.id, second.token + 100),
                Lease(second.id),
                Lease(waits.id, None),
            ]
        )

        beaten, missing, stolen, by_id, unclaimed = answers
        assert isinstance(beaten, JobRecord)
        assert beaten == await service.find(first.id)
        assert_same(missing, JobNotFoundError("no-such-job"))
        assert_same(stolen, LeaseLostError(second.id, second.token + 100))
        assert isinstance(by_id, JobRecord)
        assert by_id == await service.find(second.id)
        assert_same(unclaimed, LeaseLostError(waits.id, None))
        assert await service.heartbeats([]) == []

    async def test_a_heartbeat_may_say_how_far_the_work_has_come(self, service: QueueService) -> None:
        job = await a_claim(service)

        [told] = await service.heartbeats([Lease(job.id, job.token, Progress(40, 100, "pages"))])
        [silent] = await service.heartbeats([Lease(job.id, job.token)])

        assert isinstance(told, JobRecord)
        assert isinstance(silent, JobRecord)
        assert told.progress == silent.progress == Progress(40, 100, "pages")
        assert await service.find(job.id) == silent
        await service.nack(job.id, token=job.token, delay_ms=0)
        [again] = await service.dequeue(entrypoints=None, limit=1, wait_s=60)
        assert (again.id, again.progress) == (job.id, None)

    async def test_a_claim_that_is_given_back_did_not_happen(self, service: QueueService) -> None:
        job = await a_claim(service)

        await service.give_back(job.id, token=job.token)
        await service.give_back(job.id, token=job.token)
        await service.give_back("no-such-job", token=1)

        [again] = await service.dequeue(entrypoints=None, limit=1)
        assert (again.id, again.attempts) == (job.id, 1)
        assert again.token > job.token

    @pytest.mark.parametrize("verb", ["ack", "nack", "heartbeat", "cancel", "retry"])
    async def test_a_job_that_is_not_there_is_named(self, service: QueueService, verb: str) -> None:
        before = await service.stats()

        with pytest.raises(JobNotFoundError) as raised:
            await getattr(service, verb)(UNICODE)

        assert_same(raised.value, JobNotFoundError(UNICODE))
        assert await service.stats() == before

    @pytest.mark.parametrize("verb", ["ack", "nack", "heartbeat"])
    async def test_an_old_token_is_refused_and_changes_nothing(self, service: QueueService, verb: str) -> None:
        job = await a_claim(service)
        before = await service.stats()

        with pytest.raises(LeaseLostError) as raised:
            await getattr(service, verb)(job.id, token=job.token + 1)

        assert_same(raised.value, LeaseLostError(job.id, job.token + 1))
        assert await service.stats() == before
        assert await service.find(job.id) == job

    async def test_running_jobs_without_a_sign_of_life_are_taken_back_by_their_age(self, service: QueueService) -> None:
        specs = [JobSpec("", "mail", b""), JobSpec("", "task", b"", zone="acme"), JobSpec("", "task", b"")]
        added = await service.enqueue([msgspec.structs.replace(one, id=f"stale-{n}") for n, one in enumerate(specs)])
        claimed = [job for _ in added for job in await service.dequeue(entrypoints=None, limit=1, worker="w1")]
        assert len(claimed) == 3

        assert await service.requeue_stale(3_600_000) == 0
        assert await service.requeue_stale(0, zone="acme", entrypoint="mail") == 0
        assert await service.requeue_stale(0, zone="acme", request_id="back") == 1
        assert await service.requeue_stale(0, zone="acme", request_id="back") == 1, "the same answer"
        assert await service.requeue_stale(0, entrypoint="task") == 1
        running = await service.jobs(states=frozenset({JobState.RUNNING}))
        assert [job.spec.entrypoint for job in running] == ["mail"]
        old = next(job for job in claimed if job.spec.zone == "acme")
        found = await service.find(old.id)
        assert found is not None
        assert [tried.how for tried in found.tries] == [Ending.EXPIRED]
        with pytest.raises(LeaseLostError):
            await service.ack(old.id, token=old.token)
