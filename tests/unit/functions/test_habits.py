"""Habits from other task queues: a wrong name or call says what to write, and nothing is enqueued."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from casque import App, InvalidInputError, JobFailedError, QueueClosedError
from casque.functions.arguments import InvalidResultError, encode_result
from casque.testing import assert_enqueued, in_memory
from casque.worker import Worker

app = App("memory://habits")


@app.job()
async def add(a: int, b: int = 1) -> int:
    return a + b


@app.job()
async def measure(value: Any) -> Any:
    return value


@dataclass
class Point:
    x: float


class Size(msgspec.Struct):
    width: float


class Order(pydantic.BaseModel):
    weight: float


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"retries": 3}, r"@app.job\(\) has no option 'retries': use max_attempts="),
        ({"max_retries": 3}, "use max_attempts="),
        ({"time_limit": 3}, "use timeout="),
        ({"priorty": 3}, r"did you mean priority=\?"),
        ({"xyzzy": 3}, "there are name, max_attempts, "),
    ],
)
def test_an_option_that_a_job_does_not_have_names_the_right_one(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        app.job(**options)


def test_an_option_that_a_schedule_does_not_have_names_the_right_one() -> None:
    with pytest.raises(InvalidInputError, match=r"@app.cron\(\) has no option 'timezone': there are expression, tz"):
        app.cron("* * * * *", timezone="UTC")  # type: ignore[call-arg]


async def test_a_delay_that_is_not_used_warns_that_nothing_was_enqueued() -> None:
    async with in_memory(app) as (queue, _):
        with pytest.warns(RuntimeWarning, match=r"nothing was enqueued: add.delay\(1\).*Write add.enqueue\(1\)"):
            add.delay(1)
        assert await queue.jobs() == []


async def test_a_delay_that_is_used_does_not_warn(recwarn: pytest.WarningsRecorder) -> None:
    async with in_memory(app):
        await add.delay(60).enqueue(1)
        await add.delay(60).using(priority=3).enqueue(2)
        await add.enqueue_many([add.delay(60).bind(3)])
        assert_enqueued(app, add, a=3)
    assert not list(recwarn)


@pytest.mark.parametrize(("args", "kwargs"), [((1, 2), {}), (("ann",), {}), ((), {"a": 1}), ((), {})])
def test_a_delay_called_as_in_celery_is_refused(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=r"write add.enqueue\(...\) for Celery's add.delay\(...\)"):
        add.delay(*args, **kwargs)


def test_a_method_of_another_queue_names_casques_own() -> None:
    with pytest.raises(AttributeError, match=r"has no 'apply_async': use enqueue\(...\)"):
        add.apply_async((1,))  # type: ignore[attr-defined]
    assert not hasattr(add, "nonsense")


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, [1.0, -math.inf], {"a": [math.nan]}, Point(math.nan), Size(math.inf), Order(weight=math.nan)],
    ids=str,
)
def test_numbers_that_json_does_not_have_are_refused(value: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"measure: argument 'value' has no JSON form: value.* finite number"):
        measure.bind(value)
    with pytest.raises(InvalidResultError, match=r"result cannot be stored: it has no JSON form.* finite number"):
        encode_result(value)


def test_a_payload_with_null_in_it_is_no_reason_to_refuse_it() -> None:
    assert measure.bind({"a": None, "b": "null", "c": 1.5}).new.payload == b'{"value":{"a":null,"b":"null","c":1.5}}'
    assert encode_result([None, 1.5]) == b"[null,1.5]"


@pytest.mark.parametrize(
    ("returned", "why"), [(object(), "no JSON form"), ("x" * 300_000, "300,002 bytes")], ids=["no form", "too large"]
)
async def test_a_result_that_cannot_be_stored_ends_the_job_at_its_first_attempt(
    tmp_path: Path, returned: object, why: str
) -> None:
    runs = 0
    failing = App(tmp_path.as_uri())

    @failing.job(backoff=0)
    async def odd() -> Any:
        nonlocal runs
        runs += 1
        return returned

    async with failing:
        handle = await odd.enqueue()
        await Worker(failing, burst=True).run()
        with pytest.raises(JobFailedError, match=f"result cannot be stored: .*{why}.*result_ttl=0"):
            await handle.result(timeout=30)
    assert runs == 1


async def test_a_result_that_is_waited_for_too_long_says_which_job_and_what_to_look_at() -> None:
    async with in_memory(app):
        handle = await add.enqueue(1)
        with pytest.raises(TimeoutError, match=f"job '{handle.id}' of add was unfinished after 0.01 s; it continues"):
            await handle.result(timeout=0.01)
        with pytest.raises(InvalidInputError, match="timeout must be a timedelta or a number of seconds, not 'soon'"):
            await handle.result(timeout="soon")  # type: ignore[arg-type]


def test_an_app_opened_twice_says_which_with_to_leave_out() -> None:
    with app, pytest.raises(QueueClosedError, match=r"open already: .*Leave out the inner `with app:`"), app:
        pass


def test_code_without_asyncio_gets_a_blocking_handle_from_an_id() -> None:
    with app:
        enqueued = add.enqueue_sync(1)
        handle = add.handle_sync(enqueued.id)
        assert (handle.id, handle.status()) == (enqueued.id, "ready")
        handle.cancel()
    with pytest.raises(QueueClosedError):
        asyncio.run(add.handle(enqueued.id).status())
