"""`casque spark work` as people run it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from casque import SyncQueue
from tests.spark.test_work import archived, filled, totals, wait_for

pytestmark = pytest.mark.xdist_group("spark")

HANDLER = """
from pathlib import Path

def note(job):
    Path(job.payload.decode()).touch()
    if job.payload == b"bad":
        raise ValueError("bad")
"""

APP = """
import casque

app = casque.App("{url}")

@app.job(executor="process")
def double(number: int) -> int:
    return number * 2
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "casque.cli", "spark", "work", *arguments, "--master", "local[2]"]


@pytest.mark.long
def test_it_follows_a_queue_until_it_is_told_to_stop_and_tells_what_it_did(tmp_path: Path) -> None:
    url = (tmp_path / "queue").as_uri()
    filled(url, b"good", b"bad")
    (tmp_path / "notes.py").write_text(HANDLER)
    arguments = (url, "--handler", "notes:note", "--follow", "--json", "-s", "backoff_base=3600")
    with subprocess.Popen(
        command(*arguments), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            wait_for(tmp_path / "good")
            with SyncQueue.open(url) as queue:
                queue.enqueue("work", b"later")
            wait_for(tmp_path / "later")
            process.send_signal(signal.SIGTERM)
            said, noise = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, noise
    summary = json.loads(said)
    assert (summary["done"], summary["failed"], summary["running"]) == (2, 1, 0)
    assert totals(url) == (1, 0, 2)


@pytest.mark.long
def test_it_runs_the_functions_of_an_app_on_the_apps_own_queue(tmp_path: Path) -> None:
    url = (tmp_path / "queue").as_uri()
    (tmp_path / "shop.py").write_text(APP.format(url=url))
    with SyncQueue.open(url) as queue:
        queue.enqueue("double", b'{"number": 21}')
        queue.enqueue("halve", b'{"number": 21}')
    ended = subprocess.run(
        command("--app", "shop:app", "--json"), cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["done"] == 1
    assert archived(url)[b'{"number": 21}'].result == b"42"
    assert totals(url) == (1, 0, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give --handler module:function or --app module:app"),
        (("--app", "casque:Queue"), "is a type, not an app"),
        (("--handler", "nothing"), "a handler is written module:function"),
        (("--handler", "nowhere:f"), "No module named 'nowhere'"),
        (("--handler", "pickle:dumps", "-s", "retention"), "--setting is written NAME=VALUE"),
    ],
)
def test_what_cannot_work_is_said_before_a_session_is_made(
    arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    ended = subprocess.run(command(tmp_path.as_uri(), *arguments), capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert said in ended.stderr
