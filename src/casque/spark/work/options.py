"""Options of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar

from casque import checks
from casque.errors import InvalidInputError
from casque.settings import milliseconds

LEASE = timedelta(seconds=60)
TIMEOUT = timedelta(hours=1)
DRAIN = timedelta(seconds=30)
KILLED_MS = 6_000
"""Spark takes up to two seconds to notice that a task was cancelled, and two more (`spark.task.reaper`,
`spark.python.task.killTimeout`) before it kills the Python process that runs it."""
GRACE_MS = 10_000
"""At the timeout tasks end by themselves and send what they have. After this long without an answer they are
interrupted."""
BATCH_MAX = 200_000

E = TypeVar("E", bound=StrEnum)


class Kind(StrEnum):
    """The argument of a handler: one job, or an Arrow table or a pandas frame of many."""

    JOB = "job"
    ARROW = "arrow"
    PANDAS = "pandas"


class Until(StrEnum):
    """When a run without `follow` ends: when nothing is due, or when nothing is left, neither delayed nor claimed by
    another worker."""

    DUE = "due"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOptions:
    """One run. Checked on creation: an InvalidInputError names the argument and its values."""

    kind: Kind = Kind.JOB
    entrypoints: tuple[str, ...] | None = None
    batch: int | None = None
    """Jobs claimed at a time; None adapts to the handler's speed."""
    lease_ms: int = milliseconds(LEASE)
    timeout_ms: int = milliseconds(TIMEOUT)
    """How long the jobs of a batch may run. Then those that were not started go back, and those that still run are left
    to their leases."""
    grace_ms: int = GRACE_MS
    drain_ms: int = milliseconds(DRAIN)
    """How long batches may continue after a stop."""
    killed_ms: int = KILLED_MS
    """How long their leases are kept after they were interrupted."""
    until: Until = Until.DUE
    follow: bool = False
    limit: int | None = None
    """Limit of jobs in all."""
    tasks: int | None = None
    per_call: int | None = None
    concurrency: int = 1


def checked(
    *,
    kind: Any,
    entrypoints: str | Sequence[str] | None,
    batch: Any,
    lease: float | timedelta,
    timeout: float | timedelta,
    drain: float | timedelta,
    until: Any,
    follow: Any,
    limit: Any,
    tasks: Any,
    per_call: Any,
    concurrency: Any,
) -> WorkOptions:
    """Check the arguments of `process`."""
    chosen = choice(Kind, "kind", kind)
    if per_call is not None and chosen is Kind.JOB:
        raise InvalidInputError("per_call is for handlers of many jobs: add kind='arrow' or kind='pandas'")
    if concurrency != 1 and chosen is not Kind.JOB:
        raise InvalidInputError("concurrency is for handlers of one job: leave out kind")
    return WorkOptions(
        kind=chosen,
        entrypoints=checks.entrypoints(entrypoints),
        batch=None if batch is None else checks.whole("batch", batch, 1, BATCH_MAX),
        lease_ms=_span("lease", lease),
        timeout_ms=_span("timeout", timeout),
        drain_ms=checks.span_ms("drain", drain),
        until=choice(Until, "until", until),
        follow=checks.flag("follow", follow),
        limit=checks.limit(limit),
        tasks=None if tasks is None else checks.whole("tasks", tasks, 1, 100_000),
        per_call=None if per_call is None else checks.whole("per_call", per_call, 1),
        concurrency=checks.whole("concurrency", concurrency, 1, 10_000),
    )


def choice(kind: type[E], argument: str, value: Any) -> E:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(repr(one.value) for one in kind)
        raise InvalidInputError(f"{argument} must be one of {known}, not {value!r}") from None


def _span(argument: str, value: float | timedelta) -> int:
    span_ms = checks.span_ms(argument, value)
    if not span_ms:
        raise InvalidInputError(f"{argument} must be more than zero")
    return span_ms
