"""Waiting jobs over several blocks of a run: deeper than the model of the state machine goes."""

from __future__ import annotations

import gc

from casque.clock import Random
from casque.service.requests import Cancel, Dequeue, Enqueue
from casque.state import State
from casque.state.lane import BLOCK, key_of
from casque.state.ready import ReadyIndex
from casque.types import JobRecord, JobSpec, JobState


def record(number: int, *, due_ms: int = 0, priority: int = 0, entrypoint: str = "a") -> JobRecord:
    return JobRecord(JobSpec(str(number), entrypoint, b"", priority), number, 0, JobState.READY, due_ms)


def filled(records: list[JobRecord]) -> tuple[ReadyIndex, dict[str, JobRecord]]:
    jobs: dict[str, JobRecord] = {}
    ready = ReadyIndex(jobs)
    for job in records:
        jobs[job.id] = job
        ready.push(job)
    return ready, jobs


def test_jobs_leave_in_order_through_many_blocks() -> None:
    ready, jobs = filled([record(n) for n in range(3 * BLOCK + 7)])

    for n in range(2 * BLOCK + 9):  # some leave while others still come
        job = ready.pop(("a",))
        assert job is not None
        assert job.sequence == n
        del jobs[job.id]
        late = record(3 * BLOCK + 7 + n)
        jobs[late.id] = late
        ready.push(late)

    rest = [job.sequence for _ in range(len(jobs)) if (job := ready.pop(("a",))) is not None]
    assert rest == list(range(2 * BLOCK + 9, 5 * BLOCK + 16))
    assert ready.pop(("a",)) is None


def test_jobs_that_come_in_bulk_stand_where_they_would_stand_one_by_one() -> None:
    rng = Random(5)
    one_by_one, in_bulk = State(), State()
    for commit in range(80):
        now_ms = 1_000 + commit + rng.randrange(-3, 2)  # the clock may step back: then a bulk goes into the heap
        priority, entrypoint = rng.randrange(2), rng.choice("ab")
        specs = tuple(
            JobSpec(f"{commit}-{n}", entrypoint, b"", priority) for n in range(rng.choice([2, 3, BLOCK - 1, 2 * BLOCK]))
        )
        in_bulk.execute(Enqueue(specs), now_ms)
        for spec in specs:
            one_by_one.execute(Enqueue((spec,)), now_ms)
        wanted = Dequeue(rng.choice([None, ("a",), ("a", "b")]), limit=rng.randrange(2 * BLOCK), lease_ms=1)
        assert in_bulk.execute(wanted, now_ms) == one_by_one.execute(wanted, now_ms)
        assert in_bulk.events == one_by_one.events
        for state in (in_bulk, one_by_one):
            if commit % 5 == 0:
                state.rollback()
            else:
                state.commit(writer="w", batch=commit, at_ms=now_ms)
        assert in_bulk.totals(now_ms) == one_by_one.totals(now_ms)
    assert list(in_bulk.listed()) == list(one_by_one.listed())
    assert in_bulk.counters == one_by_one.counters


def test_whatever_order_they_come_in_they_leave_by_priority_due_time_and_number() -> None:
    rng = Random(3)
    records = [
        record(n, due_ms=rng.randrange(50), priority=rng.randrange(3), entrypoint=rng.choice("ab"))
        for n in range(4 * BLOCK)
    ]
    ready, jobs = filled(records)
    gone = set(rng.sample(records, 2 * BLOCK))
    for job in gone:
        del jobs[job.id]
        ready.forget(job, was_delayed=False)

    for entrypoints in (("a",), ("a", "b"), None):
        expected = sorted(
            (j for j in jobs.values() if entrypoints is None or j.spec.entrypoint in entrypoints), key=key_of
        )
        for job in expected[: BLOCK // 2]:
            assert ready.pop(entrypoints) is job
            del jobs[job.id]


def test_many_that_are_taken_at_once_are_those_that_would_leave_one_by_one() -> None:
    rng = Random(7)
    at_once, one_by_one = State(), State()
    both = (at_once, one_by_one)
    known: list[str] = []
    for commit in range(120):
        now_ms = 1_000 + commit + rng.randrange(-3, 2)
        specs = tuple(
            JobSpec(f"{commit}-{n}", "a", b"", rng.randrange(3), now_ms + rng.choice([0, 0, 2, 5]))
            for n in range(rng.choice([1, 3, BLOCK, 2 * BLOCK + 5]))
        )
        known += [spec.id for spec in specs]
        gone = rng.sample(known, min(len(known), 20))
        limit = rng.choice([2, BLOCK, 2 * BLOCK + 3, 5 * BLOCK])
        claimed: list[list[JobRecord]] = []
        for state in both:
            state.execute(Enqueue(specs), now_ms)
            for job_id in gone:
                if job_id in state.jobs:
                    state.execute(Cancel(job_id), now_ms)
        claimed = [
            at_once.execute(Dequeue(("a",), limit, 1), now_ms),
            [job for _ in range(limit) for job in one_by_one.execute(Dequeue(("a",), 1, 1), now_ms)],
        ]
        assert claimed[0] == claimed[1]
        assert at_once.events == one_by_one.events
        for state in both:
            # What is undone is listed again, though it may be listed still: it must not be claimed twice.
            if commit % 3 == 0:
                state.rollback()
            else:
                state.commit(writer="w", batch=commit, at_ms=now_ms)
        assert at_once.totals(now_ms) == one_by_one.totals(now_ms)
    assert list(at_once.listed()) == list(one_by_one.listed())
    assert at_once.totals(2_000).ready == len(at_once.execute(Dequeue(None, 10**6, 1), 2_000))


def test_most_of_a_deep_queue_is_out_of_the_garbage_collectors_sight() -> None:
    gc.collect()
    others = {id(o) for o in gc.get_objects()}  # what tests before this one left
    before = len(others)
    ready, jobs = filled([record(n) for n in range(20 * BLOCK)])
    gc.collect()

    found = (o for o in gc.get_objects() if type(o) in (list, tuple) and o and type(o[0]) is JobRecord)
    watched = [o for o in found if id(o) not in others]

    assert sum(map(len, watched)) <= 2 * BLOCK
    assert not gc.is_tracked(jobs)
    assert len(gc.get_objects()) - before < BLOCK
    assert ready.pop(("a",)) is jobs["0"]
