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
from types import TracebackType
from typing import Any, Self, get_type_hints

import pyarrow as pa

from casque.client.job import Job
from casque.client.payloads import BytesCodec
from casque.clock import Random, SystemClock, system_random
from casque.errors import InvalidInputError
from casque.functions.arguments import Arguments
from casque.service import Outcome
from casque.spark.work.calling import Loading, answers
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

    def __init__(self, loading: Loading, concurrency: int, handlers: Mapping[str, Handler]) -> None:
        """`handlers` are the driver's own, and are not sent."""
        self.entrypoints = tuple(handlers)
        self._loading = loading
        self._concurrency = concurrency
        self._handlers = handlers

    def __reduce__(self) -> tuple[Any, ...]:
        return Functions, (self._loading, self._concurrency, {})

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `DataFrame.mapInArrow`: parcels in, parcels out."""
        with Crew(self._loading, self._concurrency) as crew:
            yield from answers(batches, crew.answered)

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._loop as loop:
            if self._loop_runner is not None:
                loop.run(self._loop_runner.close())

    def answered(self, jobs: Sequence[JobRecord]) -> list[Outcome]:
        """Run these jobs and return their outcomes in order.

        Raises:
            InvalidInputError: the app here differs from the driver's; nothing was called.
        """
        handlers = load(self._loading)
        claims = [Claim(Job(job, _BYTES), _of(handlers, job.spec.entrypoint), 0) for job in jobs]
        return self._loop.run(self._run(claims, handlers)) if claims else []

    async def _run(self, claims: list[Claim], handlers: Mapping[str, Handler]) -> list[Outcome]:
        if self._loop_runner is None:
            self._loop_runner = _LoopRunner(handlers, self._concurrency)
        return await self._loop_runner.run(claims)


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
        self._claims = Claims()
        self._finished = asyncio.Event()
        self._outcomes: dict[int, Outcome] = {}
        self._runner = Runner(
            self._claims,
            self,
            self._processes,
            concurrency=concurrency,
            clock=clock,
            rng=system_random(),
            ended=self._ended,
        )

    async def run(self, claims: list[Claim]) -> list[Outcome]:
        if self._processes is not None and not self._tried and any(one.handler.executor == "process" for one in claims):
            await self._processes.start()
            self._tried = True
        self._finished.clear()
        for claim in claims:
            self._claims.take(claim)
        self._runner.fill()
        await self._finished.wait()
        return [self._outcomes.pop(claim.job.token) for claim in claims]

    def add(self, claim: Claim, outcome: Outcome) -> None:
        self._outcomes[claim.job.token] = outcome
        self._claims.drop(claim)

    async def close(self) -> None:
        await self._runner.close()

    def _ended(self) -> None:
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
