"""Every command on a queue full of hostile values: nothing of them moves a cursor, forges a line or becomes markup."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from casque.cli.logs import LogFormat, log_to_stderr
from casque.cli.main import app
from casque.cli.output import Terminal
from casque.printable import printable, printable_json, printable_lines
from casque.service import Lease, Outcome
from casque.telemetry.metrics import Metrics
from casque.testing.hosting import leading
from casque.types import Gate, JobSpec, Progress, ScheduleSpec, ZoneRules
from tests.integration.shell import RUN
from tests.integration.test_every_command import EVERY

pytestmark = pytest.mark.usefixtures("nothing_around")

BAD = "a\x1b[2J\x1b]0;t\x07\r\nFORGED line\x00\x08\x7f\x9b31m\x85\u2028\u202e\u200b[red]b[/red][/]:smile:"
"""A name, an error, a payload: escape sequences of both kinds, line ends of all kinds, a turn of direction, markup."""
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u200b]")
DEAD, RUNNING, WAITING = f"{BAD}dead", f"{BAD}running", f"{BAD}waiting"


async def fill(url: str) -> None:
    """Past every border: as someone who can write to the bucket could."""
    async with leading(url) as host:
        queue = host.service()
        fields: dict[str, Any] = {"headers": {BAD: BAD}, "zone": BAD}
        bad = BAD.encode("utf-8", "surrogatepass")
        await queue.enqueue([JobSpec(DEAD, BAD, bad, max_attempts=1, key=f"{BAD}1", **fields)])
        [job] = await queue.dequeue(entrypoints=None, limit=1, worker=BAD)
        await queue.settle([Outcome(job.id, job.token, error=BAD)])
        await queue.enqueue([JobSpec(f"{BAD}done", BAD, bad, **fields)])
        [job] = await queue.dequeue(entrypoints=None, limit=1, worker=BAD)
        await queue.ack(job.id, token=job.token, result=bad)
        await queue.enqueue([JobSpec(RUNNING, BAD, bad, key=f"{BAD}2", **fields)])
        [job] = await queue.dequeue(entrypoints=None, limit=1, worker=BAD)
        await queue.heartbeats([Lease(job.id, job.token, Progress(1, 2, BAD))])
        await queue.enqueue([JobSpec(WAITING, BAD, bad, key=f"{BAD}3", **fields)])
        await queue.set_zone(BAD, ZoneRules(2.0, 5, None, False))
        await queue.set_gate(Gate.PAUSED, entrypoint=BAD)
        await queue.set_schedule(ScheduleSpec(BAD, "@daily", JobSpec("", BAD, bad), origin=BAD))


ARGUMENTS: dict[str, list[str]] = {
    "doctor": ["URL"],
    "enqueue": ["URL", BAD, BAD],
    "dequeue": ["URL"],
    "ack": ["URL", RUNNING, "9"],
    "nack": ["URL", RUNNING, "9", "--error", BAD],
    "tail": ["URL", "--from", "start", "--no-follow"],
    "top": ["URL", "--once"],
    "worker": [BAD],
    "jobs list": ["URL"],
    "jobs show": ["URL", RUNNING],
    "jobs cancel": ["URL", f"{BAD}none"],
    "jobs retry": ["URL", WAITING],
    "jobs reschedule": ["URL", WAITING, "--priority", "3"],
    "jobs purge": ["URL", "--yes"],
    "jobs requeue": ["URL", "--stale", "1d", "--yes"],
    "queue info": ["URL"],
    "queue create": ["URL"],
    "queue resize": ["URL", "--shards", "2"],
    "queue pause": ["URL", "--entrypoint", BAD],
    "queue resume": ["URL", "--entrypoint", BAD],
    "queue drain": ["URL", "--entrypoint", BAD],
    "queue convert": ["URL", "--to", BAD],
    "queue verify": ["URL"],
    "queue import": ["FOREIGN", "URL", "--dry-run"],
    "queue backup": ["URL", BAD],
    "queue restore": [BAD, "URL"],
    "queue clone": ["URL", BAD],
    "queue release": ["URL"],
    "archive cat": ["URL"],
    "archive list": ["URL"],
    "archive erase": ["URL", "--zone", f"{BAD}none", "--yes"],
    "archive erasures": ["URL"],
    "cron list": ["URL"],
    "cron set": ["URL", BAD, "@daily"],
    "cron pause": ["URL", BAD],
    "cron resume": ["URL", BAD],
    "cron trigger": ["URL", BAD],
    "cron drop": ["URL", f"{BAD}none"],
    "zones list": ["URL"],
    "zones show": ["URL", BAD],
    "zones peek": ["URL"],
    "zones consume": [BAD],
    "zones set": ["URL", BAD],
    "zones pause": ["URL", BAD],
    "zones resume": ["URL", BAD],
    "zones purge": ["URL", BAD, "--yes"],
    "zones export": ["URL", BAD],
    "token new": ["--file", "TOKENS", "--name", BAD, "--scope", "read"],
    "token list": ["--file", "TOKENS"],
    "token revoke": ["--file", "TOKENS", "--name", BAD],
}
SHOWS = {"jobs list", "jobs show", "tail", "top", "zones list", "cron list", "archive cat"}
ELSEWHERE = {
    "demo",
    "bench",
    "cost",
    "serve",
    "report",
    "pipeline check",
    "pipeline run",
    "spark doctor",
    "spark replay",
    "spark work",
}
"""Without values of others, without an end, or with Spark: they write by the same functions."""


def test_every_command_is_walked() -> None:
    assert {" ".join(name) for name, _ in EVERY} == ARGUMENTS.keys() | ELSEWHERE


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    asyncio.run(fill((folder / "q").as_uri()))
    stored = {"id": "0" * 12, "name": BAD, "hash": "sha256:" + "0" * 64, "scopes": ["read"], "entrypoints": [BAD]}
    (folder / "tokens.json").write_text(json.dumps({"format": 1, "tokens": [stored]}))
    foreign = {"id": BAD, "entrypoint": BAD, "payload": "", "status": "queued", "priority": 0, "heartbeat_at": None}
    job = {**foreign, "created_at": "2026-11-15T23:43:05.982477Z"}
    (folder / "foreign.json").write_text(json.dumps({"version": 1, "jobs": [job]}))
    return folder


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_no_control_character_reaches_a_terminal_and_no_line_is_forged(
    name: str, form: list[str], filled: Path
) -> None:
    places = {
        "URL": (filled / "q").as_uri(),
        "TOKENS": str(filled / "tokens.json"),
        "FOREIGN": str(filled / "foreign.json"),
    }
    arguments = [places.get(word, word) for word in ARGUMENTS[name]]
    result = RUN.invoke(app, [*name.split(), *arguments, *form], env={"COLUMNS": "300", "NO_COLOR": "1"})

    for said in (result.stdout, result.stderr):
        assert CONTROL.search(said) is None, repr(said)
        assert not re.search(r"^\s?FORGED", said, re.MULTILINE), said
        if "b[/red]" not in said:
            assert "[red]b" not in said  # markup of others is shown, all of it or nothing
    if name in SHOWS:
        assert result.exit_code == 0, result.output
        assert "FORGED" in result.stdout
    if form and result.exit_code == 0:
        for line in result.stdout.splitlines():
            json.loads(line)


def test_json_says_exactly_what_is_there(filled: Path) -> None:
    result = RUN.invoke(app, ["zones", "ls", (filled / "q").as_uri(), "--json"])
    assert BAD in [json.loads(line)["zone"] for line in result.stdout.splitlines()]
    for value in (BAD, "\U000e0041\ufeff", '"\\'):
        assert json.loads(printable_json(json.dumps(value, ensure_ascii=False).encode())) == value


def test_what_is_shown_on_a_line_stays_on_it() -> None:
    assert printable("plain, ä, 日本, 👨‍👩‍👧") == "plain, ä, 日本, 👨‍👩‍👧"
    assert CONTROL.search(printable(BAD) + printable_lines(BAD)) is None
    assert "\n" not in printable(BAD)
    assert printable_lines("a\n\tb") == "a\n\tb"
    assert printable("\ud800\x1b\U000e0001") == "\\ud800\\x1b\\U000e0001"


@pytest.mark.parametrize("form", list(LogFormat))
def test_a_line_of_the_log_cannot_be_forged(form: LogFormat, capsys: pytest.CaptureFixture[str]) -> None:
    with log_to_stderr(form, 0):
        try:
            raise ValueError(BAD)
        except ValueError:
            logging.getLogger("casque.hostile").exception("job %s failed: %s", BAD, BAD)
    said = capsys.readouterr().err

    assert CONTROL.search(said) is None
    assert not re.search(r"^ {0,3}FORGED", said, re.MULTILINE)


def test_colours_are_those_of_the_command_alone(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal(force_terminal=True, color_system="standard", width=200).print(BAD, style="red", highlight=False)
    said = capsys.readouterr().out
    assert re.findall("\x1b[^m]*m", said) == re.findall("\x1b\\[[0-9;]*m", said)
    assert CONTROL.search(re.sub("\x1b\\[[0-9;]*m", "", said)) is None
    assert "[red]b[/red]" in said


def test_labels_of_metrics_stay_on_their_line() -> None:
    metrics = Metrics()
    metrics.gauge("casque_x", "X.", ("zone",)).of(BAD).value = 1
    assert CONTROL.search(metrics.text()) is None
    assert len(metrics.text().splitlines()) == 3
