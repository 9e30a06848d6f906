"""SIGTERM and SIGINT to a leader at work: everybody has an answer, the queue is nobody's, and the next one leads."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from casque import Queue
from casque.errors import CasqueError, UnknownOutcomeError
from casque.transport.grpc.client import GrpcService
from casque.types import JobSpec
from simulation.chaos.failover import next_leader, one_stands_by
from simulation.chaos.fleet import BrokerMember, Fleet, serve_arguments

CALLERS = 300


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_leader_that_is_asked_to_go_answers_everybody_and_leaves_the_queue_to_the_next(
    tmp_path: Path, number: signal.Signals
) -> None:
    url = (tmp_path / "queue").as_uri()
    arguments = serve_arguments(url, {}, heartbeat_s=2, lease_s=8)
    first, second = (BrokerMember(name, tmp_path, arguments) for name in ("first", "second"))
    with Fleet([first, second]).running():
        first.start()
        await next_leader([first])
        second.start()
        await one_stands_by([second])
        service = GrpcService(first.address)
        waiting = asyncio.create_task(service.dequeue(entrypoints=("nothing",), limit=1, wait_s=50))
        await service.stats()  # on the same connection: the broker has the call before it
        calls = [asyncio.create_task(service.enqueue([JobSpec(f"job {n}", "send", b"")])) for n in range(CALLERS)]
        await calls[0]

        first.signal(number)

        assert await waiting == [], "whoever waits for a job hears that there is none"
        answers = await asyncio.gather(*calls, return_exceptions=True)
        code = await first.ended(within_s=30)
        await service.close()
        assert code == 0, first.last_words()
        # Done, or refused: with a clean stop there is nothing in between.
        assert not [answer for answer in answers if isinstance(answer, UnknownOutcomeError)]
        assert not [a for a in answers if isinstance(a, BaseException) and not isinstance(a, CasqueError)]
        done = {f"job {n}" for n, answer in enumerate(answers) if not isinstance(answer, BaseException)}

        # Long before the lease would be over.
        async with asyncio.timeout(6):
            await next_leader([second])
        async with Queue.open(f"grpc://{second.address}") as queue:
            assert {job.id for job in await queue.jobs()} == done

        second.signal(number)
        assert await second.ended(within_s=30) == 0, second.last_words()
    head = json.loads((tmp_path / "queue" / "queue.json").read_bytes())
    assert (head["mode"], head.get("owner")) == ("open", None)
    async with Queue.open(url) as embedded:
        assert (await embedded.stats()).totals.ready == len(done)
        await embedded.enqueue("send", b"nobody leads, so anybody may write")
