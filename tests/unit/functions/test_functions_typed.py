"""What a type checker says about jobs: right calls pass, wrong ones are errors, on the line where they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import casque

SNIPPET = """
from __future__ import annotations

from datetime import UTC, datetime

import casque
from casque import App, Cancel, Handle, JobContext, Snooze, SyncHandle
from casque.testing import assert_enqueued

app = App("memory://", max_attempts=3)


@app.cron("@daily", tz="Europe/Berlin", missed="skip", arguments={"to": "ada"})
@app.job(key="user-{to}", timeout=5)
async def send(to: str, subject: str = "hello", *, copies: int = 1) -> int:
    return copies


@app.job("resize", executor="thread", backoff=[1, 10])
def resize(path: str) -> str | Snooze | Cancel:
    return path


@app.cron("@hourly", arguments={"order": 7})
@app.job()
async def bill(context: JobContext, order: int) -> None:
    context.logger.info("billed")


async def right() -> None:
    handle: Handle[int] = await send.enqueue("ada", copies=2)
    count: int = await handle.result(timeout=5)
    plain: int = await send("ada", "news")
    text: str | Snooze | Cancel = resize("cat.png")
    blocking: SyncHandle[int] = send.enqueue_sync("ada")
    number: int = blocking.result()
    await send.delay(seconds=60).enqueue("ada")
    await send.schedule(at=datetime(2026, 1, 1, tzinfo=UTC)).using(priority=1).enqueue("ada", subject="x")
    several: list[Handle[int]] = await send.enqueue_many([send.bind("a"), send.delay(1).bind("b", copies=3)])
    await bill.enqueue(7)
    await bill.enqueue(order=7)
    await bill(JobContext("id", "bill"), 7)
    assert_enqueued(app, bill, order=7)
    await app.enqueue_many([send.bind("a")])
    print(count, plain, text, number, several)


async def wrong() -> None:
    await send.enqueue(7)  # error: arg-type
    await send.enqueue()  # error: call-arg
    await send.enqueue("ada", bcc="bob")  # error: call-arg
    await send.enqueue("ada", copies="2")  # error: arg-type
    await send.delay(seconds=60).enqueue(7)  # error: arg-type
    await send.schedule(at="tomorrow").enqueue("ada")  # error: arg-type
    await send.enqueue_many([send.bind(7)])  # error: arg-type
    await send.enqueue_many([resize.bind("a")])  # error: list-item
    send.enqueue_sync(7)  # error: arg-type
    resize.enqueue_sync("a").result().upper()  # error: union-attr
    text: str = await (await send.enqueue("ada")).result()  # error: assignment
    await bill.enqueue(JobContext("id", "bill"), 7)  # error: call-arg
    await bill.enqueue("7")  # error: arg-type
    await bill(7)  # error: arg-type
    await send(7)  # error: arg-type
    app.job(executor="fibre")  # error: arg-type
    app.job(retries=3)  # error: call-arg
    send.delay(1, 2)  # error: call-arg
    send.apply_async(1)  # error: attr-defined
    App("memory://", max_attempt=3)  # error: call-arg
    print(text)
"""


def test_enqueue_is_typed_like_the_function(tmp_path: Path) -> None:
    snippet = tmp_path / "snippet.py"
    snippet.write_text(SNIPPET)
    source = Path(casque.__file__).parents[1]

    ended = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--follow-imports=silent", snippet.name],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=240,
    )

    found = set(re.findall(r"^snippet\.py:(\d+): error: .*\[([\w-]+)\]$", ended.stdout, re.MULTILINE))
    lines = enumerate(SNIPPET.splitlines(), 1)
    expected = {(str(number), line.partition("# error: ")[2]) for number, line in lines if "# error: " in line}
    assert found >= expected, ended.stdout + ended.stderr
    assert {line for line, _ in found} == {line for line, _ in expected}, ended.stdout + ended.stderr
