"""The code that runs on an executor for an app: each job by its own function, as in a worker of the app.

The worker's own runner calls them, so arguments are checked, results kept, timeouts enforced and attempts spaced as
usual. Other features of a worker need the queue, which only the driver has: lost leases, progress and hooks do not
work here.
"""

from __future__ import annotations

import asyncio
import io
import pickle
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, get_type_hints

import pyarrow as pa

from casque.client.job import Job
from casque.client.payloads import BytesCodec
from casque.clock import Random, SystemClock, system_random
from casque.errors import InvalidInputError
from casque.functions.arguments import Arguments
from casque.service import Outcome
from casque.spark.work.calling import Loading, answers
from casque.spark.work.shift import Shift, Terms
from casque.types import JobRecord
from casque.worker.claims import Claim, Claims
from casque.worker.handlers import Handler, Handlers
from casque.worker.importing import check_app, import_app
from casque.worker.options import chosen
from casque.worker.processes import Processes
from casque.worker.runner import Runner, crashed

CACHE = "__msgspec_cache__"
"""Attribute of a dataclass in which msgspec caches its knowledge of it."""
_BYTES = BytesCodec()


class Functions:
    """An app's functions; sent to the executors with every batch."""

    def __init__(
        self, loading: Loading, concurrency: int, handlers: Mapping[str, Handler], terms: Terms | None = None
    ) -> None:
        """`handlers` are the driver's own, and are not sent."""
        self.entrypoints = tuple(handlers)
        self._loading = loading
        self._concurrency = concurrency
        self._handlers = handlers
        self._terms = terms or Terms()

    def __reduce__(self) -> tuple[Any, ...]:
        return Functions, (self._loading, self._concurrency, {}, self._terms)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `DataFrame.mapInArrow`: parcels in, parcels out."""
        yield from answers(batches, Crew(self._loading, self._concurrency), self._terms)

    def on_trip(self, terms: Terms) -> Functions:
        return Functions(self._loading, self._concurrency, self._handlers, terms)

    def crashed(self, job: Job[Any], error: str, rng: Random) -> Outcome:
        """Outcome of a job whose process died."""
        return crashed(job, self._handlers[job.entrypoint], error, rng)


class Crew:
    """Calls functions during one task: on one event loop, and in the same child processes, if any."""

    def __init__(self, loading: Loading, concurrency: int) -> None:
        self._loading = loading
        self._concurrency = concurrency
        self._loop = asyncio.Runner()
        self._loop_runner: _LoopRunner | None = None

    def work(self, shift: Shift, jobs: Sequence[JobRecord]) -> None:
        """Run these jobs.

        Raises:
            InvalidInputError: the app here differs from the driver's; nothing was called.
        """
        handlers = load(self._loading)
        claims = [Claim(Job(job, _BYTES), _of(handlers, job.spec.entrypoint), 0) for job in jobs]
        if claims:
            self._loop.run(self._run(shift, claims, handlers))

    def halt(self) -> None:
        if self._loop_runner is not None:
            self._loop_runner.halt_soon()

    def close(self) -> None:
        with self._loop as loop:
            if self._loop_runner is not None:
                loop.run(self._loop_runner.close())

    async def _run(self, shift: Shift, claims: list[Claim], handlers: Mapping[str, Handler]) -> None:
        if self._loop_runner is None:
            self._loop_runner = _LoopRunner(handlers, self._concurrency)
        await self._loop_runner.run(shift, claims)


class _LoopRunner:
    """The part that lives on the loop. Receives outcomes from the runner."""

    def __init__(self, handlers: Mapping[str, Handler], concurrency: int) -> None:
        """
        Raises:
            InvalidInputError: a function for a child process cannot be imported there by its name.
        """
        clock = SystemClock()
        apart = {name: handler for name, handler in handlers.items() if handler.executor == "process"}
        self._processes = Processes(apart, recycle_after=None, recycle_bytes=None, clock=clock) if apart else None
        self._tried = False
        self._loop = asyncio.get_running_loop()
        self._concurrency = concurrency
        self._claims = Claims()
        self._finished = asyncio.Event()
        self._shift = Shift(0)
        self._places: dict[int, int] = {}
        self._next: Iterator[tuple[int, Claim]] = iter(())
        self._runner = Runner(
            self._claims,
            self,
            self._processes,
            concurrency=concurrency,
            clock=clock,
            rng=system_random(),
            ended=self._ended,
        )

    async def run(self, shift: Shift, claims: list[Claim]) -> None:
        if self._processes is not None and not self._tried and any(one.handler.executor == "process" for one in claims):
            await self._processes.start()
            self._tried = True
        self._finished.clear()
        self._shift = shift
        self._places = {claim.job.token: place for place, claim in enumerate(claims)}
        self._next = enumerate(claims)
        self._ended()
        await self._finished.wait()

    def add(self, claim: Claim, outcome: Outcome) -> None:
        self._shift.outcomes[self._places[claim.job.token]] = outcome
        self._claims.drop(claim)

    def halt_soon(self) -> None:
        """From another thread. The shift is stopped, so nothing starts; what runs and can be interrupted, is."""
        self._loop.call_soon_threadsafe(self._halt)

    async def close(self) -> None:
        await self._runner.close()

    def _halt(self) -> None:
        for claim in list(self._claims.running):
            self._runner.lose(claim)

    def _ended(self) -> None:
        """A job has ended: start others. The runner gets no more than it can start at once."""
        while self._claims.open < self._concurrency:
            place, claim = next(self._next, (0, None))
            if claim is None or not self._shift.begin(place):
                break
            self._claims.take(claim)
        self._runner.fill()
        if not self._claims.open:
            self._finished.set()


def functions_of(app: Handlers | str, entrypoints: tuple[str, ...] | None, concurrency: int) -> Functions:
    """How executors get an app's functions. A name is also imported here, so that a mistake shows before a claim.

    Raises:
        InvalidInputError: it is not an app, cannot be sent, or has no such function.
    """
    found = import_app(app) if isinstance(app, str) else check_app(app, repr(app))
    handlers = chosen(found.handlers, entrypoints)
    loading = Loading(name=app) if isinstance(app, str) else Loading(code=_packed(handlers))
    return Functions(loading, concurrency, handlers)


@lru_cache(maxsize=8)
def load(loading: Loading) -> Mapping[str, Handler]:
    """The functions by entrypoint. Loaded once per process, like handlers."""
    if loading.code is not None:
        handlers: Mapping[str, Handler] = pickle.loads(loading.code)  # noqa: S301  the driver's own
        return handlers
    assert loading.name is not None
    return import_app(loading.name).handlers


def _of(handlers: Mapping[str, Handler], entrypoint: str) -> Handler:
    try:
        return handlers[entrypoint]
    except KeyError:
        raise InvalidInputError(
            f"the app has no function for {entrypoint!r} on this executor: does it have another version of the module?"
        ) from None


def _packed(handlers: Mapping[str, Handler]) -> bytes:
    """Functions of a module are pickled by name; those of a notebook or a script by value."""
    from pyspark import cloudpickle

    pickler: Any = cloudpickle.CloudPickler

    class Packer(pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, type) and CACHE in vars(obj):
                delattr(obj, CACHE)  # it cannot be pickled; msgspec makes it again where it is missing
            return _reduced(obj) if isinstance(obj, Arguments) else super().reducer_override(obj)

    file = io.BytesIO()
    try:
        Packer(file).dump(dict(handlers))
    except Exception as error:
        raise InvalidInputError(
            f"the app's functions cannot be sent to executors: {error}. Put the app into a module that executors have, "
            "and give its name, module:app"
        ) from error
    return file.getvalue()


def _reduced(arguments: Arguments) -> tuple[Any, ...]:
    function = arguments.function
    try:
        if function.__module__ != "__main__":
            return arguments.__reduce__()
    except pickle.PicklingError:
        pass  # a function defined inside another function
    # Names in its annotations may be known only where it was defined.
    return _rebuilt, (function, get_type_hints(function, include_extras=True), arguments.entrypoint)


def _rebuilt(function: Any, hints: dict[str, Any], entrypoint: str) -> Arguments:
    function.__annotations__ = hints
    return Arguments(function, entrypoint)
