"""What a worker runs, and what a handler may say: the border between functions and the runtime that calls them."""

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
    """What a handler returns to be called again later: this was no attempt, the time had not come.

    >>> Snooze(30)
    Snooze(seconds=30)
    """

    seconds: float

    def __post_init__(self) -> None:
        if not 0 <= self.seconds < float("inf"):
            raise InvalidInputError(f"Snooze takes seconds from 0, not {self.seconds!r}")


class Cancel(msgspec.Struct, frozen=True):
    """What a handler returns to have its job cancelled: it need not be done any more, and was not.

    >>> Cancel("the order was withdrawn")
    Cancel(reason='the order was withdrawn')
    """

    reason: str = ""


class LeaseLost:
    """A flag that is raised when the handler should stop: the job was cancelled, has gone to another worker, or goes
    back to the queue because this worker stops and the time of `drain` is up. May be looked at from any thread."""

    __slots__ = ("_lost",)

    def __init__(self) -> None:
        self._lost = False

    def is_set(self) -> bool:
        return self._lost

    def set(self) -> None:
        """For the runtime, and for tests of a handler."""
        self._lost = True


class JobContext:
    """What a handler may know about the job that it works on.

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
        """Made by the runtime, and by tests of a handler. `tell` is called with every progress."""
        self.job_id = job_id
        self.entrypoint = entrypoint
        self.attempt = attempt
        """1 for the first."""
        self.token = token
        """Of the lease. It rises with every claim, so that whatever is written with it can tell an older attempt."""
        self.headers: Mapping[str, str] = headers or {}
        self.lease_lost = LeaseLost()
        """Raised when the handler should stop: what it still does does not count. A coroutine is cancelled then; a
        function in a thread cannot be, and should look at this now and then."""
        self.last_progress: Progress | None = None
        """What `progress` was told last."""
        self._tell = tell

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Say how far the work has come, as often as you like: the queue is told with the next heartbeat, and others
        see it there (`handle.progress()`, `casque jobs show`). May be called from any thread.

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
        """A logger that says which job it is about."""
        return _BoundLogger(
            logger("job"), {"job_id": self.job_id, "entrypoint": self.entrypoint, "attempt": self.attempt}
        )


class _BoundLogger(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        known = dict(self.extra or {})
        kwargs["extra"] = {**known, **(kwargs.get("extra") or {})}
        return f"{msg} [{known['entrypoint']} {known['job_id']} attempt {known['attempt']}]", kwargs


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How often a job is tried, and how long it waits in between: `delays_s` one after the other, the last of them for
    ever after; without them a doubling from `base_s` up to `cap_s`, less a share of chance.

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
        """What a job waits after its `attempt`th attempt failed. `spread` in [0, 1) is chance, drawn by the caller."""
        if self.delays_s:
            return int(self.delays_s[min(attempt, len(self.delays_s)) - 1] * 1000)
        return Backoff(int(self.base_s * 1000), int(self.cap_s * 1000), spread).delay_ms(attempt)


def as_result(returned: object) -> bytes | None:
    """The result of a handler that makes its own bytes, or none."""
    if returned is None or isinstance(returned, bytes):
        return returned
    raise InvalidInputError(f"a result must be bytes or None, not {type(returned).__name__}")


class Handler(msgspec.Struct, frozen=True):
    """One entrypoint's function, ready to be called with what the queue stores.

    `call` decodes and checks the payload, adds the context and calls the function; what it returns may be a `Snooze`, a
    `Cancel`, or anything that `encode_result` makes bytes of. It raises `InvalidPayloadError` for a payload that can
    never be worked on, and `NotUnderstoodError` for one that another version of the program may understand.

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
    """A queue, and what to do with its jobs. `casque.App` is one."""

    @property
    def url(self) -> str:
        """Where the queue is, as in `Queue.open`."""
        ...

    @property
    def opening(self) -> Mapping[str, Any]:
        """What else `Queue.open` is to be given: options of the store, `via`, `token`, settings."""
        ...

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """By entrypoint. A worker never claims a job of any other."""
        ...
