"""The functions of an app on executors: what they are called with, and what becomes of their jobs."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from casque import App, Cancel, InvalidInputError, JobContext, JobState, Queue, Snooze, SyncQueue
from casque.clock import SystemClock
from casque.service import Outcome, OutcomeKind
from casque.spark import process
from casque.spark.work.calling import Loading
from casque.spark.work.functions import Crew, functions_of, load
from casque.spark.work.shift import Shift
from tests.spark.test_work import archived, totals

pytestmark = pytest.mark.xdist_group("spark")

app = App("memory://spark-app", max_attempts=3)


@dataclass
class Order:
    number: int
    items: list[str]


@app.job(max_attempts=2, backoff=[7, 11])
async def ship(order: Order, *, fast: bool = False) -> dict[str, Any]:
    if not order.items:
        raise ValueError("nothing to ship")
    return {"number": order.number, "items": len(order.items), "fast": fast}


@app.job(timeout=0.05)
async def hang() -> None:
    await SystemClock().sleep(3600)


@app.job()
def later(context: JobContext, seconds: float) -> Snooze:
    context.progress(1, 2, note="nobody hears this")
    return Snooze(seconds)


@app.job()
def withdrawn(context: JobContext) -> Cancel:
    return Cancel(f"attempt {context.attempt} of {context.entrypoint}")


@app.job(executor="process", max_crashes=2, backoff=5)
def crash(*, how: str) -> int:
    if how == "well":
        return os.getpid()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


async def outcomes(*added: tuple[str, bytes], concurrency: int = 1) -> list[Outcome]:
    """What an executor makes of these jobs of the app above, which it finds by its name."""
    async with Queue.open("memory://") as queue:
        for entrypoint, payload in added:
            await queue.enqueue(entrypoint, payload, max_crashes=2)
        jobs = await queue.dequeue(batch_size=100)

    def answered() -> list[Outcome]:
        crew, shift = Crew(Loading(name=f"{__name__}:app"), concurrency), Shift(len(jobs))
        try:
            crew.work(shift, [job.record for job in jobs])
        finally:
            crew.close()
        assert shift.answer().running == shift.answer().unstarted == []
        return shift.answer().outcomes

    told = await asyncio.to_thread(answered)
    assert [one.job_id for one in told] == [job.id for job in jobs]
    return told


async def test_results_are_those_that_a_worker_of_the_app_keeps() -> None:
    [plain, fast] = await outcomes(
        ("ship", b'{"order": {"number": 1, "items": ["a"]}}'),
        ("ship", b'{"order": {"number": 2, "items": []}, "fast": true}'),
    )
    assert plain.result == b'{"number":1,"items":1,"fast":false}'
    assert str(fast.error).startswith("ValueError: nothing to ship\n")
    assert (fast.delay_ms, fast.kind) == (7000, OutcomeKind.FAILED), "after the back-off of its function"


@pytest.mark.parametrize("concurrency", [1, 8])
async def test_functions_put_off_call_off_and_take_too_long(concurrency: int) -> None:
    put_off, called_off, slow, wrong = await outcomes(
        ("later", b'{"seconds": 30}'),
        ("withdrawn", b"{}"),
        ("hang", b"{}"),
        ("ship", b'{"order": 7}'),
        concurrency=concurrency,
    )
    assert put_off == Outcome(put_off.job_id, put_off.token, delay_ms=30_000, how=OutcomeKind.SNOOZED)
    assert called_off == Outcome(
        called_off.job_id, called_off.token, "attempt 1 of withdrawn", how=OutcomeKind.CANCELLED
    )
    assert str(slow.error).startswith("TimeoutError: the handler took longer than its 0.05 s")
    assert wrong.kind is OutcomeKind.DECLINED, "another release may understand it"
    assert "order" in str(wrong.error)


async def test_a_function_that_takes_its_own_process_with_it_crashes_alone() -> None:
    crashed, well, also = await outcomes(
        ("crash", b'{"how": "badly"}'), ("crash", b'{"how": "well"}'), ("crash", b'{"how": "well"}')
    )
    assert crashed.kind is OutcomeKind.CRASHED
    assert crashed.delay_ms is not None
    assert 0 < crashed.delay_ms <= 5000
    assert "was killed by SIGKILL" in str(crashed.error)
    assert well.result == also.result != str(os.getpid()).encode(), "one process for as long as the task lasts"


async def test_an_executor_that_lacks_a_function_blames_no_job() -> None:
    with pytest.raises(InvalidInputError, match="no function for 'unheard' on this executor"):
        await outcomes(("ship", b"{}"), ("unheard", b"{}"))


def test_functions_of_a_script_travel_with_their_types() -> None:
    local = App("memory://")

    @dataclass
    class Point:
        x: int

    def double(point: Point) -> Point:
        return Point(point.x * 2)

    double.__annotations__ = {"point": Point, "return": Point}  # as they are without the import from the future
    local.job()(double)
    sent = functions_of(local, None, 1)
    handler = load(sent.__reduce__()[1][0])["double"]
    assert handler.encode_result(handler.call(b'{"point": {"x": 4}}', JobContext("1", "double"))) == b'{"x":8}'


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, "give a handler or an app"),
        ({"app": app, "handler": print}, "give a handler or an app"),
        ({"app": app, "kind": "arrow"}, "leave kind, type and results out"),
        ({"app": app, "entrypoints": "shipp"}, "did you mean 'ship'"),
        ({"app": App("memory://")}, "there is nothing to run"),
        ({"app": 7}, "7 is a int, not an app"),
        ({"handler": print, "url": None}, "which queue"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_begun(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        process(None, **{"url": "memory://", **wrong})


def test_executors_work_off_an_apps_own_queue_and_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    url = (tmp_path / "queue").as_uri()
    shop = App(url, max_attempts=1)

    @shop.cron("0 0 29 2 *")
    @shop.job()
    async def square(number: int = 0) -> int:
        if number == 3:
            raise ValueError("three")
        return number * number

    @shop.job()
    def stop(context: JobContext, why: str) -> Cancel | Snooze:
        return Snooze(3600) if why == "early" else Cancel(f"{why}, attempt {context.attempt}")

    with shop:
        square.enqueue_many_sync([square.bind(number) for number in range(20)])
        early, _late = stop.enqueue_many_sync([stop.bind("early"), stop.bind("late")])
    with SyncQueue.open(url) as queue:
        queue.enqueue("square", b'{"number": "seven"}', max_attempts=9)
        queue.enqueue("unknown", b"left alone")

    summary = process(spark, app=shop, batch=50)

    assert (summary.jobs, summary.done, summary.failed, summary.cancelled, summary.snoozed) == (23, 19, 1, 1, 1)
    assert summary.declined == 1
    finished = archived(url)
    dead = {payload for payload, job in finished.items() if job.state is JobState.DEAD}
    assert dead == {b'{"number":3}'}
    assert finished[b'{"number":4}'].result == b"16"
    assert finished[b'{"why":"late"}'].error == "late, attempt 1"
    assert totals(url) == (3, 0, 19), "one put off, one not understood, one of a function that the app does not have"
    with SyncQueue.open(url) as queue:
        [declined] = [job for job in queue.jobs(entrypoint="square") if job.job.record.declined]
    assert (declined.state, declined.attempts) == (JobState.DELAYED, 0)
    assert "does not fit what 'square' takes: argument 'number'" in str(declined.last_error)
    with shop:
        assert early.status() is JobState.DELAYED
        assert [schedule.name for schedule in shop.wait(shop.queue.schedules())] == ["square"]
