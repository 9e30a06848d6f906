"""What the queue carries out: most requests as they are, and what its engine makes of the others or asks itself."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from casque.service.requests import Request
from casque.types import JobSpec, ScheduleSpec, StagedPart


class Admit(msgspec.Struct, frozen=True):
    """Add the jobs of staged objects, all or none, once for each batch of a source."""

    source: str
    batch: int
    parts: tuple[StagedPart, ...]
    specs: list[JobSpec]
    """Those of all parts, in their order; read and checked before."""
    ids: set[str]
    """Ids of all of them. Collecting a million takes longer than deciding about them, and need not be done here."""
    keyed: bool
    """Whether any of them may have a unique key."""
    skip_known: bool = False
    generation: int = 0
    """Generation of the ring that the caller knows, if the queue is a shard of one."""
    fifo: bool = False
    """Whether any of them may be of a FIFO zone."""


class ReturnUnseen(msgspec.Struct, frozen=True, gc=False):
    """A claim that its caller never heard of goes back to its old place, later if it cannot now."""

    job_id: str
    token: int


class AdoptRing(msgspec.Struct, frozen=True, gc=False):
    """Tell a shard of the ring that it belongs to. Answers the ring it knows then, which may be a newer one."""

    generation: int
    size: int
    token: int


class Observed(msgspec.Struct, frozen=True, gc=False):
    """A lease as a visitor saw it. If it still looks like this, it was not renewed in between."""

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


class Lapse(msgspec.Struct, frozen=True, gc=False):
    """Cancel the waiting jobs that have expired. Answers how many those were."""


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


class PauseSchedule(msgspec.Struct, frozen=True, gc=False):
    """No more ticks, or from `next_ms` on again; what passes meanwhile is not made up for. Answers None as above."""

    name: str
    paused: bool
    next_ms: int


class Tick(msgspec.Struct, frozen=True, gc=False):
    """A schedule's time has come: add the job and move on to `next_ms`, in one commit, if `tick_ms` is still next.
    Answers whether it was. Without a job it only moves on."""

    name: str
    tick_ms: int
    next_ms: int
    job: JobSpec | None = None
    at_ms: int | None = None
    """Which tick the job is for, if several had passed; otherwise `tick_ms`."""


Command: TypeAlias = (
    Request[Any] | Admit | ReturnUnseen | AdoptRing | Expire | Lapse | Watch | SetSchedule | PauseSchedule | Tick
)
