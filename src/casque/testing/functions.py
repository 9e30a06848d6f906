"""For tests of programs whose jobs are functions: run them at once, or keep them in memory and look at them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import asdict
from inspect import isawaitable
from typing import Any, NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary

from casque.client.queue import Queue
from casque.errors import InvalidInputError, JobNotFoundError
from casque.functions.app import App
from casque.functions.connection import Enqueued, Open
from casque.functions.handle import Handle, Outcome
from casque.functions.job import Definition, JobCall
from casque.testing.clock import ManualClock
from casque.types import JobState, Progress
from casque.worker.handlers import Cancel, JobContext, Snooze

R = TypeVar("R")

_blocking = ContextVar("_blocking", default=False)
"""Whether the enqueuing caller blocks, so that there is no event loop to wait in."""
_seen: WeakKeyDictionary[App, list[JobCall[Any]]] = WeakKeyDictionary()


@contextmanager
def inline(app: App) -> Iterator[App]:
    """Enqueued jobs run at once, in this process, before `enqueue` returns. Nothing is opened and nothing is stored.

    Delays are not waited for, a failure is not tried again: what a function raises is raised by `enqueue`. Arguments
    and results take the way through JSON that they would take through a queue.

    >>> import casque
    >>> from casque.testing import inline
    >>> app = casque.App("s3://not-for-tests/mail")
    >>> @app.job()
    ... async def double(number: int) -> int:
    ...     return 2 * number
    >>> with inline(app):
    ...     print(double.enqueue_sync(21).result())
    42
    """
    with app.through(_Inline(_fresh(app))):
        yield app


class InMemory(NamedTuple):
    """What `in_memory` gives to a test."""

    queue: Queue[bytes]
    clock: ManualClock


@asynccontextmanager
async def in_memory(app: App, *, clock: ManualClock | None = None) -> AsyncIterator[InMemory]:
    """Enqueued jobs go to a new queue in memory, with the app's settings and a clock that the test moves.

    >>> import asyncio
    >>> import casque
    >>> from casque.testing import assert_enqueued, in_memory
    >>> app = casque.App("s3://not-for-tests/mail")
    >>> @app.job()
    ... async def send(to: str) -> None: ...
    >>> async def main():
    ...     async with in_memory(app) as (queue, clock):
    ...         await send.delay(3600).enqueue("ada")
    ...         _ = assert_enqueued(app, send, to="ada")
    ...         print(len(await queue.dequeue("send")))
    ...         await clock.advance(3600)
    ...         print(len(await queue.dequeue("send")))
    >>> asyncio.run(main())
    0
    1
    """
    time = clock or ManualClock()
    async with Queue.open("memory://", clock=time, **asdict(app.settings)) as queue:
        with app.through(_Recorded(queue, app, time)):
            await app.prepare(queue)
            yield InMemory(queue, time)


class _Job(Protocol):
    """A function with `@app.job()`, whatever it takes."""

    @property
    def definition(self) -> Definition: ...


def assert_enqueued(app: App, function: _Job, /, **arguments: Any) -> JobCall[Any]:
    """That the function was enqueued with these arguments, inside `inline` or `in_memory`. Arguments that are not
    named may be anything; defaults count as given. Returns the call, the latest of several: `call.new` has its
    priority, delay, key and zone.

    Raises:
        AssertionError: it was not. Says what was.
    """
    calls = [call for call in _calls(app) if call.definition is function.definition]
    named = function.definition.arguments
    for name in arguments:
        if name not in named.names():
            raise InvalidInputError(
                f"{function.definition.entrypoint}: there is no argument {name!r}; it takes {', '.join(named.names())}"
            )
    for call in calls[::-1]:
        given = named.with_defaults(call.arguments).arguments
        if all(given[name] == value for name, value in arguments.items()):
            return call
    wanted = _told(function.definition.entrypoint, arguments)
    others = [_told(call.entrypoint, call.arguments) for call in _calls(app)]
    raise AssertionError(f"{wanted} was not enqueued; {'what was: ' + ', '.join(others) if others else 'nothing was'}")


class _Inline:
    """In the place of a queue: runs what it is given."""

    def __init__(self, calls: list[JobCall[Any]]) -> None:
        self._calls = calls
        self._outcomes: dict[str, Outcome] = {}

    async def enqueue(self, calls: Sequence[JobCall[Any]], *, request_id: str | None = None) -> list[Enqueued]:  # noqa: ARG002
        self._calls.extend(calls)
        return [(await self._run(call), None) for call in calls]

    async def status(self, handle: Handle[Any]) -> JobState | None:
        found = self._outcomes.get(handle.id)
        return None if found is None else found.state

    async def progress(self, handle: Handle[Any]) -> Progress | None:  # noqa: ARG002  whatever runs inline is over
        return None

    async def cancel(self, handle: Handle[Any]) -> None:
        raise JobNotFoundError(handle.id)

    async def outcome(self, handle: Handle[Any], timeout: float | None) -> Outcome:  # noqa: ARG002
        if handle.id not in self._outcomes:
            raise JobNotFoundError(handle.id)
        return self._outcomes[handle.id]

    def wait(self, call: Coroutine[Any, Any, R]) -> R:
        # Nothing in here ever waits for a loop but a coroutine function, see `_run`: so plain functions are called in
        # the caller's own thread, where a test's database transaction is.
        before = _blocking.set(True)
        try:
            call.send(None)
        except StopIteration as ended:
            value: R = ended.value
            return value
        finally:
            _blocking.reset(before)
        raise AssertionError("a blocking call has waited for an event loop")

    async def _run(self, call: JobCall[Any]) -> str:
        job_id, handler = f"inline-{len(self._outcomes) + 1}", call.definition.handler
        self._outcomes[job_id] = Outcome(JobState.RUNNING)
        context = JobContext(job_id, call.entrypoint, headers=call.new.headers)
        returned = handler.call(call.new.payload, context)
        if isawaitable(returned):
            returned = _completed(returned) if _blocking.get() else await returned
        match returned:
            case Snooze(seconds=seconds):
                outcome = Outcome(JobState.DELAYED, error=f"it snoozed for {seconds:g} seconds")
            case Cancel(reason=reason):
                outcome = Outcome(JobState.CANCELLED, error=reason)
            case _:
                outcome = Outcome(JobState.DONE, handler.encode_result(returned))
        self._outcomes[job_id] = outcome
        return job_id


def _completed(function: Awaitable[R]) -> R:
    """Run a coroutine function in a thread of its own: the caller may well be inside an event loop."""

    async def run() -> R:
        return await function

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, run()).result()


class _Recorded(Open):
    """An open queue that remembers what was put into it."""

    def __init__(self, queue: Queue[bytes], app: App, clock: ManualClock) -> None:
        super().__init__(queue, app.settings, clock)
        self._calls = _fresh(app)

    async def enqueue(self, calls: Sequence[JobCall[Any]], *, request_id: str | None = None) -> list[Enqueued]:
        added = await super().enqueue(calls, request_id=request_id)
        self._calls.extend(calls)
        return added


def _fresh(app: App) -> list[JobCall[Any]]:
    calls: list[JobCall[Any]] = []
    _seen[app] = calls
    return calls


def _calls(app: App) -> list[JobCall[Any]]:
    if app not in _seen:
        raise InvalidInputError("assert_enqueued is for what happens inside inline(app) or in_memory(app)")
    return _seen[app]


def _told(entrypoint: str, arguments: Any) -> str:
    return f"{entrypoint}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
