"""What every facet of a state offers: its data, the rules for it, and the way back.

A facet never holds the state that it belongs to: that would be a cycle, and a state is dropped too often to be left to
the garbage collector. Its methods are given the state where they need other facets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from casque.state.machine import State

T = TypeVar("T")

Methods: TypeAlias = Mapping[type, str]
"""The name of a method for each type of request or event. Looked up by name, so that a test can replace one."""


class Facet(Generic[T]):
    """One kind of thing that a queue keeps. `T` is the form in which it is copied, stored and put back."""

    STORED: ClassVar[str | None] = None
    """Its name in stored states; None if it is not stored by that name."""
    HANDLERS: ClassVar[Methods] = {}
    """The method for each request: it checks, then makes events. `(state, request, now_ms)`"""
    APPLIERS: ClassVar[Methods] = {}
    """The method for each event: no checks, no choices. `(state, event, at_ms)`"""

    _before: tuple[T] | None = None
    """As it was before the batch; None while the batch has not changed it."""

    def copied(self) -> T:
        """Its data, safe from later changes."""
        raise NotImplementedError

    def restore(self, state: State, data: T) -> None:
        """Replace its data."""
        raise NotImplementedError

    def stored(self, state: State) -> T | None:  # noqa: ARG002  some leave out what another facet has ended
        """What a stored state says of it; None if there is nothing to say."""
        return self.copied() or None

    @property
    def is_changed(self) -> bool:
        """Whether this batch has changed it."""
        return self._before is not None

    def changing(self, state: State) -> None:
        """To be called before each change: the first one of a batch keeps what there was."""
        if self._before is None:
            self._before = (self.copied(),)
            state.changed.append(self)

    def commit(self) -> None:
        """The batch has landed. Called only if it changed this facet."""
        self._before = None

    def rollback(self, state: State) -> None:
        """The batch did not land."""
        if self._before is not None:
            [before], self._before = self._before, None
            self.restore(state, before)
