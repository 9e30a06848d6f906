"""Jobs go in as they were asked for, in order, byte for byte, and once for each key."""

from __future__ import annotations

import pytest

from casque.clock import Random, new_id, system_random
from casque.errors import InvalidInputError
from casque.service import QueueService
from casque.testing.service_suite.jobs import LARGE, UNICODE, YEAR_9999_MS, a_job
from casque.types import JobSpec, JobState


class EnqueueTests:
    async def test_an_added_job_is_what_was_asked_for(self, service: QueueService) -> None:
        spec = JobSpec(
            new_id(system_random()),
            "send",
            b"hello",
            priority=-3,
            run_at_ms=YEAR_9999_MS,
            max_attempts=4,
            key="welcome/7",
            headers={"trace": "00-ab", "": "empty name"},
            zone="acme",
            tags=("urgent", "grüße 🚀"),
        )

        [added] = await service.enqueue([spec], request_id="r-1")

        assert added.spec == spec
        assert added.state is JobState.DELAYED
        assert added.due_ms == YEAR_9999_MS
        assert (added.sequence, added.token, added.attempts) == (1, 0, 0)
        assert (added.worker, added.claimed_ms, added.beat_ms, added.error) == (None, None, None, None)
        assert await service.find(spec.id) == added

    async def test_tags_are_shown_wherever_a_job_is(self, service: QueueService) -> None:
        tags = ("urgent", "grüße 🚀", "billing")
        [added, _] = await service.enqueue([a_job(b"1", tags=tags), a_job(b"2")])

        assert [job.spec.tags for job in await service.jobs()] == [tags, ()]
        [claimed] = await service.dequeue(entrypoints=None, limit=1)
        assert (claimed.id, claimed.spec.tags) == (added.id, tags)
        assert (await service.heartbeat(claimed.id, token=claimed.token)).spec.tags == tags

    async def test_a_job_that_expires_says_so_and_ends_when_its_time_is_up(self, service: QueueService) -> None:
        [lasts, ends] = await service.enqueue([a_job(b"1", expires_ms=3_600_000), a_job(b"2", expires_ms=1)])
        assert (lasts.spec.expires_ms, ends.spec.expires_ms) == (3_600_000, 1)

        while await service.find(ends.id) is not None:
            pass  # the queue cancels it without being asked for jobs

        assert (await service.stats()).totals.cancelled == 1
        claimed = await service.dequeue(entrypoints=None, limit=2)
        assert [(job.id, job.spec.expires_ms) for job in claimed] == [(lasts.id, 3_600_000)]

    async def test_jobs_of_one_call_are_added_in_order(self, service: QueueService) -> None:
        specs = [a_job(b"%d" % n) for n in range(25)]

        added = await service.enqueue(specs)

        assert [job.spec for job in added] == specs
        assert [job.sequence for job in added] == list(range(1, 26))
        assert await service.jobs() == list(added)

    async def test_a_thousand_jobs_go_in_one_call_and_come_out_in_order(self, service: QueueService) -> None:
        specs = [a_job(b"%d" % n) for n in range(1000)]
        await service.enqueue(specs)

        claimed = await service.dequeue(entrypoints=("task",), limit=1000)

        assert [job.spec for job in claimed] == specs

    async def test_no_jobs_are_no_commit(self, service: QueueService) -> None:
        before = await service.stats()

        assert list(await service.enqueue([])) == []

        assert await service.stats() == before

    async def test_a_key_that_is_held_gives_the_job_that_holds_it(self, service: QueueService) -> None:
        [holder] = await service.enqueue([a_job(b"first", key="k")])

        [again, beside] = await service.enqueue([a_job(b"second", key="k"), a_job(b"third")])

        assert again == holder
        assert beside.spec.payload == b"third"
        assert len(await service.jobs()) == 2

    async def test_an_id_may_be_chosen_and_is_free_again_when_its_job_has_finished(self, service: QueueService) -> None:
        chosen = "mail/17 größe"
        [there] = await service.enqueue([a_job(b"first", id=chosen)])
        assert there.id == chosen
        assert await service.find(chosen) == there
        [claimed] = await service.dequeue(entrypoints=None, limit=1)
        await service.ack(chosen, token=claimed.token)

        assert await service.find(chosen) is None
        [again] = await service.enqueue([a_job(b"second", id=chosen)])
        assert (again.id, again.spec.payload) == (chosen, b"second")

    async def test_an_id_that_is_taken_is_refused_and_nothing_is_added(self, service: QueueService) -> None:
        [there] = await service.enqueue([a_job(b"first")])
        before = await service.stats()

        with pytest.raises(InvalidInputError, match="already in the queue"):
            await service.enqueue([a_job(b"fresh"), a_job(b"second", id=there.id)])

        assert await service.stats() == before
        assert await service.jobs() == [there]

    @pytest.mark.parametrize(
        "payload",
        [
            b"",
            b"\0",
            bytes(range(256)),
            UNICODE.encode(),
            b"\xff\xfe\xfd",
            Random(1).randbytes(200_000),
            Random(2).randbytes(3_000_000),
        ],
        ids=["empty", "zero", "every byte", "unicode", "not text", "200 kB", "3 MB"],
    )
    async def test_payloads_come_back_byte_for_byte(self, service: QueueService, payload: bytes) -> None:
        [added] = await service.enqueue([a_job(payload)])

        [claimed] = await service.dequeue(entrypoints=None, limit=1)

        assert added.spec.payload == claimed.spec.payload == payload
        assert await service.find(claimed.id) == claimed
        assert await service.jobs() == [claimed]

    async def test_many_large_payloads_come_back_together(self, service: QueueService) -> None:
        payloads = [Random(n).randbytes(250_000) for n in range(20)]
        await service.enqueue([a_job(payload) for payload in payloads])

        claimed = await service.dequeue(entrypoints=None, limit=100)

        assert [job.spec.payload for job in claimed] == payloads
        assert await service.jobs() == claimed

    async def test_text_of_any_script_comes_back_as_it_was(self, service: QueueService) -> None:
        name = "grüße/任务 🚀"
        spec = a_job(b"", entrypoint=name, key=name * 10, headers={name: UNICODE, "x": ""}, zone=name, id=name)
        await service.enqueue([spec], request_id=name)

        [claimed] = await service.dequeue(entrypoints=(name,), limit=1, worker=name)
        failed = await service.nack(name, token=claimed.token, error=UNICODE, delay_ms=0)

        assert claimed.spec == spec
        assert claimed.worker == name
        assert failed is not None
        assert failed.error == UNICODE
        assert [job.id for job in await service.jobs(entrypoint=name)] == [name]

    async def test_numbers_at_the_edge_come_back_as_they_were(self, service: QueueService) -> None:
        lowest = a_job(b"", priority=-LARGE - 1, max_attempts=1)
        highest = a_job(b"", priority=LARGE, max_attempts=LARGE)
        long_ago = a_job(b"", run_at_ms=0)

        added = await service.enqueue([highest, long_ago, lowest])
        claimed = await service.dequeue(entrypoints=None, limit=3, lease_ms=30 * 24 * 3600 * 1000)

        assert [job.spec for job in added] == [highest, long_ago, lowest]
        assert [job.spec for job in claimed] == [lowest, long_ago, highest]
        assert claimed[0].lease_ms == 30 * 24 * 3600 * 1000
