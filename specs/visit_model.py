"""A lease that only short-lived processes watch: what each saw adds up, and never to more than the time that passed.

Time passes in ticks, for all alike. A visitor looks at the queue, stays, decides to leave, and what it saw is recorded
when its commit lands, which may be much later. The holder of the lease may renew it at any moment. Written times, which
count for a tenth and are capped, are not part of this: they are a bet on clocks, and no model can make them safe.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple


class VisitRule(StrEnum):
    SAME_VISITS = "a visit counts only if none was recorded since it began"
    SAME_BEAT = "a visit counts only if the lease was not renewed since it began"
    FROM_THE_LOOK = "a visit begins with its look at the queue, and not with its process"


ALL_VISIT_RULES = frozenset(VisitRule)

VISITS_MAX = 5
"""Recorded between two renewals. The search goes no further."""
AWAY, HERE, LEAVING = "away", "here", "leaving"


class Visitor(NamedTuple):
    where: str = AWAY
    beat: int = 0
    visits: int = 0
    """Those that were recorded when it looked."""
    watched: int = 0
    age: int = 0
    """Of its process, which may have been there long before it looked."""


class Leased(NamedTuple):
    since_beat: int = 0
    """Ticks since the lease was last renewed, in truth."""
    beat: int = 0
    visits: int = 0
    watched: int = 0
    visitors: tuple[Visitor, ...] = ()
    ended: bool = False


class VisitModel:
    def __init__(
        self, *, length: int = 3, visitors: int = 3, beats: int = 2, rules: frozenset[VisitRule] = ALL_VISIT_RULES
    ) -> None:
        self._length = length
        self._beats = beats
        self._rules = rules
        self._from_the_look = VisitRule.FROM_THE_LOOK in rules
        self.first = Leased(visitors=(Visitor(),) * visitors)

    def steps(self, state: Leased) -> Iterator[tuple[str, Leased]]:
        if state.ended:
            return
        yield "a tick", self._ticked(state)
        if state.beat < self._beats:
            yield "the holder renews its lease", state._replace(since_beat=0, beat=state.beat + 1, visits=0, watched=0)
        for number, visitor in enumerate(state.visitors):
            if visitor.where == AWAY:
                came = Visitor(HERE, state.beat, state.visits, 0, visitor.age)
                yield f"visitor {number} looks", _with(state, number, came)
            elif visitor.where == HERE:
                yield f"visitor {number} leaves", _with(state, number, visitor._replace(where=LEAVING))
            else:
                if state.visits < VISITS_MAX:
                    yield f"what visitor {number} saw lands", self._landed(state, number, visitor)
                yield f"what visitor {number} saw is lost", _with(state, number, Visitor())

    def violation(self, state: Leased) -> str:
        if state.ended and state.since_beat < self._length:
            return f"the lease ended {state.since_beat} ticks after it was renewed, and lasts {self._length}"
        return ""

    def _ticked(self, state: Leased) -> Leased:
        most = self._length
        visitors = tuple(
            one._replace(
                watched=min(one.watched + (one.where == HERE), most),
                age=0 if self._from_the_look else min(one.age + (one.where != LEAVING), most),
            )
            for one in state.visitors
        )
        return state._replace(since_beat=min(state.since_beat + 1, most), visitors=visitors)

    def _landed(self, state: Leased, number: int, visitor: Visitor) -> Leased:
        after = _with(state, number, Visitor())
        if VisitRule.SAME_BEAT in self._rules and visitor.beat != state.beat:
            return after
        counts = VisitRule.SAME_VISITS not in self._rules or visitor.visits == state.visits
        seen = visitor.watched if self._from_the_look else visitor.age
        watched = state.watched + (seen if counts else 0)
        return after._replace(
            visits=state.visits + 1, watched=min(watched, self._length), ended=watched >= self._length
        )


def _with(state: Leased, number: int, visitor: Visitor) -> Leased:
    visitors = (*state.visitors[:number], visitor, *state.visitors[number + 1 :])
    return state._replace(visitors=visitors)
