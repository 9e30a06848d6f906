"""Brokers of a ring that stop while callers settle: an answer is true, or it says that nobody knows."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from casque import Queue
from casque.errors import CasqueError, UnknownOutcomeError
from casque.transport.grpc.client import GrpcService
from casque.types import JobRecord, JobSpec
from tests.contract.test_service_ring_brokers import brokers

JOBS = 120


async def claimed_jobs(service: GrpcService) -> list[JobRecord]:
    await service.enqueue([JobSpec(f"job {n}", "send", b"", zone=f"zone {n}") for n in range(JOBS)])
    jobs: list[JobRecord] = []
    while len(jobs) < JOBS:
        jobs += await service.dequeue(entrypoints=None, limit=JOBS)
    return jobs


@pytest.mark.parametrize("answered", [0, 1, 10, 40])
async def test_an_ack_that_was_answered_while_all_brokers_stopped_was_carried_out(
    tmp_path: Path, answered: int
) -> None:
    """`answered`: how many acks have an answer when the last broker is asked to stop. The others look for the leaders
    of their shards, which are gone."""
    place = (tmp_path / "ring").as_uri()
    async with brokers(place, 2) as servers:
        service = GrpcService(servers[0].address)
        jobs = await claimed_jobs(service)
        heard = asyncio.Semaphore(0)

        async def ack(job: JobRecord) -> None:
            try:
                await service.ack(job.id, token=job.token)
            finally:
                heard.release()

        await servers[1].stop()
        acking = [asyncio.create_task(ack(job)) for job in jobs]
        for _ in range(answered):
            await heard.acquire()
        await servers[0].stop()
        answers = await asyncio.gather(*acking, return_exceptions=True)
        await service.close()

    assert not [one for one in answers if isinstance(one, BaseException) and not isinstance(one, CasqueError)]
    async with Queue.open(place) as queue:
        left = {job.id for job in await queue.jobs()}
    for job, answer in zip(jobs, answers, strict=True):
        if answer is None:
            assert job.id not in left, "acknowledged, and still running"
        elif not isinstance(answer, UnknownOutcomeError):
            assert job.id in left, f"refused ({answer}), and carried out"
