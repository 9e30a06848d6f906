"""Every command that administers a queue leaves a line in the audit log; the others are named here."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from casque.cli.audit import FILE
from casque.cli.main import app

NOT_ADMINISTRATIVE = {
    "archive cat", "archive erasures", "archive list", "bench", "cost", "cron list", "demo", "doctor", "jobs list",
    "jobs show", "pipeline check", "pipeline run",
    "queue info", "queue verify", "report", "spark doctor", "spark replay", "tail", "token list", "top",
    "zones export", "zones list", "zones peek", "zones show",  # these look
    "ack", "dequeue", "enqueue", "nack", "serve", "spark work", "worker", "zones consume",  # these work
}  # fmt: skip
FOREIGN = Path(__file__).parents[1] / "compat" / "jqueue-1.0" / "queued.json"
NAMES = {"convert": "queue convert", "import": "queue import"}
"""Commands that have two names."""


def commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        elif name != "ls":  # another name of `list`
            yield before + name, command


def every() -> dict[str, Any]:
    return dict(commands(typer.main.get_command(app)))


def is_audited(command: Any) -> bool:
    function = command.callback
    while function is not None and not hasattr(function, "audited"):
        function = getattr(function, "__wrapped__", None)
    return function is not None


AUDITED = {name for name, command in every().items() if is_audited(command)}


def test_every_command_is_audited_or_named_as_one_that_need_not_be() -> None:
    assert set(every()) - AUDITED == NOT_ADMINISTRATIVE


JOB = ["enqueue {q} send x"]
CRON = [*JOB, "cron set {q} nightly @daily --entrypoint send"]
TOKEN = ["token new --file {tokens} --name shop --scope produce"]
ACTS: dict[str, tuple[list[str], str]] = {
    "convert": (JOB, "convert {q} --to document"),
    "queue convert": (JOB, "queue convert {q} --to document"),
    "import": ([], "import {foreign} {q}"),
    "queue import": ([], "queue import {foreign} {q}"),
    "queue create": ([], "queue create {q}"),
    "queue resize": (["queue create {q} --shards 2"], "queue resize {q} --shards 3"),
    "queue pause": (JOB, "queue pause {q}"),
    "queue resume": (JOB, "queue resume {q}"),
    "queue drain": (JOB, "queue drain {q} --no-wait"),
    "queue backup": (JOB, "queue backup {q} {q}-copy"),
    "queue restore": ([*JOB, "queue backup {q} {q}-copy"], "queue restore {q}-copy {q}-restored"),
    "queue clone": (JOB, "queue clone {q} {q}-copy"),
    "queue release": (JOB, "queue release {q} --lease 0.2"),
    "jobs cancel": (JOB, "jobs cancel {q} --all --yes"),
    "jobs retry": (JOB, "jobs retry {q} --all"),
    "jobs reschedule": (JOB, "jobs reschedule {q} --all --delay 1h --yes"),
    "jobs purge": (JOB, "jobs purge {q} --yes"),
    "jobs requeue": (JOB, "jobs requeue {q} --stale 60 --yes"),
    "cron set": (JOB, CRON[-1]),
    "cron pause": (CRON, "cron pause {q} nightly"),
    "cron resume": (CRON, "cron resume {q} nightly"),
    "cron trigger": (CRON, "cron trigger {q} nightly"),
    "cron drop": (CRON, "cron drop {q} nightly --yes"),
    "zones set": (JOB, "zones set {q} acme --weight 2"),
    "zones pause": (JOB, "zones pause {q} acme"),
    "zones resume": (JOB, "zones resume {q} acme"),
    "zones purge": (JOB, "zones purge {q} acme --yes"),
    "archive erase": (JOB, "archive erase {q} --zone acme --yes"),
    "token new": ([], TOKEN[0]),
    "token revoke": (TOKEN, "token revoke --file {tokens} --name shop"),
}


def run(folder: Path, line: str) -> int:
    words = line.format(q=f"file://{folder}/q", tokens=folder / "tokens.json", foreign=FOREIGN).split()
    return CliRunner().invoke(app, words).exit_code


def test_every_audited_command_is_tried() -> None:
    assert set(ACTS) == AUDITED


@pytest.mark.parametrize("name", ACTS)
def test_a_command_that_administers_says_who_did_what(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, act = ACTS[name]
    for line in before:
        assert run(tmp_path, line) == 0, line
    log = tmp_path / "audit.log"
    monkeypatch.setenv(FILE, str(log))

    assert run(tmp_path, act) == 0

    [line] = log.read_text().splitlines()
    assert f"audit: {NAMES.get(name, name)}(" in line
    assert f"by '{getpass.getuser()}' from {socket.gethostname()} over the command line: done" in line
    assert log.stat().st_mode & 0o077 == 0


def test_a_command_that_fails_is_written_down_too_and_no_credential_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "audit.log"
    monkeypatch.setenv(FILE, str(log))

    assert run(tmp_path, "queue resize grpc://user:hunter2@localhost:1 --shards 3 --option secret_key=hunter2") != 0
    assert run(tmp_path, "queue resize {q} --shards 3") != 0

    lines = log.read_text().splitlines()
    assert len(lines) == 2
    assert all("failed, exit code" in line for line in lines)
    assert "hunter2" not in log.read_text()
