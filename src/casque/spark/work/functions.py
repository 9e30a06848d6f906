"""What runs on an executor for an app: each job by its own function, just as a worker of the app runs it.

It is the worker's own runner that calls them, so that arguments are checked, results are kept, time limits hold and
attempts are spaced as they are anywhere else. What a worker does besides needs its queue, which is with the driver:
nobody here hears of a lost lease, of progress, or through a hook.
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
"""Where msgspec keeps what it knows about a dataclass: in the class."""
_BYTES = BytesCodec()


class Functions:
    """An app's functions; travels to the executors with every batch."""

    def __init__(self, loading: Loading, concurrency: int, handlers: Mapping[str, Handler]) -> None:
        """`handlers` are the driver's own, and stay there."""
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
        """What became of a job that its process did not survive."""
        return crashed(job, self._handlers[job.entrypoint], error, rng)


class Crew:
    """Calls functions for as long as one task lasts: on one event loop, and in the same processes, if need be."""

    def __init__(self, loading: Loading, concurrency: int) -> None:
        self._loading = loading
        self._concurrency = concurrency
        self._loop = asyncio.Runner()
        self._gang: _Gang | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._loop as loop:
            if self._gang is not None:
                loop.run(self._gang.close())

    def answered(self, jobs: Sequence[JobRecord]) -> list[Outcome]:
        """What became of each of them, in their order.

        Raises:
            InvalidInputError: the app is not here as the driver has it, and nothing was called.
        """
        handlers = load(self._loading)
        claims = [Claim(Job(job, _BYTES), _of(handlers, job.spec.entrypoint), 0) for job in jobs]
        return self._loop.run(self._worked_off(claims, handlers)) if claims else []

    async def _worked_off(self, claims: list[Claim], handlers: Mapping[str, Handler]) -> list[Outcome]:
        if self._gang is None:
            self._gang = _Gang(handlers, self._concurrency)
        return await self._gang.worked_off(claims)


class _Gang:
    """The part of it that lives on the loop. It is who the runner tells what became of jobs."""

    def __init__(self, handlers: Mapping[str, Handler], concurrency: int) -> None:
        """
        Raises:
            InvalidInputError: a function is to run in a process, which cannot find it by its name.
        """
        clock = SystemClock()
        apart = {name: handler for name, handler in handlers.items() if handler.executor == "process"}
        self._processes = Processes(apart, recycle_after=None, recycle_bytes=None, clock=clock) if apart else None
        self._tried = False
        self._claims = Claims()
        self._over = asyncio.Event()
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

    async def worked_off(self, claims: list[Claim]) -> list[Outcome]:
        if self._processes is not None and not self._tried and any(one.handler.executor == "process" for one in claims):
            await self._processes.start()
            self._tried = True
        self._over.clear()
        for claim in claims:
            self._claims.take(claim)
        self._runner.fill()
        await self._over.wait()
        return [self._outcomes.pop(claim.job.token) for claim in claims]

    def add(self, claim: Claim, outcome: Outcome) -> None:
        self._outcomes[claim.job.token] = outcome
        self._claims.drop(claim)

    async def close(self) -> None:
        await self._runner.close()

    def _ended(self) -> None:
        if not self._claims.open:
            self._over.set()


def functions_of(app: Handlers | str, entrypoints: tuple[str, ...] | None, concurrency: int) -> Functions:
    """How executors get an app's functions. By name it is looked up here too, so that a mistake shows before a claim.

    Raises:
        InvalidInputError: it is no app, or cannot be sent; or it has no such function.
    """
    found = import_app(app) if isinstance(app, str) else check_app(app, repr(app))
    handlers = chosen(found.handlers, entrypoints)
    loading = Loading(name=app) if isinstance(app, str) else Loading(code=_packed(handlers))
    return Functions(loading, concurrency, handlers)


@lru_cache(maxsize=8)
def load(loading: Loading) -> Mapping[str, Handler]:
    """The functions by their entrypoints. Loaded once in a process, as handlers are."""
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
    """Functions of a module are found there by their names; those of a notebook or a script travel themselves."""
    from pyspark import cloudpickle

    pickler: Any = cloudpickle.CloudPickler

    class Packer(pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, type) and CACHE in vars(obj):
                delattr(obj, CACHE)  # it cannot travel, and is made again where it is missing
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
        pass  # one that was made in another function
    # What its annotations name may be known where it was made only.
    return _rebuilt, (function, get_type_hints(function, include_extras=True), arguments.entrypoint)


def _rebuilt(function: Any, hints: dict[str, Any], entrypoint: str) -> Arguments:
    function.__annotations__ = hints
    return Arguments(function, entrypoint)
