"""What holds for all facets of a state alike."""

from __future__ import annotations

import gc
import weakref
from collections import Counter

from casque.codec import document, snapshot
from casque.state import Event, Limits, State, adding, claiming, interventions, job_life, leases, settling
from casque.state.facets import Facets

NOT_IN_DOCUMENTS = {"staged", "ring"}
"""A document holds the jobs of its admissions itself, and is no shard of a ring."""


def test_a_stored_state_has_a_field_for_every_facet_that_is_stored() -> None:
    stored = {facet.STORED for facet in Facets(Limits()) if facet.STORED is not None}
    assert stored <= set(snapshot._Snapshot.__struct_fields__)
    assert stored - NOT_IN_DOCUMENTS <= set(document._Document.__struct_fields__)


def test_every_event_is_applied_by_one_facet() -> None:
    tables = [job_life.APPLIERS, *(facet.APPLIERS for facet in Facets(Limits()))]
    appliers = Counter(event for table in tables for event in table)
    assert set(appliers) == set(Event.__args__)
    assert set(appliers.values()) == {1}


def test_every_request_is_handled_in_one_place() -> None:
    modules = (adding, claiming, settling, interventions, leases)
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
