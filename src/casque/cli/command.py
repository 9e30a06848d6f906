"""How a command is declared: one decorator, for all of them.

    @command("jobs list", examples=["casque jobs list --state dead"], reads_only=True)
    def list_(target: QueueTarget, limit: Limit = 50, json: Json = False) -> None:
        \"\"\"Show the jobs of a queue.\"\"\"

The name is the path in the tree of commands, the docstring is the help. Parameters that several commands share are
fields of an `Options` class; they become arguments and options of each command that takes one. Errors, Ctrl-C and a
closed pipe end every command in the same way, see `exits`; a command that changes how a queue is run is `audited`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import cache, wraps
from types import ModuleType
from typing import Any, ClassVar, get_args, get_type_hints

import msgspec
import typer
from rich.markup import escape
from typer.models import ArgumentInfo

from casque.cli.audit import audited_call
from casque.cli.exits import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, handle_exits
from casque.cli.help import PlainCommand, PlainGroup, name_value, panel_of, short_help

HELP = {"help_option_names": ["-h", "--help"]}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters that several commands share. Fields are annotated like the parameters of a command."""

    options_last: ClassVar[bool] = False
    """Whether help lists the options after all others; otherwise they are where the command takes them."""


class Command(msgspec.Struct, frozen=True):
    """A command, ready to be added to the tree."""

    path: tuple[str, ...]
    """Its group, if it has one, and its name."""
    help: str
    epilog: str | None
    callback: Callable[..., None]
    interrupt_is_success: bool
    aliases: tuple[str, ...] = ()
    """Other names, which help does not list."""
    hidden: bool = False


def command(
    path: str,
    *,
    examples: Sequence[str] = (),
    audited: bool = False,
    reads_only: bool = False,
    interrupt_is_success: bool = False,
    aliases: Sequence[str] = (),
    hidden: bool = False,
) -> Callable[[Callable[..., None]], Command]:
    """Declare a command. `reads_only`: a closed pipe, as in `| head`, is no failure. `interrupt_is_success`: Ctrl-C is
    the usual way to end it. `hidden`: help does not list it."""
    closed = EXIT_DONE if reads_only else EXIT_FAILED
    interrupted = EXIT_DONE if interrupt_is_success else EXIT_INTERRUPTED

    def declared(function: Callable[..., None]) -> Command:
        signature, shared = _expand(inspect.signature(function, eval_str=True))

        @wraps(function)
        def run(**given: Any) -> None:
            arguments = dict(given)
            for name, kind in shared.items():
                arguments[name] = kind(**{field: arguments.pop(field) for field in kind.__struct_fields__})
            with handle_exits(closed=closed, interrupted=interrupted):
                function(**arguments)

        callback: Any = audited_call(path, run) if audited else run
        callback.__signature__ = signature
        callback.__annotations__ = {one.name: one.annotation for one in signature.parameters.values()}
        for parameter in signature.parameters.values():
            name_value(parameter.annotation, parameter.name)
        shown = "\n\n  ".join(map(escape, examples))
        epilog = f"\n[bold]Examples[/]\n\n  {shown}\n" if examples else None
        names = tuple(path.split())
        return Command(names, _help(function), epilog, callback, interrupt_is_success, tuple(aliases), hidden)

    return declared


def commands_of(module: ModuleType) -> list[Command]:
    """Those that a module declares, in its order."""
    things = vars(module).values()
    return [one for one in things if isinstance(one, Command) and one.callback.__module__ == module.__name__]


def build(commands: Iterable[Command], groups: Iterable[typer.Typer], app: typer.Typer) -> None:
    """Add every command to its group, and the groups to the app."""
    by_name = {group.info.name: group for group in groups}
    for one in commands:
        *group, name = one.path
        parent = by_name[group[0]] if group else app
        for each in (name, *one.aliases):
            parent.command(
                each,
                cls=PlainCommand,
                help=escape(one.help),
                short_help=escape(short_help(one.help)),
                epilog=one.epilog,
                hidden=one.hidden or each != name,
                rich_help_panel=None if group else panel_of(name),
            )(one.callback)
    for noun, group_ in by_name.items():
        app.add_typer(group_, rich_help_panel=panel_of(str(noun)))


def group(name: str, text: str, **options: Any) -> typer.Typer:
    """A noun that has commands."""
    return typer.Typer(
        name=name, help=text, rich_markup_mode="rich", **{"no_args_is_help": True, "cls": PlainGroup, **options}
    )


def _expand(signature: inspect.Signature) -> tuple[inspect.Signature, dict[str, type[Options]]]:
    """Replace each parameter of an `Options` class by its fields."""
    first: list[inspect.Parameter] = []
    last: list[inspect.Parameter] = []
    shared: dict[str, type[Options]] = {}
    for parameter in signature.parameters.values():
        kind = parameter.annotation
        if isinstance(kind, type) and issubclass(kind, Options):
            shared[parameter.name] = kind
            for field in _fields(kind):
                (last if kind.options_last and not _is_argument(field) else first).append(field)
        else:
            first.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    return inspect.Signature([*first, *last]), shared


@cache
def _fields(kind: type[Options]) -> tuple[inspect.Parameter, ...]:
    hints = get_type_hints(kind, include_extras=True)
    required = len(kind.__struct_fields__) - len(kind.__struct_defaults__)
    defaults = (*[msgspec.NODEFAULT] * required, *kind.__struct_defaults__)
    return tuple(
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if default is msgspec.NODEFAULT else default,
            annotation=hints[name],
        )
        for name, default in zip(kind.__struct_fields__, defaults, strict=True)
    )


def _is_argument(parameter: inspect.Parameter) -> bool:
    return any(isinstance(one, ArgumentInfo) for one in get_args(parameter.annotation))


def _help(function: Callable[..., object]) -> str:
    """The docstring, each paragraph on one line: the terminal wraps lines."""
    text = inspect.getdoc(function) or ""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
