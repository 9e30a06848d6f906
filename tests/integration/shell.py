"""What tests of commands that work on jobs share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from typer.testing import CliRunner, Result

from casque import Queue
from casque.cli.main import app

R = TypeVar("R")

RUN = CliRunner()


def casque(*arguments: str, told: str | bytes | None = None, ends: int = 0) -> Result:
    result = RUN.invoke(app, list(arguments), input=told)
    assert result.exit_code == ends, result.output
    return result


def lines_of(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def on(url: str, work: Callable[[Queue[bytes]], Awaitable[R]]) -> R:
    async def run() -> R:
        async with Queue.open(url, worker="w1") as q:
            return await work(q)

    return asyncio.run(run())
