"""What `casque worker --metrics` serves: is the worker alive, does it reach its queue, and what has it done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from casque import __version__
from casque.errors import CasqueError, InvalidInputError, NotAllowedError
from casque.storage.metered import MeteredStore
from casque.storage.url import is_address, open_store
from casque.telemetry.endpoint import Endpoint, Reply
from casque.telemetry.metrics import CONTENT_TYPE, SPANS, Metrics
from casque.transport.listening import Address
from casque.worker.hooks import JobEvent, Moment

if TYPE_CHECKING:
    from casque import Queue
    from casque.worker import Handlers, Summary, Worker

ANSWER_S = 2.0
"""How long the queue may take to answer until the worker counts as not ready."""
KEPT_S = 10.0
"""How long a good answer holds. On a bucket, asking is a request to the store."""
DOUBT_S = 2.0
"""How long a bad one does."""
OUTCOMES = ("done", "failed", "crashed", "snoozed", "cancelled", "declined", "lost", "given_back", "left")
STARTING = "the queue is not open yet"
STOPPING = "the worker is stopping"


def parse_address(text: str) -> Address:
    """HOST:PORT; a port alone is one of this machine only. Raises InvalidInputError."""
    port = text.removeprefix(":")
    return Address.parse(f"127.0.0.1:{port}" if port.isdecimal() else text, option="--metrics")


class Monitor:
    """Watches a worker from within its process.

    The app that the worker gets from `watched` is the app itself, with one more hook for finished jobs; it opens the
    worker's queue with a store that counts requests, and notes the queue that the worker lends it.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._worker: Worker | None = None
        self._queue: Queue[bytes] | None = None
        self._stopping = False
        self._checked: tuple[float, str | None] | None = None
        self._checking = asyncio.Lock()
        self.metrics = Metrics()
        gauge, counter = self.metrics.gauge, self.metrics.counter
        gauge("casque_build_info", "1, with the version of casque as a label.", ("version",)).of(__version__).value = 1
        self._info = gauge("casque_worker_info", "1, with the name of the worker as a label.", ("worker",))
        self._ready = gauge("casque_worker_ready", "1 if /readyz says so.").of()
        self._concurrency = gauge("casque_worker_concurrency", "Jobs that may run at once.").of()
        self._held = gauge("casque_worker_jobs_held", "Jobs that it has claimed and not settled.").of()
        self._claimed = counter("casque_worker_jobs_claimed_total", "Jobs that it has claimed.").of()
        self._jobs = counter("casque_worker_jobs_total", "Claimed jobs that it has settled, by outcome.", ("outcome",))
        self._waits = self.metrics.histogram(
            "casque_worker_wait_seconds",
            "From the moment a job was due to the start of its function.",
            ("entrypoint",),
            bounds=SPANS,
        )
        self._runs = self.metrics.histogram(
            "casque_worker_run_seconds",
            "How long the function of a job ran, by outcome: done or failed.",
            ("entrypoint", "outcome"),
            bounds=SPANS,
        )

    def watched(self, app: Handlers) -> Handlers:
        """The app, for the worker to be watched."""
        return _WatchedApp(app, self)

    def watch(self, worker: Worker, concurrency: int) -> None:
        self._worker = worker
        self._concurrency.value = concurrency
        self._info.of(worker.name).value = 1

    def stopping(self) -> None:
        self._stopping = True

    @asynccontextmanager
    async def opened(self, url: Any, **opening: Any) -> AsyncIterator[Queue[bytes]]:
        """The queue of the worker; requests to its store are counted, if there is a store."""
        from casque import Queue

        store = None
        if isinstance(url, str) and not is_address(url):
            url = store = MeteredStore(open_store(url, options=opening.pop("options", None)), self.metrics)
        try:
            async with Queue.open(url, **opening) as queue:
                yield queue
        finally:
            if store is not None:
                await store.close()

    @contextmanager
    def lent(self, queue: Queue[bytes]) -> Iterator[None]:
        """The worker has its queue open meanwhile."""
        self._queue = queue
        try:
            yield
        finally:
            self._queue = None

    async def ended(self, event: JobEvent) -> None:
        """A hook: a job is done, or an attempt has failed."""
        outcome = "done" if event.error is None else "failed"
        self._waits.of(event.context.entrypoint).observe(event.waited_s)
        self._runs.of(event.context.entrypoint, outcome).observe(event.elapsed_s)

    # --- What is served ---

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Address]:
        """Answer meanwhile, at this address.

        Raises:
            InvalidInputError: it cannot listen there.
        """
        answers = {"/healthz": self._healthz, "/readyz": self._readyz, "/metrics": self._show_metrics}
        endpoint = Endpoint(self._address.host, self._address.port, answers)
        try:
            await endpoint.__aenter__()
        except InvalidInputError as error:
            raise InvalidInputError(f"--metrics: {error}; choose another port, or 0 for any that is free") from error
        try:
            yield self._address.at(endpoint.port)
        finally:
            await endpoint.__aexit__(None, None, None)

    async def _healthz(self) -> Reply:
        return Reply("ok\n")  # the loop answers, and that is the question

    async def _readyz(self) -> Reply:
        problem = await self._problem()
        body = msgspec.json.encode({"worker": self._worker and self._worker.name, "problem": problem}).decode()
        status = HTTPStatus.OK if problem is None else HTTPStatus.SERVICE_UNAVAILABLE
        return Reply(body + "\n", status, "application/json")

    async def _show_metrics(self) -> Reply:
        self._ready.value = await self._problem() is None
        if self._worker is not None:
            self._count(self._worker.summary)
        return Reply(self.metrics.text(), media=CONTENT_TYPE)

    def _count(self, summary: Summary) -> None:
        ended = {outcome: getattr(summary, outcome) for outcome in OUTCOMES}
        for outcome, count in ended.items():
            self._jobs.of(outcome).value = count
        self._claimed.value = summary.claimed
        self._held.value = max(summary.claimed - sum(ended.values()), 0)

    async def _problem(self) -> str | None:
        """Why the worker is not ready; None if it is."""
        if self._stopping:
            return STOPPING
        now = asyncio.get_running_loop().time
        async with self._checking:
            if self._queue is None:
                return STARTING
            if self._checked is None or now() >= self._checked[0]:
                problem = await _reach(self._queue)
                self._checked = now() + (KEPT_S if problem is None else DOUBT_S), problem
            return self._checked[1]


class _WatchedApp:
    """Another app, with the monitor's hook beside its own."""

    def __init__(self, app: Handlers, monitor: Monitor) -> None:
        self._app = app
        self._monitor = monitor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._app, name)

    @property
    def url(self) -> Any:
        return self._app.url

    @property
    def opening(self) -> Mapping[str, Any]:
        return self._app.opening

    @property
    def handlers(self) -> Mapping[str, Any]:
        return self._app.handlers

    @property
    def hooks(self) -> Mapping[Moment, Sequence[Any]]:
        own: Mapping[Moment, Sequence[Any]] = getattr(self._app, "hooks", {})
        ends = {moment: (*own.get(moment, ()), self._monitor.ended) for moment in (Moment.COMPLETED, Moment.FAILED)}
        return {**own, **ends}

    def open_queue(self, url: Any, **opening: Any) -> AbstractAsyncContextManager[Queue[bytes]]:
        return self._monitor.opened(url, **opening)

    @contextmanager
    def through(self, queue: Queue[bytes]) -> Iterator[None]:
        through = getattr(self._app, "through", None)
        lent: AbstractContextManager[Any] = nullcontext() if through is None else through(queue)
        with lent, self._monitor.lent(queue):
            yield


async def _reach(queue: Queue[bytes]) -> str | None:
    """Ask the queue for something small. A broker that refuses it, for want of a scope, has answered."""
    try:
        async with asyncio.timeout(ANSWER_S):
            await queue.stats()
    except NotAllowedError:
        return None
    except TimeoutError:
        return f"the queue did not answer within {ANSWER_S:g} s"
    except CasqueError as error:
        return str(error)
    return None
