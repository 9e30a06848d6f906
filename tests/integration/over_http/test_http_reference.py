"""The page about HTTP is run, not believed: its commands with curl, in order, and its answers compared."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from casque.testing.hosting import leading
from casque.transport.errors import TABLE
from casque.transport.http.messages import AckRequest, Claim, Job, NewJob
from casque.transport.http.routes import ROUTES
from tests.integration.over_http.hosts import serving

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "http.md").read_text()
AN_ANSWER_OF_ITS_OWN = '{"error":{"error":"JobNotFoundError"'
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?Z")


class Shown(NamedTuple):
    command: str
    answer: str | None


def shown() -> list[Shown]:
    blocks = re.findall(r"^```(sh|json|text)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    following = [*blocks[1:], ("", "")]
    return [
        Shown(text, answer if kind == "json" else None)
        for (language, text), (kind, answer) in zip(blocks, following, strict=True)
        if language == "sh"
    ]


def without_times(value: Any) -> Any:
    """All that a reader may expect to see again."""
    if isinstance(value, dict):
        # How many commits some calls make is not promised.
        return {name: without_times(one) for name, one in value.items() if name != "position"}
    if isinstance(value, list):
        return [without_times(one) for one in value]
    return "a time" if isinstance(value, str) and TIME.fullmatch(value) else value


async def run(command: str, port: int) -> str:
    if shutil.which("curl") is None and os.environ.get("CI") != "true":
        pytest.skip("curl is not installed")
    process = await asyncio.create_subprocess_exec(
        "bash",
        "-ec",
        command.replace("127.0.0.1:7701", f"127.0.0.1:{port}"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, command + err.decode()
    return out.decode()


async def test_every_command_does_what_the_page_says() -> None:
    async with leading("memory://http-page") as host, serving(host) as server:
        for command, answer in shown():
            said = await run(command, server.port)

            if answer is not None:
                assert without_times(json.loads(said)) == without_times(json.loads(answer)), command
            else:
                assert '{"error":"' not in said.replace(AN_ANSWER_OF_ITS_OWN, ""), said
        page = await run("curl -s 'http://127.0.0.1:7701/v1/events?from_position=0&follow=false'", server.port)

    assert page.startswith('id: 0\n\nid: 1.0\ndata: {"position":1,"index":0,"at":"')
    assert page.endswith("event: end\ndata: {}\n\n")


def test_every_route_is_shown_with_a_command() -> None:
    commands = "".join(command for command, _ in shown())
    for route in ROUTES:
        assert f"{route.path}`" in PAGE, route.path
        path = re.escape(route.path).replace(r"\{id\}", r"[\w-]+")
        assert re.search(rf"7701{path}['\s?]", commands), route.path


def test_every_field_and_every_error_is_on_the_page() -> None:
    for kind in (Job, NewJob, Claim, AckRequest):
        for field in kind.__struct_fields__:
            assert f"`{field}`" in PAGE, field
    rows = dict(re.findall(r"^\| ([\d, ]+) \| (.*) \|$", PAGE, re.MULTILINE))
    for error, (_, status) in TABLE.items():
        if error.__name__ != "CasqueError":
            assert f"`{error.__name__}`" in rows[str(status)], error
