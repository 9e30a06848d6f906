"""Calls that share a request id are attempts at one thing: one call for the rest of the checker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from simulation.history.call import Call, Outcome


def merge(calls: Sequence[Call]) -> Iterator[Call]:
    """Each request once: begun with its first attempt, answered by the first that succeeded."""
    for call in calls:
        if call.asked.request is None:
            yield call
    for attempts in _by_request(calls).values():
        yield from _merged(attempts)


def disagreements(calls: Sequence[Call]) -> Iterator[str]:
    """Requests that were given two answers."""
    for request, attempts in _by_request(calls).items():
        succeeded = [call for call in attempts if call.is_ok]
        if attempts[0].verb == "dequeue":
            yield from _claimed_anew(request, succeeded)
        elif (ways := len({tuple((claim.job, claim.token) for claim in call.claims) for call in succeeded})) > 1:
            yield f"request {request} was answered in {ways} ways: {_shown(attempts)}"
        if succeeded and any(call.outcome is Outcome.REFUSED for call in attempts):
            yield f"request {request} was carried out and refused: {_shown(attempts)}"


def _by_request(calls: Sequence[Call]) -> dict[str, list[Call]]:
    requests: dict[str, list[Call]] = defaultdict(list)
    for call in sorted(calls, key=lambda call: call.began_ms):
        if call.asked.request is not None:
            requests[call.asked.request].append(call)
    return requests


def _claimed_anew(request: str, succeeded: Sequence[Call]) -> Iterator[str]:
    """A dequeue that is asked again answers those of its jobs that it still holds, and no others. An empty answer
    changed nothing, and is not remembered."""
    for earlier, later in pairwise(succeeded):
        had = {(claim.job, claim.token) for claim in earlier.claims}
        has = {(claim.job, claim.token) for claim in later.claims}
        if had and earlier.ended_ms <= later.began_ms and has - had:
            yield f"request {request} claimed once more: {_shown([earlier, later])}"


def _merged(attempts: Sequence[Call]) -> Iterator[Call]:
    asked = attempts[0].asked
    succeeded = [call for call in attempts if call.is_ok]
    if succeeded:
        in_order = sorted(succeeded, key=lambda call: call.ended_ms)
        # A dequeue that found nothing changed nothing: what counts is the attempt that claimed.
        yield Call(asked, next((call for call in in_order if call.claims), in_order[0]).answered)
        return
    refused = [call for call in attempts if call.outcome is Outcome.REFUSED]
    unknown = [call for call in attempts if call.outcome is Outcome.UNKNOWN]
    # An attempt that was never answered may still act, after the others were refused.
    yield from refused
    if unknown:
        yield Call(asked)
    elif not refused:
        yield Call(asked, attempts[-1].answered)


def _shown(attempts: Sequence[Call]) -> str:
    return "; ".join(f"{call} {msgspec.json.encode(call.claims).decode()}" for call in attempts)
