"""How commands are declared: shared options, and how every command ends."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner, Result

from casque import errors
from casque.cli.command import Command, Options, build, command, group
from casque.cli.exits import REFUSALS
from casque.cli.main import COMMANDS
from casque.cli.worker import WorkerOptions
from casque.cli.zones.consume import consume


class Where(Options, frozen=True, kw_only=True):
    """A shared argument and a shared option."""

    place: Annotated[str | None, typer.Argument()] = None
    depth: Annotated[int, typer.Option("--depth", min=1)] = 1


def run(declared: Command, *arguments: str) -> Result:
    app = typer.Typer()
    app.callback()(lambda: None)
    nouns = [group(name, "A noun.") for name in declared.path[:-1]]
    build([declared], nouns, app)
    return CliRunner().invoke(app, [*declared.path, *arguments])


def raising(error: BaseException, **how: Any) -> Command:
    @command("fail", **how)
    def fail() -> None:
        """Fail."""
        raise error

    return fail


def test_fields_of_shared_options_are_parameters_of_the_command() -> None:
    @command("dig hole", examples=["casque dig hole here"])
    def hole(where: Where, tool: Annotated[str, typer.Option("--tool")] = "spade") -> None:
        """Dig
        a hole."""
        print(where.place, where.depth, tool)

    assert run(hole, "here", "--depth", "3").stdout == "here 3 spade\n"
    assert run(hole, "--tool", "shovel").stdout == "None 1 shovel\n"
    assert run(hole, "--depth", "0").exit_code == 2
    assert (hole.path, hole.help) == (("dig", "hole"), "Dig a hole.")
    shown = run(hole, "--help").stdout
    assert shown.index("--depth") < shown.index("--tool")
    assert "casque dig hole here" in shown


def test_options_of_a_target_are_listed_after_all_others() -> None:
    [one] = [one for one in COMMANDS if one.path == ("jobs", "list")]
    assert list(inspect.signature(one.callback).parameters) == [
        *("url", "state", "entrypoint", "zone", "tag", "limit", "json", "queue", "app", "option", "ca")
    ]


def made(kind: type[errors.CasqueError]) -> errors.CasqueError:
    error = kind.__new__(kind)
    Exception.__init__(error, "what is wrong")
    for name in ("key", "problem"):
        setattr(error, name, "what is wrong")
    return error


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.CorruptQueueError, 1),
        (errors.UnknownOutcomeError, 4),
        *((kind, 1) for kind in REFUSALS),
        (errors.InvalidInputError, 2),
        (errors.StoreAccessError, 2),
    ],
)
def test_an_error_ends_a_command_with_its_message_and_exit_code(kind: type[errors.CasqueError], code: int) -> None:
    result = run(raising(made(kind)))
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr.strip()


@pytest.mark.parametrize(("how", "code"), [({}, 130), ({"interrupt_is_success": True}, 0)])
def test_ctrl_c_is_a_failure_unless_it_is_the_usual_end(how: dict[str, bool], code: int) -> None:
    assert run(raising(KeyboardInterrupt(), **how)).exit_code == code


WRITES = """
from casque.cli.command import command

@command("write", **{how})
def write():
    print("a line", flush=True)

import typer
app = typer.Typer()
app.command()(write.callback)
app()
"""


@pytest.mark.parametrize(("how", "code"), [({}, 1), ({"reads_only": True}, 0)])
def test_closed_output_is_a_failure_unless_the_command_only_reads(how: dict[str, bool], code: int) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        program = [sys.executable, "-c", WRITES.replace("{how}", repr(how))]
        ended = subprocess.run(program, stdout=write, stderr=subprocess.PIPE, timeout=60)
    finally:
        os.close(write)
    assert (ended.returncode, ended.stderr) == (code, b"")


def test_only_commands_that_watch_take_ctrl_c_for_success() -> None:
    """An interrupted check or conversion must not look like one that succeeded."""
    successes = {" ".join(one.path) for one in COMMANDS if one.interrupt_is_success}
    assert successes == {"tail", "top", "archive cat", "archive list", "pipeline run"}


def test_zones_consume_has_every_option_of_a_worker() -> None:
    taken = inspect.signature(consume.callback).parameters
    for name in WorkerOptions.__struct_fields__:
        assert name in taken
