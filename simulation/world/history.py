"""What has landed so far, indexed by what the checks ask for."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from casque.codec.log import Segment
from casque.state import State
from casque.state.request_ids import scope_of, shown_id
from casque.types import Gate, JobRecord, JobState
from simulation.world.asked import Request, Verb
from simulation.world.invariants import Invariant, Violation
from simulation.world.limits import KEPT_S, REQUESTS_MAX
from simulation.world.past_state import AnyState
from simulation.world.tenancies import Tenancy

if TYPE_CHECKING:
    from simulation.world.life import Life

Key: TypeAlias = tuple[int, int, int]
Line: TypeAlias = tuple[str, str | None]
"""The jobs of one entrypoint and one zone: among them the best is claimed first. Zones take turns."""
KEPT_STATES = 64


class Fate:
    """One job, from its enqueue to its end."""

    __slots__ = ("beaten_at", "endings", "hidden", "job_id", "revived_at", "touched_at")

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.touched_at = 0.0
        """When the last claim or heartbeat landed."""
        self.beaten_at = -1.0
        self.revived_at = -1.0
        self.endings: list[Request] | None = None
        """Once it has left the queue: the requests that may have been the one that took it out."""
        self.hidden: range = range(0)
        """Tokens among which one may have been its own, given out by the very commit that took it out."""


class Claim:
    """One lease."""

    __slots__ = (
        "batch",
        "best_left",
        "fifo",
        "holder",
        "job_id",
        "key",
        "landed_at",
        "life",
        "promised",
        "token",
        "under",
        "worker",
        "zone",
    )

    def __init__(
        self,
        record: JobRecord,
        life: Life,
        landed_at: float,
        *,
        batch: tuple[str, int],
        promised: bool,
        best_left: dict[Line, Key],
    ) -> None:
        self.job_id = record.id
        self.token = record.token
        self.worker = record.worker
        self.zone = record.spec.zone
        self.fifo = record.spec.fifo
        self.key = order(record)
        self.life = life
        self.landed_at = landed_at
        self.promised = promised
        """Whether it goes to whoever repeats the request."""
        self.batch = batch
        """Which of its process's batches made it: the writer, and the number."""
        self.best_left = best_left
        """The best job of each line that was there to be claimed and was left."""
        self.holder: Request | None = None
        """The dequeue that was told of it."""
        self.under: int | None = None
        """The lease that its zone had before the commit and after it."""


class History:
    """Everything that was asked and everything that landed. Checks read it and raise `Violation`."""

    def __init__(self, now: Callable[[], float], *, of: History | None = None) -> None:
        """`of`: the history of the whole ring, if this is that of a shard. What is asked is asked of the ring."""
        self.now = now
        self.in_ring = of is not None
        self.state = State()
        """What a fresh reader finds."""
        self.states: dict[int, AnyState] = {}
        """The last versions, by position."""
        self.moments: set[int] = set()
        """Times that somebody has asked for, of jobs that are rescheduled."""
        self.restored: set[int] = set()
        """Positions at which a state that was just restored was asked what can be claimed."""
        self.segments: dict[int, Segment] = {}
        """What was first put into each slot of a log."""
        self.fates: dict[str, Fate] = of.fates if of else {}
        self.claims: dict[int, Claim] = {}
        self.requests: list[Request] = of.requests if of else []
        self.by_job: dict[str, list[Request]] = of.by_job if of else {}
        self.tenancies: dict[int, Tenancy] = {}
        """Leases of zones, by token."""
        self.by_zone: dict[str, list[Request]] = of.by_zone if of else {}
        """What was asked about leases of zones."""
        self.purges: list[Request] = of.purges if of else []
        self.crowded_at = -1.0
        """When a commit may have remembered a request and forgotten it at once."""
        self.changed = 0
        """The position of the last commit that changed anything. A fence changes nothing: whoever has not seen it has
        missed nothing."""
        self.purged: deque[tuple[float, Life, int]] = of.purged if of else deque(maxlen=256)
        """When, by whom and how many dead jobs were purged by one commit."""
        self.payloads: dict[str, bytes] = of.payloads if of else {}
        """What every job that came has to do, by its id."""
        self.reached: dict[str, tuple[str, str | None]] = of.reached if of else {}
        """The entrypoint and the zone of every job that came, by its id."""
        self.expiring: set[str] = of.expiring if of else set()
        """The ids of jobs that expire."""
        self.blobs: dict[str, bytes] = {}
        """Every large payload that was ever stored."""
        self.gone: set[str] = of.gone if of else set()
        """Those that a read found to be missing."""
        self.gates: list[Request] = of.gates if of else []
        self.zonings: dict[str, list[Request]] = of.zonings if of else {}
        """Who wanted to change the rules of a zone, by its name."""
        self.gated: dict[str | None, float] = {}
        """When the gate of an entrypoint, or of the queue, was last changed."""
        self.zoned: dict[str, float] = {}
        """When the rules of a zone were last changed."""
        self.remembered: dict[str, float] = {}
        """When a request was remembered last, by its id."""
        self._memory: list[tuple[str, str]] = []
        """Whose requests are remembered, as far as their number goes, and which: the oldest first."""
        self.scoped: set[str] = set()
        """Requests that a tenant made."""
        self._renewed: set[str] = set()
        self.requeues: list[Request] = of.requeues if of else []
        self.resizes: list[Request] = of.resizes if of else []
        self.layouts: list[tuple[float, str]] = []
        """When the queue got each layout that it has had, if it is converted."""
        self.schedulings: dict[str, list[Request]] = of.schedulings if of else {}
        """Who wanted to change a schedule, by its name."""
        self.expired: deque[tuple[float, Life, int]] = of.expired if of else deque(maxlen=256)
        """When, by whom and how many leases were taken back by one commit."""
        self.away_until = -1.0
        """Until when its part of the store refuses everything, or did."""
        self.checked: Counter[Invariant] = of.checked if of else Counter()

    def add(self, request: Request) -> None:
        self.requests.append(request)
        if request.job_id is not None:
            self.by_job.setdefault(request.job_id, []).append(request)
        elif request.verb is Verb.PURGE:
            self.purges.append(request)
        elif request.verb is Verb.GATE:
            self.gates.append(request)
        elif request.verb is Verb.REQUEUE:
            self.requeues.append(request)
        elif request.verb is Verb.ZONE:
            self.zonings.setdefault(request.source, []).append(request)
        elif request.verb is Verb.RESIZE:
            self.resizes.append(request)
        elif request.verb is Verb.SCHEDULE:
            self.schedulings.setdefault(request.source, []).append(request)
        elif request.verb in (Verb.LEASE_ZONE, Verb.BEAT_ZONE, Verb.RELEASE_ZONE):
            self.by_zone.setdefault(request.source, []).append(request)

    def concerning(self, job_id: str, verb: Verb, token: int | None = None) -> list[Request]:
        """The requests on a job that may have happened; with a token only those that could act on its lease."""
        return [
            request
            for request in self.by_job.get(job_id, ())
            if request.verb is verb and (token is None or request.token in (None, token)) and request.possible
        ]

    def on_zone(self, zone: str, verb: Verb) -> list[Request]:
        return [request for request in self.by_zone.get(zone, ()) if request.verb is verb]

    def tenancy(self, token: int) -> Tenancy | None:
        """By the token that callers know."""
        return self.tenancies.get(token)

    def holds_zone(self, zone: str, token: int) -> bool:
        """Whether this lease goes on, by the token that callers know."""
        lease = self.state.zone_leases.get(zone)
        return lease is not None and lease.token == token

    def may_open(self, entrypoint: str, closed: Gate) -> bool:
        """Whether a gate of this entrypoint may have stood open for a moment inside a commit, where nobody sees it."""
        return any(
            request.open_ended and request.gate is not closed and request.scope in (None, entrypoint)
            for request in self.gates
        )

    # --- What has landed, whichever shard it is in ---

    is_ring = False
    keeps_claims = True
    """Whether a dequeue that is repeated gets what it was given, as far as it still has it."""
    forgetful = False
    """Whether few requests are remembered, and for a short time."""

    @property
    def position(self) -> int:
        return self.state.position

    def record(self, job_id: str) -> JobRecord | None:
        return self.state.jobs.get(job_id)

    def lately(self, job_id: str) -> list[JobRecord]:
        """What it was in the last versions. It may have left since, or forgotten its oldest tries."""
        return [found for state in self.states.values() if (found := state.jobs.get(job_id)) is not None]

    def goes_on(self, job_id: str, token: int | None) -> bool:
        """Whether this very lease is there, by the token as it is stored."""
        record = self.record(job_id)
        return record is not None and record.state is JobState.RUNNING and record.token == token

    def claim(self, token: int) -> Claim | None:
        """By the token that callers know."""
        return self.claims.get(token)

    def own(self, token: int) -> int:
        """A token that callers know, as it is stored."""
        return token

    def everything(self) -> list[State]:
        return [self.state]

    def walked(self, since: float | None = None) -> list[History]:  # noqa: ARG002
        """Where workers look for jobs, and have looked all the time."""
        return [self]

    def remember(self, stored_id: str) -> None:
        """It has landed with its answer. Tenants' ids are stored with the name of their tenant."""
        request_id = shown_id(stored_id)
        if request_id != stored_id:
            self.scoped.add(request_id)
        again = request_id in self.remembered and self.forgetful
        self.demand(
            not (again and self._promised(request_id)),
            Invariant.ONE_EFFECT,
            lambda: f"the request {request_id} was carried out again",
        )
        if again:
            self._renewed.add(request_id)
        self.remembered[request_id] = self.now()
        self._memory = [one for one in self._memory if one[1] != request_id]
        self._memory.append((scope_of(stored_id), request_id))

    def forget(self) -> None:
        """After a commit: when there are too many, the caller with the most requests loses its oldest."""
        while len(self._memory) > REQUESTS_MAX:
            counts = Counter(scope for scope, _ in self._memory)
            largest = min(counts, key=lambda scope: (-counts[scope], scope))
            self._memory.remove(next(one for one in self._memory if one[0] == largest))

    def remembers(self, request: Request) -> bool:
        """Whether the queue has promised to know this request if it is repeated."""
        request_id = request.request_id or ""
        if request_id not in self.remembered or not self.forgetful:
            return True
        # Which of its answers somebody heard is not known of one that was forgotten, and carried out again.
        return request_id not in self._renewed and self._promised(request_id)

    def must_remember(self, request: Request) -> bool:
        """The same for those who judge: unless it may have been forgotten by the commit that remembered it."""
        unseen = self.forgetful and request.request_id not in self.remembered
        return self.remembers(request) and not (unseen and self.crowded_at >= request.since)

    def _promised(self, request_id: str) -> bool:
        kept = any(one == request_id for _, one in self._memory)
        return kept and self.now() - self.remembered[request_id] < KEPT_S

    def keep(self, state: State) -> None:
        self.state = state
        self.states[state.position] = state
        self.states.pop(state.position - KEPT_STATES, None)

    def demand(self, holds: bool, invariant: Invariant, detail: Callable[[], str]) -> None:
        self.checked[invariant] += 1
        if not holds:
            self.broken(invariant, detail())

    def broken(self, invariant: Invariant, detail: str) -> NoReturn:
        raise Violation(invariant, detail)


def order(record: JobRecord) -> Key:
    """First in, among those that are due: what a claim goes by."""
    return record.spec.priority, record.due_ms, record.sequence
