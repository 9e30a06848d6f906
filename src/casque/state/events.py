"""What happened. Events are stored, so their fields only ever grow, at the end and with defaults.

All events of a commit share its time, which is therefore kept once with the commit and not in each of them.
They encode as arrays that start with the event's name, short and still readable with `cat`.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from casque.types import Ending, Gate, JobSpec, Progress, ScheduleSpec, StagedPart, ZoneRules


class Added(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="added"):
    spec: JobSpec
    sequence: int
    due_ms: int
    delayed: bool = False


class Admitted(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="admitted"):
    """A batch of staged jobs. Their `Added` events follow it, except in a stored segment: there the parts tell them."""

    source: str
    batch: int
    parts: tuple[StagedPart, ...]
    added: int
    first: int
    """The sequence of the first job that was added; the others follow without a gap."""
    skipped: tuple[tuple[int, int], ...] = ()
    """Rows that were not added, counted from 0 through all parts: where a run of them begins, and its length."""


class Claimed(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="claimed"):
    job_id: str
    token: int
    lease_ms: int
    worker: str | None = None


class Beaten(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="beaten"):
    job_id: str
    token: int


class Advanced(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="advanced"):
    """A beat that says how far the work has come."""

    job_id: str
    token: int
    progress: Progress


class Acked(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="acked"):
    job_id: str
    token: int
    result: bytes | None = None


class Nacked(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="nacked"):
    job_id: str
    token: int
    due_ms: int
    delayed: bool = False
    error: str | None = None


class Returned(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="returned"):
    job_id: str
    token: int


class Expired(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="expired"):
    job_id: str
    token: int
    due_ms: int


class Snoozed(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="snoozed"):
    """The claim does not count, and the job waits."""

    job_id: str
    token: int
    due_ms: int
    delayed: bool = False


class Declined(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="declined"):
    """Its worker did not understand it. The claim does not count, and the job waits for another one."""

    job_id: str
    token: int
    due_ms: int
    error: str | None = None


class Crashed(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="crashed"):
    """The worker died of it. The claim counts as a crash and not as an attempt."""

    job_id: str
    token: int
    due_ms: int
    delayed: bool = False
    error: str | None = None


class Died(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="died"):
    job_id: str
    token: int
    error: str | None = None
    how: Ending | None = None
    """How its last attempt ended: it failed, or its lease ran out. None in events of older releases."""


class Quarantined(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="quarantined"):
    """It died of one crash too many, which is no attempt."""

    job_id: str
    token: int
    error: str | None = None


class Cancelled(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="cancelled"):
    job_id: str


class Withdrawn(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="withdrawn"):
    """Its worker cancelled it, and may have said why."""

    job_id: str
    token: int
    error: str | None = None


class Lapsed(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="lapsed"):
    """It waited for longer than it was wanted."""

    job_id: str
    error: str | None = None


class Revived(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="revived"):
    job_id: str
    due_ms: int


class Rescheduled(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="rescheduled"):
    """It waits still, for another time or with another priority."""

    job_id: str
    due_ms: int
    delayed: bool
    run_at_ms: int | None
    priority: int


class Purged(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="purged"):
    job_id: str


class Gated(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="gated"):
    """What the whole queue, or one entrypoint, lets through from now on."""

    gate: Gate
    entrypoint: str | None = None


class Zoned(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="zoned"):
    """What share of the turns a zone has from now on, and what holds it back."""

    zone: str
    rules: ZoneRules


class ZoneLeased(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="zone_leased"):
    """A worker has leased the zone: only a claim with this lease gets its jobs."""

    zone: str
    token: int
    lease_ms: int
    worker: str | None = None


class ZoneBeaten(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="zone_beaten"):
    zone: str
    token: int


class ZoneReleased(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="zone_released"):
    zone: str
    token: int


class ZoneExpired(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="zone_expired"):
    """The holder of the zone fell silent."""

    zone: str
    token: int


class Watched(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="watched"):
    """A process that did not stay for the whole length of a lease says what it saw of it. Which lease that was, and
    that it had not been renewed, was checked when this was decided."""

    subject: str
    """The id of the job, or the name of the zone."""
    token: int
    watched_ms: int
    """By the monotonic clock of that process, and after the end of all visits before it."""
    dated_ms: int
    """What is believed of the time between visits, which only written times tell of."""
    is_zone: bool = False


class Ringed(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="ringed"):
    """The queue is this shard of a ring, of this size from now on."""

    generation: int
    size: int
    token: int


class Remembered(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="remembered"):
    """The answer to a request id: what was asked, the jobs it concerned with their tokens, or a count."""

    request_id: str
    """With the caller's name before it, if it came through a broker with tokens."""
    verb: str
    """And a fingerprint of what was asked, after a space."""
    jobs: tuple[tuple[str, int], ...] = ()
    count: int = 0


class Scheduled(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="scheduled"):
    """A schedule was set, changed, paused or resumed: this is how it stands now."""

    spec: ScheduleSpec
    next_ms: int
    paused: bool = False


class Unscheduled(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="unscheduled"):
    name: str


class Ticked(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="ticked"):
    """A schedule moved on. Its job, if it became one, is in the `Added` before it."""

    name: str
    tick_ms: int
    next_ms: int
    job: str | None = None
    """Its id."""


Event: TypeAlias = (
    Added
    | Admitted
    | Claimed
    | Beaten
    | Advanced
    | Acked
    | Nacked
    | Returned
    | Snoozed
    | Declined
    | Expired
    | Crashed
    | Died
    | Quarantined
    | Cancelled
    | Withdrawn
    | Lapsed
    | Revived
    | Rescheduled
    | Purged
    | Gated
    | Zoned
    | ZoneLeased
    | ZoneBeaten
    | ZoneReleased
    | ZoneExpired
    | Watched
    | Ringed
    | Remembered
    | Scheduled
    | Unscheduled
    | Ticked
)


def subject(event: Event) -> str | None:
    """The id of the job that the event is about, if it is about one."""
    if isinstance(event, Added):
        return event.spec.id
    if isinstance(event, Watched):
        return None if event.is_zone else event.subject
    about_zone = Zoned | ZoneLeased | ZoneBeaten | ZoneReleased | ZoneExpired
    about_none = Remembered | Admitted | Gated | about_zone | Ringed | Scheduled | Unscheduled | Ticked
    return None if isinstance(event, about_none) else event.job_id
