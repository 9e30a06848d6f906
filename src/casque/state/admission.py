"""What an admission comes to, job by job: the same when it is decided and when it is read back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice, repeat

from casque.state.events import Added, Admitted, Event
from casque.types import JobSpec


def added_events(event: Admitted, specs: Sequence[JobSpec], at_ms: int) -> list[Added]:
    """The events that follow it. `specs` are those of all its parts; the time is that of the commit."""
    return added_run(admitted_specs(event, specs), event.first, at_ms)


def admitted_specs(event: Admitted, specs: Sequence[JobSpec]) -> Sequence[JobSpec]:
    """Those that it added."""
    kept = list(_without(specs, event.skipped)) if event.skipped else specs
    assert len(kept) == event.added, "it was made from other jobs"
    return kept


def added_run(specs: Sequence[JobSpec], first: int, at_ms: int) -> list[Added]:
    if all(spec.run_at_ms is None for spec in specs):
        return list(map(Added, specs, count(first), repeat(at_ms)))
    return [
        Added(spec, sequence, at_ms)
        if spec.run_at_ms is None or spec.run_at_ms <= at_ms
        else Added(spec, sequence, spec.run_at_ms, True)
        for sequence, spec in enumerate(specs, first)
    ]


def take_added(left: Iterator[Event], admitted: Admitted) -> list[Added]:
    """The events that follow an admission and belong to it."""
    added = list(islice(left, admitted.added))
    assert len(added) == admitted.added, "an admission without its jobs"
    assert all(type(event) is Added for event in added), "an admission without its jobs"
    return added  # type: ignore[return-value]


def runs_of(rows: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Rows that rise, as where each run begins and how long it is.

    >>> runs_of([3, 4, 5, 9])
    ((3, 3), (9, 1))
    """
    runs: list[tuple[int, int]] = []
    for row in rows:
        if runs and sum(runs[-1]) == row:
            runs[-1] = runs[-1][0], runs[-1][1] + 1
        else:
            runs.append((row, 1))
    return tuple(runs)


def _without(specs: Sequence[JobSpec], skipped: tuple[tuple[int, int], ...]) -> Iterator[JobSpec]:
    start = 0
    for first, length in skipped:
        yield from specs[start:first]
        start = first + length
    yield from specs[start:]
