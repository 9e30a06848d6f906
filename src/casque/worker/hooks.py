"""Calls an application's hooks when its jobs are claimed, done or failed.

Hooks are called after the fact: a job was claimed, or its end is durable. A hook that raises or is slow does not affect
the job. If hooks cannot keep up, the worker claims less.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from inspect import iscoroutinefunction
from typing import Any, TypeAlias

import msgspec

from casque.service import Outcome, OutcomeKind
from casque.tasks import Background
from casque.telemetry import logger
from casque.types import from_ms
from casque.worker.claims import Claim
from casque.worker.handlers import JobContext
from casque.worker.threads import Threads

log = logger("worker")

HOOK_S = 30.0
"""Time limit of a hook. A coroutine is cancelled then."""
BACKLOG_MAX = 1_000
"""Hooks under way at which the worker stops claiming."""


class Moment(StrEnum):
    """When hooks are called."""

    CLAIMED = "claimed"
    COMPLETED = "completed"
    FAILED = "failed"


class JobEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The argument of a hook.

    >>> JobEvent(context=JobContext("7f2c", "send"), error="ValueError: no").context.entrypoint
    'send'
    """

    context: JobContext
    """The job: id, entrypoint, attempt, headers, logger."""
    due_at: datetime | None = None
    """When the job became due: its `run_at`, the end of its back-off, or when it was enqueued."""
    waited_s: float = 0.0
    """From then to its start; for a job that was just claimed, to its claim."""
    elapsed_s: float = 0.0
    """Run time of the handler."""
    result: bytes | None = None
    """The stored result."""
    error: str | None = None
    """The stored error of a failed attempt."""
    final: bool = False
    """Whether a failed job will not be tried again."""


Hook: TypeAlias = Callable[[JobEvent], Awaitable[object] | object]
HookTable: TypeAlias = Mapping[Moment, Sequence[Hook]]


class Hooks:
    def __init__(self, table: HookTable) -> None:
        self._table = {moment: tuple(hooks) for moment, hooks in table.items()}
        self._threads = Threads()
        self._under_way = Background()

    @property
    def is_behind(self) -> bool:
        return len(self._under_way) >= BACKLOG_MAX

    def claimed(self, claim: Claim) -> None:
        if hooks := self._table.get(Moment.CLAIMED):
            self._call(hooks, _event(claim))

    def settled(self, claim: Claim, outcome: Outcome, elapsed_s: float) -> None:
        """The outcome is durable."""
        match claim.how:
            case "done":
                if hooks := self._table.get(Moment.COMPLETED):
                    self._call(hooks, _event(claim, elapsed_s=elapsed_s, result=outcome.result))
            case "failed" | "crashed":
                if hooks := self._table.get(Moment.FAILED):
                    final = outcome.kind is OutcomeKind.FINAL or _was_last(claim)
                    self._call(hooks, _event(claim, elapsed_s=elapsed_s, error=outcome.error, final=final))

    async def close(self) -> None:
        """Wait for the hooks under way."""
        await self._under_way.ended(HOOK_S)
        self._under_way.cancel()
        self._threads.close()

    def _call(self, hooks: Sequence[Hook], event: JobEvent) -> None:
        for hook in hooks:
            self._under_way.start(self._carry_out(hook, event))

    async def _carry_out(self, hook: Hook, event: JobEvent) -> None:
        try:
            async with asyncio.timeout(HOOK_S):
                called: Any = hook(event) if iscoroutinefunction(hook) else self._threads.call(lambda: hook(event))
                await called
        except Exception as error:  # noqa: BLE001  a hook must not affect the worker
            context = event.context
            log.error(
                "the hook %s failed for %s %s: %s: %s",
                getattr(hook, "__qualname__", hook),
                context.entrypoint,
                context.job_id,
                type(error).__name__,
                error,
                extra={"job_id": context.job_id, "entrypoint": context.entrypoint, "attempt": context.attempt},
            )


def _event(claim: Claim, **more: Any) -> JobEvent:
    due_at = from_ms(claim.job.record.due_ms)
    return JobEvent(context=claim.context, due_at=due_at, waited_s=claim.waited_ms / 1000, **more)


def _was_last(claim: Claim) -> bool:
    job, crashes_max = claim.job, claim.job.record.spec.max_crashes
    if claim.how == "crashed" and crashes_max is not None:
        return job.record.crashes + 1 >= crashes_max
    return job.max_attempts is not None and job.attempts >= job.max_attempts
