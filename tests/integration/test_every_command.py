"""What holds for all commands: they speak JSON, they help, and shells complete them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from casque import JobState, Queue
from casque.cli.help import PANELS
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


@pytest.mark.parametrize("name", [(), *(name for name, _ in EVERY)], ids=" ".join)
def test_help_shows_words_for_values_and_no_types(name: tuple[str, ...]) -> None:
    shown = RUN.invoke(app, [*name, "-h"], env={"COLUMNS": "200"}).stdout
    assert not re.findall(r"<\w[^>]*>", shown)


def test_help_lists_every_command_in_the_order_of_its_use() -> None:
    shown = RUN.invoke(app, ["-h"], env={"COLUMNS": "200"}).stdout
    assert re.findall(r"─ (\w+) ─", shown) == ["Options", *PANELS]
    listed = re.findall(r"^│ ([a-z]+) ", shown, re.MULTILINE)
    assert listed == [name for names in PANELS.values() for name in names]
    visible = {name for name, found in typer.main.get_command(app).commands.items() if not found.hidden}  # type: ignore[attr-defined]
    assert set(listed) == visible, "each command is in a panel"


def test_a_list_of_commands_has_one_line_for_each_that_begins_with_a_verb() -> None:
    for name, command in EVERY:
        assert command.short_help[0].isupper(), name
        assert len(command.short_help) < 125, name


def test_an_option_means_the_same_everywhere() -> None:
    meanings: dict[str, set[str]] = {}
    for _, command in EVERY:
        for parameter in command.params:
            for option in parameter.opts:
                meanings.setdefault(option, set()).add(parameter.opts[0])
    assert meanings["-o"] == {"--option"}
    assert meanings["-q"] == {"--queue"}
    assert meanings["--lease"] == {"--job-lease", "--leader-lease"}, "a lease says whose it is"


def test_lists_are_called_list_and_ls_works_as_well(tmp_path: Path) -> None:
    url = tmp_path.as_uri()
    casque("enqueue", url, "send")
    lists = [name for name, _ in EVERY if name[-1] == "list"]
    assert {name[0] for name in lists} == {"jobs", "archive", "cron", "zones", "token"}
    assert not [name for name, _ in EVERY if name[-1] == "ls"]
    for group, _ in lists:
        if group != "token":
            assert casque(group, "ls", url, "--json").stdout == casque(group, "list", url, "--json").stdout


def test_jobs_are_claimed_by_entrypoint_as_they_are_enqueued(tmp_path: Path) -> None:
    url = tmp_path.as_uri()
    casque("enqueue", url, "send", "hello")
    assert "nothing to claim now" in casque("dequeue", url, "resize", ends=3).stderr
    [job] = lines_of(casque("dequeue", url, "resize", "send", "--json"))
    assert job["entrypoint"] == "send"


def test_events_are_shown_and_chosen_by_names_that_people_use(tmp_path: Path) -> None:
    url = tmp_path.as_uri()
    casque("enqueue", url, "send")
    [job] = lines_of(casque("dequeue", url, "--json"))
    casque("nack", url, job["id"], str(job["token"]), "--final")
    casque("jobs", "retry", url, job["id"])

    def told(*kinds: str) -> list[str]:
        options = [part for kind in kinds for part in ("--kind", kind)]
        shown = casque("tail", url, "--from", "start", "--no-follow", *options).stdout
        return [line.split()[3] for line in shown.splitlines()]

    assert told() == ["added", "claimed", "died", "retried"]
    assert told("died", "added") == ["added", "died"]
    assert told("revived") == ["retried"], "by its stored name"
    [event] = lines_of(casque("tail", url, "--from", "start", "--no-follow", "--kind", "retried", "--json"))
    assert event["kind"] == "revived"


def test_dead_is_what_is_dead_now_and_purged_what_was_removed(tmp_path: Path) -> None:
    url = tmp_path.as_uri()
    casque("enqueue", url, "send", "--count", "2")
    for job in lines_of(casque("dequeue", url, "--batch", "2", "--json")):
        casque("nack", url, job["id"], str(job["token"]), "--final")
    [before] = lines_of(casque("queue", "info", url, "--json"))
    casque("jobs", "purge", url, "--yes")
    casque("enqueue", url, "send")
    [job] = lines_of(casque("dequeue", url, "--json"))
    casque("nack", url, job["id"], str(job["token"]), "--final")
    [after] = lines_of(casque("queue", "info", url, "--json"))

    assert (before["dead"], before["purged"]) == (2, 0)
    assert (after["dead"], after["purged"]) == (1, 2)


def test_an_app_names_its_queue_and_its_functions_check_the_payload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mail_app.py").write_text(
        f"""import casque
app = casque.App("{(tmp_path / "mail").as_uri()}", max_attempts=9)
@app.job(max_crashes=3, max_attempts=4, priority=-1, zone="{{to}}", tags=["mail"])
def send(to: str) -> None: ...
"""
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    casque("enqueue", "--app", "mail_app:app", "send", '{"to": "ada"}')
    casque("enqueue", "--app", "mail_app:app", "send", '{"to": "bob"}', "--max-crashes", "7", "--delay", "1h")
    assert "'to' is missing" in casque("enqueue", "--app", "mail_app:app", "send", ends=2).stderr

    first, second = lines_of(casque("jobs", "list", "--app", "mail_app:app", "--json"))
    assert (first["max_crashes"], first["max_attempts"], first["priority"], first["zone"], first["tags"]) == (
        *(3, 4, -1, "ada"),
        ["mail"],
    )
    assert (second["max_crashes"], second["zone"], second["state"]) == (7, "bob", "delayed")


def test_the_doctor_and_the_bench_leave_nothing_behind(tmp_path: Path) -> None:
    new, url = tmp_path / "deep" / "new", (tmp_path / "queue").as_uri()
    casque("enqueue", url, "send")
    before = sorted(tmp_path.rglob("*"))
    for place in (new.as_uri(), url):
        casque("doctor", place, "--json")
        casque("bench", place, "--seconds", "0.01", "--json")
    assert sorted(tmp_path.rglob("*")) == before


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
