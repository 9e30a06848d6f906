"""Jobs as functions: a call becomes a payload and a payload a call, and nothing that does not fit gets through."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from casque import (
    App,
    Cancel,
    InvalidInputError,
    InvalidPayloadError,
    JobContext,
    JobFailedError,
    JobNotFoundError,
    JobState,
    NoResultError,
    QueueClosedError,
    Snooze,
)
from casque.testing import ManualClock, assert_enqueued, in_memory, inline


@dataclass
class User:
    id: int
    tags: list[str]


class Size(msgspec.Struct):
    width: int
    height: int = 1


class Order(pydantic.BaseModel):
    number: int = pydantic.Field(ge=1)


class Colour(Enum):
    RED = "red"


app = App("memory://functions", max_attempts=7)


@app.job()
async def send(to: str, subject: str = "hello", *, copies: int = 1) -> str:
    return f"{copies} x {subject} to {to}"


@app.job("resize-image", timeout=timedelta(minutes=1), backoff=[1, timedelta(minutes=1)])
def resize(path: str, size: Size, user: User | None = None) -> Size:
    return Size(size.width * 2, len(path))


@app.job()
async def ship(order: Order, others: list[Order], colour: Colour, at: datetime, raw: bytes) -> Order:
    return Order(number=order.number + len(others))


@app.job(priority=-5, zone="acme", key="order-{order.number}", max_attempts=2)
async def bill(context: JobContext, order: Order, later: bool = False) -> Snooze | Cancel | None:
    if later:
        return Snooze(60)
    context.logger.info("billed")
    return Cancel("it was paid") if order.number == 2 else None


def call(entrypoint: str, payload: bytes, **known: Any) -> Any:
    returned = app.handlers[entrypoint].call(payload, JobContext("job-1", entrypoint, **known))
    return asyncio.run(returned) if asyncio.iscoroutine(returned) else returned


async def test_calling_a_function_stays_a_plain_call() -> None:
    assert await send("ada") == "1 x hello to ada"
    assert resize("cat.png", Size(2)) == Size(4, 7)
    assert send.__name__ == "send"
    assert resize.entrypoint == "resize-image"


def test_a_payload_has_the_arguments_that_were_given_by_name() -> None:
    assert send.bind("ada").new.payload == b'{"to":"ada"}'
    assert send.bind("ada", copies=2, subject="news").new.payload == b'{"to":"ada","subject":"news","copies":2}'


def test_arguments_are_stored_in_their_order_however_they_are_given() -> None:
    app = App("memory://in-order")

    @app.job()
    def report(day: str, /, size: int, *, deep: bool = False, note: str = "") -> None: ...

    bind: Any = report.bind
    given = [bind("monday", 3, deep=True), bind("monday", deep=True, size=3)]
    assert {call.new.payload for call in given} == {b'{"day":"monday","size":3,"deep":true}'}
    wrong: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        (("monday", 3, True), {}),
        ((), {"day": "monday", "size": 3}),
        (("monday", 3), {"size": 3}),
        (("monday",), {"deep": True}),
    ]
    for args, kwargs in wrong:
        with pytest.raises(InvalidInputError, match=r"report: .*; it takes day, size, deep, note"):
            bind(*args, **kwargs)


def test_defaults_are_filled_in_where_the_function_runs() -> None:
    assert call("send", b'{"to":"ada"}') == "1 x hello to ada"
    assert call("send", b'{"copies":3,"to":"ada"}') == "3 x hello to ada"


def test_every_kind_of_argument_arrives_as_it_was() -> None:
    when = datetime(2026, 1, 1, tzinfo=UTC)
    made = ship.bind(Order(number=3), [Order(number=4)], Colour.RED, when, b"\x00\xff")
    found = ship.definition.arguments.decode(made.new.payload)
    assert list(found.values()) == [Order(number=3), [Order(number=4)], Colour.RED, when, b"\x00\xff"]
    assert call("ship", made.new.payload) == Order(number=4)
    assert call("resize-image", resize.bind("a", Size(1), User(1, ["x"])).new.payload) == Size(2, 1)


wide = Size("wide")  # type: ignore[arg-type]  # nothing checks a struct when it is made
numbered = User(1, [2])  # type: ignore[list-item]

WRONG: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str]] = [
    (send.bind, (), {}, "send: missing a required argument: 'to'; it takes to, subject, copies"),
    (send.bind, ("ada", "hi", 3), {}, "send: too many positional arguments"),
    (send.bind, ("ada",), {"bcc": "bob"}, "send: got an unexpected keyword argument 'bcc'"),
    (send.bind, (7,), {}, "send: argument 'to': Expected `str`, got `int`"),
    (send.bind, ("ada",), {"copies": "2"}, "send: argument 'copies': Expected `int`, got `str`"),
    (send.bind, (datetime(2026, 1, 1, tzinfo=UTC),), {}, "send: argument 'to': Expected `str`, got `datetime`"),
    (resize.bind, ("a", {"width": "wide"}), {}, "argument 'size': Expected `int`, got `str` - at `$.width`"),
    (resize.bind, ("a", wide), {}, "resize-image: argument 'size' at .width: Expected `int`, got `str`"),
    (resize.bind, ("a", Size(1), numbered), {}, "argument 'user' at .tags[0]: Expected `str`, got `int`"),
    (resize.bind, ("a", object()), {}, "argument 'size': Expected `object`"),
    (bill.bind, (Order.model_construct(number=0),), {}, "argument 'order': 1 validation error for Order"),
    (bill.bind, (JobContext("j", "bill"), Order(number=1)), {}, "bill: argument 'order'"),
    (bill.bind, (Order(number=1),), {"context": None}, "got an unexpected keyword argument 'context'"),
    (ship.bind, (Order(number=1), [], Colour.RED, datetime(2026, 1, 1, tzinfo=UTC), "raw"), {}, "argument 'raw'"),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_arguments_that_do_not_fit_are_refused_by_name(number: int) -> None:
    bind, args, kwargs, said = WRONG[number]
    with pytest.raises(InvalidInputError) as refused:
        bind(*args, **kwargs)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"{}", "argument 'to' is missing; it takes to, subject, copies"),
        (b'{"to":1}', "argument 'to': Expected `str`, got `int`"),
        (b'{"to":"ada","bcc":1}', "there is no argument 'bcc'"),
        (b"[]", "Expected `object`, got `array`"),
        (b"\xff", "malformed"),
        (b"", "a payload is a JSON object"),
    ],
)
def test_a_payload_that_does_not_fit_never_reaches_the_function(payload: bytes, said: str) -> None:
    with pytest.raises(InvalidPayloadError) as refused:
        call("send", payload)
    assert refused.value.entrypoint == "send"
    assert said in refused.value.problem


def test_an_argument_without_json_is_refused_by_name() -> None:
    other = App("memory://")

    @other.job()
    def store(first: Any, second: Any) -> None: ...

    with pytest.raises(InvalidInputError, match="store: argument 'second' has no JSON form"):
        store.bind(1, object())


def test_functions_that_cannot_be_jobs_are_refused_where_they_stand() -> None:
    other = App("memory://")

    def star(*numbers: int) -> None: ...
    def stars(**numbers: int) -> None: ...
    def socket(lock: threading.Event) -> None: ...
    def late(number: int, context: JobContext) -> None: ...
    def twice(one: JobContext, two: JobContext) -> None: ...
    async def coroutine() -> None: ...

    for function, said in [
        (star, "name each argument"),
        (stars, "name each argument"),
        (socket, "argument 'lock' cannot be stored: Event is not a type"),
        (late, "must be the first parameter"),
        (twice, "one JobContext is enough"),
        (User, "is for functions"),
    ]:
        with pytest.raises(InvalidInputError, match=said):
            other.job()(function)  # type: ignore[call-overload]
    with pytest.raises(InvalidInputError, match="leave executor out"):
        other.job(executor="thread")(coroutine)
    with pytest.raises(InvalidInputError, match="executor must be 'async', 'thread' or 'process', not 'rocket'"):
        other.job(executor="rocket")(_nothing)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="with parentheses"):
        other.job(coroutine)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="names 'user', which is no argument"):
        other.job(key="{user}")(coroutine)
    assert not other.handlers

    other.job()(coroutine)
    with pytest.raises(InvalidInputError, match="there is a job 'coroutine' already"):
        other.job()(coroutine)


def test_a_type_that_is_defined_later_is_found_when_it_is_needed() -> None:
    found: dict[str, Any] = {"app": App("memory://")}
    source = "from __future__ import annotations\n@app.job()\ndef f(x: Later) -> None: ...\n"
    exec(source, found)
    with pytest.raises(InvalidInputError, match=r"f: an annotation cannot be resolved: .*Later"):
        found["f"].bind({"width": 1})
    found["Later"] = Size
    assert found["f"].bind({"width": 1}).arguments == {"x": Size(1)}


def test_a_handler_says_how_it_is_to_be_run() -> None:
    handler = app.handlers["resize-image"]
    assert (handler.executor, handler.is_async, handler.timeout_s) == ("thread", False, 60)
    assert [handler.retry.delay_ms(attempt) for attempt in (1, 2, 3)] == [1000, 60_000, 60_000]
    assert handler.retry.max_attempts == 7
    assert handler.encode_result(Size(1, 2)) == b'{"width":1,"height":2}'
    assert app.handlers["send"].executor == "async"
    assert app.handlers["bill"].retry.max_attempts == 2
    assert set(app.handlers) == {"send", "resize-image", "ship", "bill"}
    with pytest.raises(InvalidInputError, match="backoff"):
        app.job(backoff="soon")  # type: ignore[arg-type]
    doubling = App("memory://").job(backoff=10, backoff_cap=30)(_nothing).definition.handler.retry
    assert [doubling.delay_ms(attempt) for attempt in (1, 2, 3)] == [10_000, 20_000, 30_000]


def _nothing() -> None: ...


def test_the_context_is_injected_and_not_part_of_the_payload() -> None:
    made = bill.bind(Order(number=1))
    assert made.new.payload == b'{"order":{"number":1}}'
    assert call("bill", made.new.payload) is None
    assert call("bill", b'{"order":{"number":2}}') == Cancel("it was paid")
    assert call("bill", b'{"order":{"number":2},"later":true}') == Snooze(60)


async def test_a_job_is_enqueued_as_its_function_says() -> None:
    async with in_memory(app) as (queue, _):
        handle = await bill.enqueue(Order(number=7))
        again = await bill.enqueue(Order(number=7), later=True)
        [job] = await queue.jobs()
        assert (handle.id, again.id) == (job.id, job.id)
        assert (job.priority, job.zone, job.key, job.max_attempts) == (-5, "acme", "bill:order-7", 2)

        await bill.using(priority=3, key=lambda order, later: f"mine-{order.number}-{later}").enqueue(Order(number=7))
        _, other = await queue.jobs()
        assert (other.priority, other.zone, other.key) == (3, "acme", "bill:mine-7-False")


async def test_jobs_have_the_zone_that_their_arguments_make() -> None:
    shop = App("memory://")

    @shop.job(zone="{tenant}-{kind}")
    async def mail(tenant: str, kind: str = "news") -> None: ...

    @shop.job(zone=lambda order: f"customer-{order.number % 2}")
    async def pack(order: Order) -> None: ...

    async with in_memory(shop) as (queue, _):
        await mail.enqueue("acme")
        await mail.using(zone="{tenant}").enqueue("acme")
        await pack.enqueue(Order(number=7))
        assert [job.zone for job in await queue.jobs()] == ["acme-news", "{tenant}", "customer-1"]
        assert assert_enqueued(shop, pack).new.zone == "customer-1"
        with pytest.raises(InvalidInputError, match="zone must"):
            await mail.enqueue("two\nlines")


def test_a_zone_that_cannot_be_made_is_refused() -> None:
    shop = App("memory://")
    wrong: list[tuple[Any, str]] = [
        ("{tenants}", "no argument"),
        ("{", "no template"),
        (7, "such as '{tenant}'"),
        ("", "zone must"),
    ]
    for zone, says in wrong:
        with pytest.raises(InvalidInputError, match=says):

            @shop.job(zone=zone)
            async def mail(tenant: str) -> None: ...


async def test_functions_of_a_fifo_zone_come_one_after_the_other() -> None:
    shop = App("memory://")

    @shop.job(zone="{account}", fifo=True)
    async def book(account: str, amount: int) -> None: ...

    @shop.job(fifo=True)
    async def audit() -> None: ...

    async with in_memory(shop) as (queue, _):
        for amount in (1, 2):
            await book.enqueue("a", amount)
        await book.using(zone="free", fifo=False).delay(60).enqueue("b", 1)
        await audit.using(zone="c").enqueue()
        first = await queue.dequeue(batch_size=9)
        assert [job.payload for job in first] == [b'{"account":"a","amount":1}', b"{}"]
        await first[0].ack()
        assert [job.payload for job in await queue.dequeue(batch_size=9)] == [b'{"account":"a","amount":2}']
    with inline(shop):
        await book.enqueue("a", 1)
        with pytest.raises(InvalidInputError, match="cannot be delayed"):
            await book.delay(1).enqueue("a", 2)
        with pytest.raises(InvalidInputError, match="say which, zone="):
            audit.enqueue_sync()


async def test_delayed_and_scheduled_jobs_wait_for_their_time() -> None:
    clock = ManualClock(wall_ms=0)
    async with in_memory(app, clock=clock) as (queue, _):
        await send.delay(timedelta(minutes=1)).enqueue("a")
        await send.schedule(datetime(1970, 1, 1, 1, tzinfo=UTC)).enqueue("b")
        assert await queue.dequeue() == []
        await clock.advance(60)
        assert [job.payload for job in await queue.dequeue(batch_size=9)] == [b'{"to":"a"}']
        await clock.advance(3600)
        assert b'{"to":"b"}' in [job.payload for job in await queue.dequeue(batch_size=9)]
    with pytest.raises(InvalidInputError, match="time zone"):
        send.schedule(datetime(2026, 1, 1))  # noqa: DTZ001


async def test_many_are_added_in_one_commit_or_not_at_all() -> None:
    async with in_memory(app) as (queue, _):
        handles = await send.enqueue_many([send.bind(str(n)) for n in range(10)], request_id="ten")
        again = await send.enqueue_many([send.bind(str(n)) for n in range(10)], request_id="ten")
        assert [one.id for one in handles] == [one.id for one in again]
        assert (await queue.stats()).position == 1
        mixed = await app.enqueue_many([send.bind("x"), bill.delay(5).bind(Order(number=1))])
        assert [one.entrypoint for one in mixed] == ["send", "bill"]
        with pytest.raises(InvalidInputError, match=r"what function.bind\(...\) returns"):
            await app.enqueue_many([send.bind("y"), "z"])  # type: ignore[list-item]
        with pytest.raises(InvalidInputError, match="another app"):
            await App("memory://").enqueue_many([send.bind("y")])
        assert (await queue.stats()).position == 2


async def test_a_handle_follows_its_job_to_the_result() -> None:
    async with in_memory(app) as (queue, clock):
        handle = await resize.enqueue("cat.png", Size(3))
        assert await handle.status() is JobState.READY
        waiting = asyncio.create_task(handle.result())
        [job] = await queue.dequeue()
        assert await handle.status() is JobState.RUNNING
        await job.ack(result=b'{"width":6,"height":7}')
        await clock.advance(30)
        assert await waiting == Size(6, 7)


async def test_a_result_is_found_in_the_archive_after_the_queue_was_closed(tmp_path: Path) -> None:
    there = App(f"file://{tmp_path}")
    doubled = there.job()(_double)
    async with there:
        handle = await doubled.enqueue(21)
        [job] = await there.queue.dequeue()
        await job.ack(result=b"42")
    async with there:
        assert await doubled.handle(handle.id).result(timeout=60) == 42
        assert await doubled.handle(handle.id, since=handle.since).status() is JobState.DONE
        assert await doubled.handle("never-was").status() is None


def _double(number: int) -> int:
    return 2 * number


async def test_a_job_that_died_or_was_cancelled_has_no_result() -> None:
    async with in_memory(app) as (queue, clock):
        dead = await bill.using(max_attempts=1).enqueue(Order(number=1))
        waiting = asyncio.create_task(dead.result())
        [job] = await queue.dequeue()
        await job.nack(error="no money")
        await clock.advance(30)
        with pytest.raises(JobFailedError, match=r"it is dead \(no money\)"):
            await waiting
        with pytest.raises(JobFailedError):
            await dead.result()

        cancelled = await send.enqueue("ada")
        waiting_too = asyncio.create_task(cancelled.result())
        await cancelled.cancel()
        await clock.advance(30)
        with pytest.raises(JobFailedError, match="cancelled"):
            await waiting_too
        with pytest.raises(JobNotFoundError):
            await cancelled.cancel()


async def test_a_result_that_can_never_come_is_not_waited_for() -> None:
    without = App("memory://", archive=False)
    doubled = without.job()(_double)
    async with in_memory(without):
        with pytest.raises(NoResultError, match="not in the queue, and this queue keeps no archive"):
            await doubled.handle("finished-or-never-was").result()

    nowhere = App("memory://", archive=False, layout="document")
    doubled = nowhere.job()(_double)
    async with nowhere:
        handle = await doubled.enqueue(21)
        with pytest.raises(NoResultError, match="results are kept nowhere"):
            await handle.result()


async def test_a_result_can_be_had_for_as_long_as_it_lives_and_not_longer() -> None:
    shop = App("memory://", result_ttl=3600)
    doubled = shop.job(result_ttl=timedelta(seconds=60))(_double)
    longer = shop.job("longer")(_double)
    never = shop.job("never", result_ttl=0)(_double)
    async with in_memory(shop) as (queue, clock):
        handles = [await doubled.enqueue(21), await longer.enqueue(4), await never.enqueue(1)]
        waiting = asyncio.create_task(handles[0].result())
        await clock.advance(0)
        for job in await queue.dequeue(batch_size=3):
            handler = shop.handlers[job.entrypoint]
            returned = handler.call(job.payload, JobContext(job.id, job.entrypoint))
            await job.ack(result=handler.encode_result(returned))
        await clock.advance(60)
        assert await waiting == 42
        assert await handles[0].result() == 42
        await clock.advance(1)
        with pytest.raises(NoResultError, match="it has expired: _double has a result_ttl of 60 s, and was done 61 s"):
            await handles[0].result()
        assert await handles[0].status() is JobState.DONE, "what became of it is known all the same"
        assert await longer.handle(handles[1].id).result() == 8, "the app's own is an hour"
        with pytest.raises(NoResultError, match="never has result_ttl=0, so that its results are not kept"):
            await handles[2].result()
        assert {job.entrypoint: job.result async for job in queue.archive()}["never"] is None, "nor written"
    with inline(shop), pytest.raises(NoResultError, match="results are not kept"):
        never.enqueue_sync(1).result()
    with pytest.raises(InvalidInputError, match="result_ttl must be"):
        shop.job("wrong", result_ttl=-1)


async def test_a_job_that_nobody_knows_has_no_result_when_the_archive_had_its_time() -> None:
    async with in_memory(app) as (_, clock):
        waiting = asyncio.create_task(send.handle("never-was").result())
        await clock.advance(29)
        assert not waiting.done()
        await clock.advance(10)
        with pytest.raises(NoResultError, match="did not appear in the archive within 30 s"):
            await waiting


async def test_a_result_that_does_not_come_is_not_waited_for_longer_than_asked() -> None:
    async with in_memory(app):
        handle = await send.enqueue("ada")
        with pytest.raises(TimeoutError):
            await handle.result(timeout=0.01)
        assert await handle.status() is JobState.READY


def test_code_without_asyncio_has_blocking_calls() -> None:
    blocking = App("memory://")
    doubled = blocking.job()(_double)
    with blocking:
        handle = doubled.enqueue_sync(1)
        assert handle.status() is JobState.READY
        handle.cancel()
        one, two = doubled.enqueue_many_sync([doubled.bind(1), doubled.delay(5).bind(2)])
        assert (one.status(), two.status()) == (JobState.READY, JobState.DELAYED)
    with pytest.raises(QueueClosedError):
        doubled.enqueue_sync(1)


async def test_a_thread_may_block_while_the_app_is_open_in_an_event_loop() -> None:
    there = App("memory://")
    doubled = there.job()(_double)
    async with there:
        handle = await asyncio.to_thread(doubled.enqueue_sync, 4)
        assert await doubled.handle(handle.id).status() is JobState.READY
        with pytest.raises(InvalidInputError, match="`await` the call"):
            doubled.enqueue_sync(4)
        with pytest.raises(QueueClosedError, match="open already"):
            async with there:
                pass
        assert len(await there.queue.jobs()) == 1


async def test_an_app_that_is_not_open_says_how_to_open_it() -> None:
    with pytest.raises(QueueClosedError, match="async with app:"):
        await send.enqueue("ada")


async def test_inline_runs_jobs_at_once_and_their_errors_are_the_callers() -> None:
    with inline(app):
        handle = await send.enqueue("ada", copies=2)
        assert await handle.result() == "2 x hello to ada"
        assert await handle.status() is JobState.DONE
        assert await (await resize.enqueue("cat", Size(1))).result() == Size(2, 3)
        snoozed = await bill.enqueue(Order(number=1), later=True)
        assert await snoozed.status() is JobState.DELAYED
        with pytest.raises(JobFailedError, match="snoozed for 60 seconds"):
            await snoozed.result()
        with pytest.raises(JobFailedError, match="it was paid"):
            await (await bill.enqueue(Order(number=2))).result()
        assert send.enqueue_sync("bob").result() == "1 x hello to bob"
        with pytest.raises(InvalidInputError):
            await send.enqueue(7)  # type: ignore[arg-type]

    failing = App("memory://")

    @failing.job()
    def divide(by: int) -> float:
        return 1 / by

    with inline(failing), pytest.raises(ZeroDivisionError):
        await divide.enqueue(0)


def test_inline_calls_plain_functions_where_the_blocking_caller_is() -> None:
    """In its thread and outside of any event loop: there is the transaction that the test has open."""
    shop = App("memory://")
    threads: list[threading.Thread] = []

    @shop.job()
    def look() -> None:
        threads.append(threading.current_thread())
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()

    @shop.job()
    async def nested() -> str:
        async with asyncio.timeout(60):
            return await (await inner.enqueue()).result()

    @shop.job()
    async def inner() -> str:
        return await asyncio.to_thread(str, "done")

    with inline(shop):
        look.enqueue_sync()
        assert nested.enqueue_sync().result() == "done"
    assert threads == [threading.current_thread()]


async def test_assert_enqueued_says_what_was_enqueued_instead() -> None:
    with inline(app):
        with pytest.raises(AssertionError, match="nothing was"):
            assert_enqueued(app, send)
        await send.enqueue("ada")
        await send.using(priority=9).enqueue("bob", copies=2)
        assert assert_enqueued(app, send, to="bob", subject="hello").new.priority == 9
        assert assert_enqueued(app, send, copies=1).arguments == {"to": "ada"}
        with pytest.raises(
            AssertionError, match=r"send\(to='eve'\) was not enqueued; what was: send\(to='ada'\), send"
        ):
            assert_enqueued(app, send, to="eve")
        with pytest.raises(AssertionError):
            assert_enqueued(app, bill)
        with pytest.raises(InvalidInputError, match="no argument 'bcc'"):
            assert_enqueued(app, send, bcc="eve")
    with pytest.raises(InvalidInputError, match="inside inline"):
        assert_enqueued(App("memory://"), send)
