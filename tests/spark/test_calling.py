"""What happens to a parcel of jobs on an executor, tried without one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from casque import InvalidInputError, Job, Outcome, OutcomeKind, Queue
from casque.clock import SystemClock
from casque.spark.work.calling import Caller, Calling, Loading, by_name
from casque.spark.work.options import Kind
from casque.spark.work.pace import FIRST, MOST, Pace
from casque.spark.work.parcels import Answer, answer_packed, answer_unpacked, packed, pieces, unpacked
from casque.spark.work.process import loading, process
from casque.spark.work.shift import Shift

pytestmark = pytest.mark.xdist_group("spark")


async def claimed(*payloads: bytes) -> list[Job[bytes]]:
    async with Queue.open("memory://") as queue:
        for payload in payloads:
            await queue.enqueue("count", payload, priority=3, headers={"a": "b"}, zone="north", key=payload.decode())
        return await queue.dequeue(batch_size=100)


async def told(handler: Callable[[Any], Any], *payloads: bytes, **how: Any) -> list[tuple[str | None, bytes | None]]:
    jobs = await claimed(*payloads)
    caller, shift = Caller(Calling(loading(handler), **how)), Shift(len(jobs))
    await asyncio.to_thread(caller.work, shift, unpacked(packed(jobs)))
    assert not caller.kept()
    assert shift.answer().running == shift.answer().unstarted == []
    outcomes = shift.answer().outcomes
    assert [(one.job_id, one.token) for one in outcomes] == [(job.id, job.token) for job in jobs]
    return [(one.error, one.result) for one in outcomes]


async def test_a_handler_sees_its_job_as_it_would_anywhere() -> None:
    def handler(job: Job[bytes]) -> bytes:
        seen = (job.entrypoint, job.payload, job.priority, job.attempts, job.max_attempts, dict(job.headers))
        assert seen == ("count", b"1", 3, 1, 25, {"a": "b"})
        assert (job.zone, job.key, job.last_error) == ("north", "1", None)
        assert job.token > 0
        assert job.created_at <= job.due_at
        return b"seen"

    assert await told(handler, b"1") == [(None, b"seen")]


async def test_what_a_handler_raises_is_the_outcome_of_that_job_alone() -> None:
    def handler(job: Job[bytes]) -> None:
        if job.payload == b"2":
            raise SystemExit("two")
        if job.payload == b"3":
            raise ValueError("three")

    first, second, third = await told(handler, b"1", b"2", b"3")
    assert first == (None, None)
    assert second[0] is not None
    assert third[0] is not None
    assert second[0].startswith("SystemExit: two\n")
    assert third[0].startswith("ValueError: three\n")
    assert 'raise ValueError("three")' in third[0], "the end of the traceback goes with it"
    assert "work/calling.py" not in third[0], "frames of ours tell nobody anything"


async def test_a_result_that_is_not_bytes_or_too_large_is_refused_with_the_fix() -> None:
    [one] = await told(lambda _job: 7, b"1")
    [two] = await told(lambda _job: b"x" * 300_000, b"1")
    assert "returned int: return bytes" in str(one[0])
    assert "result must be at most 262,144 bytes" in str(two[0])


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_coroutines_and_threads_answer_in_the_order_of_the_jobs(concurrency: int) -> None:
    async def waits(job: Job[bytes]) -> bytes:
        await SystemClock().sleep(0 if job.payload == b"1" else 0.01)
        return job.payload

    def at_once(job: Job[bytes]) -> bytes:
        return job.payload

    expected = [(None, b"1"), (None, b"2"), (None, b"3")]
    assert await told(waits, b"1", b"2", b"3", concurrency=concurrency) == expected
    assert await told(at_once, b"1", b"2", b"3", concurrency=concurrency) == expected


async def test_payloads_are_values_of_the_given_type() -> None:
    def handler(job: Job[list[int]]) -> bytes:
        return b"%d" % sum(job.payload)

    good, bad = await told(handler, b"[1,2]", b'"no"', type=list[int])
    assert good == (None, b"3")
    assert str(bad[0]).startswith("InvalidInputError: payload does not fit list")


async def test_a_handler_of_a_table_answers_by_id_in_any_order() -> None:
    def handler(jobs: pa.Table) -> pa.Table:
        assert jobs.column("headers").to_pylist() == [[("a", "b")]] * 3
        rows = [
            {"id": id_, "error": "odd" if payload == b"1" else None, "result": payload * 2}
            for id_, payload in zip(jobs.column("id").to_pylist(), jobs.column("payload").to_pylist(), strict=True)
        ]
        return pa.Table.from_pylist(rows[::-1][1:])

    outcomes = await told(handler, b"1", b"2", b"3", kind=Kind.ARROW)
    assert outcomes == [("odd", None), (None, b"22"), ("the handler returned no row for this job", None)]


async def test_a_handler_of_a_frame_may_say_nothing_at_all_or_fail_as_a_whole() -> None:
    def nothing(jobs: pd.DataFrame) -> None:
        assert list(jobs.payload) == [b"1", b"2"]
        assert str(jobs.created_at.dt.tz) == "UTC"

    def fails(jobs: pd.DataFrame) -> pd.DataFrame:
        raise KeyError("x")

    def errors(jobs: pd.DataFrame) -> pd.DataFrame:
        return jobs.assign(error=[None, "bad"])[["id", "error"]]

    assert await told(nothing, b"1", b"2", kind=Kind.PANDAS) == [(None, None)] * 2
    assert [str(error).partition("\n")[0] for error, _ in await told(fails, b"1", b"2", kind=Kind.PANDAS)] == [
        "KeyError: 'x'"
    ] * 2
    assert await told(errors, b"1", b"2", kind=Kind.PANDAS) == [(None, None), ("bad", None)]


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (pa.table({"name": ["x"]}), "has no column id, only name"),
        (pa.table({"id": ["stranger"]}), "rows for jobs that it was not given"),
        (pa.table({"id": ["x", "x"]}), "more than one row for a job"),
        ([1, 2], "returned list: return None if all are done, or a table"),
    ],
)
async def test_a_table_that_does_not_fit_fails_the_jobs_it_was_about(returned: Any, said: str) -> None:
    outcomes = await told(lambda _jobs: returned, b"1", b"2", kind=Kind.ARROW)
    assert all(said in str(error) for error, _ in outcomes)


async def test_a_handler_of_many_gets_no_more_than_it_wants_in_one_call() -> None:
    def handler(jobs: pa.Table) -> pa.Table:
        return pa.table({"id": jobs.column("id"), "result": [b"%d" % jobs.num_rows] * jobs.num_rows})

    outcomes = await told(handler, b"1", b"2", b"3", b"4", b"5", kind=Kind.ARROW, per_call=2)
    assert [result for _, result in outcomes] == [b"1", b"2", b"2", b"2", b"2"]


def test_a_handler_by_name_is_found_or_it_is_said_why_not() -> None:
    assert by_name("pickle:dumps").__name__ == "dumps"
    for name, said in [
        ("pickle", "is written module:function"),
        ("no_such_module:f", "No module named 'no_such_module'. Is its module installed here"),
        ("pickle:nothing", "has no attribute 'nothing'"),
        ("pickle:HIGHEST_PROTOCOL", "must be a function, not int"),
    ]:
        with pytest.raises(InvalidInputError, match=said):
            by_name(name)


def test_a_handler_that_cannot_travel_is_refused_before_anything_is_claimed() -> None:
    lock = __import__("threading").Lock()
    with pytest.raises(InvalidInputError, match="cannot be sent to executors"):
        loading(lambda _job: lock.acquire())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"kind": "row"}, "kind must be one of 'job', 'arrow', 'pandas', not 'row'"),
        ({"until": "dawn"}, "until must be one of 'due', 'empty'"),
        ({"lease": 0}, "lease must be more than zero"),
        ({"batch": 0}, "batch must be a whole number from 1"),
        ({"per_call": 10}, "per_call is for handlers of many jobs"),
        ({"kind": "arrow", "concurrency": 2}, "concurrency is for handlers of one job"),
        ({"via": "wire"}, "via must be one of 'auto', 'embedded', 'broker'"),
        ({"stale_timout": 1}, "there is no setting 'stale_timout'; did you mean 'stale_timeout'"),
    ],
)
def test_an_argument_that_makes_no_sense_is_named(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        process(None, "memory://", "pickle:dumps", **arguments)  # type: ignore[arg-type]


def test_the_handler_is_loaded_once_in_a_process() -> None:
    from casque.spark.work.calling import load

    calls = loading(lambda _job: None)
    assert load(calls) is load(Loading(code=calls.code))


def test_pieces_are_even_and_none_is_empty() -> None:
    assert pieces(range(10), 4) == [range(2), range(2, 5), range(5, 7), range(7, 10)]
    assert [len(piece) for piece in pieces(range(10), 99)] == [1] * 10
    assert pieces([], 4) == []


async def test_jobs_travel_as_the_queue_keeps_them() -> None:
    jobs = await claimed(b"1", b"2")
    assert unpacked(packed(jobs)) == [job.record for job in jobs]
    assert unpacked(packed([])) == []


async def test_jobs_that_are_simply_done_need_no_answer_and_one_that_is_not_makes_all_of_them_be_named() -> None:
    done = [Outcome("a", 1), Outcome("b", 2)]
    assert answer_packed(Answer(done)) == b""
    told = [*done, Outcome("c", 3, "broken", delay_ms=5, how=OutcomeKind.FINAL), Outcome("d", 4, result=b"!")]
    assert answer_unpacked(answer_packed(Answer(told))) == Answer(told)
    assert answer_unpacked(answer_packed(Answer(done, [2], [3, 4]))) == Answer(done, [2], [3, 4])


def test_the_pace_starts_small_grows_with_quick_handlers_and_shrinks_with_slow_ones() -> None:
    pace = Pace(None)
    assert (pace.size, pace.known) == (FIRST, False)
    pace.learn(jobs=100, payload_bytes=100, seconds=0.1)
    assert (pace.size, pace.known) == (1000, True)
    for _ in range(5):
        pace.learn(jobs=pace.size, payload_bytes=100, seconds=0.1)
    assert pace.size == MOST
    pace.learn(jobs=MOST, payload_bytes=100, seconds=5000.0)
    assert pace.size == MOST // 10
    pace.learn(jobs=5000, payload_bytes=640 * 1024 * 1024, seconds=0.1)
    assert pace.size == 500, "what they weigh counts too"
    for _ in range(5):
        pace.learn(jobs=pace.size, payload_bytes=1, seconds=36_000.0)
    assert pace.size == 1
    assert Pace(7).size == 7
