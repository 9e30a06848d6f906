"""Events as they happen, and the archive of finished jobs."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from casque.service import EventKind, QueueEvent, QueueService
from casque.testing.hosting import leading
from casque.testing.service_suite.jobs import LONG_S, UNICODE, YEAR_9999_MS, a_claim, a_job, about_jobs
from casque.types import Ending, JobRecord, JobState


class HistoryTests:
    # --- Events ---

    async def test_events_tell_what_happened(self, service: QueueService) -> None:
        job = await a_claim(service, b"\0\xff", headers={"a": "b"}, tags=("t", "u"))
        await service.ack(job.id, token=job.token, result=b"\xfe", request_id="r-1")

        every = [event async for event in service.events(from_position=0, follow=False)]
        # A service that follows leaders gives every call an id, and those are remembered too.
        found = [event for event in every if event.job_id is not None or event.fields["request_id"] == "r-1"]

        kinds = [event.kind for event in found]
        assert kinds == [EventKind.ADDED, EventKind.CLAIMED, EventKind.ACKED, EventKind.REMEMBERED]
        added, claimed, acked, remembered = found
        assert added.job_id == claimed.job_id == acked.job_id == job.id
        assert remembered.job_id is None
        assert added.fields["payload"] == b"\0\xff"
        assert added.fields["headers"] == {"a": "b"}
        assert added.fields["tags"] == ("t", "u")
        assert claimed.fields["token"] == job.token
        assert acked.fields["result"] == b"\xfe"
        assert remembered.fields["request_id"] == "r-1"
        assert remembered.fields["jobs"] == ()
        assert [event.at.utcoffset() for event in found] == [added.at.utcoffset()] * 4
        assert (added.at.timestamp() * 1000) == pytest.approx(job.created_ms)
        assert [(e.position, e.index) for e in found] == sorted((e.position, e.index) for e in found)

    async def test_events_go_on_where_a_reader_stopped(self, service: QueueService) -> None:
        for n in range(5):
            await service.enqueue([a_job(b"%d" % n), a_job(b"%d" % n)])
        whole = await about_jobs(service, 0)

        assert await about_jobs(service, whole[3].position) == whole[4:]
        assert len(whole) == 10
        end = whole[-1].position
        assert [event async for event in service.events(from_position=end, follow=False)] == []

    async def test_many_events_come_whole_and_in_order(self, service: QueueService) -> None:
        for _ in range(3):
            await service.enqueue([a_job(b"x" * 200) for _ in range(1000)])

        found = await about_jobs(service, 0)

        assert [event.fields["sequence"] for event in found] == list(range(1, 3001))

    async def test_a_follower_hears_of_what_others_do(self, service: QueueService, other: QueueService) -> None:
        seen: asyncio.Queue[QueueEvent] = asyncio.Queue()

        async def follow() -> None:
            async with aclosing(service.events(from_position=0)) as events:
                async for event in events:
                    if event.job_id is not None:
                        seen.put_nowait(event)

        following = asyncio.create_task(follow())
        for n in range(3):
            [job] = await other.enqueue([a_job(b"%d" % n)])
            assert (await seen.get()).job_id == job.id
        following.cancel()
        await asyncio.wait([following])
        assert following.cancelled()
        await service.stats()  # it left nothing broken behind

    # --- The archive ---

    @pytest_asyncio.fixture
    async def finished(self, place: str) -> list[JobRecord]:
        """Jobs that were done, dead and cancelled before anybody here opened the queue: they are in the archive."""
        async with leading(place) as host:
            queue = host.queue
            await queue.enqueue([a_job(b"\0\xff", headers={"a": UNICODE}, zone="z", key="k", priority=-7)])
            [done] = await queue.dequeue(entrypoints=None, limit=1, worker="w-1")
            await queue.ack(done.id, token=done.token, result=bytes(range(256)))
            await queue.enqueue([a_job(b"2", entrypoint="other", max_attempts=2)])
            [dead] = await queue.dequeue(entrypoints=None, limit=1, worker="w-2")
            await queue.nack(dead.id, token=dead.token, error="bang")
            [dead] = await queue.dequeue(entrypoints=None, limit=1, worker="w-2", wait_s=LONG_S)
            await queue.nack(dead.id, token=dead.token, error="boom")
            [cancelled] = await queue.enqueue([a_job(b"3", run_at_ms=YEAR_9999_MS)])
            await queue.cancel(cancelled.id)
            return [done, dead, cancelled]

    async def test_the_archive_has_what_is_finished(self, finished: list[JobRecord], service: QueueService) -> None:
        done, dead, cancelled = [job async for job in service.archive()]

        assert [done.id, dead.id, cancelled.id] == [job.id for job in finished]
        assert [done.state, dead.state, cancelled.state] == [JobState.DONE, JobState.DEAD, JobState.CANCELLED]
        assert (done.payload, done.result, done.worker) == (b"\0\xff", bytes(range(256)), "w-1")
        assert (done.headers, done.zone, done.key, done.priority) == ({"a": UNICODE}, "z", "k", -7)
        assert (dead.error, dead.attempts, dead.entrypoint) == ("boom", 2, "other")
        [tried] = dead.tries
        assert (tried.how, tried.error, tried.worker, tried.token) == (Ending.FAILED, "bang", "w-2", dead.token - 1)
        assert tried.claimed_at is not None
        assert dead.claimed_at is not None
        assert dead.created_at <= tried.claimed_at <= tried.ended_at <= dead.claimed_at <= dead.finished_at
        assert done.tries == cancelled.tries == ()
        assert [done.waiting, dead.waiting, cancelled.waiting] == [False, False, True]
        assert (cancelled.result, cancelled.worker, cancelled.claimed_at) == (None, None, None)
        assert cancelled.run_at is not None
        assert cancelled.run_at.year == 9999
        assert done.claimed_at is not None
        assert done.created_at <= done.claimed_at <= done.finished_at <= dead.finished_at
        assert done.position < dead.position < cancelled.position

    async def test_the_archive_is_read_by_time_state_and_entrypoint(
        self, finished: list[JobRecord], service: QueueService
    ) -> None:
        whole = [job async for job in service.archive()]
        assert len(whole) == len(finished)
        last = max(job.finished_at for job in whole)
        hour = timedelta(hours=1)

        async def ids(**chosen: Any) -> list[str]:
            return [job.id async for job in service.archive(**chosen)]

        done, dead, cancelled = (job.id for job in whole)
        assert await ids(states=frozenset({JobState.DEAD, JobState.CANCELLED})) == [dead, cancelled]
        assert await ids(states=frozenset()) == []
        assert await ids(entrypoint="other") == [dead]
        assert await ids(entrypoint="task", states=frozenset({JobState.DONE})) == [done]
        assert await ids(since=last) == [job.id for job in whole if job.finished_at == last]
        assert await ids(until=last) == [job.id for job in whole if job.finished_at < last]
        assert await ids(since=last - hour, until=last + hour) == [done, dead, cancelled]
        assert await ids(since=last + hour) == await ids(until=last - hour) == []
