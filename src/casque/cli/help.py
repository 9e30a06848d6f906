"""What `--help` shows: words for values instead of Python types, and commands in panels, in the order of their use."""

from __future__ import annotations

import re
import types
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

from rich.markup import escape
from typer.core import TyperCommand, TyperGroup
from typer.models import OptionInfo

PANELS: dict[str, tuple[str, ...]] = {
    "Start": ("demo", "worker", "serve"),
    "Jobs": ("enqueue", "dequeue", "ack", "nack", "jobs", "cron", "archive"),
    "Queue": ("queue", "zones", "top", "tail"),
    "Operate": ("doctor", "token", "bench", "cost"),
    "Spark": ("pipeline", "report", "spark"),
}
"""The panels of `casque --help`, and what is in them."""
ORDER = tuple(name for names in PANELS.values() for name in names)


def panel_of(name: str) -> str | None:
    return next((panel for panel, names in PANELS.items() if name in names), None)


def short_help(text: str) -> str:
    """The beginning of a help text, for a list of commands."""
    return re.split(r"[.:;](?:\s|$)", text, maxsplit=1)[0] + "."


class PlainCommand(TyperCommand):
    """A command whose help names no types."""

    def get_params(self, ctx: Any) -> Any:
        return _without_types(super().get_params(ctx))


class PlainGroup(TyperGroup):
    """The same for a group. Lists the commands that have a panel in the order of the panels."""

    def get_params(self, ctx: Any) -> Any:
        return _without_types(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))


def name_value(annotation: Any, name: str) -> None:
    """Give an option that has none a metavar: a word that says what to write."""
    if get_origin(annotation) is not Annotated:
        return
    kind, *others = get_args(annotation)
    for option in others:
        if isinstance(option, OptionInfo):
            if option.metavar is None:
                option.metavar = "" if option.count else _word(kind, name)
            if option.help and "\\[" not in option.help:
                option.help = escape(option.help)


def _word(kind: Any, name: str) -> str:
    kinds = [one for one in get_args(kind) if one is not types.NoneType]
    if get_origin(kind) in (Union, types.UnionType, list, tuple) and kinds:
        return _word(kinds[0], name)
    if kind is bool:
        return ""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(one.value) for one in kind)
    if isinstance(kind, type) and issubclass(kind, Path):
        return "FILE"
    return "N" if kind in (int, float) else name.rpartition("_")[2].upper()


def _without_types(parameters: Sequence[Any]) -> Sequence[Any]:
    """Typer shows `<bool>` for its own flags, and `<str>` beside the name of an argument."""
    for one in parameters:
        if one.param_type_name == "argument":
            vars(one)["display_type_rich"] = lambda ctx: None  # noqa: ARG005
        elif getattr(one, "is_flag", False) and one.metavar is None:
            one.metavar = ""
    return parameters
