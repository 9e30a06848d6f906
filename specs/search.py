"""Breadth first through every state a model can reach, so that the first violation found is a shortest one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import Any, Protocol

Progress = Callable[[int, int, float], None]
State = Hashable


class Model(Protocol):
    """What can be searched: where it begins, every step that may follow, and what is wrong with a state."""

    @property
    def first(self) -> Any: ...

    def steps(self, state: Any, /) -> Iterator[tuple[str, Any]]: ...

    def violation(self, state: Any, /) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a search came to."""

    states: int
    depth: int
    seconds: float
    violation: str = ""
    trace: tuple[str, ...] = ()

    @property
    def safe(self) -> bool:
        return not self.violation


def search(model: Model, *, progress: Progress | None = None) -> Outcome:
    """Explore every reachable state, or stop at the first one in which something is wrong.

    States are kept whole, each with the one it was first reached from: no fingerprints, so no state is taken for
    another."""
    with _no_garbage():
        return _search(model, progress)


def _search(model: Model, progress: Progress | None) -> Outcome:
    began = perf_counter()
    parents: dict[State, State | None] = {model.first: None}
    level, depth = [model.first], 0
    while level:
        depth += 1
        following = []
        for state in level:
            for _, after in model.steps(state):
                if after in parents:
                    continue
                parents[after] = state
                following.append(after)
                if wrong := model.violation(after):
                    seconds = perf_counter() - began
                    trace = _trace(model, parents, after)
                    return Outcome(states=len(parents), depth=depth, seconds=seconds, violation=wrong, trace=trace)
        level = following
        if progress:
            progress(depth, len(parents), perf_counter() - began)
    return Outcome(states=len(parents), depth=depth - 1, seconds=perf_counter() - began)


@contextmanager
def _no_garbage() -> Iterator[None]:
    """States are kept and hold no cycles: looking through millions of them for garbage takes half the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _trace(model: Model, parents: dict[State, State | None], last: State) -> tuple[str, ...]:
    """The words of each step on the way to a state; found again rather than kept for millions of states."""
    path: list[State] = []
    state: State | None = last
    while state is not None:
        path.append(state)
        state = parents[state]
    path.reverse()
    return tuple(
        next(words for words, reached in model.steps(before) if reached == after) for before, after in pairwise(path)
    )
