"""All facets of one state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from casque.state.answers import AnswerFacet
from casque.state.facet import Facet
from casque.state.finished import FinishedFacet
from casque.state.gates import GateFacet
from casque.state.job_table import JobTable
from casque.state.limits import Limits
from casque.state.schedules import ScheduleFacet
from casque.state.sources import SourceFacet
from casque.state.staged import StagedFacet
from casque.state.vigils import VigilFacet
from casque.state.writers import WriterFacet
from casque.state.zone_leases import ZoneLeaseFacet
from casque.state.zone_rules import RuleFacet

if TYPE_CHECKING:
    from casque.state.machine import State


class Facets:
    """Each facet by its name; all of them in the order in which they are stored and rolled back."""

    def __init__(self, limits: Limits) -> None:
        self.sources = SourceFacet()
        self.staged = StagedFacet()
        self.schedules = ScheduleFacet()
        self.gates = GateFacet()
        self.rules = RuleFacet()
        self.zone_leases = ZoneLeaseFacet()
        self.jobs = JobTable(self.rules.by_zone, self.zone_leases.by_zone)
        self.shard = self.jobs.shard
        self.writers = WriterFacet(limits)
        self.vigils = VigilFacet()
        self.answers = AnswerFacet(limits)
        self.finished = FinishedFacet(kept=limits.finished)
        # The jobs come after everything that decides where they are listed: rules, leases of zones, the ring.
        self._all: tuple[Facet[Any], ...] = (
            self.sources,
            self.staged,
            self.schedules,
            self.gates,
            self.rules,
            self.shard,
            self.writers,
            self.zone_leases,
            self.vigils,
            self.jobs,
            self.answers,
            self.finished,
        )

    def __iter__(self) -> Iterator[Facet[Any]]:
        return iter(self._all)

    def stored(self, state: State) -> dict[str, Any]:
        """What a stored state says of the facets, by their names in it; those with nothing to say are left out."""
        named = ((facet.STORED, facet.stored(state)) for facet in self._all if facet.STORED is not None)
        return {name: data for name, data in named if data is not None}

    def restore(self, state: State, stored: object) -> None:
        """From a stored state that has an attribute for each facet that it may say something of."""
        for facet in self._all:
            if facet.STORED is not None and hasattr(stored, facet.STORED):
                facet.restore(state, getattr(stored, facet.STORED))
