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
    given = [
        f"{name}={values[name]}" if parameter.kind is parameter.KEYWORD_ONLY else values[name]
        for name, parameter in inspect.signature(target).parameters.items()
    ]
    source = f"lambda {takes}: target({', '.join(given)})"
    made: Callable[..., S] = eval(source, {**names, "target": target})  # noqa: S307  no input, see above
    return made
