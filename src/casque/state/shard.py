"""The ring that a queue is a shard of, if it is one, and what is at home in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from casque.errors import InvalidInputError
from casque.state.commands import AdoptRing
from casque.state.events import Ringed
from casque.state.facet import Facet, Methods
from casque.state.ring import Places, RingView
from casque.types import ZoneLease

if TYPE_CHECKING:
    from casque.state.machine import State


class ShardFacet(Facet["RingView | None"]):
    STORED = "ring"
    HANDLERS: ClassVar[Methods] = {AdoptRing: "adopt_ring"}
    APPLIERS: ClassVar[Methods] = {Ringed: "apply_ringed"}

    def __init__(self, zone_jobs: dict[str, int], leased: dict[str, ZoneLease]) -> None:
        self.view: RingView | None = None
        self.places = Places(zone_jobs, leased)
        """What is at home here. Its keys are counted only while this is a shard."""

    def copied(self) -> RingView | None:
        return self.view

    def restore(self, state: State, data: RingView | None) -> None:
        if data is None:
            self.places.keys.clear()
        elif self.view is None:
            self.recount(state)
        self.view = data

    def recount(self, state: State) -> None:
        """Which keys are here, by the jobs."""
        self.places.keys.clear()
        for job in state.jobs.values():
            self.places.add(job.spec)

    def adopt_ring(self, state: State, c: AdoptRing, now_ms: int) -> RingView:
        if self.view is not None and self.view.token != c.token:
            raise InvalidInputError(
                f"this is shard {self.view.token} of its ring, not {c.token}: it was moved or copied"
            )
        if self.view is None or c.generation > self.view.generation:
            state.happen(Ringed(c.generation, c.size, c.token), now_ms)
        assert self.view is not None
        return self.view

    def apply_ringed(self, state: State, event: Ringed, at_ms: int) -> None:  # noqa: ARG002
        self.changing(state)
        self.restore(state, RingView(event.generation, event.size, event.token))
