"""Queues and entrypoints are paused, drained and opened."""

from __future__ import annotations

import asyncio

import pytest

from casque.errors import InvalidInputError, QueueDrainingError
from casque.service import QueueService
from casque.testing.service_suite.jobs import LONG_S, a_job, assert_same
from casque.types import Gate, Gates


class GateTests:
    async def test_nothing_of_a_paused_queue_is_claimed_until_it_is_resumed(
        self, service: QueueService, other: QueueService
    ) -> None:
        await service.set_gate(Gate.PAUSED)
        await other.enqueue([a_job(b"1")])
        waiting = asyncio.ensure_future(other.dequeue(entrypoints=None, limit=1, wait_s=LONG_S))

        assert await service.dequeue(entrypoints=("task",), limit=1) == []
        assert (await other.stats()).gates == Gates(Gate.PAUSED)
        assert not waiting.done()
        await service.set_gate(Gate.OPEN)

        [job] = await waiting
        assert job.spec.payload == b"1"
        assert (await service.stats()).gates == Gates()

    async def test_one_entrypoint_is_paused_and_the_others_go_on(self, service: QueueService) -> None:
        await service.enqueue([a_job(b"1", entrypoint="mail"), a_job(b"2", entrypoint="fax"), a_job(b"3")])
        await service.set_gate(Gate.PAUSED, entrypoint="mail")
        await service.set_gate(Gate.PAUSED, entrypoint="fax")
        assert (await service.stats()).gates == Gates(entrypoints={"mail": Gate.PAUSED, "fax": Gate.PAUSED})

        [task] = await service.dequeue(entrypoints=None, limit=10)
        assert task.spec.payload == b"3"
        assert await service.dequeue(entrypoints=("mail", "fax"), limit=10) == []
        await service.set_gate(Gate.OPEN, entrypoint="mail")
        [mail] = await service.dequeue(entrypoints=("mail", "fax"), limit=10)
        assert mail.spec.payload == b"1"
        await service.ack(mail.id, token=mail.token)

    async def test_a_queue_that_is_drained_takes_no_jobs_and_loses_none(self, service: QueueService) -> None:
        await service.enqueue([a_job(b"1", key="once")])
        await service.set_gate(Gate.DRAINING)

        with pytest.raises(QueueDrainingError) as raised:
            await service.enqueue([a_job(b"2")])
        assert_same(raised.value, QueueDrainingError())
        [held] = await service.enqueue([a_job(b"3", key="once")])
        assert held.spec.payload == b"1", "which adds nothing"
        [job] = await service.dequeue(entrypoints=None, limit=10)
        await service.ack(job.id, token=job.token)
        await service.set_gate(Gate.DRAINING)
        assert (await service.stats()).gates == Gates(Gate.DRAINING)
        await service.set_gate(Gate.OPEN)
        await service.enqueue([a_job(b"4")])

    async def test_one_job_of_an_entrypoint_that_is_drained_refuses_them_all(self, service: QueueService) -> None:
        await service.set_gate(Gate.DRAINING, entrypoint="mail")

        with pytest.raises(QueueDrainingError) as raised:
            await service.enqueue([a_job(b"1"), a_job(b"2", entrypoint="mail")])

        assert_same(raised.value, QueueDrainingError("mail"))
        assert (await service.stats()).totals.enqueued == 0
        await service.enqueue([a_job(b"1")])

    async def test_a_gate_that_is_asked_for_again_is_not_set_again(
        self, service: QueueService, other: QueueService
    ) -> None:
        await service.set_gate(Gate.PAUSED, request_id="gate-1")
        await service.set_gate(Gate.OPEN)

        await other.set_gate(Gate.PAUSED, request_id="gate-1")

        assert (await service.stats()).gates == Gates()
        with pytest.raises(InvalidInputError):
            await service.purge(request_id="gate-1")
