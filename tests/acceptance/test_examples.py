"""Every example runs as a user would run it: by itself, in a directory of its own, without any service."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.web import web_packages

EXAMPLES = Path(__file__).parents[2] / "examples"

LONG = (
    "spark/bulk_enqueue",
    "spark/declarative",
    "spark/pipeline",
    "spark/process",
    "spark/read_tables",
    "spark/report",
    "spark/stream_events",
)

SECONDS = {"spark/declarative": 800}
"""How long those may take that start Spark more than once, on a busy machine."""

PRINTED = {
    "archive": [
        r"2 -> 4",
        r"3 -> 9",
        r"4 -> 16",
        r"five is dead after 25 attempts: no number",
        r"1 cancelled, 1 dead, 3 done",
        r"lines: 5, worked on by \['-', 'w1'\]",
    ],
    "broker": [
        r"the first broker is leader and the second standby",
        r"still there: through the second broker",
        r"hello number 0",
        r"hello number 1",
        r"hello number 2",
        r"done: 4",
    ],
    "bulk": [
        r"staged: 1000 in the queue: 0",
        r"admitted: 1000",
        r"again: nothing happened",
        r"in the queue: 1000",
    ],
    "change_feed": [
        r"at position \d+: \{'send': 2\}",
        r"at position \d+: \{'send': 2, 'resize': 1\}",
        r"live: added send live",
    ],
    "command_line": [
        r"2 jobs enqueued",
        r"claimed: ann and bob",
        r"It waits after attempt 1/25: it is tried again at .* UTC, in \d+ m\.",
        r"in all: \{'enqueued': 2, 'delayed': 1, 'done': 1\}",
    ],
    "convert_and_verify": [
        r"log: 60 jobs, \d+ segments",
        r"document: 60 jobs, the same: True",
        r"log: 60 jobs, the same: True",
    ],
    "custom_storage": [r"20 jobs, commits: \d+", r"20 done, 0 left"],
    "dead_letters": [
        r"attempt 1 of 2 for card 1",
        r"attempt 1 of 1 for card 2",
        r"attempt 2 of 2 for card 1",
        r"dead: card 1 \| TimeoutError: the bank does not answer",
        r"dead: card 2 \| TimeoutError: the bank does not answer",
        r"after the retry: card 1 done on attempt 1",
        r"purged: 1",
        r"2 enqueued = 1 done \+ 0 dead \+ 1 purged",
    ],
    "exactly_once": [
        r"pay_twice: a worker killed by signal 9, 2 runs, ada has 200",
        r"pay_once: a worker killed by signal 9, 2 runs, bob has 100",
    ],
    "from_jqueue": [
        r"the first worker has b'\{\"to\": \"ada\"\}'",
        r"taken back: 1",
        r"the second worker has the same job: True",
        r"the first worker: the lease on job '550e8400.*' is lost: .*",
        r"left: 0",
    ],
    "functions": [
        r"a plain call: thank you, ada",
        r"one job for one order: True",
        r"now and later: ready delayed",
        r"refused: ship: argument 'order' at .number: Expected `int`, got `str`",
        r"inline: order 8, 1 items, by post, attempt 1",
    ],
    "observe": [
        r"""completed: ship b'"order 7 is on its way"'""",
        r"failed for good: charge after attempt 2 with ConnectionError: the bank does not answer for order 7",
        r"ask the carrier <- handle ship <- enqueue ship <- POST /orders",
    ],
    "processes": [
        r"1 done, 1 failed, 2 crashed",
        r"primes below 2000: 303",
        r"never_end: TimeoutError: the handler took longer than its 0.2 s",
        r"crash: quarantined: its worker died 2 times .*: the process that ran it ended with exit code 7",
    ],
    "pause_and_drain": [
        r"while mail is paused: \['report'\]",
        r"refused: the queue is being drained",
        r"drained: \['1', '2'\]",
        r"3 done, 0 left",
    ],
    "consumer": [
        r"leased: acme - for others it has 0 jobs",
        r"done under the lease: 3",
        r"done zone after zone: 20 of 20",
        r"leased: \['acme', 'tenant-0', 'tenant-1', 'tenant-2', 'tenant-3'\]",
    ],
    "tenants": [
        r"in turns: \['giant', 'small', 'giant', 'giant'\]",
        r"at most two at a time: \['giant', 'giant'\]",
        r"one after the other: \['0', '1', '2'\]",
        r"giant: 995 waiting, 2 running",
    ],
    "quickstart": [r"enqueued greet as [0-9a-f-]{36}", r"hello world", r"1 done, 0 waiting"],
    "request_ids": [
        r"attempt 1: nobody knows",
        r"the same job: True",
        r"jobs in the queue: 2",
        r"the same claim: True",
        r"acknowledged twice, done: 1",
    ],
    "ring": [
        r"generation 2: 8 shards",
        r"each in order: Counter\(\{'monday tuesday': 12\}\)",
        r"done: 24",
    ],
    "run_worker": [
        r"made a thumbnail of cat.png on attempt 1",
        r"charged 100 on attempt 2",
        r"2 done, 2 failed attempts",
        r"dead: the payload does not fit what 'charge' takes: b'a lot' is no amount",
        r"left alone: fax",
    ],
    "schedules": [
        r"often is next due at Mon 06:00",
        r"morning is next due at Mon 06:00",
        r"often@2026-02-16T06:00:00Z",
        r"morning@2026-02-16T06:00:00Z",
        r"triggered: \{'casque-schedule': 'morning'\}",
        r"a day later: \['morning@2026-02-17T06:00:00Z'\]",
    ],
    "scheduling": [
        r"same job: True",
        r"waiting for their time: 2",
        r"order: urgent, daily, hourly, weekly, yearly, nightly",
        r"delayed job ran: True",
        r"expired jobs handed out: 0",
        r"cancelled: next year",
    ],
    "several_processes": [r"each job once: True", r"30 done, 0 waiting, 0 running"],
    "spark/bulk_enqueue": [
        r"attempt 1: 10,000 jobs are waiting",
        r"attempt 2: 10,000 jobs are waiting",
        r'claimed 200: the 100 urgent ones first, \{"number":\d+,"customer":"customer-0"\}',
    ],
    "spark/declarative": [
        r"added events: 20, finished jobs: 20",
        r"added events: 30, finished jobs: 30",
        r"acme: 19 enqueued, 15 done, 4 dead",
        r"globex: 11 enqueued, 9 done, 2 dead",
    ],
    "spark/report": [
        r"2026-02-15 21:10 to 2026-02-16 00:\d\d UTC: 719 finished, 39 of them died",
        r"half waited less than \d{4} ms, one in ten more than \d{5} ms",
        r"the slowest is report.render",
        r"the page has \d+ kB",
    ],
    "spark/pipeline": [
        r"finished jobs: 20, attempts: 20",
        r"new in the second run: 10",
        r"new in the third run: 0",
        r"acme: 19 enqueued, 15 done, 4 dead",
        r"globex: 11 enqueued, 9 done, 2 dead",
        r"died of ValueError: 6",
    ],
    "spark/process": [
        r"resized: 20 done, 1 failed",
        r"counted: 10 done",
        r"0.png -> small-0.png",
        r"xxxx -> 4",
        r"notes.txt: ValueError: notes.txt is no image",
    ],
    "spark/read_tables": [
        r"now: \{'(dead|ready)': \d, '(dead|ready)': \d\}",
        r"before the work: 8 ready",
        r"events: acked 5, added 8, claimed 6, died 1",
        r"dead: ValueError: no such address x 1",
        r"shipped in that hour: 5",
    ],
    "spark/stream_events": [
        r"first run: 11 events",
        r"second run: 15 events",
        r"each once: True",
        r"added, claimed, acked: 5 5 5",
    ],
    "sync": [r"8 jobs enqueued by 8 threads in [1-8] commits", r"squares: 1 4 9 16 25 36 49 64"],
    "time_travel": [
        r"now: 0 jobs",
        r"at position \d+: 4 ready, 1 running",
        r"held by worker-1: 0",
        r"the past cannot be changed",
    ],
    "typed_payloads": [
        r'dataclass: ada@example.org stored as \{"to":"ada@example.org","subject":"hello"\}',
        r"struct: Thumbnail\(path='cat.png', width=128\)",
        r"refused: payload does not fit Thumbnail: .*",
        r"annotation: 6",
        r"pydantic: (7 \['pen'\]|not installed)",
    ],
    "web/django_app": [
        r"a request: \{'order': 1\}",
        r"the worker: 1 done",
        r"the table: \[\('a pen', 'shipped'\)\]",
    ],
    "web/django_tasks_app": [
        r"before: READY",
        r"the worker: 1 done",
        r"after: \{'status': 'SUCCESSFUL', 'result': 'a pen is on its way'\}",
        r"the table: \[\('a pen', 'shipped'\)\]",
    ],
    "web/fastapi_page": [
        r"the other server shows it: True",
        r"the first server: True",
        r"the second server: True",
        r"refused: 422",
    ],
    "web/fastapi_app": [
        r"202, and again the same job: True",
        r"it is ready",
        r"order 7: pen, ink",
        r"refused: 422",
    ],
}


def test_there_is_no_example_without_a_test() -> None:
    there = {path.relative_to(EXAMPLES).with_suffix("").as_posix() for path in EXAMPLES.rglob("*.py")}
    assert there == PRINTED.keys() | {"worker", "spark/declarative/tables"}, "the last is run by another example"


def one_by_one(name: str) -> Any:
    """Those with Spark one after the other: each has a Java of its own."""
    marks = [pytest.mark.xdist_group("spark")] if name.startswith("spark/") else []
    if name in SECONDS:
        marks.append(pytest.mark.timeout(SECONDS[name] + 60))
    return pytest.param(name, marks=[*marks, pytest.mark.long] if name in LONG else marks)


@pytest.mark.parametrize("name", map(one_by_one, PRINTED))
def test_an_example_prints_what_it_promises(name: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / f"{name}.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, **(web_packages() if name.startswith("web/") else {})},
        timeout=SECONDS.get(name, 240 if name.startswith("spark/") else 60),
    )

    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert len(lines) == len(PRINTED[name]), ended.stdout
    for line, pattern in zip(lines, PRINTED[name], strict=True):
        assert re.fullmatch(pattern, line), f"{line!r} is not {pattern!r}"
    assert not list(tmp_path.iterdir()), "it left files behind"


@pytest.mark.parametrize("order", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_the_worker_works_until_it_is_told_to_stop(order: signal.Signals, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-W", "error", EXAMPLES / "worker.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        said = []
        try:
            for line in worker.stdout:
                said.append(line.strip())
                if said[-1] == "failed broken.png attempt 2":
                    worker.send_signal(order)
            code = worker.wait(timeout=30)
        finally:
            worker.kill()

    assert code == 0
    assert said[0] == "working; Ctrl-C ends it"
    assert {"resized one.png", "resized two.png", "resized three.png"} < set(said)
    assert said[-2:] == ["dead: broken.png because of ValueError: not an image", "stopped"]
