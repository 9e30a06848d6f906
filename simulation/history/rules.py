"""What may not overlap, and what may not come before something else.

Nothing here guesses: a span counts only where it certainly held (from the end of the call that began it to the start
of the first call that could have ended it), so a finding is always a broken promise.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from simulation.history.call import FOREVER_MS, Call
from simulation.history.jobs import JobCalls

SLACK_MS = 2
"""Two clocks' reading and rounding."""
RELEASES = ("ack", "nack", "give_back")
ENDS = ("ack", "cancel")


class Span(NamedTuple):
    """Certainly held, from and to."""

    from_ms: int
    to_ms: int
    holder: str


def overlaps(spans: Iterable[Span]) -> Iterator[tuple[Span, Span]]:
    """Pairs of different holders that certainly held at the same time."""
    longest: Span | None = None
    for span in sorted(span for span in spans if span.to_ms > span.from_ms):
        if longest is not None and span.from_ms + SLACK_MS < longest.to_ms and span.holder != longest.holder:
            yield longest, span
        if longest is None or span.to_ms > longest.to_ms:
            longest = span


def lease_spans(job: JobCalls) -> Iterator[Span]:
    """How long each claim of a job certainly held: until it was let go, or its length after its last sign of life."""
    cancelled_ms = min((call.began_ms for call in job.calls if call.verb == "cancel"), default=FOREVER_MS)
    for token, (claim, lease_ms) in job.claimed.items():
        mine = [call for call in job.calls if call.asked.token == token]
        beats = [call.began_ms for call in mine if call.verb == "heartbeat" and call.is_ok]
        runs_out_ms = max([claim.began_ms, *beats]) + lease_ms
        let_go_ms = min((call.began_ms for call in mine if call.verb in RELEASES), default=FOREVER_MS)
        yield Span(claim.ended_ms, min(runs_out_ms, let_go_ms, cancelled_ms), f"{job.id} token {token}")


def life_span(job: JobCalls) -> Span | None:
    """From the moment it was certainly there to the first moment at which it may have been finished. None for a job
    that died, or may have: no call says when."""
    if job.added is None or job.died or (job.wish is not None and job.wish.once):
        return None
    ended_ms = min((call.began_ms for call in job.calls if call.verb in ENDS and call.may_have_acted), default=None)
    return Span(job.added.ended_ms, FOREVER_MS if ended_ms is None else ended_ms, job.id)


def leases_exclusive(jobs: Mapping[str, JobCalls]) -> Iterator[str]:
    for job in jobs.values():
        for one, other in overlaps(lease_spans(job)):
            yield f"two leases at once: {one.holder} until {one.to_ms}, {other.holder} from {other.from_ms}"


def keys_unique(jobs: Mapping[str, JobCalls]) -> Iterator[str]:
    by_key: dict[str, list[Span]] = defaultdict(list)
    for job in jobs.values():
        span = life_span(job)
        if job.wish is not None and job.wish.key is not None and span is not None:
            by_key[job.wish.key].append(span)
    for key, spans in by_key.items():
        for one, other in overlaps(spans):
            yield f"key {key!r} held twice: by {one.holder} until {one.to_ms}, by {other.holder} from {other.from_ms}"


def fifo_kept(jobs: Mapping[str, JobCalls]) -> Iterator[str]:
    """In a FIFO zone: one at a time, and none before one that was certainly added earlier has ended."""
    zones: dict[str, list[JobCalls]] = defaultdict(list)
    for job in jobs.values():
        if job.wish is not None and job.wish.fifo and job.wish.zone is not None:
            zones[job.wish.zone].append(job)
    for zone, members in zones.items():
        for one, other in overlaps(span for job in members for span in lease_spans(job)):
            yield f"FIFO zone {zone!r}: {one.holder} and {other.holder} at once"
        yield from _in_order(zone, members)


def _in_order(zone: str, members: Sequence[JobCalls]) -> Iterator[str]:
    lives = sorted(span for job in members if (span := life_span(job)) is not None)
    began = [span.from_ms for span in lives]
    latest: list[Span] = []
    for span in lives:
        latest.append(span if not latest or span.to_ms > latest[-1].to_ms else latest[-1])
    for job in members:
        if job.added is None or not job.claimed:
            continue
        before = bisect_left(began, job.added.began_ms)
        claimed_ms = min(claim.ended_ms for claim, _ in job.claimed.values())
        if before and latest[before - 1].to_ms > claimed_ms:
            yield f"FIFO zone {zone!r}: {job.id} claimed by {claimed_ms}, {latest[before - 1].holder} was before it"


def zone_leases_exclusive(calls: Iterable[Call]) -> Iterator[str]:
    zones: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        if call.asked.zone is not None and call.verb in ("lease_zone", "heartbeat_zone", "release_zone"):
            zones[call.asked.zone].append(call)
    for zone, about in zones.items():
        for one, other in overlaps(_zone_spans(about)):
            yield f"zone {zone!r} leased twice: {one.holder} until {one.to_ms}, {other.holder} from {other.from_ms}"


def _zone_spans(calls: Sequence[Call]) -> Iterator[Span]:
    for lease in calls:
        if lease.verb != "lease_zone" or not lease.is_ok or not lease.token:
            continue
        mine = [call for call in calls if call.asked.token == lease.token]
        beats = [call.began_ms for call in mine if call.verb == "heartbeat_zone" and call.is_ok]
        released_ms = min((call.began_ms for call in mine if call.verb == "release_zone"), default=FOREVER_MS)
        runs_out_ms = max([lease.began_ms, *beats]) + lease.asked.lease_ms
        yield Span(lease.ended_ms, min(runs_out_ms, released_ms), f"token {lease.token}")
