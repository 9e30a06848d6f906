"""Command lines of `casque` in files that are seldom run: parsed by the real command line, and not carried out."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import typer.core
import typer.main

from casque.cli.main import app


class NotACommandError(Exception):
    """`casque` would refuse this command line."""


def parsed(arguments: Sequence[str]) -> Any:
    """The context of the command that `casque ARGUMENTS` would carry out.

    Raises:
        NotACommandError: there is no such command, option or argument; one is missing, or has a wrong value.
    """
    command: Any = _casque()
    rest = [str(argument) for argument in arguments]
    while isinstance(command, typer.core.TyperGroup):
        if not rest or rest[0] not in command.commands:
            raise NotACommandError(f"{rest[:1]} is none of {', '.join(command.commands)}")
        command = command.commands[rest.pop(0)]
    try:
        return command.make_context(command.name, rest)
    except Exception as error:
        raise NotACommandError(str(error)) from error


def commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Every command with its full name, groups' commands too."""
    for sub, found in getattr(command, "commands", {}).items():
        if hasattr(found, "commands"):
            yield from commands(f"{name} {sub}", found)
        else:
            yield f"{name} {sub}", found


@cache
def _casque() -> Any:
    return typer.main.get_command(app)


def in_shell(text: str) -> list[list[str]]:
    """The arguments of every `casque` command in a shell script."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        for at, word in enumerate(words):
            if word == "casque" and (at == 0 or words[at - 1] in ("&&", "|", ";", "run") or "=" in words[at - 1]):
                rest = words[at + 1 :]
                ends = [place for place, one in enumerate(rest) if one in ("|", "&&", ";", ">", "2>", "&")]
                found.append(rest[: ends[0]] if ends else rest)
    return found
