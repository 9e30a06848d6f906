"""Answers that are given again to callers who ask again, by the id of the request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from casque.errors import InvalidInputError
from casque.state.events import Remembered
from casque.state.facet import Facet, Methods
from casque.state.fingerprints import Repeatable, fingerprint
from casque.state.limits import Limits
from casque.state.request_ids import shown_id
from casque.state.request_memory import Answered, RequestMemory

if TYPE_CHECKING:
    from casque.state.machine import State


class AnswerFacet(Facet[Iterable[tuple[str, Answered]]]):
    APPLIERS: ClassVar[Methods] = {Remembered: "apply_remembered"}

    def __init__(self, limits: Limits) -> None:
        self._least, self._most = limits.requests_min, limits.requests_max
        self._memory = RequestMemory()

    @property
    def by_id(self) -> dict[str, Answered]:
        """The oldest first."""
        return self._memory.answers

    def copied(self) -> Iterable[tuple[str, Answered]]:
        return list(self._memory.answers.items())

    def restore(self, state: State, data: Iterable[tuple[str, Answered]]) -> None:  # noqa: ARG002
        self._memory = RequestMemory(data)

    def rollback(self, state: State) -> None:
        self._memory.take_back(event.request_id for event in reversed(state.events) if type(event) is Remembered)

    def trim(self, forgets: str | None) -> None:
        """At commits, so that every replica trims alike."""
        if self._memory.answers:
            self._memory.trim(forgets, least=self._least, most=self._most)

    def after(self, forgets: str | None) -> dict[str, Answered]:
        """Those that a commit leaves."""
        return self._memory.after(forgets, least=self._least, most=self._most)

    def seen(self, c: Repeatable, verb: str) -> Answered | None:
        """What this very request was answered before, if it was."""
        if c.request_id is None or (seen := self._memory.answers.get(c.request_id)) is None:
            return None
        before, _, what = seen.verb.partition(" ")
        if before != verb:
            raise InvalidInputError(
                f"request_id {shown_id(c.request_id)!r} was used before, to {before} and not to {verb}; "
                "use another id for another request"
            )
        if what and what != fingerprint(c):
            raise InvalidInputError(
                f"request_id {shown_id(c.request_id)!r} was used before, to {verb} something else; repeat the request "
                "as it was, or use another id"
            )
        return seen

    def remember(
        self,
        state: State,
        c: Repeatable,
        verb: str,
        now_ms: int,
        *,
        jobs: tuple[tuple[str, int], ...] = (),
        count: int = 0,
    ) -> None:
        assert c.request_id is not None
        state.happen(Remembered(c.request_id, f"{verb} {fingerprint(c)}", jobs, count), now_ms)

    def apply_remembered(self, state: State, event: Remembered, at_ms: int) -> None:  # noqa: ARG002
        self._memory.add(event.request_id, Answered(at_ms, event.verb, event.jobs, event.count))
