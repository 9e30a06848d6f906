"""A function that can be enqueued. Calling it is still a plain call."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import update_wrapper, wraps
from string import Formatter
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, overload

import msgspec

from casque import checks
from casque.client.new_jobs import NewJob
from casque.errors import InvalidInputError
from casque.fields import check_tags
from casque.functions.arguments import Arguments, discard_result, encode_result, result_decoder
from casque.functions.habits import METHODS
from casque.functions.handle import Handle, SyncHandle
from casque.types import GainedFields
from casque.worker.handlers import Executor, Handler, JobContext, Retry

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
S = TypeVar("S")
M = TypeVar("M", bound=Callable[..., Any])

Key = str | Callable[..., str]


class Options(GainedFields, frozen=True, kw_only=True):
    """How a job is enqueued: the decorator's settings, and their changes for one call."""

    priority: int = 0
    delay: float | timedelta | None = None
    run_at: datetime | None = None
    key: Key | None = None
    max_attempts: int | None = None
    headers: Mapping[str, str] | None = None
    zone: str | None = None
    """A literal name. A zone given for one call is never a template: it may be a name that a customer chose."""
    zone_of: Key | None = None
    """The decorator's template or function for the name."""
    max_crashes: int | None = None
    fifo: bool = False


class JobCall(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """A checked call of a function that is not enqueued yet; `bind` makes it for `enqueue_many`."""

    definition: Definition
    arguments: Mapping[str, Any]
    """By name, without defaults."""
    new: NewJob[bytes]

    @property
    def entrypoint(self) -> str:
        return self.new.entrypoint


class CallSink(Protocol):
    """Enqueues calls: an app."""

    async def enqueue_many(
        self, calls: Iterable[JobCall[Any]], *, request_id: str | None = None
    ) -> list[Handle[Any]]: ...

    def handle(self, definition: Definition, job_id: str, since: datetime | None = None) -> Handle[Any]: ...

    def wait(self, call: Coroutine[Any, Any, S]) -> S: ...


class Definition:
    """One decorated function: its name, its arguments, how it is run."""

    def __init__(
        self,
        function: Callable[..., Any],
        entrypoint: str,
        *,
        retry: Retry,
        timeout_s: float | None,
        executor: str | None,
        result_ttl_ms: int | None = None,
    ) -> None:
        self.function = function
        self.entrypoint = entrypoint
        self.arguments = Arguments(function, entrypoint)
        is_async = inspect.iscoroutinefunction(function)
        self.handler = Handler(
            entrypoint,
            self.arguments.call,
            is_async=is_async,
            executor=_executor(entrypoint, executor, is_async=is_async),
            timeout_s=timeout_s,
            retry=retry,
            encode_result=discard_result if result_ttl_ms == 0 else encode_result,
        )
        self.result_ttl_ms = result_ttl_ms
        """How long after its end a job's result may be read; None for no limit."""
        self._results: msgspec.json.Decoder[Any] | None = None

    def decode_result(self, result: bytes) -> Any:
        if self._results is None:
            self._results = result_decoder(self.function)
        return self._results.decode(result)

    def key(self, key: Key | None, arguments: Mapping[str, Any]) -> str | None:
        """The unique key of one call. It contains the entrypoint: keys of different functions do not collide."""
        if key is None:
            return None
        return f"{self.entrypoint}:{checks.text('key', self._made('key', key, arguments), checks.KEY_MAX)}"

    def zone(self, zone: Key, arguments: Mapping[str, Any]) -> str:
        """The zone of one call."""
        return checks.zone(self._made("zone", zone, arguments))

    def checked_key(self, key: Any) -> Key | None:
        return self._checked("key", "user-{user_id}", key)

    def checked_zone(self, zone: Any) -> Key | None:
        checked = self._checked("zone", "{tenant}", zone)
        return checks.zone(checked) if isinstance(checked, str) else checked

    def _made(self, what: str, template: Key, arguments: Mapping[str, Any]) -> Any:
        whole = self.arguments.with_defaults(arguments)
        try:
            if isinstance(template, str):
                return template.format(**whole.arguments)
            return template(*whole.args, **whole.kwargs)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise InvalidInputError(
                f"{self.entrypoint}: no {what} can be made: {type(error).__name__}: {error}"
            ) from error

    def _checked(self, what: str, example: str, template: Any) -> Key | None:
        if template is None or callable(template):
            return cast("Key | None", template)
        if not isinstance(template, str):
            raise InvalidInputError(f"{what} must be a template such as {example!r} or a function, not {template!r}")
        try:
            named = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
        except ValueError as error:
            raise InvalidInputError(f"{self.entrypoint}: {what} {template!r} is no template: {error}") from error
        known = self.arguments.names()
        for name in named:
            if name.replace("[", ".").split(".")[0] not in known:
                raise InvalidInputError(
                    f"{self.entrypoint}: {what} {template!r} names {name!r}, which is no argument; there are "
                    f"{', '.join(known)}"
                )
        return template


def _named_as_in_celery(method: M) -> M:
    """`delay` with the arguments of the function, as in Celery, is refused with what to write instead."""

    @wraps(method)
    def delay(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        if len(given) != 1 or kwargs.keys() - {"seconds"} or not isinstance(given[0], int | float | timedelta):
            name = self.entrypoint
            raise InvalidInputError(
                f"{name}.delay takes one number of seconds and enqueues nothing: write {name}.enqueue(...) for "
                f"Celery's {name}.delay(...), or {name}.delay(60).enqueue(...) to run it a minute later"
            )
        return method(self, given[0])

    return cast(M, delay)


class Enqueuing(Generic[P, T]):
    """The ways to enqueue a function, all of them typed like the function itself."""

    def __init__(self, sink: CallSink, definition: Definition, options: Options) -> None:
        self._sink = sink
        self._definition = definition
        self._options = options
        self._arguments = definition.arguments
        self._entrypoint = definition.entrypoint

    @property
    def entrypoint(self) -> str:
        return self._definition.entrypoint

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[T]:
        """Add a job; it is durable when this returns.

        Raises:
            InvalidInputError: the arguments do not fit the function.
        """
        [handle] = await self._sink.enqueue_many([self.bind(*args, **kwargs)])
        return handle

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> SyncHandle[T]:
        """As `enqueue`, for code without asyncio: blocks until the job is durable."""
        [handle] = self.enqueue_many_sync([self.bind(*args, **kwargs)])
        return handle

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> JobCall[T]:
        """Check a call and keep it for `enqueue_many`."""
        arguments = self._arguments.bind(args, kwargs)
        payload = self._arguments.encode(arguments)
        options = self._options
        zone = options.zone
        if zone is None and options.zone_of is not None:
            zone = self._definition.zone(options.zone_of, arguments)
        if options.fifo:
            _check_fifo(self._entrypoint, zone, options)
        new = NewJob(
            self._entrypoint,
            payload,
            options.priority,
            options.delay,
            options.run_at,
            None if options.key is None else self._definition.key(options.key, arguments),
            options.max_attempts,
            options.headers,
            zone,
            options.max_crashes,
            options.fifo,
            options.tags,
            None if options.expires_ms is None else timedelta(milliseconds=options.expires_ms),
        )
        return JobCall(self._definition, arguments, new)

    async def enqueue_many(self, calls: Iterable[JobCall[T]], *, request_id: str | None = None) -> list[Handle[T]]:
        """Add several jobs, each made with `bind`, in one commit: all of them or none."""
        return await self._sink.enqueue_many(calls, request_id=request_id)

    def enqueue_many_sync(self, calls: Iterable[JobCall[T]], *, request_id: str | None = None) -> list[SyncHandle[T]]:
        """As `enqueue_many`, for code without asyncio."""
        handles = self._sink.wait(self._sink.enqueue_many(calls, request_id=request_id))
        return [SyncHandle(handle, self._sink.wait) for handle in handles]

    @_named_as_in_celery
    def delay(self, seconds: float | timedelta) -> Enqueuing[P, T]:
        """The same function, to be run after this many seconds. Enqueue it through the result:
        `function.delay(60).enqueue(...)`."""
        checks.span_ms("delay", seconds)
        return _Delayed(
            self._sink, self._definition, msgspec.structs.replace(self._options, delay=seconds, run_at=None)
        )

    def schedule(self, at: datetime) -> Enqueuing[P, T]:
        """The same function, to be run at this moment or later. `at` needs a time zone."""
        checks.moment_ms("at", at)
        return self._changed(run_at=at, delay=None)

    def using(
        self,
        *,
        priority: int | None = None,
        key: Key | None = None,
        max_attempts: int | None = None,
        headers: Mapping[str, str] | None = None,
        zone: str | None = None,
        max_crashes: int | None = None,
        fifo: bool | None = None,
        tags: Sequence[str] | None = None,
        expires: float | timedelta | None = None,
    ) -> Enqueuing[P, T]:
        """The same function with other settings than its decorator's, for the jobs enqueued through the result."""
        given: dict[str, Any] = {
            "priority": None if priority is None else checks.priority(priority),
            "key": self._definition.checked_key(key),
            "max_attempts": None if max_attempts is None else checks.max_attempts(max_attempts),
            "headers": None if headers is None else checks.headers(headers),
            "zone": None if zone is None else checks.zone(zone),
            "max_crashes": None if max_crashes is None else checks.max_crashes(max_crashes),
            "fifo": None if fifo is None else checks.flag("fifo", fifo),
            "tags": None if tags is None else check_tags(tags),
            "expires_ms": None if expires is None else checks.expires_ms(expires),
        }
        return self._changed(**{name: value for name, value in given.items() if value is not None})

    def handle(self, job_id: str, *, since: datetime | None = None) -> Handle[T]:
        """A handle of a job that was enqueued before. The archive is not searched further back than `since`."""
        return self._sink.handle(self._definition, job_id, since)

    def handle_sync(self, job_id: str, *, since: datetime | None = None) -> SyncHandle[T]:
        """As `handle`, for code without asyncio."""
        return SyncHandle(self.handle(job_id, since=since), self._sink.wait)

    if not TYPE_CHECKING:  # type checkers know that there is no such attribute

        def __getattr__(self, name: str) -> Any:
            hint = f": use {METHODS[name]}" if name in METHODS else ""
            raise AttributeError(f"a job's function has no {name!r}{hint}", name=name, obj=self)

    def _changed(self, **changes: Any) -> Enqueuing[P, T]:
        return Enqueuing(self._sink, self._definition, msgspec.structs.replace(self._options, **changes))


class _Delayed(Enqueuing[P, T]):
    """What `delay` returns. Warns if it is dropped unused: in Celery, `function.delay(...)` enqueues."""

    _used = False

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> JobCall[T]:
        self._used = True
        return super().bind(*args, **kwargs)

    async def enqueue_many(self, calls: Iterable[JobCall[T]], *, request_id: str | None = None) -> list[Handle[T]]:
        self._used = True
        return await super().enqueue_many(calls, request_id=request_id)

    def enqueue_many_sync(self, calls: Iterable[JobCall[T]], *, request_id: str | None = None) -> list[SyncHandle[T]]:
        self._used = True
        return super().enqueue_many_sync(calls, request_id=request_id)

    def _changed(self, **changes: Any) -> Enqueuing[P, T]:
        self._used = True
        return super()._changed(**changes)

    def __del__(self) -> None:
        if not self._used and not sys.is_finalizing():
            seconds, name = self._options.delay, self._entrypoint
            warnings.warn(
                f"nothing was enqueued: {name}.delay({seconds}) only sets a delay. Write {name}.enqueue({seconds}) for "
                f"Celery's {name}.delay({seconds}), or {name}.delay({seconds}).enqueue(...) to run it later",
                RuntimeWarning,
                stacklevel=2,
            )


class JobFunction(Enqueuing[P, T], Generic[P, R, T]):
    """A function decorated with `@app.job()`."""

    __name__: str

    def __init__(self, sink: CallSink, definition: Definition, options: Options) -> None:
        super().__init__(sink, definition, options)
        update_wrapper(self, definition.function)

    @property
    def definition(self) -> Definition:
        """The definition, for testing tools and the app itself."""
        return self._definition

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """A plain call: nothing is enqueued, checked or converted."""
        returned: R = self._definition.function(*args, **kwargs)
        return returned

    def __repr__(self) -> str:
        return f"<job {self.entrypoint!r}: {self._definition.function!r}>"


class ContextJobFunction(Enqueuing[P, T], Generic[P, R, T]):
    """The same for a function whose first parameter is a `JobContext`, which callers of `enqueue` omit.

    Exists only for type checkers; at run time it is a `JobFunction`."""

    __name__: str
    definition: Definition

    def __call__(self, context: JobContext, /, *args: P.args, **kwargs: P.kwargs) -> R:
        raise NotImplementedError


class Decorator(Protocol):
    """The decorator that `app.job(...)` returns."""

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, T]], /
    ) -> ContextJobFunction[P, Coroutine[Any, Any, T], T]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[JobContext, P], R], /) -> ContextJobFunction[P, R, R]: ...

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> JobFunction[P, Coroutine[Any, Any, T], T]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> JobFunction[P, R, R]: ...


def _check_fifo(entrypoint: str, zone: str | None, options: Options) -> None:
    """The same check as in the queue, but made where the function is called, also in tests without a queue."""
    if zone is None:
        raise InvalidInputError(f"{entrypoint}: fifo=True is about the order within a zone: say which, zone=...")
    if options.delay is not None or options.run_at is not None:
        raise InvalidInputError(f"{entrypoint}: jobs of a FIFO zone come one after the other, and cannot be delayed")


def _executor(entrypoint: str, chosen: str | None, *, is_async: bool) -> Executor:
    match chosen:
        case None:
            return "async" if is_async else "thread"
        case "async":
            return "async"
        case "process":
            return "process"
        case "thread" if not is_async:
            return "thread"
        case "thread":
            raise InvalidInputError(f"{entrypoint}: a coroutine function runs on the worker's loop: leave executor out")
        case _:
            raise InvalidInputError(f"{entrypoint}: executor must be 'async', 'thread' or 'process', not {chosen!r}")
