"""A queue as it was: to be looked at, and not to be changed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from casque import checks
from casque.client.opening import Parts
from casque.engine.operation import Look
from casque.errors import ReadOnlyError
from casque.journal.log.past import Moment, Past
from casque.state import Command, State


class PastExecutor:
    """Answers looks from one state that never changes, and refuses everything else."""

    def __init__(self, moment: Moment) -> None:
        self._state: State = moment.state
        self._at_ms = moment.at_ms

    async def execute(self, command: Command) -> Any:  # noqa: ARG002
        raise ReadOnlyError(self._state.position)

    async def look(self, look: Look) -> Any:
        # By the time of the moment that is looked at: what was delayed then is shown as delayed.
        return look(self._state, self._at_ms)


async def open_past(parts: Parts, as_of: int | datetime) -> PastExecutor:
    """
    Raises:
        NoHistoryError: the queue has the document layout.
        HistoryGoneError: that is further back than the queue remembers.
        InvalidInputError: that is in the future, or there is no queue.
    """
    past = Past(parts.store, settings=parts.settings, clock=parts.clock, rng=parts.rng)
    if isinstance(as_of, datetime):
        return PastExecutor(await past.at_time(checks.moment_ms("as_of", as_of)))
    return PastExecutor(await past.at_position(checks.position("as_of", as_of)))
