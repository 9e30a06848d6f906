"""What a gate lets through: nothing is claimed while it is paused, nothing is added while it drains.

It was certainly closed from the end of the call that closed it to the start of the first call that could have opened it
again. Only what began and ended within such a span is held against it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from simulation.history.call import FOREVER_MS, Call
from simulation.history.jobs import JobCalls
from simulation.history.rules import Span

PAUSED, DRAINING = "paused", "draining"


def gates_kept(calls: Sequence[Call], jobs: Mapping[str, JobCalls]) -> Iterator[str]:
    changes: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        if call.verb == "gate" and call.asked.entrypoint is not None and call.may_have_acted:
            changes[call.asked.entrypoint].append(call)
    for entrypoint, set_there in changes.items():
        paused, draining = _closed(set_there, PAUSED), _closed(set_there, DRAINING)
        for job in jobs.values():
            if job.wish is None or job.wish.entrypoint != entrypoint:
                continue
            for token, (claim, _) in job.claimed.items():
                if (span := _around(paused, claim)) is not None:
                    yield f"{entrypoint!r} was {span.holder}, and {job.id} was claimed with token {token}: {claim}"
            if job.added is not None and job.added.is_ok and (span := _around(draining, job.added)) is not None:
                yield f"{entrypoint!r} was {span.holder}, and {job.id} was added: {job.added}"


def _closed(changes: Sequence[Call], gate: str) -> list[Span]:
    """When the gate was certainly like this."""
    spans = []
    for change in changes:
        if change.asked.gate == gate and change.is_ok:
            others = [
                other.began_ms
                for other in changes
                # One that was over before this one began has no say any more.
                if other.asked.gate != gate and other.ended_ms >= change.began_ms
            ]
            until_ms = min(others, default=FOREVER_MS)
            if until_ms > change.ended_ms:
                spans.append(Span(change.ended_ms, until_ms, f"{gate} since {change.ended_ms}"))
    return sorted(spans)


def _around(spans: Sequence[Span], call: Call) -> Span | None:
    """The span that this call began and ended in."""
    at = bisect_left(spans, (call.began_ms,)) - 1
    return spans[at] if at >= 0 and call.ended_ms < spans[at].to_ms else None
