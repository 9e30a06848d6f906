"""What a state was like at a position that it has left: shallow copies of all that is stored of it.

Records are frozen, so a copy of a table costs little. A state that follows the log leaves one of these behind for
every commit, which takes a fraction of the time of reading snapshot and log again.
"""

from __future__ import annotations

from copy import copy
from typing import TypeAlias

import msgspec

from casque.state import State
from casque.types import Vigil


class PastState:
    """All that is stored of a state, under the names that `State` has for it."""

    def __init__(self, state: State) -> None:
        self.position = state.position
        self.jobs = dict(state.jobs)
        self.counters = msgspec.structs.replace(state.counters)
        self.writers = dict(state.writers)
        self.writers_forgotten = state.writers_forgotten
        self.admissions = dict(state.admissions)
        self.schedules = dict(state.schedules)
        self.gates = state.gates
        self.rules = dict(state.rules)
        self.zone_leases = dict(state.zone_leases)
        self.ring = state.ring
        self.vigils = dict(state.vigils)
        self.requests = dict(state.requests)
        self.finished = list(state.finished)
        self.archived = state.archived
        self._watched = state.watched()
        self._writers = copy(state.facets.writers)
        self._writers.last = self.writers

    def watched(self) -> list[Vigil]:
        return self._watched

    def writers_with(self, writer: str, batch: int) -> tuple[dict[str, int], int]:
        return self._writers.after(writer, batch, self.position + 1)


AnyState: TypeAlias = State | PastState
