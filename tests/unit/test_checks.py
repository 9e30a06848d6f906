"""Bad input is refused where it enters: by name, with what to do instead, and without a trace in the queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest
import pytest_asyncio

from casque import (
    BrokerQueue,
    DirectQueue,
    InMemoryStorage,
    InvalidInputError,
    JobState,
    NewJob,
    Outcome,
    Queue,
    QueueClosedError,
    checks,
)
from casque.service import Lease
from casque.testing.clock import ManualClock
from casque.types import Backoff

ENQUEUE: list[tuple[str, Any]] = [
    ("entrypoint", ""),
    ("entrypoint", "x" * 257),
    ("entrypoint", "line\nbreak"),
    ("entrypoint", "nul\0"),
    ("entrypoint", "half \ud800"),
    ("entrypoint", 7),
    ("entrypoint", None),
    ("entrypoint", b"bytes"),
    ("payload", "text"),
    ("payload", None),
    ("payload", 7),
    ("payload", ["list"]),
    ("priority", "high"),
    ("priority", 1.5),
    ("priority", True),
    ("priority", None),
    ("priority", 2**63),
    ("priority", -(2**63) - 1),
]
ENQUEUE_MORE: list[tuple[str, Any]] = [
    ("delay", -1),
    ("delay", timedelta(seconds=-1)),
    ("delay", float("nan")),
    ("delay", float("inf")),
    ("delay", "soon"),
    ("delay", True),
    ("run_at", 1_700_000_000),
    ("run_at", "2026-01-01"),
    ("run_at", datetime(2026, 1, 1)),  # noqa: DTZ001 -- that is the mistake
    ("key", ""),
    ("key", "x" * 1025),
    ("key", 7),
    ("key", "half \ud800"),
    ("max_attempts", 0),
    ("max_attempts", -1),
    ("max_attempts", 1.5),
    ("max_attempts", True),
    ("max_attempts", 2**63),
    ("headers", {"a": 1}),
    ("headers", {1: "a"}),
    ("headers", "a=b"),
    ("headers", [("a", "b")]),
    ("zone", ""),
    ("zone", 7),
    ("zone", "x" * 257),
]
UNSTORABLE: list[tuple[str, Any]] = [
    ("headers", {"a": "half \ud800"}),
    ("request_id", 7),
    ("request_id", ["list"]),
    ("request_id", "half \ud800"),
    ("request_id", ""),
]
DEQUEUE: list[tuple[str, Any]] = [
    ("entrypoint", ""),
    ("entrypoint", ["ok", ""]),
    ("batch_size", 0),
    ("batch_size", -1),
    ("batch_size", 100_001),
    ("batch_size", "1"),
    ("batch_size", 1.0),
    ("batch_size", True),
    ("wait", -1),
    ("wait", "soon"),
    ("wait", float("nan")),
    ("lease", -1),
    ("lease", "long"),
    ("lease", timedelta(seconds=-1)),
]


def named(cases: list[tuple[str, Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("argument", "value"), cases, ids=[f"{a}={v!r:.30}" for a, v in cases])


@pytest_asyncio.fixture
async def q() -> AsyncIterator[Queue[bytes]]:
    async with Queue.open(InMemoryStorage(), clock=ManualClock()) as queue:
        await queue.enqueue("task", b"there before")
        yield queue


async def assert_untouched(q: Queue[bytes]) -> None:
    """One job, one commit; and the queue goes on."""
    stats = await q.stats()
    assert (stats.position, stats.totals.enqueued, stats.totals.ready) == (1, 1, 1)
    await q.enqueue("task", b"after")


@named(ENQUEUE + ENQUEUE_MORE)
async def test_a_bad_enqueue_is_refused_by_name(q: Queue[bytes], argument: str, value: Any) -> None:
    call: dict[str, Any] = {"entrypoint": "task", "payload": b"data", argument: value}

    with pytest.raises(InvalidInputError, match=argument):
        await q.enqueue(**call)

    await assert_untouched(q)


@named(ENQUEUE)
async def test_a_bad_enqueue_of_the_small_api_is_refused_by_name(argument: str, value: Any) -> None:
    storage = InMemoryStorage()
    call: dict[str, Any] = {"entrypoint": "task", "payload": b"data", argument: value}

    with pytest.raises(InvalidInputError, match=argument):
        await DirectQueue(storage).enqueue(**call)

    assert await storage.read() == (b"", None)


@named(UNSTORABLE)
async def test_what_cannot_be_stored_is_refused_by_name(q: Queue[bytes], argument: str, value: Any) -> None:
    call: dict[str, Any] = {"entrypoint": "task", "payload": b"data", argument: value}

    with pytest.raises(InvalidInputError, match=argument):
        await q.enqueue(**call)

    await assert_untouched(q)


async def test_a_request_id_that_is_no_text_does_not_break_the_queue_for_others() -> None:
    storage = InMemoryStorage()
    async with Queue.open(storage) as q:
        try:
            await q.enqueue("task", b"data", request_id=7)  # type: ignore[arg-type]
        except InvalidInputError:
            pass

    await DirectQueue(storage).enqueue("task", b"data")


async def test_a_delay_and_a_moment_are_refused_together(q: Queue[bytes]) -> None:
    with pytest.raises(InvalidInputError, match="delay or run_at"):
        await q.enqueue("task", b"data", delay=1, run_at=datetime(2026, 1, 1, tzinfo=UTC))

    await assert_untouched(q)


@pytest.mark.parametrize("bad", [("task",), ("task", b"1", 2), "task", None, (7, b"data"), NewJob("", b"data")])
async def test_one_bad_job_among_many_refuses_them_all(q: Queue[bytes], bad: Any) -> None:
    with pytest.raises(InvalidInputError):
        await q.enqueue_many([("task", b"good"), bad])

    await assert_untouched(q)


async def test_many_jobs_keep_what_each_was_given(q: Queue[bytes]) -> None:
    headers = {"lang": "de"}
    jobs = await q.enqueue_many(
        [
            NewJob("task", b"0", priority=5, headers=headers, zone="a", max_crashes=2),
            NewJob("task", b"1", priority=5, headers=headers, zone="a", max_crashes=2),
            ("task", b"2"),
            NewJob("task", b"3", priority=5, headers=headers, zone="a", max_crashes=2),
            NewJob("task", b"4", priority=6, headers=headers, zone="a", max_crashes=2),
            NewJob("task", b"5", priority=6, headers=headers, zone="a", max_crashes=2, key="k"),
            NewJob("task", b"6", priority=6, headers=headers, zone="a", max_crashes=2, delay=60),
            NewJob("task", b"7", priority=6, headers=headers, zone="b", max_crashes=2),
            NewJob("task", b"8", priority=6, zone="b", max_attempts=9),
            NewJob("task", b"9", zone="line", fifo=True),
            NewJob("task", b"10", zone="line", fifo=True),
        ]
    )
    assert [job.record.spec.fifo for job in jobs] == [False] * 9 + [True] * 2
    del jobs[9:]
    found = [job.record.spec for job in jobs]
    assert [spec.payload for spec in found] == [b"%d" % number for number in range(9)]
    assert [spec.priority for spec in found] == [5, 5, 0, 5, 6, 6, 6, 6, 6]
    assert [spec.headers for spec in found] == [headers, headers, None, *[headers] * 5, None]
    assert [spec.zone for spec in found] == ["a", "a", None, *"aaaabb"]
    assert [spec.max_crashes for spec in found] == [2, 2, None, 2, 2, 2, 2, 2, None]
    assert [spec.key for spec in found] == [None] * 5 + ["k"] + [None] * 3
    assert [spec.run_at_ms is not None for spec in found] == [number == 6 for number in range(9)]
    assert found[8].max_attempts == 9
    assert len({job.id for job in jobs}) == 9


@pytest.mark.parametrize("bad", [{"priority": "high"}, {"zone": ""}, {"max_attempts": 0}, {"delay": 1, "run_at": 2}])
async def test_a_bad_job_after_good_ones_that_are_like_it_is_found(q: Queue[bytes], bad: Any) -> None:
    with pytest.raises(InvalidInputError):
        await q.enqueue_many([NewJob("task", b""), NewJob("task", b""), NewJob("task", b"", **bad)])

    await assert_untouched(q)


async def test_many_of_nothing_is_nothing(q: Queue[bytes]) -> None:
    assert await q.enqueue_many([]) == []

    await assert_untouched(q)


class Marked(str):
    """As template engines mark a text as safe."""

    __slots__ = ()


class Raw(bytes):
    __slots__ = ()


class Level(int):
    pass


class Figure(float):
    """As numpy's float64."""


@pytest.mark.parametrize("layout", ["log", "document"])
async def test_values_of_derived_classes_are_stored_as_what_they_are(layout: Literal["log", "document"]) -> None:
    url = f"memory://values-of-derived-classes-{layout}"
    async with Queue.open(url, layout=layout) as q:
        added = await q.enqueue(
            Marked("task"),
            Raw(b"data"),
            priority=Level(3),
            max_attempts=Level(2),
            key=Marked("k"),
            zone=Marked("z"),
            headers={Marked("a"): Marked("b")},
            request_id=Marked("r"),
            tags=[Marked("t")],
            max_crashes=Level(5),
        )
        await q.enqueue_many([(Marked("many"), b"1"), NewJob(Marked("many"), b"2", priority=Level(1))])
        await q.reschedule(Marked(added.id), priority=Level(4))
        [job] = await q.dequeue(Marked("task"), zone=Marked("z"))
        progress = checks.progress(Figure(0.5), Level(1), Marked("half"))
        assert await q.heartbeats([Lease(job.id, job.token, progress)]) == [None]
        await q.settle([Outcome(Marked(job.id), job.token)])

    async with Queue.open(url) as q:
        archived = await anext(q.archive())
        assert (archived.headers, archived.tags, archived.max_crashes) == ({"a": "b"}, ("t",), 5)
        assert [(one.entrypoint, one.payload) for one in await q.jobs()] == [("many", b"1"), ("many", b"2")]


@named(DEQUEUE)
async def test_a_bad_dequeue_is_refused_by_name(q: Queue[bytes], argument: str, value: Any) -> None:
    with pytest.raises(InvalidInputError, match=argument):
        await q.dequeue(**{argument: value})

    await assert_untouched(q)


@pytest.mark.parametrize("entrypoint", [[], 7])
async def test_a_dequeue_of_no_entrypoint_at_all_is_refused(q: Queue[bytes], entrypoint: Any) -> None:
    with pytest.raises(InvalidInputError, match="entrypoint"):
        await q.dequeue(entrypoint)


@pytest.mark.parametrize("delay", [-1, "soon", float("nan"), timedelta(seconds=-1)])
async def test_a_bad_nack_is_refused_by_name(q: Queue[bytes], delay: Any) -> None:
    [job] = await q.dequeue("task")

    with pytest.raises(InvalidInputError, match="delay"):
        await job.nack(delay=delay)

    [still] = await q.jobs(states=[JobState.RUNNING])
    assert still.token == job.token


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ("task", "claimed jobs and outcomes"),
        (Outcome("job", 1, result=b"fine", error="boom"), "result"),
        (Outcome("job", 1, delay_ms=5), "error as well"),
        (Outcome("job", 1, backoff=Backoff(1, 2)), "error as well"),
        (Outcome("job", "1"), "token"),  # type: ignore[arg-type]
        (Outcome(7, 1), "job_id"),  # type: ignore[arg-type]
        (Outcome("job", 1, error="boom", delay_ms=-1), "delay_ms"),
        (Outcome("job", 1, error="boom", backoff=Backoff(1, 2, float("nan"))), "backoff"),
        (Outcome("job", 1, result="text"), "result"),  # type: ignore[arg-type]
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_one_bad_outcome_among_many_refuses_them_all(q: Queue[bytes], bad: Any, word: str) -> None:
    [job] = await q.dequeue("task")

    with pytest.raises(InvalidInputError, match=word):
        await q.settle([job, bad])

    [still] = await q.jobs(states=[JobState.RUNNING])
    assert still.token == job.token


async def test_a_job_that_was_not_claimed_cannot_be_settled(q: Queue[bytes]) -> None:
    [waits] = await q.jobs()
    with pytest.raises(InvalidInputError, match="dequeue it first"):
        await q.settle([waits])


@pytest.mark.parametrize("verb", ["ack", "nack", "heartbeat", "cancel", "retry", "find"])
@pytest.mark.parametrize("job_id", [["list"], {}])
async def test_an_id_that_is_no_text_is_refused_and_harms_nobody_else(q: Queue[bytes], verb: str, job_id: Any) -> None:
    with pytest.raises(InvalidInputError, match="job_id"):
        await getattr(q, verb)(job_id)

    await assert_untouched(q)


@pytest.mark.parametrize("argument", [{"states": ["bogus"]}, {"limit": "1"}, {"limit": -1}, {"limit": 2**63}])
async def test_a_bad_listing_is_refused_by_name(q: Queue[bytes], argument: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(argument))):
        await q.jobs(**argument)

    await assert_untouched(q)


async def test_an_error_with_half_a_character_in_it_is_kept_as_well_as_can_be(q: Queue[bytes]) -> None:
    """File names that are no UTF-8 get into exceptions like this."""
    [job] = await q.dequeue("task")

    await job.nack(error=FileNotFoundError("no such file: caf\udce9"))

    [failed] = await q.jobs()
    assert failed.last_error is not None
    assert failed.last_error.startswith("FileNotFoundError: no such file: caf")


async def test_a_delay_beyond_the_calendar_is_refused(q: Queue[bytes]) -> None:
    with pytest.raises(InvalidInputError, match="delay"):
        await q.enqueue("task", b"data", delay=timedelta.max)


async def test_a_job_that_was_not_claimed_cannot_be_acked_by_its_handle(q: Queue[bytes]) -> None:
    job = await q.enqueue("task", b"data")

    with pytest.raises(InvalidInputError, match="dequeue it first"):
        await job.ack()

    assert await q.find(job.id) is not None


@pytest.mark.parametrize("worker", ["", 7, "x" * 257, "half \ud800"])
def test_a_bad_worker_name_is_refused(worker: Any) -> None:
    with pytest.raises(InvalidInputError, match="worker"):
        Queue.open("memory://", worker=worker)


@pytest.mark.parametrize("storage", [None, 7, object(), b"memory://"])
def test_what_is_no_storage_is_refused(storage: Any) -> None:
    with pytest.raises(InvalidInputError, match="storage"):
        Queue.open(storage)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(b"x", b"x"), (bytearray(b"x"), b"x"), (memoryview(b"x"), b"x"), (b"", b"")],
)
def test_anything_that_is_bytes_may_be_a_payload(value: Any, expected: bytes) -> None:
    assert checks.payload(value) == expected


def test_a_text_as_payload_is_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidInputError, match=r"\.encode\(\)"):
        checks.payload("text")


async def test_the_edges_are_accepted(q: Queue[bytes]) -> None:
    edges: list[dict[str, Any]] = [
        {"entrypoint": "x" * 256},
        {"entrypoint": "größe 🦆"},
        {"priority": 2**63 - 1},
        {"priority": -(2**63)},
        {"key": "x" * 1024},
        {"delay": 0},
        {"delay": timedelta(microseconds=1)},
        {"run_at": datetime(1970, 1, 1, tzinfo=UTC)},
        {"headers": {}},
        {"max_attempts": 1},
    ]
    for edge in edges:
        call: dict[str, Any] = {"entrypoint": "task", "payload": b"data", **edge}
        await q.enqueue(**call)

    assert (await q.stats()).totals.enqueued == len(edges) + 1


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (None, None),
        ("plain", "plain"),
        (ValueError("bad"), "ValueError: bad"),
        (KeyError("k"), "KeyError: 'k'"),
        ("x" * 4096, "x" * 4096),
    ],
)
def test_an_error_becomes_text(error: Any, text: str | None) -> None:
    assert checks.error_text(error) == text


def test_a_long_error_is_cut() -> None:
    text = checks.error_text("x" * 10_000)

    assert text is not None
    assert (len(text), text[-1]) == (checks.ERROR_MAX, "…")


async def test_a_request_id_that_comes_again_with_another_number_of_jobs_harms_nobody_else(q: Queue[bytes]) -> None:
    await q.enqueue_many([("task", b"1"), ("task", b"2")], request_id="request-1")

    with pytest.raises(InvalidInputError, match="request_id"):
        await q.enqueue_many([("task", b"1")], request_id="request-1")

    await q.enqueue("task", b"after")


async def test_a_request_id_of_one_verb_is_no_answer_to_another(q: Queue[bytes]) -> None:
    job = await q.enqueue("other", b"data", request_id="request-1")

    with pytest.raises(InvalidInputError, match="request_id"):
        await q.ack(job.id, request_id="request-1")


async def test_a_queue_that_is_open_cannot_be_opened_again() -> None:
    before = asyncio.all_tasks()
    q = BrokerQueue(InMemoryStorage())

    async with q:
        with pytest.raises(QueueClosedError):
            await q.__aenter__()
        await q.enqueue("task", b"data")

    assert asyncio.all_tasks() == before
