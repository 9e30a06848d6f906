"""Cancel, retry, purge, decline, and look at jobs and their numbers."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from casque.errors import DuplicateKeyError, JobNotFoundError, JobStateError
from casque.service import Outcome, OutcomeKind, QueueService
from casque.state.settling import DECLINES_MAX
from casque.testing.service_suite.jobs import LARGE, LONG_S, YEAR_9999_MS, a_claim, a_dead_job, a_job, assert_same
from casque.types import JobSpec, JobState


class ManageTests:
    async def test_a_cancelled_job_is_gone(self, service: QueueService) -> None:
        [waits] = await service.enqueue([a_job(b"1")])
        await service.cancel(waits.id)
        runs = await a_claim(service)
        await service.cancel(runs.id)

        assert await service.jobs() == []
        assert (await service.stats()).totals.cancelled == 2
        with pytest.raises(JobNotFoundError):
            await service.ack(runs.id, token=runs.token)

    async def test_a_dead_job_cannot_be_cancelled(self, service: QueueService) -> None:
        dead = await a_dead_job(service)

        with pytest.raises(JobStateError) as raised:
            await service.cancel(dead.id)

        assert_same(raised.value, JobStateError(dead.id, "dead", "waiting or running"))
        assert await service.find(dead.id) == dead

    async def test_a_dead_job_gets_fresh_attempts(self, service: QueueService) -> None:
        dead = await a_dead_job(service)

        revived = await service.retry(dead.id)

        assert revived is not None
        assert (revived.state, revived.attempts) == (JobState.READY, 0)
        with pytest.raises(JobStateError) as raised:
            await service.retry(dead.id)
        assert_same(raised.value, JobStateError(dead.id, "ready", "dead"))

    async def test_a_dead_job_whose_key_is_held_stays_dead(self, service: QueueService) -> None:
        dead = await a_dead_job(service, key="k")
        [holder] = await service.enqueue([a_job(b"2", key="k")])

        with pytest.raises(DuplicateKeyError) as raised:
            await service.retry(dead.id)

        assert_same(raised.value, DuplicateKeyError("k", holder.id))
        assert await service.find(dead.id) == dead

    async def test_purging_removes_dead_jobs_for_good(self, service: QueueService) -> None:
        dead = await a_dead_job(service)
        await a_dead_job(service, entrypoint="other")
        [waits] = await service.enqueue([a_job(b"1")])

        assert await service.purge(entrypoint="task") == 1
        assert await service.find(dead.id) is None
        assert await service.purge() == 1
        assert await service.purge() == 0
        assert await service.jobs() == [waits]

    async def test_dead_is_dead_now_and_all_counts_add_up(self, service: QueueService) -> None:
        async def counts() -> tuple[int, int, int]:
            found = (await service.stats()).totals
            parts = (found.ready, found.delayed, found.running, found.done, found.dead, found.cancelled, found.purged)
            assert found.enqueued == sum(parts)
            return found.enqueued, found.dead, found.purged

        retried, purged = await a_dead_job(service), await a_dead_job(service)
        assert await counts() == (2, 2, 0)
        await service.retry(retried.id)
        assert await counts() == (2, 1, 0)
        assert await service.purge() == 1
        assert await counts() == (2, 0, 1)
        again = await a_dead_job(service)
        assert {job.id for job in await service.jobs(states=frozenset({JobState.DEAD}))} == {again.id}
        assert again.id != purged.id
        assert await counts() == (3, 1, 1)

    async def test_purging_may_be_for_one_zone(self, service: QueueService) -> None:
        await a_dead_job(service, zone="acme")
        await a_dead_job(service, zone="acme", entrypoint="other")
        others = [await a_dead_job(service, zone="umbrella"), await a_dead_job(service)]

        assert await service.purge(zone="no-such-zone") == 0
        assert await service.purge(zone="acme", entrypoint="other") == 1
        assert await service.purge(zone="acme", request_id="purge-acme") == 1
        assert await service.purge(zone="acme", request_id="purge-acme") == 1
        left = await service.jobs()
        assert sorted(left, key=lambda job: job.id) == sorted(others, key=lambda job: job.id)  # shards take turns

    async def test_a_job_that_workers_do_not_understand_waits_for_others_and_is_dead_after_too_many(
        self, service: QueueService
    ) -> None:
        [added] = await service.enqueue([JobSpec("declined-1", "task", b"", max_attempts=1, max_crashes=1)])
        for count in range(1, DECLINES_MAX + 1):
            async with asyncio.timeout(30):
                [job] = await service.dequeue(entrypoints=("task",), limit=1, wait_s=LONG_S)
            assert job.declined == count - 1
            declined = Outcome(job.id, job.token, "no cc", delay_ms=0, how=OutcomeKind.DECLINED)
            [refused] = await service.settle([declined])
            assert refused is None
        found = await service.find(added.id)
        assert found is not None
        assert (found.state, found.crashes) == (JobState.DEAD, 0)
        assert (found.error or "").startswith(f"no worker understood it: {DECLINES_MAX} claims were given back")
        assert (found.error or "").endswith("no cc")

        revived = await service.retry(added.id)
        assert revived is not None
        assert (revived.attempts, revived.declined) == (0, 0)

    async def test_a_declined_job_says_why_and_waits_without_an_attempt(self, service: QueueService) -> None:
        [added] = await service.enqueue([JobSpec("declined-2", "task", b"")])
        [job] = await service.dequeue(entrypoints=("task",), limit=1)
        await service.settle([Outcome(job.id, job.token, "no cc", how=OutcomeKind.DECLINED)])
        found = await service.find(added.id)
        assert found is not None
        assert (found.state, found.attempts, found.declined, found.error) == (JobState.DELAYED, 0, 1, "no cc")
        assert found.tries == ()

    async def test_a_job_that_was_never_there_is_not_found(self, service: QueueService) -> None:
        assert await service.find("no-such-job") is None

    async def test_a_listing_is_by_state_and_entrypoint(self, service: QueueService) -> None:
        dead = await a_dead_job(service, entrypoint="b")
        [runs] = [await a_claim(service)]
        [ready, later] = await service.enqueue([a_job(b"1", entrypoint="b"), a_job(b"2", run_at_ms=YEAR_9999_MS)])

        assert await service.jobs() == [dead, runs, ready, later]
        assert await service.jobs(states=frozenset({JobState.DEAD, JobState.DELAYED})) == [dead, later]
        assert await service.jobs(states=frozenset({JobState.RUNNING}), entrypoint="task") == [runs]
        assert await service.jobs(entrypoint="b") == [dead, ready]
        assert await service.jobs(states=frozenset()) == []
        assert await service.jobs(entrypoint="c") == []

    async def test_a_listing_can_be_read_page_by_page(self, service: QueueService) -> None:
        added = list(await service.enqueue([a_job(b"%d" % n) for n in range(10)]))
        await service.cancel(added[4].id)

        first = await service.jobs(limit=4)
        second = await service.jobs(limit=4, after=first[-1].sequence)
        third = await service.jobs(limit=4, after=second[-1].sequence)

        assert first + second + third == added[:4] + added[5:]
        assert await service.jobs(after=added[-1].sequence) == []
        assert await service.jobs(after=LARGE) == []

    async def test_a_long_listing_comes_whole(self, service: QueueService) -> None:
        added = [
            job
            for _ in range(5)
            for job in await service.enqueue([a_job(b"x" * 100) for _ in range(1000)])
        ]  # fmt: skip

        assert await service.jobs() == added

    async def test_stats_count_every_state(self, service: QueueService) -> None:
        empty = await service.stats()
        assert empty.totals.enqueued == 0
        await a_dead_job(service)
        await a_claim(service)
        await service.enqueue([a_job(b"1"), a_job(b"2", run_at_ms=YEAR_9999_MS)])

        stats = await service.stats()

        totals = msgspec.structs.asdict(stats.totals)
        assert totals == {
            "enqueued": 4, "ready": 1, "delayed": 1, "running": 1, "done": 0, "dead": 1, "cancelled": 0, "purged": 0,
        }  # fmt: skip
        assert stats.position > empty.position
