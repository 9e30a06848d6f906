"""How an attempt ends: done, failed, snoozed, crashed, cancelled; one at a time or many at once."""

from __future__ import annotations

import pytest

from casque.errors import InvalidInputError, JobNotFoundError, JobStateError, LeaseLostError
from casque.service import Outcome, OutcomeKind, QueueService
from casque.state.job_life import LEASE_RAN_OUT
from casque.testing.service_suite.jobs import LONG_S, UNICODE, a_claim, a_dead_job, a_job, assert_same
from casque.types import Backoff, Ending, JobState


class SettleTests:
    # --- Done or failed ---

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
        hopeless, hopeful = [await a_claim(service, max_attempts=n) for n in (None, 5)]

        answers = await service.settle(
            [
                Outcome(hopeless.id, hopeless.token, error="it has no address", how=OutcomeKind.FINAL),
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
        done, failed, dying, stolen = [await a_claim(service, max_attempts=n) for n in (None, None, 1, None)]
        [waits] = await service.enqueue([a_job(b"")])
        before = (await service.stats()).position

        answers = await service.settle(
            [
                Outcome(done.id, done.token, result=bytes(range(256))),
                Outcome(stolen.id, stolen.token + 100),
                Outcome(failed.id, failed.token, error=UNICODE, delay_ms=3_600_000),
                Outcome("no-such-job", 7, error="boom"),
                Outcome(dying.id, dying.token, error="boom"),
                Outcome(waits.id, 1),
            ]
        )

        assert [answers[place] for place in (0, 2, 4)] == [None, None, None]
        assert_same(answers[1], LeaseLostError(stolen.id, stolen.token + 100))
        assert_same(answers[3], JobNotFoundError("no-such-job"))
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
            Outcome("no-such-job", 7),
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
        await service.enqueue([a_job(b"", max_attempts=2)])
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

    # --- Neither done nor simply failed ---

    async def test_a_snoozed_job_waits_and_has_used_no_attempt(self, service: QueueService) -> None:
        later, soon = await a_claim(service, max_attempts=1), await a_claim(service, max_attempts=1)

        answers = await service.settle(
            [
                Outcome(later.id, later.token, delay_ms=3_600_000, how=OutcomeKind.SNOOZED),
                Outcome(soon.id, soon.token, how=OutcomeKind.SNOOZED),
            ]
        )

        assert answers == [None, None]
        waits = await service.find(later.id)
        assert waits is not None
        assert (waits.state, waits.attempts, waits.error, waits.tries) == (JobState.DELAYED, 0, None, ())
        assert waits.due_ms - (later.claimed_ms or 0) >= 3_600_000
        [again] = await service.dequeue(entrypoints=None, limit=2, wait_s=LONG_S)
        assert (again.id, again.attempts) == (soon.id, 1)
        [late] = await service.settle([Outcome(soon.id, soon.token, how=OutcomeKind.SNOOZED)])
        assert_same(late, LeaseLostError(soon.id, soon.token))

    async def test_a_worker_may_cancel_what_it_holds_and_nothing_else(self, service: QueueService) -> None:
        [held, lost] = [await a_claim(service) for _ in range(2)]

        answers = await service.settle(
            [
                Outcome(held.id, held.token, error="the order was withdrawn", how=OutcomeKind.CANCELLED),
                Outcome(lost.id, lost.token + 100, how=OutcomeKind.CANCELLED),
            ]
        )

        assert answers[0] is None
        assert_same(answers[1], LeaseLostError(lost.id, lost.token + 100))
        assert await service.find(held.id) is None
        assert await service.find(lost.id) == lost
        assert (await service.stats()).totals.cancelled == 1

    async def test_crashes_are_no_attempts_and_too_many_of_them_are_a_quarantine(self, service: QueueService) -> None:
        job = await a_claim(service, max_attempts=1, max_crashes=2)
        assert (job.spec.max_crashes, job.crashes) == (2, 0)

        first = Outcome(job.id, job.token, error="killed by signal 9", delay_ms=0, how=OutcomeKind.CRASHED)
        assert await service.settle([first, first]) == [None, None], "the second report of a crash is a no-op"
        [again] = await service.dequeue(entrypoints=None, limit=1, wait_s=LONG_S)
        assert (again.id, again.attempts, again.crashes, again.error) == (job.id, 1, 1, "killed by signal 9")
        assert [tried.how for tried in again.tries] == [Ending.CRASHED]
        second = Outcome(job.id, again.token, error="exit code 3", how=OutcomeKind.CRASHED)
        assert await service.settle([second]) == [None]

        dead = await service.find(job.id)
        assert dead is not None
        assert (dead.state, dead.attempts, dead.crashes, len(dead.tries)) == (JobState.DEAD, 0, 2, 2)
        assert dead.error is not None
        assert dead.error.startswith("quarantined: its worker died 2 times")
        assert dead.error.endswith("exit code 3")
        revived = await service.retry(job.id)
        assert revived is not None
        assert (revived.attempts, revived.crashes) == (0, 0)

    async def test_a_last_failure_in_the_words_of_a_lease_that_ran_out_is_a_failure(
        self, service: QueueService
    ) -> None:
        last, final = [await a_claim(service, max_attempts=attempts) for attempts in (1, 9)]

        await service.settle(
            [
                Outcome(last.id, last.token, error=LEASE_RAN_OUT),
                Outcome(final.id, final.token, error=LEASE_RAN_OUT, how=OutcomeKind.FINAL),
            ]
        )

        for job in (last, final):
            dead = await service.find(job.id)
            assert dead is not None
            assert (dead.state, dead.error) == (JobState.DEAD, LEASE_RAN_OUT)
            assert [tried.how for tried in dead.tries] == [Ending.FAILED]

    async def test_a_job_that_does_not_count_crashes_has_failed(self, service: QueueService) -> None:
        job = await a_claim(service, max_attempts=1)

        crashed = Outcome(job.id, job.token, error="exit code 3", how=OutcomeKind.CRASHED)
        assert await service.settle([crashed]) == [None]

        dead = await service.find(job.id)
        assert dead is not None
        assert (dead.state, dead.error, dead.attempts, dead.crashes) == (JobState.DEAD, "exit code 3", 1, 0)
        assert [tried.how for tried in dead.tries] == [Ending.FAILED]
