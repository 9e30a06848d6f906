"""Where settings were last written: a copy of an older value must lose to every later write."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

from casque.state.facet import Facet

if TYPE_CHECKING:
    from casque.state.machine import State

MARKS_MAX = 10_000

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SettingMarks(Generic[K]):
    """The position of the last write of each setting, as far as this state has seen it. Not stored: a setting that a
    state did not see written counts as written where the state begins."""

    def __init__(self) -> None:
        self._written: dict[K, int] = {}
        self._forgotten = 0
        self._before: dict[K, int | None] = {}
        """The marks that the batch has changed, as they were before it."""

    def written(self, name: K, position: int) -> None:
        self._before.setdefault(name, self._written.get(name))
        self._written[name] = position

    def is_written_since(self, name: K, position: int, *, begins: int) -> bool:
        """`begins`: the position that the state was restored at."""
        return self._written.get(name, max(self._forgotten, begins)) > position

    def commit(self) -> None:
        self._before.clear()
        if len(self._written) > MARKS_MAX:
            # At worst a copy is refused, and made again from a newer read.
            self._forgotten = max(self._written.values())
            self._written.clear()

    def rollback(self) -> None:
        for name, position in self._before.items():
            if position is None:
                del self._written[name]
            else:
                self._written[name] = position
        self._before.clear()


class SettingFacet(Facet[T], Generic[T, K]):
    """A facet whose data are settings, each with a mark."""

    def __init__(self) -> None:
        self._marks: SettingMarks[K] = SettingMarks()

    def commit(self) -> None:
        super().commit()
        self._marks.commit()

    def rollback(self, state: State) -> None:
        super().rollback(state)
        self._marks.rollback()
