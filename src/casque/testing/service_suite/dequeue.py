"""Claims: which jobs, in which order, and how callers wait for them."""

from __future__ import annotations

import asyncio

import pytest

from casque.errors import LeaseLostError
from casque.service import QueueService
from casque.testing.service_suite.jobs import LONG_S, a_job
from casque.types import JobState


class DequeueTests:
    # --- Dequeue ---

    async def test_an_empty_queue_answers_at_once(self, service: QueueService) -> None:
        before = await service.stats()

        assert await service.dequeue(entrypoints=None, limit=10) == []
        assert await service.dequeue(entrypoints=("send",), limit=1, request_id="r") == []

        assert await service.stats() == before

    async def test_a_claim_has_a_lease(self, service: QueueService) -> None:
        [added] = await service.enqueue([a_job(b"1")])

        [claimed] = await service.dequeue(entrypoints=("task",), limit=5, lease_ms=12_345, worker="w-1")

        assert claimed.spec == added.spec
        assert claimed.state is JobState.RUNNING
        assert (claimed.token, claimed.attempts, claimed.worker, claimed.lease_ms) == (1, 1, "w-1", 12_345)
        assert claimed.claimed_ms == claimed.beat_ms is not None
        assert await service.find(added.id) == claimed

    async def test_jobs_come_by_priority_and_then_in_order(self, service: QueueService) -> None:
        await service.enqueue([a_job(b"c", priority=5), a_job(b"a", priority=-1), a_job(b"b"), a_job(b"d", priority=5)])

        claimed = await service.dequeue(entrypoints=None, limit=10)

        assert [job.spec.payload for job in claimed] == [b"a", b"b", b"c", b"d"]

    async def test_only_the_entrypoints_that_were_asked_for(self, service: QueueService) -> None:
        await service.enqueue([a_job(name.encode(), entrypoint=name) for name in ("a", "b", "c", "a")])

        both = await service.dequeue(entrypoints=("c", "a"), limit=2)
        none = await service.dequeue(entrypoints=("d",), limit=2)

        assert [job.spec.entrypoint for job in both] == ["a", "c"]
        assert none == []
        assert (await service.stats()).totals.ready == 2

    async def test_no_job_is_claimed_twice(self, service: QueueService, other: QueueService) -> None:
        await service.enqueue([a_job(b"%d" % n) for n in range(200)])

        claims = await asyncio.gather(
            *(one.dequeue(entrypoints=None, limit=3) for _ in range(40) for one in (service, other))
        )

        claimed = [job.id for jobs in claims for job in jobs]
        assert len(claimed) == len(set(claimed)) == 200
        tokens = [job.token for jobs in claims for job in jobs]
        assert len(set(tokens)) == 200

    async def test_a_lease_that_ran_out_goes_to_the_next_worker(self, service: QueueService) -> None:
        await service.enqueue([a_job(b"1")])
        [lost] = await service.dequeue(entrypoints=None, limit=1, lease_ms=20, worker="sleeper")

        [claimed] = await service.dequeue(entrypoints=None, limit=1, worker="next", wait_s=LONG_S)

        assert (claimed.id, claimed.worker, claimed.attempts) == (lost.id, "next", 2)
        assert claimed.token > lost.token
        with pytest.raises(LeaseLostError) as raised:
            await service.ack(lost.id, token=lost.token)
        assert (raised.value.job_id, raised.value.token) == (lost.id, lost.token)
        assert await service.find(lost.id) == claimed

    # --- Waiting ---

    async def test_a_waiting_dequeue_gets_the_job_that_comes(self, service: QueueService, other: QueueService) -> None:
        waiting = asyncio.create_task(service.dequeue(entrypoints=("send",), limit=10, wait_s=LONG_S, worker="w"))
        await other.enqueue([a_job(b"not this one")])

        await other.enqueue([a_job(b"this one", entrypoint="send")])

        [claimed] = await waiting
        assert (claimed.spec.payload, claimed.worker) == (b"this one", "w")

    async def test_a_wait_ends_empty(self, service: QueueService) -> None:
        before = await service.stats()

        assert await service.dequeue(entrypoints=None, limit=1, wait_s=0.03) == []

        assert await service.stats() == before

    async def test_those_who_wait_do_not_hold_up_others(self, service: QueueService) -> None:
        waiting = [
            asyncio.create_task(service.dequeue(entrypoints=("rare",), limit=1, wait_s=LONG_S)) for _ in range(50)
        ]
        for n in range(20):
            await service.enqueue([a_job(b"%d" % n)])
            [job] = await service.dequeue(entrypoints=("task",), limit=1)
            await service.ack(job.id, token=job.token)
        await service.enqueue([a_job(b"%d" % n, entrypoint="rare") for n in range(50)])

        claims = await asyncio.gather(*waiting)

        assert len({job.id for [job] in claims}) == 50
        assert (await service.stats()).totals.done == 20

    async def test_a_caller_that_leaves_takes_no_job(self, service: QueueService, other: QueueService) -> None:
        leaver = asyncio.create_task(service.dequeue(entrypoints=None, limit=1, wait_s=LONG_S, worker="leaver"))
        await service.stats()  # whatever was asked before this has been taken in
        leaver.cancel()
        await asyncio.wait([leaver])
        assert leaver.cancelled()

        stays = asyncio.create_task(other.dequeue(entrypoints=None, limit=1, wait_s=LONG_S, worker="stays"))
        await other.enqueue([a_job(b"1")])

        [claimed] = await stays
        assert claimed.worker == "stays"
        assert claimed.attempts == 1

    async def test_a_caller_that_leaves_at_the_last_moment_gives_its_job_back(
        self, service: QueueService, other: QueueService
    ) -> None:
        for n in range(20):
            leaver = asyncio.create_task(service.dequeue(entrypoints=None, limit=1, wait_s=LONG_S))
            await service.stats()
            adding = asyncio.create_task(other.enqueue([a_job(b"%d" % n)]))
            if n % 2:
                await adding  # the claim was made in the same commit, and may be on its way
            leaver.cancel()
            await asyncio.wait([leaver, adding])
            if not leaver.cancelled():
                [job] = leaver.result()
            else:
                [job] = await other.dequeue(entrypoints=None, limit=1, wait_s=LONG_S)
                assert job.attempts == 1
            await other.ack(job.id, token=job.token)

        assert (await service.stats()).totals.done == 20
