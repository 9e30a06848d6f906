"""A call that is repeated under its request id acts once, and every call gets its own answer."""

from __future__ import annotations

import asyncio

import pytest

from casque.errors import InvalidInputError, LeaseLostError
from casque.service import QueueService
from casque.testing.service_suite.jobs import LARGE, a_job
from casque.types import JobState


class RequestIdTests:
    async def test_an_enqueue_that_is_repeated_adds_once(self, service: QueueService, other: QueueService) -> None:
        [first] = await service.enqueue([a_job(b"1")], request_id="same")
        before = await service.stats()

        [again] = await other.enqueue([a_job(b"1")], request_id="same")

        assert again == first
        assert await service.stats() == before

    async def test_an_enqueue_that_is_repeated_after_its_job_has_ended_shows_what_was_asked_for(
        self, service: QueueService, other: QueueService
    ) -> None:
        [first] = await service.enqueue([a_job(b"1", key="k")], request_id="same")
        await service.cancel(first.id)

        [again] = await other.enqueue([a_job(b"1", key="k")], request_id="same")

        assert (again.id, again.spec.payload) == (first.id, b"1")

    async def test_an_enqueue_that_is_repeated_does_not_show_the_job_that_held_its_key_with_its_own_payload(
        self, service: QueueService, other: QueueService
    ) -> None:
        [holder] = await service.enqueue([a_job(b"1", key="k")])
        [shown] = await service.enqueue([a_job(b"2", key="k")], request_id="same")
        await service.cancel(holder.id)

        [again] = await other.enqueue([a_job(b"2", key="k")], request_id="same")

        assert (shown.id, shown.spec.payload) == (holder.id, b"1")
        assert (again.id, again.spec.payload, again.spec.key) == (holder.id, b"", "k")
        assert (await service.stats()).totals.enqueued == 1

    async def test_a_dequeue_that_is_repeated_gives_the_same_claims(
        self, service: QueueService, other: QueueService
    ) -> None:
        await service.enqueue([a_job(b"1"), a_job(b"2")])
        first = await service.dequeue(entrypoints=None, limit=1, request_id="same")

        again = await other.dequeue(entrypoints=None, limit=1, request_id="same")

        assert again == first
        assert (await service.stats()).totals.running == 1

    async def test_verbs_that_are_repeated_act_once(self, service: QueueService) -> None:
        await service.enqueue([a_job(b"%d" % n, max_attempts=1 if n == 1 else None) for n in range(4)])
        done, dead, nacked, cancelled = await service.dequeue(entrypoints=None, limit=4)
        for _ in range(2):
            await service.ack(done.id, token=done.token, request_id="ack")
            await service.nack(dead.id, token=dead.token, request_id="die")
            await service.nack(nacked.id, token=nacked.token, delay_ms=LARGE // 2**20, request_id="nack")
            await service.cancel(cancelled.id, request_id="cancel")

        totals = (await service.stats()).totals

        assert (totals.done, totals.dead, totals.delayed, totals.cancelled) == (1, 1, 1, 1)
        for _ in range(2):
            revived = await service.retry(dead.id, request_id="retry")
            assert revived is not None
            assert revived.state is JobState.READY
        [claimed] = await service.dequeue(entrypoints=None, limit=1)
        await service.nack(claimed.id, token=claimed.token)
        for _ in range(2):
            assert await service.purge(request_id="purge") == 1

    async def test_a_request_id_of_another_verb_is_refused(self, service: QueueService) -> None:
        [job] = await service.enqueue([a_job(b"1")], request_id="same")

        with pytest.raises(InvalidInputError, match="was used before"):
            await service.cancel(job.id, request_id="same")

        assert await service.find(job.id) == job

    async def test_a_request_id_with_another_content_is_refused(self, service: QueueService) -> None:
        [job] = await service.enqueue([a_job(b"1")], request_id="same")

        with pytest.raises(InvalidInputError, match="was used before"):
            await service.enqueue([a_job(b"2")], request_id="same")

        assert (await service.stats()).totals.enqueued == 1
        assert await service.find(job.id) == job

    async def test_calls_at_the_same_moment_keep_their_own_answers(
        self, service: QueueService, other: QueueService
    ) -> None:
        async def life(one: QueueService, n: int) -> bool:
            payload = b"%d" % n
            [added] = await one.enqueue([a_job(payload, entrypoint=f"e{n}")], request_id=f"r{n}")
            [job] = await one.dequeue(entrypoints=(f"e{n}",), limit=3)
            assert job.id == added.id
            assert job.spec.payload == payload
            if n % 3:
                await one.ack(job.id, token=job.token)
                return True
            with pytest.raises(LeaseLostError) as raised:
                await one.ack(job.id, token=job.token + 1_000_000)
            assert raised.value.job_id == job.id
            return False

        done = await asyncio.gather(*(life(service if n % 2 else other, n) for n in range(300)))

        totals = (await service.stats()).totals
        assert (totals.done, totals.running) == (sum(done), 300 - sum(done))
