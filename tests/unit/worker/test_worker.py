"""What a worker makes of whatever handlers do, on a queue in memory."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any

import pytest
from typer.testing import CliRunner

from casque import InvalidInputError, InvalidPayloadError, Job, JobState, Queue
from casque.cli.logs import log_fields
from casque.cli.main import app as commands
from casque.clock import SystemClock, new_nonce, system_random
from casque.errors import CASConflictError
from casque.worker import Cancel, Handler, JobContext, Retry, Snooze, Summary, Worker
from casque.worker.framing import read_frame

CLOCK = SystemClock()


class App:
    """The smallest thing that a worker can work for."""

    def __init__(self, url: str, *handlers: Handler) -> None:
        self.url = url
        self.opening: Mapping[str, Any] = {}
        self.handlers = {handler.entrypoint: handler for handler in handlers}


@pytest.fixture
def url() -> str:
    return "memory://" + new_nonce(system_random())


def handler(call: Callable[[bytes, JobContext], Any], **more: Any) -> Handler:
    return Handler("do", call, **{"is_async": asyncio.iscoroutinefunction(call), **more})


async def worked(url: str, *handlers: Handler, jobs: int = 1, **options: Any) -> tuple[Summary, list[Job[bytes]]]:
    """Enqueue some, run a worker until nothing is due, and look at what is left."""
    async with Queue.open(url) as queue:
        await queue.enqueue_many([("do", b"%d" % n) for n in range(jobs)])
        summary = await Worker(App(url, *handlers), burst=True, **options).run()
        return summary, await queue.jobs()


async def results(url: str) -> list[tuple[JobState, bytes | None, str | None]]:
    return [(job.state, job.result, job.error) async for job in Queue.open(url).archive()]


async def test_what_a_handler_returns_is_the_result(url: str) -> None:
    async def shout(payload: bytes, context: JobContext) -> str:
        return f"{payload.decode()} {context.entrypoint} {context.attempt}"

    summary, left = await worked(url, handler(shout, encode_result=lambda said: str(said).encode()))

    assert (summary, left) == (Summary(claimed=1, done=1), [])
    assert await results(url) == [(JobState.DONE, b"0 do 1", None)]


async def test_a_worker_of_some_zones_leaves_the_others_alone(url: str) -> None:
    async def nothing(payload: bytes, context: JobContext) -> None: ...

    async with Queue.open(url) as queue:
        for zone in ("acme", "umbrella", "giant", None):
            await queue.enqueue("do", b"", zone=zone)
        worker = Worker(App(url, handler(nothing)), burst=True, zones=["acme", "umbrella"])
        assert worker.zones == ("acme", "umbrella")
        assert (await worker.run()).done == 2
        assert [job.zone for job in await queue.jobs()] == ["giant", None]
        assert (await Worker(App(url, handler(nothing)), burst=True, zones="giant").run()).done == 1
        assert (await Worker(App(url, handler(nothing)), burst=True).run()).done == 1


async def test_a_thousand_jobs_are_each_done_once(url: str) -> None:
    seen: list[bytes] = []

    async def note(payload: bytes, context: JobContext) -> None:
        seen.append(payload)

    summary, left = await worked(url, handler(note), jobs=1000, concurrency=7)

    assert (summary.done, left) == (1000, [])
    assert sorted(seen) == sorted(b"%d" % n for n in range(1000))


async def test_no_more_jobs_than_allowed_run_at_once(url: str) -> None:
    running, most = 0, 0

    async def count(payload: bytes, context: JobContext) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await CLOCK.sleep(0)
        running -= 1

    await worked(url, handler(count), jobs=50, concurrency=3)

    assert most == 3


async def test_a_failure_is_told_with_its_place_and_waits_as_its_handler_says(url: str) -> None:
    async def fail(payload: bytes, context: JobContext) -> None:
        raise ValueError("no such user")

    summary, [job] = await worked(url, handler(fail, retry=Retry(delays_s=(3600,))))

    assert (summary.failed, summary.done) == (1, 0)
    assert (job.state, job.attempts) == (JobState.DELAYED, 1)
    assert job.last_error is not None
    assert job.last_error.startswith("ValueError: no such user\n")
    assert "in fail" in job.last_error
    assert "runner.py" not in job.last_error


async def test_a_payload_that_does_not_fit_is_dead_at_once(url: str) -> None:
    async def strict(payload: bytes, context: JobContext) -> None:
        raise InvalidPayloadError("do", "it has no address")

    summary, [job] = await worked(url, handler(strict))

    assert summary.failed == 1
    assert (job.state, job.attempts) == (JobState.DEAD, 1)
    assert job.last_error == "the payload does not fit what 'do' takes: it has no address"


async def test_a_handler_that_allows_no_more_attempts_has_its_job_dead(url: str) -> None:
    async def fail(payload: bytes, context: JobContext) -> None:
        raise ValueError("no")

    summary, [job] = await worked(url, handler(fail, retry=Retry(max_attempts=3, delays_s=(0,))))

    assert summary.failed == 3
    assert (job.state, job.attempts, job.max_attempts) == (JobState.DEAD, 3, 25)


async def test_a_handler_that_takes_too_long_has_failed(url: str) -> None:
    never = asyncio.Event()

    async def linger(payload: bytes, context: JobContext) -> None:
        await never.wait()

    summary, [job] = await worked(url, handler(linger, timeout_s=0.01, retry=Retry(delays_s=(3600,))))

    assert summary.failed == 1
    assert job.last_error == "TimeoutError: the handler took longer than its 0.01 s"


async def test_a_function_in_a_thread_that_takes_too_long_has_failed_and_is_told_so(url: str) -> None:
    noticed = threading.Event()

    def linger(payload: bytes, context: JobContext) -> None:
        while not context.lease_lost.is_set():
            threading.Event().wait(0.001)
        noticed.set()

    options = {"executor": "thread", "timeout_s": 0.01, "retry": Retry(delays_s=(3600,))}
    summary, [job] = await worked(url, handler(linger, **options))

    assert noticed.is_set()
    assert (summary.failed, summary.done) == (1, 0)
    assert job.last_error == "TimeoutError: the handler took longer than its 0.01 s"


async def test_plain_functions_run_in_threads_and_at_once(url: str) -> None:
    together = threading.Barrier(4, timeout=60)

    def meet(payload: bytes, context: JobContext) -> bytes:
        together.wait()
        return threading.current_thread().name.encode()

    summary, left = await worked(url, handler(meet, executor="thread"), jobs=4, concurrency=4)

    assert (summary.done, left) == (4, [])
    assert len({result for _, result, _ in await results(url)}) == 4


async def test_a_handler_that_snoozes_is_called_again_later(url: str) -> None:
    async def not_yet(payload: bytes, context: JobContext) -> Snooze:
        return Snooze(3600)

    summary, [job] = await worked(url, handler(not_yet))

    assert (summary.snoozed, summary.failed, summary.done) == (1, 0, 0)
    assert (job.state, job.attempts, job.last_error) == (JobState.DELAYED, 0, None)


async def test_a_job_that_snoozes_for_ever_does_not_run_out_of_attempts(url: str) -> None:
    calls: list[int] = []

    async def at_last(payload: bytes, context: JobContext) -> Snooze | None:
        calls.append(context.attempt)
        return Snooze(0) if len(calls) < 30 else None

    async with Queue.open(url) as queue:
        await queue.enqueue("do", b"", max_attempts=1)
        worker = Worker(App(url, handler(at_last)), burst=True)
        while (await worker.run()).done == 0:
            pass
        left = await queue.jobs()

    assert (calls, left) == ([1] * 30, [])


async def test_a_handler_may_cancel_its_job(url: str) -> None:
    async def withdraw(payload: bytes, context: JobContext) -> Cancel:
        return Cancel("the order was withdrawn")

    summary, left = await worked(url, handler(withdraw))

    assert (summary.cancelled, summary.done, left) == (1, 0, [])
    assert await results(url) == [(JobState.CANCELLED, None, "the order was withdrawn")]


async def test_a_handler_that_lost_its_lease_cannot_cancel_the_job(url: str) -> None:
    async def withdraw(payload: bytes, context: JobContext) -> Cancel:
        await queue.nack(context.job_id, context.token, delay=3600)  # as if the lease had run out
        return Cancel("the order was withdrawn")

    async with Queue.open(url) as queue:
        summary, [job] = await worked(url, handler(withdraw))

    assert (summary.cancelled, summary.lost, job.state) == (0, 1, JobState.DELAYED)


async def test_a_result_that_cannot_be_kept_is_a_failure(url: str) -> None:
    async def odd(payload: bytes, context: JobContext) -> object:
        return object()

    summary, [job] = await worked(url, handler(odd, retry=Retry(delays_s=(3600,))))

    assert summary.failed == 1
    assert job.last_error is not None
    assert "a result must be bytes or None, not object" in job.last_error


@pytest.mark.parametrize("leave", [SystemExit(3), asyncio.CancelledError(), StopIteration()], ids=repr)
async def test_a_handler_that_wants_to_leave_has_only_failed(url: str, leave: BaseException) -> None:
    def go(payload: bytes, context: JobContext) -> None:
        raise leave

    summary, [job] = await worked(url, handler(go, executor="thread", retry=Retry(delays_s=(3600,))))

    assert summary.failed == 1
    assert job.attempts == 1


async def test_a_worker_that_is_told_to_stop_ends(url: str) -> None:
    async def stop(payload: bytes, context: JobContext) -> None:
        worker.stop()

    worker = Worker(App(url, handler(stop)))
    async with Queue.open(url) as queue:
        await queue.enqueue("do", b"")
        summary = await worker.run()

    assert summary.done == 1


async def stopped(url: str, *handlers: Handler, begun: asyncio.Event | threading.Event) -> tuple[Summary, Job[bytes]]:
    """Enqueue a job that may crash once, stop the worker while it runs and give it no time, and look at the job."""
    async with Queue.open(url) as queue:
        await queue.enqueue("do", b"", max_crashes=1)
        worker = Worker(App(url, *handlers), drain=0)
        running = asyncio.create_task(worker.run())
        async with asyncio.timeout(20):
            while not begun.is_set():
                await CLOCK.sleep(0.001)
            worker.stop()
            summary = await running
        [job] = await queue.jobs()
        return summary, job


async def test_a_job_that_outlives_the_drain_is_given_back_and_is_neither_an_attempt_nor_a_crash(url: str) -> None:
    begun = asyncio.Event()

    async def endless(_payload: bytes, _context: JobContext) -> None:
        begun.set()
        await asyncio.Event().wait()

    summary, job = await stopped(url, handler(endless), begun=begun)

    assert (summary.given_back, summary.left, summary.lost) == (1, 0, 0)
    assert (job.state, job.attempts, job.record.crashes, job.record.tries) == (JobState.READY, 0, 0, ())


async def test_a_job_that_could_not_be_given_back_at_first_is_given_back_all_the_same(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, give_back, refusals = asyncio.Event(), Queue.give_back, [CASConflictError("others won every race")]

    async def busy(queue: Queue[bytes], jobs: Any) -> Any:
        return [refusals.pop()] if refusals else await give_back(queue, jobs)

    async def endless(_payload: bytes, _context: JobContext) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Queue, "give_back", busy)
    summary, job = await stopped(url, handler(endless), begun=begun)

    assert not refusals
    assert (summary.given_back, job.state, job.attempts) == (1, JobState.READY, 0)


async def test_ten_deployments_do_not_quarantine_a_long_job(url: str) -> None:
    async with Queue.open(url) as queue:
        await queue.enqueue("do", b"", max_crashes=1, max_attempts=1)
        for _ in range(10):
            begun = asyncio.Event()

            async def endless(_payload: bytes, _context: JobContext, begun: asyncio.Event = begun) -> None:
                begun.set()
                await asyncio.Event().wait()

            worker = Worker(App(url, handler(endless)), drain=0)
            running = asyncio.create_task(worker.run())
            async with asyncio.timeout(20):
                await begun.wait()
                worker.stop()
                await running
        [job] = await queue.jobs()

    assert (job.state, job.attempts, job.record.crashes, job.token) == (JobState.READY, 0, 0, 10)


async def test_a_function_in_a_thread_that_looks_at_the_flag_goes_back_and_is_not_done(url: str) -> None:
    begun = threading.Event()

    def endless(_payload: bytes, context: JobContext) -> None:
        begun.set()
        while not context.lease_lost.is_set():
            threading.Event().wait(0.001)

    summary, job = await stopped(url, handler(endless, executor="thread"), begun=begun)

    assert (summary.given_back, summary.done, summary.left) == (1, 0, 0)
    assert (job.state, job.attempts, job.record.crashes) == (JobState.READY, 0, 0)


@pytest.mark.parametrize("executor", ["async", "thread"])
async def test_a_handler_that_does_not_stop_keeps_its_lease_for_it_may_still_act(url: str, executor: Any) -> None:
    begun, go = threading.Event(), threading.Event()

    async def ignores(_payload: bytes, _context: JobContext) -> None:
        begun.set()
        while not go.is_set():
            try:
                await CLOCK.sleep(0.01)
            except asyncio.CancelledError:
                continue

    def deaf(_payload: bytes, _context: JobContext) -> None:
        begun.set()
        go.wait()

    one = handler(ignores) if executor == "async" else handler(deaf, executor="thread")
    try:
        summary, job = await stopped(url, one, begun=begun)
    finally:
        go.set()

    assert (summary.given_back, summary.left) == (0, 1)
    assert job.state is JobState.RUNNING


async def test_a_worker_that_is_cancelled_gives_back_all_it_has(url: str) -> None:
    begun = asyncio.Event()

    async def endless(_payload: bytes, _context: JobContext) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with Queue.open(url) as queue:
        await queue.enqueue_many([("do", b""), ("do", b""), ("do", b"")])
        running = asyncio.create_task(Worker(App(url, handler(endless)), concurrency=3).run())
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        jobs = await queue.jobs()

    assert {(job.state, job.attempts) for job in jobs} == {(JobState.READY, 0)}


def test_a_guard_takes_a_word_that_breaks_off_for_the_end_of_its_worker() -> None:
    whole = b"\0\0\0\3abc"

    assert read_frame(BytesIO(whole)) == b"abc"
    assert [read_frame(BytesIO(whole[:cut])) for cut in range(len(whole))] == [None] * len(whole)


async def test_lines_about_a_job_say_which(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def tell(payload: bytes, context: JobContext) -> None:
        context.logger.warning("hello")

    with caplog.at_level(logging.INFO, "casque"):
        await worked(url, handler(tell))

    lines = [log_fields(record) for record in caplog.records if hasattr(record, "job_id")]
    assert [(line["logger"], line["entrypoint"], line["attempt"]) for line in lines] == [
        ("casque.job", "do", 1),
        ("casque.worker", "do", 1),
    ]
    assert lines[0]["message"].startswith("hello [do ")
    assert lines[1]["elapsed_ms"] >= 0


async def test_two_workers_never_have_the_same_name(url: str) -> None:
    async def nothing(payload: bytes, context: JobContext) -> None: ...

    assert Worker(App(url, handler(nothing))).name != Worker(App(url, handler(nothing))).name


async def nothing(payload: bytes, context: JobContext) -> None: ...


@pytest.mark.parametrize(
    ("handlers", "options", "said"),
    [
        ([], {}, "no function was made a job"),
        ([handler(nothing)], {"entrypoints": ["doo"]}, "did you mean 'do'?"),
        ([handler(nothing, executor="rocket")], {}, "executor='rocket'"),
        ([handler(lambda payload, context: None, executor="process")], {}, "executor='process', and a process cannot"),
        ([handler(nothing)], {"recycle_after": 0}, "recycle_after must be"),
        ([handler(nothing)], {"recycle_memory": 0}, "recycle_memory must be"),
        ([handler(nothing, executor="thread")], {}, "is a coroutine"),
        ([handler(nothing, timeout_s=0)], {}, "more than zero"),
        ([handler(nothing)], {"concurrency": 0}, "concurrency must be"),
        ([handler(nothing)], {"lease": 0.5}, "at least 1 s"),
        ([handler(nothing)], {"zones": []}, "1 to 1000 zones"),
        ([handler(nothing)], {"zones": "two\nlines"}, "zone must be"),
    ],
)
async def test_what_cannot_work_is_refused_before_anything_is_claimed(
    url: str, handlers: list[Handler], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInputError, match=said.replace("?", "[?]")):
        Worker(App(url, *handlers), **options)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("shop", "an app is written module:app"),
        ("no_such_module:app", "there is no module 'no_such_module' in"),
        ("casque:nothing", "the module 'casque' has no 'nothing': it has no casque.App"),
        ("casque:Queue", "is a type, not an app"),
    ],
)
def test_the_command_says_what_is_wrong_with_the_name_of_an_app(name: str, said: str) -> None:
    ended = CliRunner().invoke(commands, ["worker", name])

    assert ended.exit_code == 2
    assert said in ended.stderr
