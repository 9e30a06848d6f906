"""What must hold, by name, and what is raised when it does not."""

from __future__ import annotations

from enum import StrEnum


class Invariant(StrEnum):
    """The protocol's invariants by their numbers, and the guarantees beside them."""

    DURABLE = "1 what was acknowledged is in the history"
    ONE_HISTORY = "2 one history: every version descends from the one before"
    CURRENT = "2 a fresh look sees whatever had landed before it"
    EPOCHS = "3 epochs never decrease along the log"
    TOKENS = "4 one live token per job, and only it changes the job"
    ABSENT = "5 what was reported as failed never happened"
    ONE_EFFECT = "6 same request, same answer, one effect"
    ADMITTED = "6 an admission is all of its rows at once, and once for each batch"
    TICKED = "6 a tick of a schedule becomes one job, and none is left out"
    PAYLOADS = "7 a job that can be seen has its payload"
    CONSERVED = "7 no job appears from nowhere and none vanishes"
    ORDER = "8 the best ready job is claimed first"
    PLACE = "8 a job that loses its first worker keeps its place, and one that loses another goes to the back"
    LAPSED = "8 a job that has expired is not handed out, and only one that waits expires, not before its time"
    CLAIMABLE = "8 whatever is ready and allowed can be claimed, by those who saw it happen and after a restart"
    FIFO = "8 a FIFO zone is worked off in its order, one job at a time"
    ZONES = "8 a zone's rules hold: no more of its jobs run than may, and none while it is paused"
    LEASED = "8 a leased zone gives its jobs to its holder alone"
    ARCHIVED = "9 what was finished is in the archive once, as the log tells it, before the log forgets"
    TRIES = "9 a job's tries are what happened to it"
    COUNTED = "9 a crash and a snooze are no attempts, and a failure is no crash"
    DECLINED = "9 what a worker does not understand waits for others with the reason, costs no attempt, and has an end"
    GATES = "9 a gate that is closed lets nothing through"
    SAME_STATE = "10 the engine's own state is what a fresh reader finds"
    REPLAY = "10 snapshot and tail are the full replay"
    KEPT = "10 the floor never falls; no head, no fence and nothing above the floor is deleted"
    LIVE = "11 after the faults every ready job is claimed and every lost lease recovered"
    HEALTHY = "11 a leader that shows signs of life is not deposed"
    ONE_PLACE = "12 a zone is never in two shards"
    REACHED = "12 what is in a shard is where the ring looks for it"
    TENANTS = "13 a tenant is shown its own, and nobody else is in its way"
    COPIED = "14 a copy is what the queue was, and what is done to it stays in it"
    CONVERTED = "15 a conversion changes the layout and nothing else"
    FOLLOWED = "16 who follows is shown every event once and in order, or is told that they are gone"
    SHOWN = "16 a list is a state that was, and an archive what was finished, without a gap"
    HELD = "17 what is held for those who do not read is bounded"
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
