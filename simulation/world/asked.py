"""What callers asked for, and what they were told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from casque.types import Gate, ZoneRules

if TYPE_CHECKING:
    from casque.client.queue import Queue
    from casque.client.small import BrokerQueue, DirectQueue
    from casque.clock import Clock
    from casque.engine.staging import Staging
    from casque.ring.building import Builder
    from simulation.world.life import Life


class Through(Protocol):
    """A process, or somebody in it who has the queue open for a moment."""

    @property
    def queue(self) -> Queue[bytes]: ...

    @property
    def small(self) -> BrokerQueue | DirectQueue: ...

    @property
    def clock(self) -> Clock: ...

    def staging(self) -> Staging: ...

    def builder(self) -> Builder: ...


IN_A_COPY = b"in a copy"
"""The payload of every job that is added to a copy of the queue."""
NOT_THEIRS = b"not theirs"
"""The payload of every job that a tenant tries to add where it may not."""
FIFO_ZONES = ("belt", "line", "queue")
"""Every job of these keeps its place."""
Send: TypeAlias = Callable[[Through], Awaitable[Any]]
"""Asks for it through one of the queues of this process."""


class Verb(StrEnum):
    ENQUEUE = "enqueue"
    ADMIT = "admit"
    DEQUEUE = "dequeue"
    ACK = "ack"
    NACK = "nack"
    SETTLE = "settle"
    HEARTBEAT = "heartbeat"
    CANCEL = "cancel"
    RETRY = "retry"
    RESCHEDULE = "reschedule"
    PURGE = "purge"
    GATE = "gate"
    ZONE = "zone"
    RESIZE = "resize"
    TIDY = "tidy"
    SNOOZE = "snooze"
    WITHDRAW = "withdraw"
    DECLINE = "decline"
    REQUEUE = "requeue stale"
    LOOK = "look"
    SCHEDULE = "schedule"
    GIVE_BACK = "give back"
    """A claim that its worker gives back, because it is being stopped."""
    SEVERAL = "several"
    """Heartbeats, or jobs to be given back, in one call: each of its parts has an answer of its own."""
    LEASE_ZONE = "lease zone"
    BEAT_ZONE = "heartbeat zone"
    RELEASE_ZONE = "release zone"


class Told(StrEnum):
    """How a call ended for its caller."""

    PENDING = "pending"
    ANSWERED = "answered"
    REFUSED = "refused"
    """A typed refusal, a lost race or a definite storage failure: it never happened."""
    UNKNOWN = "unknown"
    LEFT = "left"
    """The caller stopped waiting."""


class Request:
    """One thing that somebody wants, however often it is asked for."""

    __slots__ = (
        "answer",
        "borrowed",
        "by_hand",
        "calls",
        "crashed",
        "effects",
        "entrypoints",
        "gate",
        "items",
        "job_id",
        "kept",
        "may_have_acted",
        "number",
        "parts",
        "priority",
        "request_id",
        "rules",
        "run_at_ms",
        "scope",
        "send",
        "source",
        "timeout_ms",
        "token",
        "verb",
        "zone_token",
        "zones",
    )

    def __init__(
        self,
        number: int,
        verb: Verb,
        send: Send,
        *,
        request_id: str | None = None,
        borrowed: bool = False,
        job_id: str | None = None,
        token: int | None = None,
        entrypoints: tuple[str, ...] | None = None,
        items: int = 0,
        timeout_ms: int = 0,
        parts: Sequence[Request] = (),
        source: str = "",
        gate: Gate | None = None,
        scope: str | None = None,
        crashed: bool = False,
        zones: tuple[str, ...] | None = None,
        rules: ZoneRules | None = None,
        zone_token: int | None = None,
        by_hand: bool = False,
        kept: bool = False,
        run_at_ms: int | None = None,
        priority: int | None = None,
    ) -> None:
        self.number = number
        self.verb = verb
        self.send = send
        self.request_id = request_id
        self.borrowed = borrowed
        """Whether its id is that of another request, which asked for something else."""
        self.job_id = job_id
        self.token = token
        self.entrypoints = entrypoints
        self.items = items
        self.timeout_ms = timeout_ms
        self.parts = parts
        """The acks and nacks of a settle: each is held to account like one that was asked for by itself."""
        self.source = source
        """Of an admission, whose batch has the number of the request; the schedule that is to change; the zone."""
        self.gate = gate
        self.scope = scope
        """What the gate is of: an entrypoint, or None for the whole queue."""
        self.crashed = crashed
        """Whether a nack says that the process died."""
        self.zones = zones
        """Those that a dequeue takes from; None: from all, and from none."""
        self.rules = rules
        """What a zone's are to be."""
        self.zone_token = zone_token
        """Of the lease on a zone that it shows, as it is stored."""
        self.by_hand = by_hand
        """Whether an age is judged by the clock of whichever process carries it out, and not by the caller's."""
        self.run_at_ms = run_at_ms
        """When a job is to run that is rescheduled; no two requests say the same."""
        self.priority = priority
        self.kept = kept
        """Whether it is a worker that claims: it keeps its leases for as long as it lives."""
        self.calls: list[Call] = []
        self.answer: Any = None
        """The first answer that was not empty."""
        self.effects: dict[int, str] = {}
        """What surely came of it: for an enqueue the job of each item, otherwise one entry."""
        self.may_have_acted = False
        """It may have had an effect that a later one of the same commit covered up."""

    @property
    def possible(self) -> bool:
        """Whether it may have happened, or may yet."""
        return any(call.told is not Told.REFUSED for call in self.calls)

    @property
    def since(self) -> float:
        """When it was first asked for."""
        return min(call.asked_at for call in self.calls)

    def overlaps(self, other: Request) -> bool:
        """Whether somebody asked for one while the other was under way."""
        return any(
            a.asked_at <= (b.ended_at or a.asked_at) and b.asked_at <= (a.ended_at or b.asked_at)
            for a in self.calls
            for b in other.calls
        )

    @property
    def open_ended(self) -> bool:
        """Whether somebody has not heard what became of it: it may act at any moment."""
        return any(call.told in (Told.PENDING, Told.UNKNOWN, Told.LEFT) for call in self.calls)

    def __str__(self) -> str:
        parts = [f"{self.verb} #{self.number}"]
        if self.job_id is not None:
            parts.append(f"job {self.job_id[:8]} token {self.token}")
        if self.request_id is not None:
            parts.append(f"id {self.request_id}")
        return " ".join(parts)


class _Anyone(set["Life"]):
    """Every process."""

    def __contains__(self, life: object) -> bool:
        return True


class Call:
    """One attempt of a request, through one process."""

    __slots__ = (
        "asked_at",
        "earliest_wall_ms",
        "ended_at",
        "landed",
        "life",
        "parts",
        "request",
        "told",
        "via",
        "wall_ms",
    )

    def __init__(self, request: Request, life: Life) -> None:
        self.request = request
        self.life = life
        self.asked_at = life.world.loop.time()
        self.ended_at: float | None = None
        self.wall_ms = life.clock.wall_ms()
        """What the caller's clock said."""
        self.earliest_wall_ms = life.world.earliest_wall_ms()
        """What no clock is behind, as long as they are set."""
        self.landed = life.world.history.changed
        """How far the history had got, as far as anybody can tell."""
        self.told = Told.PENDING
        self.via: set[Life] = _Anyone() if life.world.layout.served else {life}
        """The processes that may have carried it out: the caller's own, and every broker that it reached. What goes
        through a stream is not followed: any may have."""
        self.parts = [Call(part, life) for part in request.parts]
        for part in self.parts:
            part.via = self.via
        request.calls.append(self)
