"""What every way to reach a queue has to do, as tests that inherit: embedded, over gRPC, over HTTP.

    class TestOverMyWire(ServiceSuite):
        @pytest.fixture
        def reach(self):
            @asynccontextmanager
            async def reached(host):
                async with MyServer(host) as server, MyClient(server.address) as client:
                    yield client
            return reached

The suite opens a queue in this process and puts it behind a `Host`; `reach` is how a client gets to it, and may be used
for several clients of one host. Override `place` (a URL) to keep the queue somewhere else than in memory, or `host` to
bring a whole queue of your own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from datetime import timedelta
from typing import Any, TypeAlias

import msgspec
import pytest
import pytest_asyncio

from casque.client.opening import as_store
from casque.client.queue import DEFAULTS
from casque.clock import Random, SystemClock, new_id, new_nonce, system_random
from casque.codec.staged import StagedJobs, checked
from casque.engine.staging import Staging
from casque.errors import (
    CasqueError,
    DuplicateKeyError,
    InvalidInputError,
    JobNotFoundError,
    JobStateError,
    LeaseLostError,
    QueueDrainingError,
    ScheduleNotFoundError,
    ZoneLeaseLostError,
)
from casque.service import EventKind, Host, Lease, Outcome, QueueEvent, QueueService
from casque.state.machine import DECLINES_MAX
from casque.testing.hosting import leading
from casque.types import (
    Admission,
    Backoff,
    Ending,
    Gate,
    Gates,
    JobRecord,
    JobSpec,
    JobState,
    Missed,
    PeekedZone,
    Progress,
    ScheduleSpec,
    StagedPart,
    ZoneLease,
    ZoneRules,
    ZoneStanding,
)

Reach: TypeAlias = Callable[[Host], AbstractAsyncContextManager[QueueService]]

LONG_S = 60.0
"""Longer than any test: a wait that only a job can end."""
LARGE = 2**63 - 1
YEAR_9999_MS = 253_402_300_799_000
UNICODE = "grüße/任务 🚀 \u202e e\u0301"


class ServiceSuite:
    """Subclass it, say how a client reaches a host, and run pytest."""

    pytestmark = pytest.mark.asyncio

    # --- What a subclass provides ---

    @pytest.fixture
    def reach(self) -> Reach:
        """How a client gets to a host; as it is, by holding its service."""
        return _at_hand

    @pytest.fixture
    def place(self) -> str:
        """Where the queue is kept."""
        return f"memory://suite-{new_nonce(system_random())}"

    @pytest_asyncio.fixture
    async def host(self, place: str) -> AsyncIterator[Host]:
        async with leading(place) as host:
            yield host

    # --- What the tests use ---

    @pytest_asyncio.fixture
    async def service(self, host: Host, reach: Reach) -> AsyncIterator[QueueService]:
        async with reach(host) as service:
            yield service

    @pytest_asyncio.fixture
    async def other(self, host: Host, reach: Reach) -> AsyncIterator[QueueService]:
        """A second client of the same queue."""
        async with reach(host) as service:
            yield service

    # --- Enqueue ---

    async def test_an_added_job_is_what_was_asked_for(self, service: QueueService) -> None:
        spec = JobSpec(
            new_id(system_random()),
            "send",
            b"hello",
            priority=-3,
            run_at_ms=YEAR_9999_MS,
            attempts_max=4,
            key="welcome/7",
            headers={"trace": "00-ab", "": "empty name"},
            zone="acme",
        )

        [added] = await service.enqueue([spec], request_id="r-1")

        assert added.spec == spec
        assert added.state is JobState.DELAYED
        assert added.due_ms == YEAR_9999_MS
        assert (added.sequence, added.token, added.attempts) == (1, 0, 0)
        assert (added.worker, added.claimed_ms, added.beat_ms, added.error) == (None, None, None, None)
        assert await service.find(spec.id) == added

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
        lowest = a_job(b"", priority=-LARGE - 1, attempts_max=1)
        highest = a_job(b"", priority=LARGE, attempts_max=LARGE)
        long_ago = a_job(b"", run_at_ms=0)

        added = await service.enqueue([highest, long_ago, lowest])
        claimed = await service.dequeue(entrypoints=None, limit=3, lease_ms=30 * 24 * 3600 * 1000)

        assert [job.spec for job in added] == [highest, long_ago, lowest]
        assert [job.spec for job in claimed] == [lowest, long_ago, highest]
        assert claimed[0].lease_ms == 30 * 24 * 3600 * 1000

    # --- Request ids ---

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
        await service.enqueue([a_job(b"%d" % n, attempts_max=1 if n == 1 else None) for n in range(4)])
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

    # --- Admit ---

    async def test_staged_jobs_are_admitted_together_and_in_order(self, service: QueueService, place: str) -> None:
        first = await staged(place, StagedJobs(["a", "b"], "task", [b"1", b"2"], priorities=[5, -5], zones="acme"))
        second = await staged(place, StagedJobs(["c"], "other", b"3", headers={"x": "y"}, attempts_max=4))

        admission = await service.admit("nightly", 0, [first, second])

        assert admission == Admission(3, position=(await service.stats()).position)
        assert [job.spec for job in await service.jobs()] == [
            JobSpec("a", "task", b"1", 5, zone="acme", attempts_max=25),
            JobSpec("b", "task", b"2", -5, zone="acme", attempts_max=25),
            JobSpec("c", "other", b"3", headers={"x": "y"}, attempts_max=4),
        ]
        claimed = await service.dequeue(entrypoints=None, limit=3)
        assert [job.id for job in claimed] == ["b", "c", "a"]

    async def test_a_batch_is_admitted_once(self, service: QueueService, other: QueueService, place: str) -> None:
        part = await staged(place, StagedJobs(["a", "b"], "task", b""))
        admission = await service.admit("nightly", 7, [part])

        assert await other.admit("nightly", 7, [part]) == Admission(2, repeated=True, position=admission.position)
        assert (await service.admit("nightly", 6, [part])).repeated

        assert (await service.stats()).totals.enqueued == 2
        later = await staged(place, StagedJobs(["c"], "task", b""))
        assert await service.admit("nightly", 8, [later]) == Admission(1, position=admission.position + 1)

    async def test_a_known_id_refuses_all_unless_it_is_to_be_skipped(self, service: QueueService, place: str) -> None:
        [known] = await service.enqueue([a_job(b"")])
        part = await staged(place, StagedJobs(["a", known.id, "b"], "task", b""))
        before = await service.stats()

        with pytest.raises(InvalidInputError, match="already in the queue"):
            await service.admit("nightly", 1, [part])

        assert await service.stats() == before
        admission = await service.admit("nightly", 1, [part], skip_known=True)
        assert (admission.jobs, admission.skipped, admission.repeated) == (2, 1, False)
        assert [job.id for job in await service.jobs()] == [known.id, "a", "b"]

    async def test_a_staged_job_whose_key_is_held_is_skipped(self, service: QueueService, place: str) -> None:
        await service.enqueue([a_job(b"", key="k")])
        part = await staged(place, StagedJobs(["a", "b", "c"], "task", b"", keys=["k", "l", "l"]))

        admission = await service.admit("nightly", 1, [part])

        assert (admission.jobs, admission.skipped) == (1, 2)
        assert await service.find("b") is not None

    async def test_staged_jobs_may_wait_for_their_time(self, service: QueueService, place: str) -> None:
        part = await staged(place, StagedJobs(["a", "b"], "task", b"", run_at_ms=[1, YEAR_9999_MS]))
        await service.admit("nightly", 1, [part])

        assert [job.id for job in await service.dequeue(entrypoints=None, limit=5)] == ["a"]
        waiting = await service.find("b")
        assert waiting is not None
        assert (waiting.state, waiting.due_ms) == (JobState.DELAYED, YEAR_9999_MS)

    async def test_large_payloads_of_staged_jobs_come_back_whole(self, service: QueueService, place: str) -> None:
        part = await staged(place, StagedJobs(["a"], "task", b"x" * 300_000))
        await service.admit("nightly", 1, [part])

        [job] = await service.dequeue(entrypoints=None, limit=1)

        assert job.spec.payload == b"x" * 300_000

    async def test_a_part_that_is_not_there_is_refused_with_its_name(self, service: QueueService, place: str) -> None:
        part = await staged(place, StagedJobs(["a"], "task", b""))
        gone = msgspec.structs.replace(part, key=part.key[:-16] + "0" * 16)
        changed = msgspec.structs.replace(part, sha256="0" * 64)
        before = await service.stats()

        for wrong, why in ((gone, "is not there"), (changed, "cut or changed")):
            with pytest.raises(InvalidInputError, match=why) as refused:
                await service.admit("nightly", 1, [part, wrong] if wrong is gone else [wrong])
            assert wrong.key in str(refused.value)

        assert await service.stats() == before
        assert (await service.admit("nightly", 1, [part])).jobs == 1

    async def test_a_dequeue_that_waits_gets_an_admitted_job(
        self, service: QueueService, other: QueueService, place: str
    ) -> None:
        part = await staged(place, StagedJobs(["a", "b"], "task", b""))
        waiting = asyncio.create_task(other.dequeue(entrypoints=("task",), limit=5, wait_s=LONG_S))

        await service.admit("nightly", 1, [part])

        assert [job.id for job in await waiting] == ["a", "b"]

    async def test_an_admission_is_an_event_before_those_of_its_jobs(self, service: QueueService, place: str) -> None:
        part = await staged(place, StagedJobs(["a", "b", "c"], "task", [b"1", b"2", b"3"], keys=["k", "k", None]))
        admission = await service.admit("nightly", 3, [part])

        async with aclosing(service.events(from_position=0, follow=False)) as feed:
            events = [event async for event in feed if event.position == admission.position]

        assert [(event.index, event.kind, event.job_id) for event in events] == [
            (0, EventKind.ADMITTED, None),
            (1, EventKind.ADDED, "a"),
            (2, EventKind.ADDED, "c"),
        ]
        assert events[0].fields == {
            "source": "nightly",
            "batch": 3,
            "parts": [msgspec.structs.asdict(part)],
            "added": 2,
            "first": 1,
            "skipped": [[1, 1]],
        }
        assert [event.fields["sequence"] for event in events[1:]] == [1, 2]

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

    # --- Ack, nack, heartbeat, give back ---

    async def test_an_acked_job_is_done(self, service: QueueService) -> None:
        job = await a_claim(service)

        await service.ack(job.id, token=job.token, result=bytes(range(256)))

        assert await service.find(job.id) is None
        assert (await service.stats()).totals.done == 1

    async def test_an_ack_without_a_token_needs_no_lease(self, service: QueueService) -> None:
        [job] = await service.enqueue([a_job(b"1")])

        await service.ack(job.id)

        assert (await service.stats()).totals.done == 1

    async def test_a_nacked_job_waits_and_keeps_its_error(self, service: QueueService) -> None:
        job = await a_claim(service)

        failed = await service.nack(job.id, token=job.token, delay_ms=3_600_000, error="ValueError: no")

        assert failed is not None
        assert (failed.state, failed.attempts, failed.error) == (JobState.DELAYED, 1, "ValueError: no")
        assert failed == await service.find(job.id)
        assert await service.dequeue(entrypoints=None, limit=1) == []

    async def test_a_back_off_grows_with_the_attempts(self, service: QueueService) -> None:
        job = await a_claim(service)
        backoff = Backoff(base_ms=1_000_000, cap_ms=10_000_000, spread=0.5)

        failed = await service.nack(job.id, token=job.token, backoff=backoff)

        assert failed is not None
        assert job.claimed_ms is not None
        assert failed.due_ms - job.claimed_ms >= backoff.delay_ms(1)

    async def test_a_nack_without_a_delay_is_due_at_once(self, service: QueueService) -> None:
        job = await a_claim(service)
        await service.nack(job.id, token=job.token)

        [again] = await service.dequeue(entrypoints=None, limit=1, wait_s=LONG_S)

        assert (again.id, again.attempts) == (job.id, 2)

    async def test_a_job_whose_last_attempt_fails_is_kept_as_dead(self, service: QueueService) -> None:
        dead = await a_dead_job(service, error="boom")

        assert (dead.state, dead.error, dead.attempts) == (JobState.DEAD, "boom", 1)
        assert await service.find(dead.id) == dead
        with pytest.raises(JobStateError) as raised:
            await service.ack(dead.id)
        assert (raised.value.job_id, raised.value.state) == (dead.id, "dead")

    async def test_a_failure_that_is_final_kills_whatever_attempts_are_left(self, service: QueueService) -> None:
        hopeless, hopeful = [await a_claim(service, attempts_max=n) for n in (None, 5)]

        answers = await service.settle(
            [
                Outcome(hopeless.id, hopeless.token, error="it has no address", final=True),
                Outcome(hopeful.id, hopeful.token, error="no", delay_ms=0),
            ]
        )

        assert answers == [None, None]
        dead, again = await service.find(hopeless.id), await service.find(hopeful.id)
        assert dead is not None
        assert again is not None
        assert (dead.state, dead.error, dead.attempts) == (JobState.DEAD, "it has no address", 1)
        assert [tried.error for tried in dead.tries] == ["it has no address"]
        assert again.state is JobState.READY
        revived = await service.retry(dead.id)
        assert revived is not None
        assert (revived.state, revived.attempts) == (JobState.READY, 0)

    async def test_many_outcomes_have_an_answer_each(self, service: QueueService) -> None:
        done, failed, dying, stolen = [await a_claim(service, attempts_max=n) for n in (None, None, 1, None)]
        [waits] = await service.enqueue([a_job(b"")])
        before = (await service.stats()).position

        answers = await service.settle(
            [
                Outcome(done.id, done.token, result=bytes(range(256))),
                Outcome(stolen.id, stolen.token + 100),
                Outcome(failed.id, failed.token, error=UNICODE, delay_ms=3_600_000),
                Outcome("nobody", 7, error="boom"),
                Outcome(dying.id, dying.token, error="boom"),
                Outcome(waits.id, 1),
            ]
        )

        assert [answers[place] for place in (0, 2, 4)] == [None, None, None]
        assert_same(answers[1], LeaseLostError(stolen.id, stolen.token + 100))
        assert_same(answers[3], JobNotFoundError("nobody"))
        assert_same(answers[5], LeaseLostError(waits.id, 1))
        assert (await service.stats()).position == before + 1, "all of them in one commit"
        assert await service.find(done.id) is None
        again, dead, untouched = [await service.find(job.id) for job in (failed, dying, stolen)]
        assert again is not None
        assert dead is not None
        assert (again.state, again.error, again.tries[0].error) == (JobState.DELAYED, UNICODE, UNICODE)
        assert (dead.state, dead.error) == (JobState.DEAD, "boom")
        assert untouched == stolen
        assert (await service.stats()).totals.done == 1
        assert await service.settle([]) == []

    async def test_a_failed_outcome_waits_as_long_as_its_back_off_says(self, service: QueueService) -> None:
        first, second = await a_claim(service), await a_claim(service)
        backoff = Backoff(base_ms=1_000_000, cap_ms=10_000_000, spread=0.5)

        await service.settle([Outcome(first.id, first.token, error="", backoff=backoff)])
        await service.settle([Outcome(second.id, second.token, error="")])

        failed = await service.find(first.id)
        assert failed is not None
        assert failed.due_ms - (first.claimed_ms or 0) >= backoff.delay_ms(1)
        [at_once] = await service.dequeue(entrypoints=None, limit=2, wait_s=LONG_S)
        assert at_once.id == second.id

    async def test_outcomes_that_are_told_again_are_answered_as_before(
        self, service: QueueService, other: QueueService
    ) -> None:
        done, failed, lost = [await a_claim(service) for _ in range(3)]
        outcomes = [
            Outcome(done.id, done.token),
            Outcome(lost.id, lost.token + 100),
            Outcome(failed.id, failed.token, error="no", delay_ms=3_600_000),
            Outcome("nobody", 7),
        ]
        first = await service.settle(outcomes, request_id="settle-1")
        await service.ack(lost.id, token=lost.token)
        position = (await service.stats()).position

        again = await other.settle(outcomes, request_id="settle-1")

        assert [str(answer) for answer in again] == [str(answer) for answer in first]
        assert [type(answer).__name__ for answer in again] == [
            "NoneType",
            "LeaseLostError",
            "NoneType",
            "JobNotFoundError",
        ]
        assert (await service.stats()).position == position
        with pytest.raises(InvalidInputError):
            await service.settle(outcomes[:2], request_id="settle-1")
        with pytest.raises(InvalidInputError):
            await service.ack(done.id, request_id="settle-1")

    async def test_an_answer_that_needed_nothing_done_is_remembered_too(
        self, service: QueueService, other: QueueService
    ) -> None:
        failed = await a_claim(service)
        outcome = Outcome(failed.id, failed.token, error="no", delay_ms=3_600_000)
        await service.settle([outcome], request_id="settle-1")

        assert await service.settle([outcome], request_id="settle-2") == [None]
        await service.cancel(failed.id)
        assert await other.settle([outcome], request_id="settle-2") == [None]

    async def test_a_failure_that_is_told_again_without_a_request_id_is_known_by_its_token(
        self, service: QueueService
    ) -> None:
        job = await a_claim(service)
        failed = Outcome(job.id, job.token, error="no", delay_ms=3_600_000)

        assert await service.settle([failed, failed]) == [None, None]
        assert await service.settle([failed]) == [None]

        found = await service.find(job.id)
        assert found is not None
        assert (found.attempts, len(found.tries)) == (1, 1)
        [as_done] = await service.settle([Outcome(job.id, job.token)])
        assert_same(as_done, LeaseLostError(job.id, job.token))

    async def test_thousands_are_claimed_and_settled_at_once(self, service: QueueService) -> None:
        count = 12_000
        for start in range(0, count, 6_000):
            await service.enqueue([a_job(b"%d" % n) for n in range(start, start + 6_000)])
        claimed = await service.dequeue(entrypoints=None, limit=2 * count)
        assert [job.spec.payload for job in claimed] == [b"%d" % n for n in range(count)]
        tokens = [job.token for job in claimed]
        assert tokens == list(range(tokens[0], tokens[0] + count))

        wrong = frozenset(range(0, count, 1000))
        outcomes = [Outcome(job.id, job.token + (place in wrong)) for place, job in enumerate(claimed)]
        answers = await service.settle(outcomes, request_id="many")

        assert [place for place, answer in enumerate(answers) if answer is not None] == sorted(wrong)
        again = await service.settle(outcomes, request_id="many")
        assert [str(answer) for answer in again] == [str(answer) for answer in answers]
        totals = (await service.stats()).totals
        assert (totals.done, totals.running) == (count - len(wrong), len(wrong))

    async def test_a_job_keeps_the_story_of_every_attempt_that_came_to_nothing(self, service: QueueService) -> None:
        await service.enqueue([a_job(b"", attempts_max=2)])
        [job] = await service.dequeue(entrypoints=None, limit=1, worker="w-1")
        await service.nack(job.id, token=job.token, error="first " + UNICODE)
        claims = [job, *await service.dequeue(entrypoints=None, limit=1, worker="w-2", wait_s=LONG_S)]
        ended = await service.nack(job.id, token=claims[1].token)
        revived = await service.retry(job.id)
        [again] = await service.dequeue(entrypoints=None, limit=1)
        await service.give_back(again.id, token=again.token)

        found = await service.find(job.id)

        assert found is not None
        assert ended is not None
        assert revived is not None
        first, second = found.tries
        assert [one.tries for one in claims] == [(), (first,)]
        assert ended.tries == revived.tries == again.tries == found.tries
        assert (first.worker, first.token, first.error) == ("w-1", claims[0].token, "first " + UNICODE)
        assert (second.worker, second.token, second.error) == ("w-2", claims[1].token, None)
        assert [one.claimed_ms for one in found.tries] == [one.claimed_ms for one in claims]
        assert first.how is second.how is Ending.FAILED
        assert (first.claimed_ms or 0) <= first.ended_ms <= (second.claimed_ms or 0) <= second.ended_ms
        assert [one.tries for one in await service.jobs()] == [found.tries]

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
                Lease("nobody", 7),
                Lease(second.id, second.token + 100),
                Lease(second.id),
                Lease(waits.id, None),
            ]
        )

        beaten, missing, stolen, by_id, unclaimed = answers
        assert isinstance(beaten, JobRecord)
        assert beaten == await service.find(first.id)
        assert_same(missing, JobNotFoundError("nobody"))
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
        await service.give_back("nobody", token=1)

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

    # --- Managing ---

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

    async def test_purging_may_be_for_one_zone(self, service: QueueService) -> None:
        await a_dead_job(service, zone="acme")
        await a_dead_job(service, zone="acme", entrypoint="other")
        others = [await a_dead_job(service, zone="umbrella"), await a_dead_job(service)]

        assert await service.purge(zone="nobody") == 0
        assert await service.purge(zone="acme", entrypoint="other") == 1
        assert await service.purge(zone="acme", request_id="purge-acme") == 1
        assert await service.purge(zone="acme", request_id="purge-acme") == 1
        left = await service.jobs()
        assert sorted(left, key=lambda job: job.id) == sorted(others, key=lambda job: job.id)  # shards take turns

    async def test_a_job_that_workers_do_not_understand_waits_for_others_and_is_dead_after_too_many(
        self, service: QueueService
    ) -> None:
        [added] = await service.enqueue([JobSpec("declined-1", "task", b"", attempts_max=1, max_crashes=1)])
        for count in range(1, DECLINES_MAX + 1):
            async with asyncio.timeout(30):
                [job] = await service.dequeue(entrypoints=("task",), limit=1, wait_s=LONG_S)
            assert job.declined == count - 1
            [refused] = await service.settle([Outcome(job.id, job.token, "no cc", delay_ms=0, declined=True)])
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
        await service.settle([Outcome(job.id, job.token, "no cc", declined=True)])
        found = await service.find(added.id)
        assert found is not None
        assert (found.state, found.attempts, found.declined, found.error) == (JobState.DELAYED, 0, 1, "no cc")
        assert found.tries == ()

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

    async def test_a_schedule_is_set_changed_paused_and_dropped(self, service: QueueService) -> None:
        job = JobSpec("", "report", b"\x00all", 3, None, 2, "k", {"a": UNICODE}, "north", max_crashes=4)
        spec = ScheduleSpec("näctly/1", "0 0 1 1 *", job, "Europe/Berlin", Missed.ALL, "shop.jobs")

        first = await service.set_schedule(spec)
        again = await service.set_schedule(spec)

        assert (first.spec, first.paused, first.last_ms) == (spec, False, None)
        assert again == first
        assert await service.schedules() == [first]
        assert await service.pause_schedule("näctly/1", paused=True) == msgspec.structs.replace(first, paused=True)
        changed = await service.set_schedule(msgspec.structs.replace(spec, cron="0 0 2 1 *"))
        assert (changed.paused, changed.next_ms - first.next_ms) == (True, 86_400_000)
        assert (await service.pause_schedule("näctly/1", paused=False)).next_ms == changed.next_ms
        await service.drop_schedule("näctly/1")
        assert await service.schedules() == []
        with pytest.raises(ScheduleNotFoundError):
            await service.drop_schedule("näctly/1")
        with pytest.raises(ScheduleNotFoundError):
            await service.pause_schedule("näctly/1", paused=True)
        assert (await service.stats()).totals.enqueued == 0

    async def test_events_tell_of_schedules(self, service: QueueService) -> None:
        spec = ScheduleSpec("nightly", "@yearly", JobSpec("", "report", b"all"))
        scheduled = await service.set_schedule(spec)
        await service.drop_schedule("nightly")

        async with aclosing(service.events(from_position=0, follow=False)) as events:
            told = [event async for event in events]

        assert [(event.kind, event.job_id) for event in told] == [
            (EventKind.SCHEDULED, None),
            (EventKind.UNSCHEDULED, None),
        ]
        assert told[0].fields["name"] == told[1].fields["name"] == "nightly"
        assert (told[0].fields["cron"], told[0].fields["next_ms"]) == ("@yearly", scheduled.next_ms)
        assert told[0].fields["job"]["entrypoint"] == "report"

    async def test_a_job_that_was_never_there_is_not_found(self, service: QueueService) -> None:
        assert await service.find("nobody") is None

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
            "enqueued": 4, "ready": 1, "delayed": 1, "running": 1, "done": 0, "dead": 1, "cancelled": 0
        }  # fmt: skip
        assert stats.position > empty.position

    # --- Events ---

    async def test_events_tell_what_happened(self, service: QueueService) -> None:
        job = await a_claim(service, b"\0\xff", headers={"a": "b"})
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
            await queue.enqueue([a_job(b"2", entrypoint="other", attempts_max=2)])
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

    # --- Together ---

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

    # --- Helpers that other suites may use, too ---

    # --- Gates ---

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

    # --- Zones ---

    async def test_zones_take_turns_and_can_be_claimed_by_name(
        self, service: QueueService, other: QueueService
    ) -> None:
        await service.enqueue([a_job(b"%d" % n, zone="giant") for n in range(50)])
        await other.enqueue([a_job(b"small", zone="small"), a_job(b"nobody's")])

        first = await service.dequeue(entrypoints=None, limit=4)
        assert {job.spec.zone for job in first[:3]} == {"giant", "small", None}
        [named] = await other.dequeue(entrypoints=("task",), limit=1, zones=("small", "giant"))
        assert named.spec.zone == "giant"
        assert await service.dequeue(entrypoints=None, limit=5, zones=("small", "nowhere")) == []
        waiting = asyncio.ensure_future(other.dequeue(entrypoints=None, limit=1, wait_s=LONG_S, zones=("late",)))
        await service.enqueue([a_job(b"other", zone="small"), a_job(b"awaited", zone="late")])
        assert [job.spec.payload for job in await waiting] == [b"awaited"]

    async def test_the_rules_of_a_zone_hold_and_are_shown(self, service: QueueService, other: QueueService) -> None:
        rules = ZoneRules(weight=2.5, running_max=2, per_second=500.0)
        await service.set_zone("acme", rules, request_id="rules-1")
        await service.enqueue([a_job(b"%d" % n, zone="acme") for n in range(5)])
        await service.enqueue([a_job(b"later", zone="zeta", run_at_ms=YEAR_9999_MS)])

        claimed = await other.dequeue(entrypoints=None, limit=10)
        assert len(claimed) == 2
        [acme, zeta] = await other.zones()
        assert acme == ZoneStanding("acme", ready=3, running=2, next_ms=claimed[0].due_ms, rules=rules)
        assert zeta == ZoneStanding("zeta", delayed=1, next_ms=YEAR_9999_MS)
        assert await service.zones(names=frozenset({"zeta", "nobody"})) == [zeta]
        assert await service.zones(limit=1) == [acme]

        await service.set_zone("acme", ZoneRules(paused=True))
        await other.set_zone("acme", rules, request_id="rules-1")  # it was asked for before, and changes nothing
        for job in claimed:
            await service.ack(job.id, token=job.token)
        assert await service.dequeue(entrypoints=None, limit=10) == []
        await service.set_zone("acme", ZoneRules())
        assert len(await service.dequeue(entrypoints=None, limit=10)) == 3

    async def test_a_leased_zone_is_for_whoever_shows_the_lease(
        self, service: QueueService, other: QueueService
    ) -> None:
        await service.enqueue([a_job(b"%d" % n, zone="acme") for n in range(3)])
        await service.enqueue([a_job(b"other", zone="zeta")])

        lease = await service.lease_zone("acme", lease_ms=60_000, worker="w1")

        assert lease is not None
        assert (lease.zone, lease.lease_ms, lease.worker) == ("acme", 60_000, "w1")
        assert await other.lease_zone("acme") is None
        [anybodys] = await other.dequeue(entrypoints=None, limit=10)
        assert anybodys.spec.zone == "zeta"
        assert await other.dequeue(entrypoints=None, limit=10, zones=("acme",)) == []
        mine = await service.dequeue(entrypoints=("task",), limit=2, zone_lease=lease)
        assert [job.spec.payload for job in mine] == [b"0", b"1"]
        [standing] = await other.zones(names=frozenset({"acme"}))
        assert standing.lease == lease

        await service.release_zone("acme", token=lease.token)
        await service.release_zone("acme", token=lease.token)
        with pytest.raises(ZoneLeaseLostError) as lost:
            await service.dequeue(entrypoints=None, limit=1, zone_lease=lease)
        assert (lost.value.zone, lost.value.token) == ("acme", lease.token)
        [rest] = await other.dequeue(entrypoints=None, limit=10)
        assert rest.spec.payload == b"2"
        for job in (*mine, rest):
            await service.ack(job.id, token=job.token)  # what was claimed under it stays claimed

    async def test_a_lease_of_a_zone_is_renewed_and_lost_by_its_token(
        self, service: QueueService, other: QueueService
    ) -> None:
        assert await service.lease_zone("acme") is None  # it has no jobs
        await service.enqueue([a_job(b"1", zone="acme")])
        lease = await service.lease_zone("acme", request_id="lease-1")
        assert lease is not None
        assert await other.lease_zone("acme", request_id="lease-1") == lease

        beaten = await other.heartbeat_zone("acme", token=lease.token)
        assert (beaten.token, beaten.beat_ms > lease.beat_ms) == (lease.token, True)
        with pytest.raises(ZoneLeaseLostError):
            await service.heartbeat_zone("acme", token=LARGE)
        await other.release_zone("acme", token=LARGE)
        assert (await service.heartbeat_zone("acme", token=lease.token)).token == lease.token

        await service.release_zone("acme", token=lease.token)
        again = await other.lease_zone("acme")
        assert again is not None
        assert again.token > lease.token
        assert await service.lease_zone("acme", request_id="lease-1") is None  # what it gave is over
        with pytest.raises(ZoneLeaseLostError):
            await service.heartbeat_zone("acme", token=lease.token)

    async def test_zones_are_peeked_at_by_vesting_time(self, service: QueueService, other: QueueService) -> None:
        assert await service.peek_zones() == []
        for zone in ("b", "a", "held", "taken"):
            await service.enqueue([a_job(b"1", zone=zone, fifo=zone == "a"), a_job(b"2", zone=zone, fifo=zone == "a")])
        await service.enqueue([a_job(b"1", zone="late", run_at_ms=YEAR_9999_MS), a_job(b"nobody's")])
        await service.enqueue([msgspec.structs.replace(a_job(b"1", zone="elsewhere"), entrypoint="other")])
        await service.set_zone("held", ZoneRules(paused=True))
        lease = await service.lease_zone("taken")
        assert lease is not None

        seen = await other.peek_zones(entrypoints=("task",))

        due = {one.zone: one for one in seen if one.due}
        assert sorted(due) == ["a", "b"]
        assert [one.next_ms for one in seen] == sorted(one.next_ms for one in seen)
        assert (due["a"].fifo, due["b"].fifo) == (True, False)
        assert seen[-1] == PeekedZone("late", YEAR_9999_MS, due=False)
        assert {one.zone for one in await other.peek_zones()} == {"a", "b", "late", "elsewhere"}
        assert [one.zone for one in await other.peek_zones(names=frozenset({"b", "taken"}))] == ["b"]
        assert len(await other.peek_zones(limit=1)) == 1
        await service.release_zone("taken", token=lease.token)
        assert "taken" in {one.zone for one in await other.peek_zones()}

    async def test_whoever_waits_with_a_lost_lease_is_told(self, service: QueueService, other: QueueService) -> None:
        await service.enqueue([a_job(b"1", zone="acme")])
        lease = await service.lease_zone("acme")
        assert lease is not None
        [job] = await service.dequeue(entrypoints=None, limit=1, zone_lease=lease)
        await service.ack(job.id, token=job.token)
        waiting = asyncio.ensure_future(service.dequeue(entrypoints=None, limit=1, wait_s=LONG_S, zone_lease=lease))
        await other.enqueue([a_job(b"2", zone="acme")])
        [job] = await waiting
        assert job.spec.payload == b"2"
        waiting = asyncio.ensure_future(service.dequeue(entrypoints=None, limit=1, wait_s=LONG_S, zone_lease=lease))
        await other.release_zone("acme", token=lease.token)
        with pytest.raises(ZoneLeaseLostError):
            await waiting

    async def test_a_lease_of_a_zone_that_is_none_is_refused(self, service: QueueService) -> None:
        stranger = ZoneLease("acme", 7, 1_000)
        with pytest.raises(ZoneLeaseLostError):
            await service.dequeue(entrypoints=None, limit=1, zone_lease=stranger)
        await service.release_zone("acme", token=7)

    async def test_a_fifo_zone_hands_out_one_job_after_the_other(self, service: QueueService) -> None:
        first, second = a_job(b"1", zone="line", fifo=True, priority=5), a_job(b"2", zone="line", fifo=True)
        [added, _] = await service.enqueue([first, second])
        assert added.spec == first
        [job] = await service.dequeue(entrypoints=None, limit=10)
        assert (job.id, job.spec.fifo) == (first.id, True)
        await service.nack(job.id, token=job.token)
        [job] = await service.dequeue(entrypoints=None, limit=10, wait_s=LONG_S)
        assert job.id == first.id
        await service.ack(job.id, token=job.token)
        [job] = await service.dequeue(entrypoints=None, limit=10)
        assert job.id == second.id
        with pytest.raises(InvalidInputError, match="is FIFO"):
            await service.enqueue([a_job(b"3", zone="line")])
        with pytest.raises(InvalidInputError, match="delayed"):
            await service.enqueue([a_job(b"3", zone="line", fifo=True, run_at_ms=YEAR_9999_MS)])
        [line] = await service.zones()
        assert line == ZoneStanding("line", running=1, fifo=True)

    # --- Neither done nor simply failed ---

    async def test_a_snoozed_job_waits_and_has_used_no_attempt(self, service: QueueService) -> None:
        later, soon = await a_claim(service, attempts_max=1), await a_claim(service, attempts_max=1)

        answers = await service.settle(
            [
                Outcome(later.id, later.token, delay_ms=3_600_000, snoozed=True),
                Outcome(soon.id, soon.token, snoozed=True),
            ]
        )

        assert answers == [None, None]
        waits = await service.find(later.id)
        assert waits is not None
        assert (waits.state, waits.attempts, waits.error, waits.tries) == (JobState.DELAYED, 0, None, ())
        assert waits.due_ms - (later.claimed_ms or 0) >= 3_600_000
        [again] = await service.dequeue(entrypoints=None, limit=2, wait_s=LONG_S)
        assert (again.id, again.attempts) == (soon.id, 1)
        [late] = await service.settle([Outcome(soon.id, soon.token, snoozed=True)])
        assert_same(late, LeaseLostError(soon.id, soon.token))

    async def test_a_worker_may_cancel_what_it_holds_and_nothing_else(self, service: QueueService) -> None:
        [held, lost] = [await a_claim(service) for _ in range(2)]

        answers = await service.settle(
            [
                Outcome(held.id, held.token, error="the order was withdrawn", cancelled=True),
                Outcome(lost.id, lost.token + 100, cancelled=True),
            ]
        )

        assert answers[0] is None
        assert_same(answers[1], LeaseLostError(lost.id, lost.token + 100))
        assert await service.find(held.id) is None
        assert await service.find(lost.id) == lost
        assert (await service.stats()).totals.cancelled == 1

    async def test_crashes_are_no_attempts_and_too_many_of_them_are_a_quarantine(self, service: QueueService) -> None:
        job = await a_claim(service, attempts_max=1, max_crashes=2)
        assert (job.spec.max_crashes, job.crashes) == (2, 0)

        first = Outcome(job.id, job.token, error="killed by signal 9", delay_ms=0, crashed=True)
        assert await service.settle([first, first]) == [None, None], "told twice, and the second time known"
        [again] = await service.dequeue(entrypoints=None, limit=1, wait_s=LONG_S)
        assert (again.id, again.attempts, again.crashes, again.error) == (job.id, 1, 1, "killed by signal 9")
        assert [tried.how for tried in again.tries] == [Ending.CRASHED]
        assert await service.settle([Outcome(job.id, again.token, error="exit code 3", crashed=True)]) == [None]

        dead = await service.find(job.id)
        assert dead is not None
        assert (dead.state, dead.attempts, dead.crashes, len(dead.tries)) == (JobState.DEAD, 0, 2, 2)
        assert dead.error is not None
        assert dead.error.startswith("quarantined: its worker died 2 times")
        assert dead.error.endswith("exit code 3")
        revived = await service.retry(job.id)
        assert revived is not None
        assert (revived.attempts, revived.crashes) == (0, 0)

    async def test_a_job_that_does_not_count_crashes_has_failed(self, service: QueueService) -> None:
        job = await a_claim(service, attempts_max=1)

        assert await service.settle([Outcome(job.id, job.token, error="exit code 3", crashed=True)]) == [None]

        dead = await service.find(job.id)
        assert dead is not None
        assert (dead.state, dead.error, dead.attempts, dead.crashes) == (JobState.DEAD, "exit code 3", 1, 0)
        assert [tried.how for tried in dead.tries] == [Ending.FAILED]


async def about_jobs(service: QueueService, position: int) -> list[QueueEvent]:
    """What happened to jobs after a position."""
    events = service.events(from_position=position, follow=False)
    return [event async for event in events if event.job_id is not None]


@asynccontextmanager
async def _at_hand(host: Host) -> AsyncIterator[QueueService]:
    yield host.service()


async def staged(place: str, jobs: StagedJobs) -> StagedPart:
    """These jobs as a part, as a `Stager` writes them."""
    store = as_store(place)
    staging = Staging(store, settings=DEFAULTS, clock=SystemClock(), rng=system_random())
    if jobs.attempts_max is None:
        jobs = msgspec.structs.replace(jobs, attempts_max=DEFAULTS.max_attempts)
    try:
        return await staging.put(checked(jobs), "suite")
    finally:
        await store.close()


def a_job(payload: bytes, *, entrypoint: str = "task", **fields: Any) -> JobSpec:
    return JobSpec(fields.pop("id", None) or new_id(system_random()), entrypoint, payload, **fields)


async def a_claim(service: QueueService, payload: bytes = b"", **fields: Any) -> JobRecord:
    """Add a job and claim it; nothing else may be waiting."""
    await service.enqueue([a_job(payload, **fields)])
    [job] = await service.dequeue(entrypoints=None, limit=1)
    return job


async def a_dead_job(service: QueueService, *, error: str | None = None, **fields: Any) -> JobRecord:
    job = await a_claim(service, attempts_max=1, **fields)
    dead = await service.nack(job.id, token=job.token, error=error)
    assert dead is not None
    return dead


def assert_same(found: object, wanted: CasqueError) -> None:
    """The same error, not just a like one: kind, fields and words."""
    assert type(found) is type(wanted)
    assert isinstance(found, CasqueError)
    assert str(found) == str(wanted)
    assert vars(found) == vars(wanted)
