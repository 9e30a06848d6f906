"""Jobs that come together: a batch is admitted once, and what is promised as a whole is there whole or not at all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from simulation.history.call import Call
from simulation.history.jobs import Register


def admitted_once(calls: Iterable[Call]) -> Iterator[str]:
    """Of all attempts at one batch, one at most may say that it was the one that admitted it, and then all of it."""
    batches: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        if call.verb == "admit" and call.is_ok and call.asked.request is not None:
            batches[call.asked.request].append(call)
    for batch, answered in batches.items():
        admitted = [call for call in answered if call.answered is not None and not call.answered.repeated]
        if len(admitted) > 1:
            yield f"batch {batch} was admitted {len(admitted)} times: {'; '.join(map(str, admitted))}"
        yield from _in_full(batch, admitted)


def _in_full(batch: str, admitted: Sequence[Call]) -> Iterator[str]:
    for call in admitted:
        assert call.answered is not None
        if call.answered.jobs != len(call.asked.wishes):
            yield f"batch {batch} has {len(call.asked.wishes)} jobs, and {call.answered.jobs} were admitted: {call}"


def whole_or_absent(found: Register) -> Iterator[str]:
    """Jobs of one commit are all there or none is. One with a key may be absent alone: another job had the key."""
    together: dict[str, tuple[Call, list[str]]] = {}
    for tag, (wish, call) in found.wishes.items():
        if call.asked.whole and wish.key is None:
            together.setdefault(call.asked.call, (call, []))[1].append(tag)
    for call, tags in together.values():
        there = [tag for tag in tags if found.ids.get(tag)]
        if 0 < len(there) < len(tags):
            missing = sorted(set(tags) - set(there))
            yield f"{len(there)} of {len(tags)} jobs of one {call.verb} are there, {missing[0]} is not: {call}"
