"""By whose clock a lease may end: that of the process which took it back, or those of all who visited it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from casque.state.vigils import DATED_VISITS
from casque.types import JobRecord, ZoneLease

if TYPE_CHECKING:
    from simulation.world.life import Life
    from simulation.world.past_state import AnyState


def length_s(old: AnyState, lease: JobRecord | ZoneLease, sender: Life) -> float:
    """How long a lease that ends now must have lasted at the least, in true time. Clocks may run fast.

    None of it counts if one more visit, as dated, ends it: that is the bet of the decision about written times."""
    vigil = old.vigils.get(lease.token)
    if vigil is None or vigil.beat_ms != lease.beat_ms:
        return lease.lease_ms / 1000 / sender.node.clock.rate
    if vigil.dated_ms * DATED_VISITS >= lease.lease_ms * (DATED_VISITS - 1):
        return 0.0
    return lease.lease_ms / 1000 / max(node.clock.rate for node in sender.world.nodes)
