"""What a caller can ask of the queue.

A command with a `request_id` is remembered with its answer: asked again, it gives the same answer and has no second
effect. A command without one costs nothing to remember; its caller can tell by other means whether it landed.

A command that names a job or a schedule may say what its caller can `reach`: what is beyond it is not there for this
command. It is judged where the command is carried out, because a name may be another's by then.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from casque.service import Outcome
from casque.types import Backoff, Gate, JobSpec, Progress, Reach, ScheduleSpec, StagedPart, ZoneRules


class Enqueue(msgspec.Struct, frozen=True, gc=False):
    """Add jobs, all or none. A spec whose unique key is held by an unfinished job gives that job instead."""

    specs: tuple[JobSpec, ...]
    request_id: str | None = None
    generation: int = 0
    """Of the ring that the caller knows, if the queue is a shard of one."""


class Admit(msgspec.Struct, frozen=True):
    """Add the jobs of staged objects, all or none, once for each batch of a source."""

    source: str
    batch: int
    parts: tuple[StagedPart, ...]
    specs: list[JobSpec]
    """Those of all parts, in their order; read and checked before."""
    ids: set[str]
    """Of all of them. Collecting a million takes longer than deciding about them, and need not be done here."""
    keyed: bool
    """Whether any of them may have a unique key."""
    skip_known: bool = False
    generation: int = 0
    """Of the ring that the caller knows, if the queue is a shard of one."""


class Dequeue(msgspec.Struct, frozen=True, gc=False):
    """Claim up to `limit` due jobs, best first. `entrypoints` None means any, `zones` None all of them and none."""

    entrypoints: tuple[str, ...] | None
    limit: int
    lease_ms: int
    worker: str | None = None
    request_id: str | None = None
    zones: tuple[str, ...] | None = None
    zone_lease: tuple[str, int] | None = None
    """Zone and token: of this zone alone, which is given to whoever shows its lease and to nobody else."""


class Ack(msgspec.Struct, frozen=True, gc=False):
    """The job is done. Without a token it is done whoever holds it. The result is for the archive."""

    job_id: str
    token: int | None = None
    request_id: str | None = None
    result: bytes | None = None
    reach: Reach | None = None


class Nack(msgspec.Struct, frozen=True, gc=False):
    """The job failed: back with a delay, or dead if this was its last attempt.

    `delay_ms` wins over `backoff`; with neither it is due again at once, behind what is due already.
    """

    job_id: str
    token: int | None = None
    delay_ms: int | None = None
    backoff: Backoff | None = None
    error: str | None = None
    request_id: str | None = None
    reach: Reach | None = None


class Settle(msgspec.Struct, frozen=True, gc=False):
    """Many acks and nacks, each with an answer of its own."""

    outcomes: tuple[Outcome, ...]
    request_id: str | None = None
    reach: Reach | None = None


class Heartbeat(msgspec.Struct, frozen=True, gc=False):
    """The worker is alive: the lease starts again at full length. It may say how far it has come."""

    job_id: str
    token: int | None = None
    progress: Progress | None = None
    reach: Reach | None = None


class GiveBack(msgspec.Struct, frozen=True, gc=False):
    """A claim that nobody will work on goes back to its old place and does not count as an attempt. `unseen`: nobody
    has heard of it, so that it goes back later if it cannot now."""

    job_id: str
    token: int
    reach: Reach | None = None
    unseen: bool = False


class Cancel(msgspec.Struct, frozen=True, gc=False):
    """Take a waiting or running job out of the queue."""

    job_id: str
    request_id: str | None = None
    reach: Reach | None = None


class Retry(msgspec.Struct, frozen=True, gc=False):
    """Give a dead job a fresh set of attempts."""

    job_id: str
    request_id: str | None = None
    reach: Reach | None = None


class Purge(msgspec.Struct, frozen=True, gc=False):
    """Remove dead jobs for good: all, or only those of an entrypoint, of a zone, or of both."""

    entrypoint: str | None = None
    request_id: str | None = None
    zone: str | None = None

    def takes(self, spec: JobSpec) -> bool:
        """If it is dead."""
        return self.entrypoint in (None, spec.entrypoint) and self.zone in (None, spec.zone)


class RequeueStale(msgspec.Struct, frozen=True, gc=False):
    """Take back leases that were last renewed at least so long ago, by written times. Answers how many those were."""

    older_ms: int
    entrypoint: str | None = None
    request_id: str | None = None
    zone: str | None = None


class SetGate(msgspec.Struct, frozen=True, gc=False):
    """Say what the whole queue, or one entrypoint, lets through from now on."""

    gate: Gate
    entrypoint: str | None = None
    request_id: str | None = None
    expected: Gate | None = None
    """Only if it is this one; otherwise nothing happens."""


class SetZone(msgspec.Struct, frozen=True, gc=False):
    """Say what share of the turns a zone has, and what holds it back."""

    zone: str
    rules: ZoneRules
    request_id: str | None = None
    expected: ZoneRules | None = None
    """Only if its rules are these; otherwise nothing happens."""


class LeaseZone(msgspec.Struct, frozen=True, gc=False):
    """Have a zone for oneself. Answers None if somebody has it, or if it has no jobs at all."""

    zone: str
    lease_ms: int
    worker: str | None = None
    request_id: str | None = None


class BeatZone(msgspec.Struct, frozen=True, gc=False):
    """Whoever has leased the zone is alive: the lease starts again at full length."""

    zone: str
    token: int


class ReleaseZone(msgspec.Struct, frozen=True, gc=False):
    """Let others have the zone. A lease that is over already is left alone."""

    zone: str
    token: int


class AdoptRing(msgspec.Struct, frozen=True, gc=False):
    """Tell a shard of the ring that it belongs to. Answers the ring it knows then, which may be a newer one."""

    generation: int
    size: int
    token: int


class Observed(msgspec.Struct, frozen=True, gc=False):
    """A lease as somebody saw it. If it still looks like this, it was not renewed in between."""

    job_id: str
    token: int
    beat_ms: int | None


class ObservedZone(msgspec.Struct, frozen=True, gc=False):
    """The same of the lease of a zone."""

    zone: str
    token: int
    beat_ms: int


class Expire(msgspec.Struct, frozen=True, gc=False):
    """Take back the leases that have not changed since they were observed. Answers how many those were."""

    leases: tuple[Observed | ObservedZone, ...]


class Watching(msgspec.Struct, frozen=True, gc=False):
    """A lease as a visit saw it: a process that did not stay for the whole length of the lease."""

    lease: Observed | ObservedZone
    visits: int
    """Visits that were recorded when this one began. If another one was recorded since, the two overlap."""
    watched_ms: int
    """How long this one watched it, by its own monotonic clock."""


class Watch(msgspec.Struct, frozen=True, gc=False):
    """Record visits, and take back the leases for which they add up. Answers how many those were."""

    leases: tuple[Watching, ...]


class SetSchedule(msgspec.Struct, frozen=True, gc=False):
    """Have a job added again and again. One that is there already and says the same stays as it is; one that says
    something else is changed, and keeps its next tick unless it is due at other times now. Answers None, and does
    nothing, if it would go back to a tick that has become a job: by the clock of another machine."""

    spec: ScheduleSpec
    next_ms: int
    """The first tick after now: times are for the caller to compute."""
    reach: Reach | None = None


class PauseSchedule(msgspec.Struct, frozen=True, gc=False):
    """No more ticks, or from `next_ms` on again; what passes meanwhile is not made up for. Answers None as above."""

    name: str
    paused: bool
    next_ms: int
    reach: Reach | None = None


class DropSchedule(msgspec.Struct, frozen=True, gc=False):
    """Forget a schedule. The jobs that it has become stay."""

    name: str
    reach: Reach | None = None


class Tick(msgspec.Struct, frozen=True, gc=False):
    """A schedule's time has come: add the job and move on to `next_ms`, in one commit, if `tick_ms` is still next.
    Answers whether it was. Without a job it only moves on."""

    name: str
    tick_ms: int
    next_ms: int
    job: JobSpec | None = None
    at_ms: int | None = None
    """Which tick the job is for, if several had passed; otherwise `tick_ms`."""


Repeatable: TypeAlias = (
    Enqueue | Dequeue | Ack | Nack | Settle | Cancel | Retry | Purge | RequeueStale | SetGate | SetZone | LeaseZone
)
"""What can have a request id."""

Command: TypeAlias = (
    Enqueue
    | Admit
    | Dequeue
    | Ack
    | Nack
    | Settle
    | Heartbeat
    | GiveBack
    | Cancel
    | Retry
    | Purge
    | SetGate
    | SetZone
    | LeaseZone
    | BeatZone
    | ReleaseZone
    | AdoptRing
    | Expire
    | Watch
    | RequeueStale
    | SetSchedule
    | PauseSchedule
    | DropSchedule
    | Tick
)
