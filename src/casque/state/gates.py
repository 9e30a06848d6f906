"""Gates: which entrypoints are paused or being drained, or the whole queue."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from casque.errors import InvalidInputError, QueueDrainingError
from casque.service.requests import CopyGate, SetGate
from casque.state.events import Gated
from casque.state.facet import Methods
from casque.state.setting_marks import SettingFacet
from casque.types import ALL_OPEN, Gate, Gates, JobSpec

if TYPE_CHECKING:
    from casque.state.machine import State


class GateFacet(SettingFacet[Gates, str | None]):
    STORED = "gates"
    HANDLERS: ClassVar[Methods] = {SetGate: "set_gate", CopyGate: "copy_gate"}
    APPLIERS: ClassVar[Methods] = {Gated: "apply_gated"}

    def __init__(self) -> None:
        super().__init__()
        self.current = ALL_OPEN

    def copied(self) -> Gates:
        return self.current

    def restore(self, state: State, data: Gates) -> None:  # noqa: ARG002
        self.current = data

    def let_through(self, state: State, entrypoints: tuple[str, ...] | None) -> tuple[str, ...]:
        """Those of them whose jobs may be claimed. To be asked only where something is not open: a caller who takes any
        then names all of them, which takes longer."""
        names = tuple(state.ready.names()) if entrypoints is None else entrypoints
        return tuple([name for name in names if not self.current.pauses(name)])

    def check_not_draining(self, state: State, specs: Iterable[JobSpec]) -> None:
        """A spec whose key is held adds nothing, so it may come."""
        for spec in specs:
            if self.current.drains(spec.entrypoint) and (spec.key is None or spec.key not in state.keys):
                raise QueueDrainingError(None if self.current.queue is Gate.DRAINING else spec.entrypoint)

    def set_gate(self, state: State, c: SetGate, now_ms: int) -> None:
        if state.answers.seen(c, "gate") is not None:
            return
        # Shards of a ring write it down even if it is set already: a copy under way may hold another value.
        if state.ring is None and self.current.of(c.entrypoint) is c.gate:
            return
        closes = c.gate is not Gate.OPEN and c.entrypoint is not None and c.entrypoint not in self.current.entrypoints
        if closes and len(self.current.entrypoints) >= state.limits.gates_max:
            raise InvalidInputError(f"{state.limits.gates_max} entrypoints are paused or draining already: resume some")
        state.happen(Gated(c.gate, c.entrypoint), now_ms)
        if c.request_id is not None:
            state.answers.remember(state, c, "gate", now_ms)

    def copy_gate(self, state: State, c: CopyGate, now_ms: int) -> None:
        if not self._marks.is_written_since(c.entrypoint, c.since, begins=state.begins):
            self.set_gate(state, SetGate(c.gate, c.entrypoint), now_ms)

    def apply_gated(self, state: State, event: Gated, at_ms: int) -> None:  # noqa: ARG002
        self.changing(state)
        self.current = self.current.with_gate(event.entrypoint, event.gate)
        self._marks.written(event.entrypoint, state.position + 1)
