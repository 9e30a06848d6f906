"""A queue and the functions that work on it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from types import MappingProxyType, TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, cast

import msgspec

from casque import checks, cron
from casque.client.config import default_queue, default_queue_hint
from casque.client.connecting import ClientTlsFiles
from casque.client.loop_thread import LoopThread
from casque.client.queue import DEFAULTS, Queue
from casque.clock import Clock, Random
from casque.engine.ticker import SCHEDULE_HEADER
from casque.errors import InvalidInputError, QueueClosedError, ScheduleNotFoundError
from casque.functions.connection import Open, Outlet
from casque.functions.handle import Handle, SyncHandle
from casque.functions.job import Decorator, Definition, Enqueuing, JobCall, JobFunction, Key, Options
from casque.functions.periodic import Periodic, register_if_possible
from casque.settings import QueueSettings, SettingsChanges
from casque.types import Missed
from casque.worker.handlers import Handler, Retry
from casque.worker.hooks import Hook, HookTable, Moment

S = TypeVar("S")
H = TypeVar("H", bound=Hook)
F = TypeVar("F", bound=Enqueuing[..., Any])

Span = float | timedelta


class App:
    """A queue, and functions whose calls can be jobs on it.

    >>> import asyncio
    >>> import casque
    >>> app = casque.App("memory://app-example")
    >>> @app.job(max_attempts=5, backoff=[1, 10, 60])
    ... async def send(to: str, subject: str = "hello") -> str:
    ...     return f"{subject} to {to}"
    >>> async def main():
    ...     print(await send("ada"))  # a plain call
    ...     async with app:
    ...         job = await send.enqueue("ada", subject="news")
    ...         print(job.entrypoint, await job.status())
    >>> asyncio.run(main())
    hello to ada
    send ready

    Everything that `Queue.open` takes may be given: options of the store, `via="broker"`, settings. Nothing is opened
    before `async with app:`, or `with app:` for code without asyncio. A worker runs the jobs:
    `casque worker module:app`. An app without a URL finds its queue when it is opened, as the command line does: by the
    variable CASQUE_URL, or by the `url` in casque.toml. `result_ttl` is that of all functions which have none of their
    own.
    """

    def __init__(
        self,
        url: Any = None,
        *,
        layout: str | None = None,
        options: Mapping[str, str] | None = None,
        via: str | None = None,
        token: str | None = None,
        tls: ClientTlsFiles | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
        result_ttl: Span | None = None,
        **settings: Unpack[SettingsChanges],
    ) -> None:
        self._result_ttl_ms = None if result_ttl is None else checks.span_ms("result_ttl", result_ttl)
        self._settings = DEFAULTS.with_changes(settings)
        opening = {
            "layout": layout, "options": options, "via": via, "token": token, "tls": tls, "clock": clock, "rng": rng,
        }  # fmt: skip
        self._url = url
        self._opening: dict[str, Any] = {**settings, **{k: v for k, v in opening.items() if v is not None}}
        self._definitions: dict[str, Definition] = {}
        self._hooks: dict[Moment, list[Hook]] = {}
        self._periodic: dict[str, Periodic] = {}
        self._outlet: Outlet | None = None
        self._queue: Queue[bytes] | None = None
        self._thread: LoopThread | None = None

    # --- For workers ---

    @property
    def url(self) -> Any:
        """Where the queue is.

        Raises:
            InvalidInputError: nobody has said so.
        """
        return self.located()[0]

    @property
    def opening(self) -> Mapping[str, Any]:
        """What else `Queue.open` is to be given."""
        return MappingProxyType(self._opening)

    def located(self) -> tuple[Any, Mapping[str, Any]]:
        """Both. Of an app without a URL, also what casque.toml says about the queue that it names; what the app itself
        says wins.

        Raises:
            InvalidInputError: nobody has said where the queue is.
        """
        if self._url is not None:
            return self._url, self.opening
        if (place := default_queue()) is None:
            raise InvalidInputError(f"this app has no queue: give casque.App its URL, {default_queue_hint()}")
        found = place.opening()
        options = {**found.get("options", {}), **self._opening.get("options", {})}
        return place.url, {**found, **self._opening, **({"options": options} if options else {})}

    @property
    def settings(self) -> QueueSettings:
        return self._settings

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """What a worker runs, by entrypoint."""
        return MappingProxyType({name: one.handler for name, one in self._definitions.items()})

    @property
    def hooks(self) -> HookTable:
        """Whom a worker tells what becomes of jobs."""
        return MappingProxyType(self._hooks)

    # --- Functions ---

    def job(
        self,
        name: str | None = None,
        *,
        max_attempts: int | None = None,
        max_crashes: int | None = 5,
        backoff: Span | Sequence[Span] | None = None,
        backoff_cap: Span | None = None,
        timeout: Span | None = None,
        priority: int = 0,
        key: Key | None = None,
        zone: Key | None = None,
        fifo: bool = False,
        executor: Literal["async", "thread", "process"] | None = None,
        result_ttl: Span | None = None,
    ) -> Decorator:
        """Make a function enqueueable. Its parameters are what its jobs carry; a first one that is annotated with
        `JobContext` is filled in by the worker.

        `name`: the entrypoint, if not the function's own name. `max_attempts`: dead after so many. `max_crashes`:
        quarantined, which is dead as well, after it took so many worker processes with it; that is apart from the
        attempts, unless it is None. `backoff`: how long it waits after a failure, doubling from there up to
        `backoff_cap`; or the waits themselves, one after the other, the last of them ever after. `timeout`: a run that
        takes longer has failed. `priority`: lower runs first. `key`: while an unfinished job of this function has the
        same key, nothing is added; a template such as `"user-{user_id}"`, or a function of the same arguments.
        `zone`: whose jobs they are, given in the same ways, such as `"{tenant}"`: zones take turns. `fifo`: those of a
        zone run strictly in the order they came, one at a time.
        `executor`: where a plain function runs, in a `thread` unless it is so quick that it may run on the worker's
        loop, `async`, where coroutine functions run; with `process` either runs in a process of its own, for what
        computes, may crash, or must be killed when its time is up. `result_ttl`: how long after its end a result can be
        had from a handle; 0 if it need not be kept at all, and by default as long as the archive has it.
        """
        if name is not None and not isinstance(name, str):
            raise InvalidInputError("write @app.job() with parentheses; its first argument is a name")
        retry = self._retry(max_attempts, backoff, backoff_cap)
        options = Options(
            priority=checks.priority(priority),
            max_attempts=None if max_attempts is None else checks.max_attempts(max_attempts),
            max_crashes=None if max_crashes is None else checks.max_crashes(max_crashes),
            fifo=checks.flag("fifo", fifo),
        )
        timeout_s = None if timeout is None else max(1, checks.span_ms("timeout", timeout)) / 1000
        ttl_ms = self._result_ttl_ms if result_ttl is None else checks.span_ms("result_ttl", result_ttl)

        def decorate(function: Any) -> Any:
            if not callable(function) or isinstance(function, type):
                raise InvalidInputError(f"@app.job() is for functions, not for {function!r}")
            entrypoint = checks.entrypoint(name or function.__name__)
            if entrypoint in self._definitions:
                raise InvalidInputError(
                    f"there is a job {entrypoint!r} already: give one of them another name, @app.job('{entrypoint}-2')"
                )
            definition = Definition(
                function, entrypoint, retry=retry, timeout_s=timeout_s, executor=executor, result_ttl_ms=ttl_ms
            )
            zone_of = definition.checked_zone(zone)
            plain = zone_of if isinstance(zone_of, str) and not {"{", "}"} & set(zone_of) else None
            whole = msgspec.structs.replace(
                options,
                key=definition.checked_key(key),
                zone=plain,
                zone_of=zone_of if plain is None else None,  # a name that is always the same need not be made
            )
            self._definitions[entrypoint] = definition
            return JobFunction[..., Any, Any](self, definition, whole)

        return cast(Decorator, decorate)

    # --- Hooks ---

    def on_claimed(self, hook: H) -> H:
        """Have a worker call this function when it has claimed a job, with a `JobEvent`.

        Hooks are coroutines, or plain functions, which run in threads. They are told after the fact and out of the way
        of the jobs: one that raises is logged and changes nothing.

        >>> import casque
        >>> app = casque.App("memory://hooks-example")
        >>> @app.on_failed
        ... async def page_somebody(event: casque.JobEvent) -> None:
        ...     if event.final:
        ...         print(event.context.job_id, event.error)
        """
        return self._hooked(Moment.CLAIMED, hook)

    def on_completed(self, hook: H) -> H:
        """The same when a job is done, and durably so."""
        return self._hooked(Moment.COMPLETED, hook)

    def on_failed(self, hook: H) -> H:
        """The same when an attempt has failed, and durably so; `event.final` says whether it was the last. A worker
        that dies tells nobody."""
        return self._hooked(Moment.FAILED, hook)

    def cron(
        self,
        expression: str,
        *,
        tz: str = "UTC",
        missed: Missed | Literal["skip", "one", "all"] = "one",
        name: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Callable[[F], F]:
        """Have a function's job added whenever a cron expression is due, one job for each tick. Goes above
        `@app.job()`, several times if need be; a worker of the app tells the queue when it starts.

        >>> import casque
        >>> app = casque.App("memory://cron-example")
        >>> @app.cron("0 7 * * mon-fri", tz="Europe/Berlin", arguments={"to": "ada"})
        ... @app.job()
        ... async def remind(to: str) -> None: ...
        >>> list(app.schedules)
        ['remind']

        `tz`: the time zone of the expression. `missed`: what becomes of ticks that nobody noticed for more than a
        minute: `skip` forgets them, `one` adds one job for all of them, `all` one for each. `name`: what the schedule
        is called, if not as the function. `arguments`: those of the function, the same at every tick; which tick it is
        says the header `casque-tick`. Priority, attempts, key and zone are those of `@app.job()`: with a key, nothing
        is added while the job of an earlier tick is unfinished.
        """
        cron.parse(checks.text("expression", expression, cron.EXPRESSION_MAX), cron.zone(tz))
        chosen = checks.missed(missed)

        def declare(function: F) -> F:
            if not isinstance(function, JobFunction) or self._definitions.get(function.entrypoint) is not (
                function.definition
            ):
                raise InvalidInputError("@app.cron(...) goes above @app.job() of the same app")
            called = checks.schedule(name or function.entrypoint)
            if called in self._periodic:
                raise InvalidInputError(f"there is a schedule {called!r} already: give one of them another name=")
            call = function.bind(**(arguments or {}))
            checks.blob("payload", call.new.payload, checks.SCHEDULED_BYTES_MAX)
            self._periodic[called] = Periodic(called, expression, call, tz, chosen)
            return function

        return declare

    @property
    def schedules(self) -> Mapping[str, Periodic]:
        """What `@app.cron` declared, by name."""
        return MappingProxyType(self._periodic)

    async def prepare(self, queue: Queue[bytes]) -> None:
        """What a worker does before it begins: tell the queue of the schedules. What is declared no longer is reported,
        and goes on."""
        modules = {str(one.function.__module__) for one in self._definitions.values()}
        await register_if_possible(queue, self._periodic, modules)

    async def trigger(self, name: str) -> Handle[Any]:
        """Add the job of a schedule now, beside its ticks."""
        if name not in self._periodic:
            raise ScheduleNotFoundError(name)
        call = self._periodic[name].call
        marked = msgspec.structs.replace(call.new, headers={**(call.new.headers or {}), SCHEDULE_HEADER: name})
        [handle] = await self.enqueue_many([msgspec.structs.replace(call, new=marked)])
        return handle

    def trigger_sync(self, name: str) -> SyncHandle[Any]:
        """As `trigger`, for code without asyncio."""
        return SyncHandle(self.wait(self.trigger(name)), self.wait)

    # --- Opening ---

    async def __aenter__(self) -> Self:
        self._refuse_if_open()
        url, opening = self.located()
        queue: Queue[bytes] = Queue.open(url, **opening)
        await queue.__aenter__()
        self._queue, self._outlet = queue, Open(queue, self._settings, self._opening.get("clock"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        queue, self._queue, self._outlet = self._queue, None, None
        assert queue is not None
        await queue.__aexit__(kind, error, trace)

    def __enter__(self) -> Self:
        self._refuse_if_open()
        self._thread = LoopThread("casque-app")
        try:
            self._thread.wait(self.__aenter__())
        except BaseException:
            self._thread.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._thread is not None
        try:
            self._thread.wait(self.__aexit__(kind, error, trace))
        finally:
            self._thread.end()

    @contextmanager
    def through(self, outlet: Queue[bytes] | Outlet) -> Iterator[App]:
        """Enqueue through a queue that is open already, in the event loop that it was opened in. A worker lends its
        own to the functions that it runs; an app that is open itself does without. Tests put what they like in the
        queue's place."""
        before = self._outlet
        if isinstance(outlet, Queue) and before is not None:
            yield self  # or else whoever waits for a result here would lose the queue with the worker
            return
        self._outlet = Open(outlet, self._settings, self._opening.get("clock")) if isinstance(outlet, Queue) else outlet
        try:
            yield self
        finally:
            self._outlet = before

    @property
    def queue(self) -> Queue[bytes]:
        """The open queue, for whatever functions do not cover."""
        if self._queue is None:
            raise QueueClosedError("use the app inside `async with app:`, or `with app:` without asyncio")
        return self._queue

    # --- Enqueuing ---

    async def enqueue_many(self, calls: Iterable[JobCall[Any]], *, request_id: str | None = None) -> list[Handle[Any]]:
        """Add jobs of any of the functions, each made with `bind`, in one commit: all of them or none."""
        made = list(calls)
        known: Definition | None = None
        for one in made:
            if not isinstance(one, JobCall):
                raise InvalidInputError(f"enqueue_many takes what function.bind(...) returns, not {one!r}")
            if one.definition is known:
                continue
            known = one.definition
            if self._definitions.get(known.entrypoint) is not known:
                raise InvalidInputError(f"{one.entrypoint!r} is a function of another app")
        added = await self._open().enqueue(made, request_id=request_id)
        return [self._handle(call.definition, job_id, since) for call, (job_id, since) in zip(made, added, strict=True)]

    def handle(self, definition: Definition, job_id: str, since: datetime | None = None) -> Handle[Any]:
        """For `function.handle`."""
        return self._handle(definition, checks.job_id(job_id), since)

    def wait(self, call: Coroutine[Any, Any, S]) -> S:
        """Carry out a call for somebody who blocks meanwhile."""
        try:
            outlet = self._open()
        except QueueClosedError:
            call.close()
            raise
        return outlet.wait(call)

    # --- Inside ---

    def _handle(self, definition: Definition, job_id: str, since: datetime | None) -> Handle[Any]:
        return Handle(
            self._open,
            definition.entrypoint,
            job_id,
            definition.decode_result,
            since,
            definition.result_ttl_ms,
        )

    def _open(self) -> Outlet:
        if self._outlet is None:
            raise QueueClosedError("use the app inside `async with app:`, or `with app:` without asyncio")
        return self._outlet

    def _hooked(self, moment: Moment, hook: H) -> H:
        if not callable(hook):
            raise InvalidInputError(f"@app.on_{moment.value} is written without parentheses, above a function")
        self._hooks.setdefault(moment, []).append(hook)
        return hook

    def _refuse_if_open(self) -> None:
        if self._outlet is not None:
            raise QueueClosedError("this app is open already: it is opened once in a process")

    def _retry(self, max_attempts: int | None, backoff: Any, backoff_cap: Span | None) -> Retry:
        attempts = self._settings.max_attempts if max_attempts is None else checks.max_attempts(max_attempts)
        base_s, cap_s = self._settings.backoff_base.total_seconds(), self._settings.backoff_cap.total_seconds()
        if backoff_cap is not None:
            cap_s = checks.span_ms("backoff_cap", backoff_cap) / 1000
        if backoff is None or isinstance(backoff, int | float | timedelta):
            if backoff is not None:
                base_s = checks.span_ms("backoff", backoff) / 1000
            return Retry(max_attempts=attempts, base_s=base_s, cap_s=max(cap_s, base_s))
        if isinstance(backoff, str) or not isinstance(backoff, Sequence) or not backoff:
            raise InvalidInputError(f"backoff must be seconds, a timedelta, or a list of them, not {backoff!r}")
        if backoff_cap is not None:
            raise InvalidInputError("backoff_cap is for a backoff that doubles; a list says each wait itself")
        return Retry(max_attempts=attempts, delays_s=tuple(checks.span_ms("backoff", one) / 1000 for one in backoff))
