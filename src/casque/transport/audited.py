"""A queue or shard whose administrative calls are all written to the audit log, whatever is asked besides."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from casque.service import ShardService
from casque.transport import audit
from casque.types import Reach, ScheduleSpec

LEFT_OUT = ("self", "request_id", "expected")


class Audited:
    """Passes everything on to a shard. For the door of a ring's brokers among themselves: what comes through it was
    written down where it came from, if that was a broker; and here, if it was somebody with a broker's credential."""

    def __init__(self, shard: ShardService) -> None:
        self._shard = shard

    def within(self, reach: Reach) -> Audited:
        return Audited(self._shard.within(reach))

    def __getattr__(self, verb: str) -> Any:
        call = getattr(self._shard, verb)
        return _recorded(verb, call) if verb in audit.ADMINISTRATIVE | audit.BETWEEN_BROKERS else call


def _recorded(verb: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    signature = inspect.signature(call)

    async def recorded(*arguments: Any, **named: Any) -> Any:
        asked = signature.bind(*arguments, **named).arguments
        said = {name: _said(value) for name, value in asked.items() if name not in LEFT_OUT}
        with audit.recorded(verb, **said):
            return await call(*arguments, **named)

    return recorded


def _said(value: Any) -> Any:
    """Without payloads."""
    return value.name if isinstance(value, ScheduleSpec) else value
