"""The last batch of each recent writer that landed: how a writer learns the fate of an unanswered write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from casque.state.facet import Facet
from casque.state.limits import Limits

if TYPE_CHECKING:
    from casque.state.machine import State


class WriterFacet(Facet["int | None"]):
    """Changed only by commits, so that there is nothing to take back. The table itself has a place of its own in stored
    states; what it forgot is stored as the others are."""

    STORED = "writers_forgotten"

    def __init__(self, limits: Limits) -> None:
        self._most = limits.writers_max
        self.last: dict[str, int] = {}
        """The writer that was silent longest comes first."""
        self.forgotten = 0
        """No batch of a writer that was dropped from the table landed at a higher position; see `fate`."""

    def copied(self) -> int | None:
        return self.forgotten

    def stored(self, state: State) -> int | None:  # noqa: ARG002
        return self.kept_forgotten(self.forgotten, self.last)

    def kept_forgotten(self, forgotten: int, writers: dict[str, int]) -> int | None:
        """What is stored with this table; None while it has room: one that never was full says nothing of it."""
        return forgotten if forgotten or len(writers) >= self._most else None

    def restore(self, state: State, data: int | None) -> None:
        """None: the table had room, or a release stored it that kept no account. A full one has forgotten some."""
        if data is None:
            data = forgotten_before(state.position, self.last) if len(self.last) >= self._most else 0
        self.forgotten = data

    def landed(self, writer: str, batch: int, position: int) -> None:
        self.forgotten = self._add(self.last, writer, batch, position)

    def after(self, writer: str, batch: int, position: int) -> tuple[dict[str, int], int]:
        """The table after this batch, and what it forgot."""
        writers = dict(self.last)
        return writers, self._add(writers, writer, batch, position)

    def fate(self, writer: str, batch: int, *, tried: int) -> bool | None:
        """Whether this batch of a writer, or a later one, has landed; None if that may have been forgotten.

        `tried` is the first position at which it was tried: had it landed there or later, and were its writer not in
        the table, then that position would be among the forgotten ones.
        """
        last = self.last.get(writer)
        if last is not None:
            return last >= batch
        return None if self.forgotten >= tried else False

    def _add(self, writers: dict[str, int], writer: str, batch: int, position: int) -> int:
        """Adds to the table; returns up to which position its writers may have been forgotten."""
        writers.pop(writer, None)  # the newest goes to the end
        full = len(writers) >= self._most
        if full:
            del writers[next(iter(writers))]
        writers[writer] = batch
        return max(self.forgotten, forgotten_before(position, writers)) if full else self.forgotten


def forgotten_before(position: int, writers: dict[str, int]) -> int:
    """The highest position that a writer dropped from this table can have: each of those in it wrote later."""
    return max(position - len(writers), 0)
