"""SIGTERM to all brokers of a ring while callers settle: what was acknowledged is in the bucket."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable
from pathlib import Path

import pytest

from casque import Queue
from casque.client.opening import Parts, as_store
from casque.client.queue import DEFAULTS
from casque.clock import SystemClock
from casque.errors import BrokerUnreachableError, CasqueError, UnknownOutcomeError
from casque.transport.grpc.client import GrpcService
from casque.types import JobRecord, JobSpec
from simulation.chaos.fleet import BrokerMember, Fleet, serve_arguments

JOBS = 3_000
CALLERS = 12
MOMENTS = [pytest.param(0, marks=pytest.mark.long), pytest.param(60, marks=pytest.mark.long), 200]


async def a_claim_of_all(service: GrpcService) -> list[JobRecord]:
    jobs: list[JobRecord] = []
    while len(jobs) < JOBS:
        jobs += await service.dequeue(entrypoints=("send",), limit=1000, wait_s=20)
    return jobs


async def until_led(service: GrpcService) -> None:
    """Until the broker answers for every shard."""
    while True:
        try:
            await service.stats()
            return
        except CasqueError:
            await SystemClock().sleep(0.05)


async def outcome(call: Awaitable[None]) -> BaseException | None:
    try:
        await call
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("answered", MOMENTS)
async def test_brokers_of_a_ring_that_are_told_to_stop_acknowledge_nothing_that_was_not_done(
    tmp_path: Path, answered: int
) -> None:
    """`answered`: how many acks more have an answer when the last broker gets its signal."""
    url = (tmp_path / "queue").as_uri()
    store = as_store(url)
    await Parts(store, DEFAULTS).builder().create(6)
    await store.close()
    arguments = serve_arguments(url, {}, heartbeat_s=0.4, lease_s=4)
    members = [BrokerMember(name, tmp_path, arguments) for name in ("first", "second", "third")]
    first, *others = members
    with Fleet([*members]).running():
        for member in members:
            member.start()
        for member in members:
            await member.ready()
        service = GrpcService(first.address)
        await until_led(service)
        await service.enqueue([JobSpec(f"job {n}", "send", b"", zone=f"zone {n}") for n in range(JOBS)])
        jobs = await a_claim_of_all(service)
        answers: dict[str, BaseException | None] = {}
        heard = asyncio.Semaphore(0)

        async def ack(mine: list[JobRecord]) -> None:
            """One after the other, until the broker has gone."""
            for job in mine:
                answers[job.id] = await outcome(service.ack(job.id, token=job.token))
                heard.release()
                if isinstance(answers[job.id], BrokerUnreachableError):
                    return

        acking = [asyncio.create_task(ack(jobs[n::CALLERS])) for n in range(CALLERS)]
        await heard.acquire()
        # The others leave first. Their shards have no leader then: the last one takes no more of them.
        for member in others:
            member.signal(signal.SIGTERM)
        for _ in range(answered):
            await heard.acquire()
        first.signal(signal.SIGTERM)
        await asyncio.gather(*acking)
        await service.close()
        for member in members:
            assert await member.ended(within_s=40) == 0, member.last_words()

    assert not [one for one in answers.values() if isinstance(one, BaseException) and not isinstance(one, CasqueError)]
    async with Queue.open(url) as queue:
        left = {job.id for job in await queue.jobs()}
    for job_id, answer in answers.items():
        if answer is None:
            assert job_id not in left, "acknowledged, and still running"
        elif not isinstance(answer, UnknownOutcomeError):
            assert job_id in left, f"refused ({answer}), and carried out"
