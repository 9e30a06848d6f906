"""`casque tail`, `casque archive`, `casque convert` and `casque queue verify` as people run them, on real files."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from casque import Queue, QueueLedError
from casque.cli.main import app
from casque.client.opening import Parts, as_store
from casque.codec.head import Owner
from casque.journal.log import pace
from casque.settings import QueueSettings

RUN = CliRunner()


def casque(*arguments: str) -> Result:
    return RUN.invoke(app, list(arguments))


def fill(url: str, layout: str = "log", *, jobs: int = 3, **settings: Any) -> None:
    async def work() -> None:
        async with Queue.open(url, layout=layout, worker="w", **settings) as q:
            for n in range(jobs):
                await q.enqueue("send" if n % 2 else "resize", b"job [%d]" % n)
            [job] = await q.dequeue("resize")
            await job.ack()
            [job] = await q.dequeue("send")
            await job.nack(error="no [luck]")

    asyncio.run(work())


@pytest.fixture
def url(tmp_path: Path) -> str:
    fill((tmp_path / "queue").as_uri())
    return (tmp_path / "queue").as_uri()


# --- tail ---


def test_tail_shows_a_line_per_event(url: str) -> None:
    result = casque("tail", url, "--from", "start", "--no-follow")
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines()]
    assert [(line[0], line[3]) for line in lines] == [
        ("1", "added"),
        ("2", "added"),
        ("3", "added"),
        ("4", "claimed"),
        ("5", "acked"),
        ("6", "claimed"),
        ("7", "nacked"),
    ]
    assert "payload='job [0]'" in result.output, "what looks like markup is shown as it is"
    assert "error=no [luck]" in result.output


def test_tail_begins_where_it_is_told_and_shows_what_is_asked_for(url: str) -> None:
    def shown(*more: str) -> list[tuple[int, str]]:
        result = casque("tail", url, "--no-follow", "--json", *more)
        assert result.exit_code == 0, result.output
        events = [json.loads(line) for line in result.output.splitlines()]
        return [(event["position"], event["kind"]) for event in events]

    assert shown() == []
    assert shown("--from", "5") == [(6, "claimed"), (7, "nacked")]
    assert shown("--from", "start", "--kind", "acked", "-k", "nacked") == [(5, "acked"), (7, "nacked")]
    assert shown("--from", "start", "-e", "send") == [(2, "added"), (6, "claimed"), (7, "nacked")]
    assert shown("--from", "5", "--entrypoint", "send") == [(6, "claimed"), (7, "nacked")], "added before that"
    assert shown("--from", "3", "-e", "resize", "-e", "send", "-k", "claimed") == [(4, "claimed"), (6, "claimed")]


def test_tail_as_json_has_every_field(url: str) -> None:
    result = casque("tail", url, "--from", "0", "--no-follow", "--json", "-k", "added")
    first = json.loads(result.output.splitlines()[0])
    assert first.keys() == {"position", "index", "at", "kind", "job_id", "fields", "shard"}
    assert first["fields"]["payload"] == "am9iIFswXQ=="


@pytest.mark.parametrize(("wrong", "says"), [("nine", "--from takes"), ("-1", "--from takes"), ("99", "last commit")])
def test_tail_refuses_a_beginning_that_is_none(url: str, wrong: str, says: str) -> None:
    result = casque("tail", url, "--from", wrong, "--no-follow")
    assert result.exit_code == 2
    assert says in result.output


def test_tail_of_a_document_names_the_way_out(tmp_path: Path) -> None:
    fill(tmp_path.as_uri(), "document")
    result = casque("tail", tmp_path.as_uri())
    assert result.exit_code == 2
    assert "casque queue convert" in result.output


def test_tail_does_not_take_a_wrong_url_for_a_quiet_queue(tmp_path: Path) -> None:
    result = casque("tail", tmp_path.as_uri(), "--no-follow")
    assert result.exit_code == 2
    assert "there is no queue here" in result.output


def test_tail_waits_for_a_queue_that_is_yet_to_be_made(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "casque.cli", "tail", tmp_path.as_uri(), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        try:
            assert "no queue here yet" in tail.stderr.readline()
            fill(tmp_path.as_uri())
            assert json.loads(tail.stdout.readline())["position"] == 1
        finally:
            tail.kill()


def test_tail_from_the_start_begins_with_the_oldest_that_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "SNAPSHOT_SEGMENTS", 4)
    fill(tmp_path.as_uri(), jobs=60, retention=timedelta(milliseconds=1))
    result = casque("tail", tmp_path.as_uri(), "--from", "start", "--no-follow", "--json")
    assert result.exit_code == 0, result.output
    positions = [json.loads(line)["position"] for line in result.output.splitlines()]
    assert positions[0] > 1
    assert casque("tail", tmp_path.as_uri(), "--from", "0", "--no-follow").exit_code == 2


def test_tail_follows_until_it_is_told_to_stop(url: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "casque.cli", "tail", url, "--from", "6", "--json"],
        stdout=subprocess.PIPE,
        text=True,
        # A shell that starts the tests in the background has them ignore it, and what they start as well.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    ) as tail:
        assert tail.stdout is not None
        try:
            assert json.loads(tail.stdout.readline())["position"] == 7
            fill(url, jobs=2)
            heard = [json.loads(tail.stdout.readline())["kind"] for _ in range(4)]
            tail.send_signal(signal.SIGINT)
            assert tail.wait(timeout=30) == 0
        finally:
            tail.kill()
    assert heard[:2] == ["added", "added"]


def test_tail_ends_quietly_when_nobody_reads_on(url: str) -> None:
    fill(url, jobs=200)
    command = f"{sys.executable} -m casque.cli tail {url} --from start --no-follow --json | head -1"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert json.loads(ended.stdout)["position"] == 1
    assert ended.stderr == ""


# --- archive ---


@pytest.mark.parametrize("layout", ["log", "document"])
def test_archive_shows_a_line_per_finished_job(tmp_path: Path, layout: str) -> None:
    url = (tmp_path / "queue").as_uri()
    fill(url, layout, max_attempts=1)
    result = casque("archive", url)
    assert result.exit_code == 0, result.output
    done, dead = result.output.splitlines()
    assert [word for word in done.split() if word in ("done", "resize", "worker=w")] == ["done", "resize", "worker=w"]
    assert dead.endswith("error=no [luck]")
    [line] = casque("archive", url, "--json", "--state", "dead", "--since", "1h").output.splitlines()
    job = json.loads(line)
    assert (job["state"], job["entrypoint"], job["error"], job["attempts"]) == ("dead", "send", "no [luck]", 1)
    assert casque("archive", url, "-e", "send", "-s", "done").stdout == ""
    assert casque("archive", url, "--until", "2020-01-01").stdout == ""
    assert casque("archive", url, "--since", "2999-01-01T00:00+01:00").stdout == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--since", "yesterday"), "--since takes a time such as"),
        (("--until", "10x"), "--until takes a time such as"),
        (("--entrypoint", ""), "entrypoint must be 1 to 256"),
    ],
)
def test_archive_refuses_what_makes_no_sense(url: str, arguments: tuple[str, ...], said: str) -> None:
    result = casque("archive", url, *arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_archive_says_that_there_is_no_queue_and_names_what_is_damaged(tmp_path: Path, url: str) -> None:
    result = casque("archive", (tmp_path / "nothing").as_uri())
    assert (result.exit_code, "there is no queue here" in result.output) == (2, True)
    [path] = (tmp_path / "queue" / "archive").glob("*/*.jsonl")
    path.write_bytes(b"{}\n")
    result = casque("archive", url)
    assert result.exit_code == 1
    assert path.name in result.output
    assert casque("queue", "verify", url).exit_code == 1


# --- convert ---


def test_a_queue_is_converted_there_and_back(url: str) -> None:
    digests = []
    for layout in ("document", "log", "document"):
        result = casque("convert", url, "--to", layout, "--json")
        assert result.exit_code == 0, result.output
        done = json.loads(result.output)
        assert (done["layout"], done["changed"]) == (layout, True)
        digests.append(done["digest"])
        checked = casque("queue", "verify", url, "--json")
        assert checked.exit_code == 0, checked.output
        assert (json.loads(checked.output)["layout"], json.loads(checked.output)["digest"]) == (layout, digests[0])
    assert len(set(digests)) == 1

    again = casque("convert", url, "--to", "document")
    assert again.exit_code == 0
    assert "was already a document" in again.output


def test_a_conversion_says_what_it_did(url: str) -> None:
    result = casque("convert", url, "--to", "document")
    assert "is now a document: 2 jobs at position 8" in result.output
    assert "removed" in result.output


def test_what_cannot_be_converted_is_said_to_be_so(tmp_path: Path) -> None:
    result = casque("convert", tmp_path.as_uri(), "--to", "log")
    assert result.exit_code == 2
    assert "no queue" in result.output
    assert casque("convert", tmp_path.as_uri(), "--to", "scroll").exit_code == 2
    assert casque("convert", "nowhere", "--to", "log").exit_code == 2


def test_a_damaged_queue_is_not_converted(url: str, tmp_path: Path) -> None:
    segment = tmp_path / "queue" / "log" / f"{4:020d}"
    segment.unlink()
    result = casque("convert", url, "--to", "document")
    assert result.exit_code == 1
    assert f"damaged log/{4:020d}" in " ".join(result.output.split())
    assert json.loads((tmp_path / "queue" / "queue.json").read_bytes())["layout"] == "log"


@pytest.mark.parametrize("command", [("tail",), ("convert",), ("queue", "verify")])
def test_help_teaches_by_example(command: tuple[str, ...]) -> None:
    result = casque(*command, "--help")
    assert result.exit_code == 0
    assert f"casque {' '.join(command)} " in result.output
    assert "Exit code 0" in result.output


# --- casque queue release ---


def led(url: str) -> None:
    """Somebody leads this queue, and is not there any more."""

    async def work() -> None:
        parts = Parts(as_store(url), QueueSettings())
        committer = parts.committer()
        assert await committer.lead(Owner("gone", "nonce", "gone:7700"), lease_ms=8_000, seen=None)
        await parts.store.close()

    asyncio.run(work())


@pytest.mark.parametrize("layout", ["log", "document"])
def test_a_queue_whose_last_broker_crashed_is_released(tmp_path: Path, layout: str) -> None:
    url = f"file://{tmp_path}/queue"
    fill(url, layout)
    led(url)
    with pytest.raises(QueueLedError, match="casque queue release"):
        fill(url)
    result = casque("queue", "release", url, "--lease", "0.3")
    assert result.exit_code == 0, result.output
    assert "gone:7700" in result.output
    fill(url)
    assert "no broker leads" in casque("queue", "release", url).output
