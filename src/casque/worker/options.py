"""Options of a worker, checked before it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import msgspec

from casque import checks
from casque.errors import InvalidInputError
from casque.worker.consumer.options import ConsumerOptions
from casque.worker.handlers import Handler

LEASE_MIN_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options that an operator sets. Times are in seconds."""

    concurrency: int = 16
    """Jobs running at once."""
    entrypoints: tuple[str, ...] | None = None
    """Only these handlers; None for all."""
    zones: tuple[str, ...] | None = None
    """Only jobs of these zones; None for all zones, in turns, and jobs without a zone."""
    lease_s: float = 60.0
    """How long after this worker has died its jobs go to another."""
    drain_s: float = 30.0
    """How long running jobs may take after the worker was asked to stop."""
    burst: bool = False
    """Whether to stop when nothing is due, instead of waiting for more."""
    recycle_after: int | None = None
    """Jobs after which a process for handlers is replaced; None for never."""
    recycle_memory: int | None = None
    """MiB of memory above which it is replaced; None for never."""
    consumer: ConsumerOptions | None = None
    """Claim zone by zone; None to claim from all zones in turns."""

    def __post_init__(self) -> None:
        checks.whole("concurrency", self.concurrency, 1, 10_000)
        if checks.span_ms("lease", self.lease_s) < LEASE_MIN_S * 1000:
            raise InvalidInputError(f"lease must be at least {LEASE_MIN_S:g} s, not {self.lease_s:g}")
        checks.span_ms("drain", self.drain_s)
        if self.recycle_after is not None:
            checks.whole("recycle_after", self.recycle_after, 1)
        if self.recycle_memory is not None:
            checks.whole("recycle_memory", self.recycle_memory, 1)


def chosen(handlers: Mapping[str, Handler], wanted: Sequence[str] | None) -> dict[str, Handler]:
    """The handlers that a worker runs, checked.

    Raises:
        InvalidInputError: there is none, or one cannot be run.
    """
    if not handlers:
        raise InvalidInputError("there is nothing to run: no function was made a job. Is it imported where the app is?")
    for name in wanted or ():
        if name not in handlers:
            near = get_close_matches(name, handlers, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(handlers))}"
            raise InvalidInputError(f"there is no handler for the entrypoint {name!r}; {hint}")
    picked = {name: handler for name, handler in handlers.items() if not wanted or name in wanted}
    for name, handler in picked.items():
        _check(name, handler)
    return picked


def bounded(handlers: dict[str, Handler], bound_s: float | None) -> dict[str, Handler]:
    """The same handlers, with a timeout of at most `bound_s`."""
    if bound_s is None:
        return handlers
    return {
        name: msgspec.structs.replace(handler, timeout_s=min(handler.timeout_s or bound_s, bound_s))
        for name, handler in handlers.items()
    }


def _check(name: str, handler: Handler) -> None:
    checks.entrypoint(name)
    if handler.executor not in ("async", "thread", "process"):
        raise InvalidInputError(
            f"the handler of {name!r} has executor={handler.executor!r}, which workers do not have; "
            "a coroutine takes 'async', a plain function 'thread', either of them 'process'"
        )
    if handler.is_async and handler.executor == "thread":
        raise InvalidInputError(f"the handler of {name!r} is a coroutine, and runs on the loop: leave executor away")
    if handler.timeout_s is not None and not handler.timeout_s > 0:
        raise InvalidInputError(f"the timeout of {name!r} must be more than zero, not {handler.timeout_s!r}")
