"""Rules that zones have: weight, rate, jobs at a time, pause."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from casque.errors import InvalidInputError
from casque.service.requests import CopyZone, SetZone
from casque.state.events import Zoned
from casque.state.facet import Methods
from casque.state.setting_marks import SettingFacet
from casque.types import PLAIN_RULES, ZoneRules

if TYPE_CHECKING:
    from casque.state.machine import State


class RuleFacet(SettingFacet[dict[str, ZoneRules], str]):
    STORED = "zones"
    HANDLERS: ClassVar[Methods] = {SetZone: "set_zone", CopyZone: "copy_zone"}
    APPLIERS: ClassVar[Methods] = {Zoned: "apply_zoned"}

    def __init__(self) -> None:
        super().__init__()
        self.by_zone: dict[str, ZoneRules] = {}
        """Rules by zone; most zones have none. The index of turns between zones reads this very dict."""

    def copied(self) -> dict[str, ZoneRules]:
        return dict(self.by_zone)

    def restore(self, state: State, data: dict[str, ZoneRules]) -> None:
        concerned = {**self.by_zone, **data}
        self.by_zone.clear()
        self.by_zone.update(data)
        state.ready.fair.limit(concerned)

    def set_zone(self, state: State, c: SetZone, now_ms: int) -> None:
        if state.answers.seen(c, "zone") is not None:
            return
        # As with gates: in a ring it is written down even if the zone has these rules already.
        if state.ring is None and self.by_zone.get(c.zone, PLAIN_RULES) == c.rules:
            return
        if c.rules != PLAIN_RULES and c.zone not in self.by_zone and len(self.by_zone) >= state.limits.zones_max:
            raise InvalidInputError(f"{state.limits.zones_max} zones have rules of their own already: reset some")
        state.happen(Zoned(c.zone, c.rules), now_ms)
        if c.request_id is not None:
            state.answers.remember(state, c, "zone", now_ms)

    def copy_zone(self, state: State, c: CopyZone, now_ms: int) -> None:
        if not self._marks.is_written_since(c.zone, c.since, begins=state.begins):
            self.set_zone(state, SetZone(c.zone, c.rules), now_ms)

    def apply_zoned(self, state: State, event: Zoned, at_ms: int) -> None:  # noqa: ARG002
        self.changing(state)
        if event.rules == PLAIN_RULES:
            self.by_zone.pop(event.zone, None)
        else:
            self.by_zone[event.zone] = event.rules
        self._marks.written(event.zone, state.position + 1)
        state.ready.fair.limit((event.zone,))
