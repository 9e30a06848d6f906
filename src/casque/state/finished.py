"""Finished jobs that are yet to be archived."""

from __future__ import annotations

from typing import TYPE_CHECKING

from casque.state.facet import Facet
from casque.state.staged import drop_after, drop_up_to
from casque.types import Finished

if TYPE_CHECKING:
    from casque.state.machine import State


class FinishedFacet(Facet[list[Finished]]):
    def __init__(self, *, kept: bool) -> None:
        self.kept = kept
        """Whether any are kept: without an archive none are."""
        self.pending: list[Finished] = []
        """In order of their commits."""
        self.archived = 0
        """What finished up to this position is kept no longer."""
        self.archiving: int | None = None
        """Up to here a process has begun to archive. Only used where the state itself is stored with every commit."""

    def copied(self) -> list[Finished]:
        return list(self.pending)

    def restore(self, state: State, data: list[Finished]) -> None:  # noqa: ARG002
        self.pending[:] = data if self.kept else ()

    def shed(self, archived: int) -> None:
        """What finished up to this position is in the archive, and not needed here."""
        self.archived = max(self.archived, archived)
        # Looked at also if the mark is where it was: what was replayed since may lie below it.
        drop_up_to(self.archived, self.pending)

    def rollback(self, state: State) -> None:
        drop_after(state.position, self.pending)
