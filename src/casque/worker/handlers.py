"""The interface between functions and the runtime that calls them: handlers, their context and their answers."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Literal, Protocol

import msgspec

from casque import checks
from casque.errors import InvalidInputError
from casque.telemetry import logger
from casque.types import Backoff, Progress

Executor = Literal["async", "thread", "process"]


class Snooze(msgspec.Struct, frozen=True):
    """Return this from a handler to be called again later. It does not count as an attempt.

    >>> Snooze(30)
    Snooze(seconds=30)
    """

    seconds: float

    def __post_init__(self) -> None:
        if not 0 <= self.seconds < float("inf"):
            raise InvalidInputError(f"Snooze takes seconds from 0, not {self.seconds!r}")


class Cancel(msgspec.Struct, frozen=True):
    """Return this from a handler to cancel its job: the work is no longer needed, and was not done.

    >>> Cancel("the order was withdrawn")
    Cancel(reason='the order was withdrawn')
    """

    reason: str = ""


class LeaseLost:
    """A flag that is set when the handler should stop: the job was cancelled, has gone to another worker, or goes back
    to the queue because this worker stops and the time of `drain` has passed. May be read from any thread."""

    __slots__ = ("_lost",)

    def __init__(self) -> None:
        self._lost = False

    def is_set(self) -> bool:
        return self._lost

    def set(self) -> None:
        """For the runtime, and for tests of a handler."""
        self._lost = True


class JobContext:
    """The job that a handler works on.

    >>> context = JobContext("7f2c", "send", attempt=2)
    >>> context.attempt, context.lease_lost.is_set()
    (2, False)
    """

    __slots__ = ("_tell", "attempt", "entrypoint", "headers", "job_id", "last_progress", "lease_lost", "token")

    def __init__(
        self,
        job_id: str,
        entrypoint: str,
        *,
        attempt: int = 1,
        token: int = 0,
        headers: Mapping[str, str] | None = None,
        tell: Callable[[Progress], None] | None = None,
    ) -> None:
        """For the runtime, and for tests of a handler. `tell` is called with every progress."""
        self.job_id = job_id
        self.entrypoint = entrypoint
        self.attempt = attempt
        """1 for the first attempt."""
        self.token = token
        """Fencing token of the lease. It rises with every claim, so a store can reject writes of an older attempt."""
        self.headers: Mapping[str, str] = headers or {}
        self.lease_lost = LeaseLost()
        """Set when the handler should stop: its work no longer counts. A coroutine is also cancelled; a function in a
        thread cannot be, and should check this now and then."""
        self.last_progress: Progress | None = None
        """The latest call of `progress`."""
        self._tell = tell

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Report how far the work has come, as often as you like: the next heartbeat sends it to the queue, where
        others see it (`handle.progress()`, `casque jobs show`). May be called from any thread.

        >>> context = JobContext("7f2c", "send")
        >>> context.progress(40, total=100, note="pages")
        >>> print(context.last_progress)
        40/100 pages
        """
        self.last_progress = checks.progress(done, total, note)
        if self._tell is not None:
            self._tell(self.last_progress)

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records name the job."""
        return _BoundLogger(
            logger("job"), {"job_id": self.job_id, "entrypoint": self.entrypoint, "attempt": self.attempt}
        )


class _BoundLogger(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        known = dict(self.extra or {})
        kwargs["extra"] = {**known, **(kwargs.get("extra") or {})}
        return f"{msg} [{known['entrypoint']} {known['job_id']} attempt {known['attempt']}]", kwargs


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How often a job is tried, and how long it waits in between: `delays_s` one after the other, the last of them
    repeated; without them a delay that doubles from `base_s` up to `cap_s`, minus a random share.

    >>> Retry(delays_s=(1, 60)).delay_ms(1), Retry(delays_s=(1, 60)).delay_ms(7)
    (1000, 60000)
    >>> Retry(base_s=1).delay_ms(4)
    8000
    """

    max_attempts: int | None = 25
    delays_s: tuple[float, ...] = ()
    base_s: float = 1.0
    cap_s: float = 600.0

    def delay_ms(self, attempt: int, spread: float = 0.0) -> int:
        """The wait after the `attempt`th attempt failed. `spread` in [0, 1) is random, drawn by the caller."""
        if self.delays_s:
            return int(self.delays_s[min(attempt, len(self.delays_s)) - 1] * 1000)
        return Backoff(int(self.base_s * 1000), int(self.cap_s * 1000), spread).delay_ms(attempt)


def as_result(returned: object) -> bytes | None:
    """The result of a handler that returns bytes, or None."""
    if returned is None or isinstance(returned, bytes):
        return returned
    raise InvalidInputError(f"a result must be bytes or None, not {type(returned).__name__}")


class Handler(msgspec.Struct, frozen=True):
    """One entrypoint's function, ready to be called with a stored payload.

    `call` decodes and checks the payload, adds the context and calls the function, which returns a `Snooze`, a
    `Cancel`, or anything that `encode_result` turns into bytes. It raises `InvalidPayloadError` for a payload that can
    never be processed, and `NotUnderstoodError` for one that another version of the program may understand.

    >>> Handler("send", lambda payload, context: None, is_async=False, executor="thread").entrypoint
    'send'
    """

    entrypoint: str
    call: Callable[[bytes, JobContext], Awaitable[object] | object]
    is_async: bool = True
    executor: Executor = "async"
    timeout_s: float | None = None
    retry: Retry = Retry()
    encode_result: Callable[[object], bytes | None] = as_result


class Handlers(Protocol):
    """A queue and the handlers for its jobs. `casque.App` is one."""

    @property
    def url(self) -> str:
        """URL of the queue, as in `Queue.open`."""
        ...

    @property
    def opening(self) -> Mapping[str, Any]:
        """Other arguments for `Queue.open`: options of the store, `via`, `token`, settings."""
        ...

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """Handlers by entrypoint. A worker claims no other jobs."""
        ...
