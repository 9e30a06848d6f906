"""Stages jobs for an admission, from code without asyncio, such as the executors of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

import msgspec

from casque.client.ids import new_ids
from casque.client.opening import as_store
from casque.client.queue import DEFAULTS
from casque.clock import Clock, Random, SystemClock, system_random
from casque.codec.staged import PART_BYTES_MAX, PART_JOBS_MAX, StagedJobs, checked
from casque.engine.staging import Staging
from casque.environment import Environment
from casque.errors import QueueClosedError
from casque.settings import QueueSettings
from casque.storage.port import Store
from casque.types import StagedPart

__all__ = ["StagedJobs", "StagedPart", "Stager"]

R = TypeVar("R")

_ROOM = PART_BYTES_MAX // 2
"""Size of payloads, ids and keys in one of several parts; headers come on top."""


class Stager:
    """Writes jobs next to a queue, where they wait until `Queue.admit` names them all in one commit.

    Blocks until each part is stored. May be pickled and sent elsewhere, where it reopens the store; not for use by
    several threads at once. `settings` are those of the queue: `payload_max`, `blob_max`, and `max_attempts` as the
    default for jobs.

    >>> import asyncio
    >>> from casque import Queue
    >>> from casque.client.staging import StagedJobs, Stager
    >>> with Stager("memory://staging-example") as stager:
    ...     part = stager.stage(StagedJobs(["1", "2"], "send", [b"hello", b"world"]))
    >>> part.jobs
    2
    """

    def __init__(
        self,
        url: str | Store,
        *,
        options: Mapping[str, str] | None = None,
        settings: QueueSettings = DEFAULTS,
        txn: str = "part",
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        """`txn` becomes part of the objects' names, for people who look at the bucket."""
        self._url = url
        self._options = dict(options or {})
        self._env = Environment(settings, clock or SystemClock(), rng or system_random())
        self._txn = txn
        self._store: Store | None = None
        self._runner: asyncio.Runner | None = None
        self._closed = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _anew, (self._url, self._options, self._env.settings, self._txn)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def new_ids(self, count: int) -> list[str]:
        """Random ids for jobs without ids of their own."""
        return new_ids(self._env.rng, count)

    def stage(self, jobs: StagedJobs) -> StagedPart:
        """Store these jobs as one part: at most 100,000 of them and 64 MiB.

        Raises:
            InvalidInputError: a row is not a valid job; the message names it. Nothing was stored.
            StorageError: the store kept failing; nothing was enqueued.
        """
        return self._put(checked(self._defaulted(jobs)))

    def stage_all(self, jobs: StagedJobs) -> list[StagedPart]:
        """The same for any number of jobs, in as many parts as needed."""
        return [self._put(some) for some in _portions(checked(self._defaulted(jobs)))]

    def close(self) -> None:
        self._closed = True
        runner, self._runner = self._runner, None
        if runner is not None:
            try:
                if self._store is not None and isinstance(self._url, str):
                    _run(runner, self._store.close())
            finally:
                _apart(runner.close)

    def _put(self, jobs: StagedJobs) -> StagedPart:
        if self._closed:
            raise QueueClosedError("this stager was closed; make a new one")
        if self._runner is None:
            self._runner = asyncio.Runner()
            self._store = as_store(self._url, self._options or None)
        assert self._store is not None
        staging = Staging(self._store, self._env)
        return _run(self._runner, staging.put(jobs, self._txn))

    def _defaulted(self, jobs: StagedJobs) -> StagedJobs:
        """Fill in the default for attempts."""
        most, attempts = self._env.settings.max_attempts, jobs.max_attempts
        if most is None or (attempts is not None and not isinstance(attempts, list)):
            return jobs
        if isinstance(attempts, list):
            if None not in attempts:
                return jobs
            return msgspec.structs.replace(jobs, max_attempts=[most if one is None else one for one in attempts])
        return msgspec.structs.replace(jobs, max_attempts=most)


def _run(runner: asyncio.Runner, work: Coroutine[Any, Any, R]) -> R:
    return _apart(lambda: runner.run(work))


def _apart(call: Callable[[], R]) -> R:
    """Run the call in another thread if an event loop is running in this one, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return call()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def _portions(jobs: StagedJobs) -> Iterator[StagedJobs]:
    for start in range(0, len(jobs), PART_JOBS_MAX):
        yield from _fitting(jobs.rows(start, start + PART_JOBS_MAX))


def _fitting(jobs: StagedJobs) -> Iterator[StagedJobs]:
    """All jobs if they fit into one part, otherwise halves that do."""
    size = len(jobs.payloads) if not isinstance(jobs.payloads, list) else sum(map(len, jobs.payloads))
    size += sum(map(len, jobs.ids)) + sum(len(key) for key in jobs.keys or () if key is not None)
    if size <= _ROOM or len(jobs) == 1:
        yield jobs
        return
    half = len(jobs) // 2
    yield from _fitting(jobs.rows(0, half))
    yield from _fitting(jobs.rows(half, len(jobs)))


def _anew(url: str | Store, options: Mapping[str, str], settings: QueueSettings, txn: str) -> Stager:
    return Stager(url, options=options, settings=settings, txn=txn)
