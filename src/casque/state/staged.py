"""Staged objects that commits name: each is needed for as long as its commit can be replayed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from casque.state.facet import Facet
from casque.types import Finished, StagedPart

if TYPE_CHECKING:
    from casque.state.machine import State


class Named(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A staged object that a commit names: replaying that commit needs it."""

    position: int
    key: str
    bytes: int


class StagedFacet(Facet[list[Named]]):
    STORED = "staged"

    def __init__(self) -> None:
        self.named: list[Named] = []
        """Those of the commits that can still be replayed, in order; see `unname`."""

    def copied(self) -> list[Named]:
        return list(self.named)

    def restore(self, state: State, data: list[Named]) -> None:  # noqa: ARG002
        self.named[:] = data

    def name(self, position: int, parts: Iterable[StagedPart]) -> None:
        self.named += [Named(position, part.key, part.bytes) for part in parts]

    def unname(self, floor: int) -> None:
        """Commits up to here are not replayed any more, so what they name is not needed."""
        drop_up_to(floor, self.named)

    def rollback(self, state: State) -> None:
        drop_after(state.position, self.named)


def position_of(one: Finished | Named) -> int:
    return one.position


def drop_up_to(position: int, kept: list[Named] | list[Finished]) -> None:
    if kept and kept[0].position <= position:
        del kept[: bisect_right(kept, position, key=position_of)]


def drop_after(position: int, kept: list[Named] | list[Finished]) -> None:
    while kept and kept[-1].position > position:
        kept.pop()
