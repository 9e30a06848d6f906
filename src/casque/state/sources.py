"""Sources of admissions: the last batch of each, and the admission that was decided and is yet to be carried out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from casque.errors import InvalidInputError
from casque.state.adding import check_zones
from casque.state.admission import added_run, admitted_specs, runs_of, take_added
from casque.state.commands import Admit
from casque.state.events import Added, Admitted, Event
from casque.state.facet import Facet, Methods
from casque.state.job_life import apply_added_all
from casque.types import Admission, JobSpec, LastBatch

if TYPE_CHECKING:
    from casque.state.machine import State

CARRIED_OUT_AT_ONCE = 10_000
"""Jobs of an admission, which take some ten milliseconds."""


class SourceFacet(Facet[dict[str, LastBatch]]):
    STORED = "admissions"
    HANDLERS: ClassVar[Methods] = {Admit: "admit"}
    APPLIERS: ClassVar[Methods] = {Admitted: "apply_admitted"}

    def __init__(self) -> None:
        self.last: dict[str, LastBatch] = {}
        """The last batch of each recent source, the one silent longest first."""
        self.pending: tuple[Admitted, list[JobSpec]] | None = None
        """The admission that was decided last and is yet to be carried out; see `carry_out`."""

    def copied(self) -> dict[str, LastBatch]:
        return dict(self.last)

    def restore(self, state: State, data: dict[str, LastBatch]) -> None:  # noqa: ARG002
        self.last.clear()
        self.last.update(data)

    def rollback(self, state: State) -> None:
        self.pending = None
        super().rollback(state)

    def admitted(self, source: str, batch: int) -> Admission | None:
        """What became of this batch, if it or a later one of its source was admitted."""
        last = self.last.get(source)
        if last is None or batch > last.batch:
            return None
        same = batch == last.batch
        return Admission(last.jobs if same else 0, last.skipped if same else 0, True, last.position)

    def admit(self, state: State, c: Admit, now_ms: int) -> Admission:  # noqa: ARG002  one signature for all handlers
        if (repeated := self.admitted(c.source, c.batch)) is not None:
            return repeated
        if state.ring is not None:
            state.places.check(state.ring, c.specs, request_id=None, generation=c.generation)
        skipped = _skipped(state, c)
        if state.gates:
            passed_over = set(skipped)
            state.facets.gates.check_not_draining(
                state, (spec for row, spec in enumerate(c.specs) if row not in passed_over)
            )
        if c.fifo or state.ready.fair.fifos:
            check_zones(state, c.specs)
        added = len(c.specs) - len(skipped)
        event = Admitted(c.source, c.batch, c.parts, added, state.counters.sequence + 1, runs_of(skipped))
        state.events.append(event)
        # A batch that has to be decided again, because another writer was faster, should not have added and taken back
        # a million jobs each time: they are added when the commit has landed, or when another command of the
        # same batch needs them.
        self.pending = event, c.specs
        return Admission(added, len(skipped), False, state.position + 1)

    def carry_out(self, state: State, now_ms: int) -> None:
        """Add the jobs of an admission that was decided, for those who need them before the commit lands: other
        commands of the same batch, and a commit that writes the whole queue."""
        for added in self.carrying_out(state, now_ms):
            state.events += added

    def carrying_out(self, state: State, at_ms: int) -> Iterator[list[Added]]:
        """The same, some jobs at a time, for callers with something else to do in between. Nothing at all if no
        admission was decided. Once begun it is finished, or rolled back."""
        if self.pending is None:
            return
        (event, specs), self.pending = self.pending, None
        self.apply_admitted(state, event, at_ms)
        kept = admitted_specs(event, specs)
        for start in range(0, len(kept), CARRIED_OUT_AT_ONCE):
            added = added_run(kept[start : start + CARRIED_OUT_AT_ONCE], event.first + start, at_ms)
            apply_added_all(state, added, at_ms)
            yield added

    def stored_events(self, state: State) -> list[Event]:
        """What happened since the last commit, without what staged objects tell."""
        if not self.is_changed:
            return state.events
        pending = self.pending[0] if self.pending is not None else None
        left = iter(state.events)
        stored: list[Event] = []
        for event in left:
            stored.append(event)
            if type(event) is Admitted and event is not pending:
                take_added(left, event)
        return stored

    def apply_admitted(self, state: State, event: Admitted, at_ms: int) -> None:  # noqa: ARG002
        self.changing(state)
        position, last = state.position + 1, self.last
        last.pop(event.source, None)  # the newest goes to the end
        if len(last) >= state.limits.sources_max:
            del last[next(iter(last))]
        skipped = sum(length for _, length in event.skipped)
        last[event.source] = LastBatch(event.batch, position, event.added, skipped)
        state.facets.staged.name(position, event.parts)


def _skipped(state: State, c: Admit) -> list[int]:
    """The rows that are not admitted, in order."""
    jobs, keys = state.jobs, state.keys
    known = not jobs.keys().isdisjoint(c.ids)
    twice = len(c.ids) != len(c.specs)
    if (known or twice) and not c.skip_known:
        seen: set[str] = set()
        for spec in c.specs:
            if spec.id in jobs:
                raise InvalidInputError(
                    f"a job with the id {spec.id!r} is already in the queue; nothing was admitted. With "
                    "skip_known=True such jobs are passed over"
                )
            if spec.id in seen:
                raise InvalidInputError(f"two jobs of one admission have the id {spec.id!r}; nothing was admitted")
            seen.add(spec.id)
    if not known and not twice and not c.keyed:
        return []
    skipped: list[int] = []
    ids: set[str] = set()
    held: set[str] = set()
    for row, spec in enumerate(c.specs):
        if spec.id in jobs or spec.id in ids or (spec.key is not None and (spec.key in keys or spec.key in held)):
            skipped.append(row)
            continue
        ids.add(spec.id)
        if spec.key is not None:
            held.add(spec.key)
    return skipped
