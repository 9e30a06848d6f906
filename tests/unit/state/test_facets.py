"""What holds for all facets of a state alike."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from typing import Any

import pytest

from casque.codec import document, snapshot
from casque.codec.digest import state_digest
from casque.journal import walk
from casque.state import Event, Limits, State, adding, claiming, interventions, job_life, lapses, leases, settling
from casque.state.facets import Facets
from casque.state.ring import RingView
from casque.types import Gate, Gates, JobSpec, LastBatch, Schedule, ScheduleSpec, Vigil, ZoneLease, ZoneRules

NOT_IN_DOCUMENTS = {"staged", "ring"}
"""A document holds the jobs of its admissions itself, and is no shard of a ring."""


def test_a_stored_state_has_a_field_for_every_facet_that_is_stored() -> None:
    stored = {facet.STORED for facet in Facets(Limits()) if facet.STORED is not None}
    assert stored <= set(snapshot._Snapshot.__struct_fields__)
    assert stored - NOT_IN_DOCUMENTS <= set(document._Document.__struct_fields__)


LEASE = ZoneLease("acme", 1, 60_000, "w", 5, 5)
SAMPLES: dict[str, Any] = {
    "admissions": {"loader": LastBatch(1, 1, 2, 0)},
    "schedules": [Schedule(ScheduleSpec("daily", "0 0 * * *", JobSpec("", "work", b"")), 60_000)],
    "gates": Gates(Gate.PAUSED),
    "zones": {"acme": ZoneRules(weight=2.0)},
    "ring": RingView(1, 4, 0),
    "zone_leases": [ZoneLease("globex", 2, 60_000, "w", 5, 5), LEASE],
    "vigils": [Vigil("acme", 1, 5, 1, 500, is_zone=True)],
}
"""Something that each of them may hold."""


def leased() -> State:
    """A state in which one zone is leased, so that there is something to have watched."""
    state = State()
    state.facets.zone_leases.restore(state, [LEASE])
    return state


def test_all_that_is_stored_is_compared() -> None:
    aside = {"staged", "writers_forgotten"}  # of its own log alone; by another rule
    assert {facet.STORED for facet in Facets(Limits())} - {None} == SAMPLES.keys() | aside


@pytest.mark.parametrize("name", SAMPLES)
def test_queues_that_differ_in_one_facet_are_not_the_same(name: str) -> None:
    plain, other, same = leased(), leased(), leased()
    for state in (other, same):
        [facet] = [facet for facet in state.facets if name == facet.STORED]
        facet.restore(state, SAMPLES[name])
    assert state_digest(plain) != state_digest(other) == state_digest(same)
    assert not walk._same(plain, other)
    assert walk._same(same, other)


def test_every_event_is_applied_by_one_facet() -> None:
    tables = [job_life.APPLIERS, *(facet.APPLIERS for facet in Facets(Limits()))]
    appliers = Counter(event for table in tables for event in table)
    assert set(appliers) == set(Event.__args__)
    assert set(appliers.values()) == {1}


def test_every_request_is_handled_in_one_place() -> None:
    modules = (adding, claiming, settling, interventions, leases, lapses)
    tables = [*(module.HANDLERS for module in modules), *(facet.HANDLERS for facet in Facets(Limits()))]
    handlers = Counter(request for table in tables for request in table)
    assert set(handlers) == set(State()._handlers)
    assert set(handlers.values()) == {1}


def test_a_state_that_is_dropped_is_gone_without_the_garbage_collector() -> None:
    gc.disable()
    try:
        dropped = weakref.ref(State())
        assert dropped() is None
    finally:
        gc.enable()
