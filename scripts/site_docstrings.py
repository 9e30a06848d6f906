"""Griffe extension: docstrings of casque as the site shows them.

Examples become highlighted blocks, and members that are for other parts of casque ("For the worker: ...") are left out,
as they are in docs/reference/python.md.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.public_names import NOT_MADE


class Docstrings(griffe.Extension):
    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_blocks(obj.docstring.value)

    def on_class_members(self, *, cls: Any, **_: Any) -> None:
        if cls.name in NOT_MADE:
            cls.members.pop("__init__", None)
        for name, member in list(cls.members.items()):
            if member.is_alias or member.docstring is None:
                continue
            if member.docstring.value.startswith("For "):
                del cls.members[name]


def with_blocks(text: str) -> str:
    """A docstring whose examples are fenced blocks."""
    made: list[str] = []
    inside = False
    for line in text.splitlines():
        example = line.startswith((">>>", "...")) or (inside and bool(line.strip()))
        if example and not inside:
            made += ["", "```pycon"]
        if inside and not example:
            made.append("```")
        inside = example
        made.append(line)
    if inside:
        made.append("```")
    return "\n".join(made)
