"""What must hold, by name, and what is raised when it does not."""

from __future__ import annotations

from enum import StrEnum


class Invariant(StrEnum):
    """The protocol's invariants as far as a queue without a leader has them, and the guarantees beside them."""

    DURABLE = "1 what was acknowledged is in the history"
    ONE_HISTORY = "2 one history: every version descends from the one before"
    TOKENS = "4 one live token per job, and only it changes the job"
    ABSENT = "5 what was reported as failed never happened"
    ONE_EFFECT = "6 same request, same answer, one effect"
    CONSERVED = "7 no job appears from nowhere and none vanishes"
    ORDER = "8 the best ready job is claimed first"
    SAME_STATE = "10 the engine's own state is what a fresh reader finds"
    LIVE = "11 after the faults every ready job is claimed and every lost lease recovered"
    LEASE = "a lease lasts its length"
    GIVEN_BACK = "a claim whose caller left goes back"
    CAUSED = "nothing happens that nobody asked for"
    EXPECTED = "callers meet documented errors only"


class Violation(AssertionError):  # noqa: N818  it is a finding, not an error of the simulator
    """An invariant that did not hold."""

    def __init__(self, invariant: Invariant, detail: str) -> None:
        super().__init__(f"{invariant.value}: {detail}")
        self.invariant = invariant
        self.detail = detail
