"""Functions that make one form of a job from another, compiled once from the names of its fields.

Written out by hand each of them would list every field; a loop over the fields would cost several times as much, and a
queue converts millions of jobs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)


def converter(target: type[S], takes: str, values: Mapping[str, str], **names: Any) -> Callable[..., S]:
    """A function of the arguments `takes` that makes a `target`; `values` has an expression for each of its fields.

    Expressions come from this program alone, never from input. `names` are what they use besides the arguments.

    >>> from casque.types import Progress
    >>> converter(Progress, "row", {"done": "row[0]", "total": "row[1]", "note": "None"})((1, 2))
    Progress(done=1, total=2, note=None)
    """
    parameters = inspect.signature(target).parameters
    by_position = ", ".join(values[p.name] for p in parameters.values() if p.kind is not p.KEYWORD_ONLY)
    source = f"target({by_position})"
    if keywords := {p.name: p.default for p in parameters.values() if p.kind is p.KEYWORD_ONLY}:
        # Keywords cost as much as a dozen positions, and most jobs have none of these fields.
        absent = " and ".join(f"{values[name]} is {name}_default" for name in keywords)
        given = ", ".join(f"{name}={values[name]}" for name in keywords)
        source = f"{source} if {absent} else target({by_position}, {given})"
        names |= {f"{name}_default": default for name, default in keywords.items()}
    source = f"lambda {takes}: {source}"
    made: Callable[..., S] = eval(source, {**names, "target": target})  # noqa: S307  no input, see above
    return made
