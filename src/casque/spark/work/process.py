"""`casque.spark.process`: the whole of it, for a driver that is an ordinary blocking program."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack

from casque.client.connecting import ClientTlsFiles
from casque.client.queue import DEFAULTS, Queue
from casque.clock import SystemClock, new_nonce, system_random
from casque.errors import InvalidInputError
from casque.settings import SettingsChanges
from casque.spark.via import Via, is_led
from casque.spark.work.calling import Calling, Loading, by_name
from casque.spark.work.courier import Courier
from casque.spark.work.foreman import Foreman
from casque.spark.work.functions import Functions, functions_of
from casque.spark.work.options import DRAIN, LEASE, TIMEOUT, Kind, Until, WorkOptions, checked, choice
from casque.spark.work.reports import server_for
from casque.spark.work.results import ResultsTable
from casque.spark.work.summary import Summary
from casque.spark.work.turns import short_turns
from casque.storage.url import is_address
from casque.worker.handlers import Handlers
from casque.worker.importing import import_app
from casque.worker.worker import located

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Prepare = Callable[[Queue[bytes]], Awaitable[None]]
"""The app's own preparation with an open queue before the first job."""

THREADS = 8
"""Trips to Spark at once: two batches, or the pieces of one that is being split; and one to interrupt them."""


def process(
    spark: SparkSession,
    url: str | None = None,
    handler: Callable[[Any], Any] | str | None = None,
    *,
    app: Handlers | str | None = None,
    kind: str | Kind = Kind.JOB,
    entrypoints: str | Sequence[str] | None = None,
    batch: int | None = None,
    lease: float | timedelta = LEASE,
    timeout: float | timedelta = TIMEOUT,
    drain: float | timedelta = DRAIN,
    until: str | Until = Until.DUE,
    follow: bool = False,
    limit: int | None = None,
    tasks: int | None = None,
    per_call: int | None = None,
    concurrency: int = 1,
    results: str | None = None,
    result_schema: str | None = None,
    results_options: Mapping[str, str] | None = None,
    type: Any = None,  # noqa: A002  as in Queue.open
    via: str = "auto",
    worker: str | None = None,
    options: Mapping[str, str] | None = None,
    token: str | None = None,
    tls: ClientTlsFiles | None = None,
    stop: threading.Event | None = None,
    on_progress: Callable[[Summary], None] | None = None,
    **settings: Unpack[SettingsChanges],
) -> Summary:
    """Run the jobs of a queue on Spark's executors.

    `handler` is a function of one job, or its name, `module:function`; with `kind="arrow"` or `"pandas"` it takes a
    table of many. The bytes that it returns go to the archive as the job's result; an exception makes the attempt a
    failed one. Jobs run at least once: a task that Spark repeats calls the handler again, and only one outcome counts.

    With `app`, a `casque.App` or its name, `module:app`, its functions are called instead, each for its own jobs, with
    its own timeout, attempts and backoff, as in a worker of the app. Without a `url` the app's own queue is used. Lost
    leases, progress and hooks do not work on executors.

    Ends when nothing is due, with `until="empty"` when nothing is left, with `follow=True` when `stop` is set. Running
    batches may then take `drain` longer; after that they are interrupted, and their jobs go back without an attempt.
    `batch` jobs are claimed at a time, by default as many as take a few seconds. `lease` is how soon jobs come back if
    this driver dies; leases are renewed while executors work. Outcomes are settled as they arrive. After `timeout` the
    jobs of a batch that were not started go back without an attempt, and those that still run are left to their leases.

    `results` is a warehouse: results go to its table `results` instead of the archive, as a dict with the columns of
    `result_schema` ("pages int, title string"), or as bytes of any size if there is no schema. Read it with
    `casque.spark.results`.

    Raises:
        WorkFailedError: Spark cannot run the handler.
        CasqueError: the queue cannot be used.
    """
    chosen = checked(
        kind=kind,
        entrypoints=entrypoints,
        batch=batch,
        lease=lease,
        timeout=timeout,
        drain=drain,
        until=until,
        follow=follow,
        limit=limit,
        tasks=tasks,
        per_call=per_call,
        concurrency=concurrency,
    )
    way = choice(Via, "via", via)
    DEFAULTS.with_changes(settings)  # refuse unknown settings before anything starts
    if results is None and (result_schema is not None or results_options is not None):
        raise InvalidInputError("result_schema and results_options are for a results table: add results=URL")
    if (handler is None) == (app is None):
        raise InvalidInputError("give a handler or an app: what is to be called?")
    calling: Calling | Functions
    reaching = {"options": options, "token": token, "tls": tls}
    opening: dict[str, Any] = {**{key: value for key, value in reaching.items() if value is not None}, **settings}
    prepare: Prepare | None = None
    if app is not None:
        if chosen.kind is not Kind.JOB or type is not None or results is not None:
            raise InvalidInputError(
                "an app's functions say themselves what they take and return: leave kind, type and results out"
            )
        found = import_app(app) if isinstance(app, str) else app
        calling = functions_of(app, chosen.entrypoints, chosen.concurrency)
        chosen = replace(chosen, entrypoints=calling.entrypoints)
        url, way, opening = _merged(found, url, way, opening)
        prepare = getattr(found, "prepare", None)
    else:
        assert handler is not None
        if url is None:
            raise InvalidInputError("which queue? Give its url: only an app may know it by itself")
        calling = Calling(loading(handler), chosen.kind, chosen.per_call, chosen.concurrency, type)
    at = url
    kept = None if results is None else ResultsTable(spark, results, results_options, result_schema)
    courier = Courier(spark, calling, tasks=chosen.tasks, results=kept)
    name = f"{worker or 'spark'}-{new_nonce(system_random())}"
    run = _Run(chosen, courier, kept, name, on_progress or (lambda _summary: None), prepare)

    async def work() -> Summary:
        return await run.on(await _open(at, way, name, opening))

    return run.block(work, stop)


def _merged(app: Handlers, url: str | None, way: Via, given: dict[str, Any]) -> tuple[str, Via, dict[str, Any]]:
    """URL and other arguments for an app's queue; given ones win.

    Raises:
        InvalidInputError: neither the app nor the caller has a URL.
    """
    at, own = (url, app.opening) if url is not None else located(app)
    if not isinstance(at, str):
        raise InvalidInputError("the app's queue is a store object, which executors cannot open: give a url")
    opening = {**own, **given}
    if way is Via.AUTO and opening.get("via") == "broker":
        way = Via.BROKER
    return at, way, {name: value for name, value in opening.items() if name not in ("via", "clock", "rng")}


def loading(handler: Callable[[Any], Any] | str) -> Loading:
    """How executors get this handler. A name is also imported here, so that a mistake shows before a claim."""
    if isinstance(handler, str):
        by_name(handler)
        return Loading(name=handler)
    if not callable(handler):
        raise InvalidInputError(f"handler must be a function or its name, module:function, not {handler!r}")
    from pyspark import cloudpickle

    try:
        return Loading(code=cloudpickle.dumps(handler))  # type: ignore[no-untyped-call]
    except Exception as error:
        raise InvalidInputError(
            f"the handler cannot be sent to executors: {error}. Make what it uses in the function, or at the top of a "
            "module, and give it by name"
        ) from error


class _Run:
    """An event loop in a separate thread: the caller may have one already, as a notebook does."""

    def __init__(
        self,
        options: WorkOptions,
        courier: Courier,
        results: ResultsTable | None,
        worker: str,
        report: Callable[[Summary], None],
        prepare: Prepare | None,
    ) -> None:
        self._prepare = prepare
        self._options = options
        self._courier = courier
        self._results = results
        self._worker = worker
        self._report = report
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._guard = threading.Lock()
        self._stopped = False

    async def on(self, queue: Queue[bytes]) -> Summary:
        stop = asyncio.Event()
        with self._guard:
            self._loop, self._stop = asyncio.get_running_loop(), stop
            if self._stopped:
                stop.set()
        async with queue:
            if self._prepare is not None:
                await self._prepare(queue)
            server = server_for(self._courier.context)
            async with AsyncExitStack() as stack:
                if server is not None:
                    await stack.enter_async_context(server)
                threads = stack.enter_context(ThreadPoolExecutor(THREADS, thread_name_prefix="casque-spark"))
                foreman = Foreman(
                    queue,
                    self._courier,
                    self._options,
                    worker=self._worker,
                    stop=stop,
                    threads=threads,
                    clock=SystemClock(),
                    rng=system_random(),
                    results=self._results,
                    reports=server,
                    report=self._report,
                )
                return await foreman.run()

    def block(self, work: Callable[[], Any], stop: threading.Event | None) -> Summary:
        """Run and wait. Forwards a stop by the event or by Ctrl-C."""
        answer: list[Summary] = []
        failure: list[BaseException] = []
        over = stop if stop is not None else threading.Event()
        ended = threading.Event()

        def run() -> None:
            try:
                with short_turns():
                    answer.append(asyncio.run(work()))
            except BaseException as error:  # noqa: BLE001  raised again where the caller is
                failure.append(error)
            finally:
                ended.set()

        thread = threading.Thread(target=run, name="casque-spark", daemon=True)
        watch = threading.Thread(target=self._watch, args=(over, ended), name="casque-spark-stop", daemon=True)
        thread.start()
        watch.start()
        try:
            ended.wait()
        except KeyboardInterrupt:
            self._end()
            ended.wait()  # a second Ctrl-C exits at once: jobs come back when their leases expire
        thread.join()
        if failure:
            raise failure[0]
        return answer[0]

    def _watch(self, stop: threading.Event, ended: threading.Event) -> None:
        while not ended.is_set():
            if stop.wait(0.2):
                self._end()
                return

    def _end(self) -> None:
        with self._guard:
            self._stopped = True
            if self._loop is not None and self._stop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._stop.set)


async def _open(url: str, via: Via, worker: str, opening: Mapping[str, Any]) -> Queue[bytes]:
    if is_address(url):
        return Queue.open(url, worker=worker, **_without(opening, "options", "layout"))
    if via is Via.BROKER or (via is Via.AUTO and await is_led(url, opening.get("options"))):
        return Queue.open(url, via="broker", worker=worker, **_without(opening, "layout"))
    return Queue.open(url, worker=worker, **_without(opening, "token", "tls"))


def _without(opening: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The arguments that this way of opening a queue takes; others may take more."""
    return {name: value for name, value in opening.items() if name not in names}
