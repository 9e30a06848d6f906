"""What gates and rules have to be: the same in all shards of a ring, and what was asked for last."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from casque.types import PLAIN_RULES
from simulation.world.asked import Request
from simulation.world.history import History
from simulation.world.invariants import Invariant


def demand_same_settings(history: History, shards: Sequence[History]) -> None:
    """Unless a setting is being changed, a change was stopped half-way, or two changes met in the middle."""
    first, *others = shards
    if _settled(history.gates):
        for shard in others:
            history.demand(
                shard.state.gates == first.state.gates,
                Invariant.GATES,
                lambda: f"the ring was resized: one shard knows {shard.state.gates}, the first {first.state.gates}",  # noqa: B023
            )
    for zone, requests in history.zonings.items():
        if not _settled(requests):
            continue
        wanted = first.state.rules.get(zone, PLAIN_RULES)
        for shard in others:
            rules = shard.state.rules.get(zone, PLAIN_RULES)
            history.demand(
                rules == wanted,
                Invariant.ZONES,
                lambda: f"the ring was resized, and of {zone} one shard knows {rules}, the first {wanted}",  # noqa: B023
            )


def _settled(requests: Sequence[Request]) -> bool:
    return not any(request.open_ended for request in requests) and not any(
        a.overlaps(b) for a, b in combinations(requests, 2)
    )


def last_asked(requests: Sequence[Request], answered: Request | None = None) -> Request | None:
    """The one that decides, if that is certain: all others ended before it began, and none may act any more.
    `answered`: its answer has just come."""
    possible = [request for request in requests if request.possible]
    if not possible:
        return None
    last = max(possible, key=lambda request: request.since)
    ended = all(
        call.ended_at is not None and call.ended_at < last.since
        for request in possible
        if request is not last
        for call in request.calls
    )
    return last if ended and not any(one.open_ended for one in possible if one is not answered) else None
