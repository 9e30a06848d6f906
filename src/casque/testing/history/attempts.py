"""Calls that share a request id are attempts at one thing: one call for the rest of the checker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec

from casque.testing.history.call import Call, Outcome


def merge(calls: Sequence[Call]) -> Iterator[Call]:
    """Each request once: begun with its first attempt, answered by the first that succeeded."""
    requests: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        if call.asked.request is None:
            yield call
        else:
            requests[call.asked.request].append(call)
    for attempts in requests.values():
        yield _one(attempts)


def disagreements(calls: Sequence[Call]) -> Iterator[str]:
    """Requests that were given two answers."""
    requests: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        if call.asked.request is not None:
            requests[call.asked.request].append(call)
    for request, attempts in requests.items():
        succeeded = [call for call in attempts if call.is_ok]
        answers = {tuple((claim.job, claim.token) for claim in call.claims) for call in succeeded}
        if len(answers) > 1:
            yield f"request {request} was answered in {len(answers)} ways: {_shown(attempts)}"
        if succeeded and any(call.outcome is Outcome.REFUSED for call in attempts):
            yield f"request {request} was carried out and refused: {_shown(attempts)}"


def _one(attempts: Sequence[Call]) -> Call:
    asked = min((call.asked for call in attempts), key=lambda asked: asked.at_ms)
    for outcome in (Outcome.OK, Outcome.UNKNOWN, Outcome.REFUSED):
        ended = [call for call in attempts if call.outcome is outcome]
        if ended:
            return Call(asked, min(ended, key=lambda call: call.ended_ms).answered)
    return Call(asked, attempts[-1].answered)


def _shown(attempts: Sequence[Call]) -> str:
    return "; ".join(f"{call} {msgspec.json.encode(call.claims).decode()}" for call in attempts)
