"""A queue and the functions that run its jobs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from types import MappingProxyType
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
from casque.fields import check_tags
from casque.functions.connection import Open, Outlet
from casque.functions.habits import refuse_unknown_options
from casque.functions.handle import Handle, SyncHandle
from casque.functions.job import Decorator, Definition, Enqueuing, JobCall, JobFunction, Key, Options
from casque.functions.periodic import Periodic, register_if_possible
from casque.settings import QueueSettings, SettingsChanges
from casque.storage.url import is_address
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

    Takes the same arguments as `Queue.open`: options of the store, `via="broker"`, settings. Nothing is opened before
    `async with app:`, or `with app:` for code without asyncio. A worker runs the jobs: `casque worker module:app`. An
    app without a URL looks for its queue when it is opened, as the command line does: in the variable CASQUE_URL, then
    under `url` in casque.toml. `result_ttl` applies to all functions that have none of their own.
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
        self._functions: dict[str, JobFunction[..., Any, Any]] = {}
        self._hooks: dict[Moment, list[Hook]] = {}
        self._periodic: dict[str, Periodic] = {}
        self._outlet: Outlet | None = None
        self._queue: Queue[bytes] | None = None
        self._thread: LoopThread | None = None

    # --- For workers ---

    @property
    def url(self) -> Any:
        """URL of the queue.

        Raises:
            InvalidInputError: no URL was given.
        """
        return self.located()[0]

    @property
    def opening(self) -> Mapping[str, Any]:
        """The other arguments for `Queue.open`."""
        return MappingProxyType(self._opening)

    def located(self) -> tuple[Any, Mapping[str, Any]]:
        """URL and other arguments for `Queue.open`. An app without a URL also takes the options of the queue that
        casque.toml names; its own options win.

        Raises:
            InvalidInputError: no URL was given.
        """
        if self._url is not None:
            return self._url, self.opening
        if (place := default_queue()) is None:
            raise InvalidInputError(f"this app has no queue: give casque.App its URL, {default_queue_hint()}")
        found = place.opening()
        if not is_address(place.url) and self._opening.get("via") is None:
            found.pop("tls", None)  # for the brokers of this queue, which are not called
        options = {**found.get("options", {}), **self._opening.get("options", {})}
        return place.url, {**found, **self._opening, **({"options": options} if options else {})}

    @property
    def settings(self) -> QueueSettings:
        return self._settings

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """The handlers that a worker runs, by entrypoint."""
        return MappingProxyType({name: one.handler for name, one in self._definitions.items()})

    @property
    def functions(self) -> Mapping[str, JobFunction[..., Any, Any]]:
        """The functions that `@app.job()` decorated, by entrypoint."""
        return MappingProxyType(self._functions)

    @property
    def hooks(self) -> HookTable:
        """The hooks that a worker calls, by moment."""
        return MappingProxyType(self._hooks)

    # --- Functions ---

    @refuse_unknown_options("@app.job()")
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
        tags: Sequence[str] = (),
        expires: Span | None = None,
        executor: Literal["async", "thread", "process"] | None = None,
        result_ttl: Span | None = None,
    ) -> Decorator:
        """Make a function enqueueable. Its parameters are the arguments of its jobs; the worker fills in a first
        parameter that is annotated with `JobContext`.

        `name`: the entrypoint, by default the function's own name. `max_attempts`: failed attempts after which a job is
        dead. `max_crashes`: crashed worker processes after which a job is quarantined, which is dead as well; crashes
        do not count as attempts, unless this is None. `backoff`: the wait after a failure, doubled each time up to
        `backoff_cap`; or a list of waits, of which the last one repeats. `timeout`: a run that takes longer has failed.
        `priority`: lower runs first. `key`: while an unfinished job of this function has the same key, nothing is
        added; a template such as `"user-{user_id}"`, or a function of the same arguments. `zone`: the tenant of a job,
        given in the same ways, such as `"{tenant}"`: zones take turns. `fifo`: the jobs of a zone run strictly in the
        order of enqueue, one at a time. `tags`: short texts to find its jobs by. `expires`: a job that no worker has
        claimed this long after its enqueue is cancelled. `executor`: where a plain function
        runs: in a `thread` by default, or, if it is quick, on the worker's loop with `async`, where coroutine functions
        run; with `process` either runs in a process of its own, for code that computes, may crash, or must be killed on
        timeout. `result_ttl`: how long a handle can read the result after the job's end; 0 to keep no result at all. By
        default it can be read as long as the archive has it.
        """
        if name is not None and not isinstance(name, str):
            raise InvalidInputError("write @app.job() with parentheses; its first argument is a name")
        retry = self._retry(max_attempts, backoff, backoff_cap)
        options = Options(
            priority=checks.priority(priority),
            max_attempts=None if max_attempts is None else checks.max_attempts(max_attempts),
            max_crashes=None if max_crashes is None else checks.max_crashes(max_crashes),
            fifo=checks.flag("fifo", fifo),
            tags=check_tags(tags),
            expires_ms=None if expires is None else checks.expires_ms(expires),
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
                zone_of=zone_of if plain is None else None,  # a fixed name needs no template
            )
            self._definitions[entrypoint] = definition
            self._functions[entrypoint] = JobFunction[..., Any, Any](self, definition, whole)
            return self._functions[entrypoint]

        return cast(Decorator, decorate)

    # --- Hooks ---

    def on_claimed(self, hook: H) -> H:
        """Register a function that a worker calls with a `JobEvent` when it has claimed a job.

        Hooks are coroutines, or plain functions, which run in threads. They are called after the fact and do not delay
        jobs: an exception in a hook is logged and changes nothing.

        >>> import casque
        >>> app = casque.App("memory://hooks-example")
        >>> @app.on_failed
        ... async def page_somebody(event: casque.JobEvent) -> None:
        ...     if event.final:
        ...         print(event.context.job_id, event.error)
        """
        return self._hooked(Moment.CLAIMED, hook)

    def on_completed(self, hook: H) -> H:
        """Register a hook for jobs that are done, called once that is durable."""
        return self._hooked(Moment.COMPLETED, hook)

    def on_failed(self, hook: H) -> H:
        """Register a hook for failed attempts, called once that is durable; `event.final` is True after the last
        attempt. A worker that dies calls no hook."""
        return self._hooked(Moment.FAILED, hook)

    @refuse_unknown_options("@app.cron()")
    def cron(
        self,
        expression: str,
        *,
        tz: str = "UTC",
        missed: Missed | Literal["skip", "one", "all"] = "one",
        name: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Callable[[F], F]:
        """Add a job of this function whenever a cron expression is due, one job for each tick. Goes above `@app.job()`,
        several times if need be; a worker of the app registers the schedules when it starts.

        >>> import casque
        >>> app = casque.App("memory://cron-example")
        >>> @app.cron("0 7 * * mon-fri", tz="Europe/Berlin", arguments={"to": "ada"})
        ... @app.job()
        ... async def remind(to: str) -> None: ...
        >>> list(app.schedules)
        ['remind']

        `tz`: the time zone of the expression. `missed`: how to treat ticks that were noticed more than a minute late:
        `skip` forgets them, `one` adds one job for all of them, `all` one for each. `name`: the name of the schedule,
        by default that of the function. `arguments`: those of the function, the same at every tick; the header
        `casque-tick` holds the time of the tick. Priority, attempts, key and zone are those of `@app.job()`: with a
        key, nothing is added while the job of an earlier tick is unfinished.
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
        """The schedules that `@app.cron` declared, by name."""
        return MappingProxyType(self._periodic)

    async def prepare(self, queue: Queue[bytes]) -> None:
        """Register the schedules with the queue; a worker calls this before it starts. Schedules that are no longer
        declared are reported and continue."""
        modules = {str(one.function.__module__) for one in self._definitions.values()}
        await register_if_possible(queue, self._periodic, modules)

    async def trigger(self, name: str) -> Handle[Any]:
        """Add the job of a schedule now, in addition to its ticks."""
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

    async def __aexit__(self, *error: object) -> None:
        queue, self._queue, self._outlet = self._queue, None, None
        assert queue is not None
        await queue.__aexit__(*error)

    def __enter__(self) -> Self:
        self._refuse_if_open()
        self._thread = LoopThread("casque-app")
        try:
            self._thread.wait(self.__aenter__())
        except BaseException:
            self._thread.end()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        assert self._thread is not None
        if self._thread.is_elsewhere():
            return  # what is under way is the parent's
        try:
            self._thread.wait(self.__aexit__(*error))
        finally:
            self._thread.end()

    @contextmanager
    def through(self, outlet: Queue[bytes] | Outlet) -> Iterator[App]:
        """Enqueue through a queue that is already open, in the event loop that it was opened in. A worker lends its
        queue to the functions that it runs, unless the app is open itself. Tests put a stand-in in the queue's
        place."""
        before = self._outlet
        if isinstance(outlet, Queue) and before is not None:
            yield self  # code that waits here for a result would lose its queue when the worker ends
            return
        self._outlet = Open(outlet, self._settings, self._opening.get("clock")) if isinstance(outlet, Queue) else outlet
        try:
            yield self
        finally:
            self._outlet = before

    @property
    def queue(self) -> Queue[bytes]:
        """The open queue, for everything that functions do not cover."""
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
        """A handle of a job; see `function.handle`."""
        return self._handle(definition, checks.job_id(job_id), since)

    def wait(self, call: Coroutine[Any, Any, S]) -> S:
        """Run a coroutine for a caller that blocks meanwhile."""
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
            raise QueueClosedError(
                "this app is open already: a process opens it once. Leave out the inner `with app:`; code that is "
                "called from the outer one uses the open app"
            )

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
