"""The digest by which copies and conversions are compared."""

from __future__ import annotations

from casque.codec.digest import state_digest
from casque.state import State
from casque.types import ZoneRules


def test_queues_whose_zones_have_other_rules_have_other_digests() -> None:
    plain, limited, paused = State(), State(), State()
    limited.facets.rules.restore(limited, {"acme": ZoneRules(running_max=1), "globex": ZoneRules(weight=2.0)})
    paused.facets.rules.restore(paused, {"acme": ZoneRules(paused=True)})
    same = State()
    same.facets.rules.restore(same, {"globex": ZoneRules(weight=2.0), "acme": ZoneRules(running_max=1)})
    assert len({state_digest(state) for state in (plain, limited, paused)}) == 3
    assert state_digest(same) == state_digest(limited)
