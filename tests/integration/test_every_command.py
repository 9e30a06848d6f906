"""What holds for all commands: they speak JSON, they help, and shells complete them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from casque import JobState, Queue
from casque.cli.main import app
from tests.integration.shell import RUN, casque, lines_of, on

pytestmark = pytest.mark.usefixtures("nothing_around")

TELLS_BY_LOGS = {"serve", "demo"}
"""`serve` goes on until it is stopped, and `demo` is for people."""


def commands(group: Any, *before: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, found in group.commands.items():
        if hasattr(found, "commands"):
            yield from commands(found, *before, name)
        elif not found.hidden:
            yield (*before, name), found


EVERY = list(commands(typer.main.get_command(app)))


def test_every_command_that_answers_speaks_json() -> None:
    silent = {name[-1] for name, command in EVERY if not any("--json" in each.opts for each in command.params)}
    assert silent == TELLS_BY_LOGS


@pytest.mark.parametrize("name", [name for name, _ in EVERY], ids=" ".join)
def test_every_command_helps_and_says_how_it_ends(name: tuple[str, ...]) -> None:
    result = RUN.invoke(app, [*name, "-h"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "Exit code" in result.stdout or "exit code" in result.stdout


def test_a_shell_completes_commands_options_and_queues(tmp_path: Path) -> None:
    (tmp_path / "casque.toml").write_text('[queues.mail]\nurl = "memory://a"\n[queues.maps]\nurl = "memory://b"\n')

    def completed(typed: str) -> list[str]:
        words = typed.split(" ")
        ended = subprocess.run(
            [sys.executable, "-c", "from casque.cli.main import app; app(prog_name='casque')"],
            env={
                **os.environ,
                "_CASQUE_COMPLETE": "complete_bash",
                "COMP_WORDS": typed,
                "COMP_CWORD": str(len(words) - 1),
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return ended.stdout.split()

    assert completed("casque job") == ["jobs"]
    assert {"list", "show", "cancel", "retry", "purge"} <= set(completed("casque jobs "))
    assert completed("casque jobs list --queue ma") == ["mail", "maps"]


def test_a_job_that_no_attempt_would_mend_is_dead_at_once(tmp_path: Path) -> None:
    url = tmp_path.as_uri()
    casque("enqueue", url, "send", "hello")
    [job] = lines_of(casque("dequeue", url, "--json"))
    token = str(job["token"])
    assert "--final" in casque("nack", url, job["id"], token, "--final", "--delay", "1m", ends=2).stderr
    assert "lease" in casque("nack", url, job["id"], "99", "--final", ends=1).stderr
    [told] = lines_of(casque("nack", url, job["id"], token, "--final", "--error", "no such order", "--json"))
    assert told["outcome"] == "dead"

    async def look(q: Queue[bytes]) -> None:
        [dead] = await q.jobs()
        assert (dead.record.state, dead.record.error, dead.attempts) == (JobState.DEAD, "no such order", 1)

    on(url, look)


def test_the_archive_is_listed_and_shown(tmp_path: Path) -> None:
    url = tmp_path.as_uri()
    casque("enqueue", url, "send", "--count", "3")
    casque("dequeue", url, "--batch", "3", "--ack")
    [one] = lines_of(casque("archive", "ls", url, "--json"))
    assert one["key"].startswith(f"archive/{one['hour']}/")
    assert one["first"] <= one["last"]
    assert casque("archive", "ls", url).stdout.split()[-5:-2] == [one["hour"], "1", "jsonl"]
    assert casque("archive", "ls", url, "--until", "2020-01-01").stdout == ""
    assert len(lines_of(casque("archive", "cat", url, "--json"))) == 3
    assert lines_of(casque("archive", url, "--json")) == lines_of(casque("archive", "cat", url, "--json"))


def test_brokers_and_the_doctor_find_their_queue_like_everybody(tmp_path: Path) -> None:
    (tmp_path / "casque.toml").write_text(
        f'[queues.mail]\nurl = "{(tmp_path / "mail").as_uri()}"\nsettings = {{ nonsense = 1 }}\n'
    )
    assert json.loads(casque("doctor", "--queue", "mail", "--json").stdout)["safe"] is True
    assert "nonsense" in casque("serve", "--queue", "mail", ends=2).stderr, "its settings count"
    assert "which queue?" in casque("serve", ends=2).stderr
    assert "which queue?" in casque("doctor", ends=2).stderr


def test_tokens_and_releases_are_told_as_json(tmp_path: Path) -> None:
    file = str(tmp_path / "tokens.json")
    [made] = lines_of(casque("token", "new", "--file", file, "--name", "ann", "--scope", "read", "--json"))
    assert made["name"] == "ann"
    [gone] = lines_of(casque("token", "revoke", "--file", file, "--name", "ann", "--json"))
    assert gone["name"] == "ann"
    url = (tmp_path / "queue").as_uri()
    casque("queue", "create", url)
    assert json.loads(casque("queue", "release", url, "--json").stdout) == {"open": True, "released_from": None}
