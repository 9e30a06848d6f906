"""`casque enqueue`, `dequeue`, `ack`, `nack` as people run them, on real files and through a real broker."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from casque import JobState, Queue
from casque.app import BrokerServer, ServeOptions
from casque.transport.listening import Address
from tests.integration.shell import casque, lines_of, on

pytestmark = pytest.mark.usefixtures("nothing_around")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return (tmp_path / "queue").as_uri()


# --- enqueue ---


def test_a_job_is_enqueued_with_everything_that_was_said_about_it(url: str) -> None:
    result = casque(
        *("enqueue", url, "send", "hello", "--priority", "-3", "--at", "2099-02-15T10:00", "--key", "k"),
        *("--zone", "z", "-H", "trace=a=b", "--header", "lang=en", "--max-attempts", "4", "--max-crashes", "2"),
    )
    assert "there was no queue" in result.stderr
    [job] = on(url, lambda q: q.jobs())
    assert result.stdout.strip() == job.id
    assert (job.entrypoint, job.payload, job.priority, job.max_attempts) == ("send", b"hello", -3, 4)
    assert job.record.spec.max_crashes == 2
    assert (job.due_at, job.state) == (datetime(2099, 2, 15, 10, tzinfo=UTC), JobState.DELAYED)
    assert (job.key, job.zone, dict(job.headers)) == ("k", "z", {"trace": "a=b", "lang": "en"})
    again = casque("enqueue", url, "send", "other", "--key", "k")
    assert again.output.strip() == job.id, "the key is held, and nothing was added"


def test_a_job_can_be_given_a_time_after_which_it_is_cancelled(url: str) -> None:
    casque("enqueue", url, "send", "1", "--expires", "10m")
    [job] = lines_of(casque("jobs", "list", url, "--json"))
    assert job["expires_ms"] == 600_000
    assert "expires     20" in casque("jobs", "show", url, job["id"]).output

    refused = casque("enqueue", url, "send", "2", "--expires", "1m", "--delay", "2m", ends=2)
    assert "expires must be later than delay or run_at" in " ".join(refused.output.split())


def test_jobs_are_listed_by_their_tags(url: str) -> None:
    casque("enqueue", url, "send", "1", "--tag", "urgent", "-t", "billing")
    casque("enqueue", url, "send", "2", "--tag", "billing")
    casque("enqueue", url, "send", "3")

    def listed(*options: str) -> list[tuple[str, list[str]]]:
        return [(job["text"], job["tags"]) for job in lines_of(casque("jobs", "list", url, "--json", *options))]

    both, one = ("1", ["urgent", "billing"]), ("2", ["billing"])
    assert listed() == [both, one, ("3", [])]
    assert listed("--tag", "billing") == [both, one]
    assert listed("--tag", "billing", "--limit", "1") == [both]
    assert listed("-t", "billing", "-t", "urgent") == [both]
    assert listed("--tag", "billing", "--state", "dead") == []
    assert "urgent, billing" in casque("jobs", "list", url).stdout
    [job, *_] = on(url, lambda q: q.jobs())
    assert "urgent, billing" in casque("jobs", "show", url, job.id).stdout
    refused = casque("enqueue", url, "send", "4", "--tag", "a,b", ends=2)
    assert "a tag must have no comma" in refused.stderr


def test_a_payload_may_come_from_a_file_or_from_standard_input(url: str, tmp_path: Path) -> None:
    (tmp_path / "letter").write_bytes(b"\xff\x00 raw")
    casque("enqueue", url, "send", "@letter")
    casque("enqueue", url, "send", "-", told=b"from a pipe\n")
    casque("enqueue", url, "send")
    assert [job.payload for job in on(url, lambda q: q.jobs())] == [b"\xff\x00 raw", b"from a pipe\n", b""]


def test_many_alike_are_enqueued_and_counted(url: str) -> None:
    assert casque("enqueue", url, "send", "x", "--count", "2500").stdout == "2,500 jobs enqueued\n"
    stats = on(url, lambda q: q.stats())
    assert (stats.totals.ready, stats.position) == (2500, 2), "one commit for many"
    shown = lines_of(casque("enqueue", url, "send", "y", "-n", "2", "--json"))
    assert [(job["text"], job["state"]) for job in shown] == [("y", "ready")] * 2


def test_a_request_that_is_repeated_by_its_name_acts_once(url: str) -> None:
    first = casque("enqueue", url, "send", "x", "--request-id", "r1").stdout
    assert casque("enqueue", url, "send", "x", "--request-id", "r1").stdout == first
    assert on(url, lambda q: q.stats()).totals.ready == 1


def test_each_line_becomes_a_job_while_the_others_are_still_to_come(url: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "casque.cli", "enqueue", url, "num", "--lines", "--json", "--delay", "1h"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(b"one\r\n\ntwo\nthr")
            process.stdin.flush()
            assert [json.loads(process.stdout.readline())["text"] for _ in range(2)] == ["one", "two"]
            process.stdin.write(b"ee")
            process.stdin.close()
            assert json.loads(process.stdout.readline())["text"] == "three", "also without an end"
            assert process.wait() == 0
        finally:
            process.kill()
    assert on(url, lambda q: q.stats()).totals.delayed == 3


def test_a_job_has_the_id_that_was_chosen_and_no_other_has_it(url: str) -> None:
    assert casque("enqueue", url, "send", "x", "--id", "mail-17").stdout == "mail-17\n"
    refused = casque("enqueue", url, "send", "y", "--id", "mail-17", ends=2).stderr
    assert "a job with the id 'mail-17' is already in the queue" in refused
    assert on(url, lambda q: q.stats()).totals.enqueued == 1


def test_lines_of_a_file_and_how_far_it_came_when_one_is_refused(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("casque.cli.enqueue.COMMIT_JOBS", 2)
    (tmp_path / "lines").write_bytes(b"1\n2\n3\n4\n5")
    assert casque("enqueue", url, "num", "@lines", "--lines").stdout == "5 jobs enqueued\n"
    (tmp_path / "casque.toml").write_text(f'url = "{url}"\nsettings = {{ payload_max = 3, blob_max = 4 }}')
    (tmp_path / "lines").write_bytes(b"1\n2\n3\ntoo long\n5")
    result = casque("enqueue", "num", "@lines", "--lines", ends=2)
    assert "2 jobs were enqueued before this failed; the first line that was not enqueued is 3" in result.stderr
    assert on(url, lambda q: q.stats()).totals.ready == 7


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["send", "--delay", "5x"], "--delay takes a span"),
        (["send", "--delay", "5m", "--at", "2026-02-15"], "either --delay or --at"),
        (["send", "--at", "soon"], "--at takes a time"),
        (["send", "--header", "nix"], "NAME=VALUE"),
        (["send", "@nowhere"], "@nowhere"),
        (["send", "--key", "k", "--count", "2"], "--key is for one job"),
        (["send", "--lines", "--request-id", "r"], "--request-id"),
        (["send", "--lines", "--id", "mail-17"], "--id is for one job"),
        (["send", "x", "--count", "2", "--id", "mail-17"], "--id is for one job"),
        (["send", "x", "--id", ""], "id must be"),
        (["send", "text", "--lines"], "leave the payload out"),
        ([], "no entrypoint: write casque enqueue"),
    ],
)
def test_what_makes_no_sense_is_refused_and_adds_nothing(
    url: str, tmp_path: Path, arguments: list[str], says: str
) -> None:
    assert says in casque("enqueue", url, *arguments, ends=2).stderr
    assert not (tmp_path / "queue" / "queue.json").exists()


# --- dequeue, ack, nack ---


def test_a_claimed_job_is_acked_with_its_token_and_only_once(url: str) -> None:
    casque("enqueue", url, "send", "hello [bold]")
    result = casque("dequeue", url)
    job_id, token = result.stdout.splitlines()[1].split()[:2]
    assert "hello [bold]" in result.stdout
    assert "lost" in casque("ack", url, job_id, str(int(token) + 1), ends=1).stderr, "not the lease that it is"
    assert casque("ack", url, job_id, token, "--result", "sent").stdout == f"{job_id} done\n"
    assert "not in the queue" in casque("ack", url, job_id, token, ends=1).stderr

    async def archived(q: Queue[bytes]) -> list[bytes | None]:
        return [job.result async for job in q.archive()]

    assert on(url, archived) == [b"sent"]


def test_a_job_that_failed_waits_for_its_next_attempt(url: str) -> None:
    casque("enqueue", url, "send", "hello")
    [job] = lines_of(casque("dequeue", url, "--json", "--worker", "me"))
    assert (job["text"], job["payload"], job["worker"], job["attempts"]) == ("hello", "aGVsbG8=", "me", 1)
    said = lines_of(casque("nack", url, job["id"], str(job["token"]), "--delay", "1h", "--error", "oh no", "--json"))
    assert said == [{"id": job["id"], "token": job["token"], "outcome": "failed"}]
    [left] = on(url, lambda q: q.jobs())
    assert (left.state, left.last_error) == (JobState.DELAYED, "oh no")
    assert casque("dequeue", url, ends=3).stdout == "", "there is nothing to claim, and the exit code says so"


def test_what_is_acked_at_once_is_printed_and_gone(url: str) -> None:
    casque("enqueue", url, "send", "x", "--count", "3")
    casque("enqueue", url, "other", "y")
    shown = lines_of(casque("dequeue", url, "-e", "send", "--batch", "10", "--ack", "--json", "--lease", "30s"))
    assert [job["text"] for job in shown] == ["x"] * 3
    totals = on(url, lambda q: q.stats()).totals
    assert (totals.done, totals.ready) == (3, 1)


def test_what_nobody_read_goes_back(url: str) -> None:
    casque("enqueue", url, "send", "x")
    reads, writes = os.pipe()
    os.close(reads)
    ended = subprocess.run(
        [sys.executable, "-m", "casque.cli", "dequeue", url, "--ack", "--json"],
        stdout=writes,
        stderr=subprocess.PIPE,
    )
    os.close(writes)
    assert ended.returncode == 1
    assert ended.stderr == b""
    [job] = on(url, lambda q: q.jobs())
    assert (job.state, job.attempts) == (JobState.READY, 0)


def test_a_wrong_url_is_no_empty_queue(url: str) -> None:
    for arguments in (["dequeue", url], ["ack", url, "id", "1"], ["nack", url, "id", "1"]):
        assert "there is no queue here" in casque(*arguments, ends=2).stderr
    assert "TOKEN" in casque("ack", url, "id", "one", ends=2).stderr
    assert "ID TOKEN" in casque("nack", url, "id", ends=2).stderr


# --- Where the queue is ---


def test_the_queue_is_named_by_argument_or_variable_or_file(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("first argument", "CASQUE_URL", "casque.toml", str(tmp_path / "home" / "casque" / "config.toml")):
        assert place in casque("enqueue", "send", ends=2).stderr
    (tmp_path / "home" / "casque").mkdir(parents=True)
    (tmp_path / "home" / "casque" / "config.toml").write_text(f'url = "{url}-home"\n[queues.mail]\nurl = "{url}-mail"')
    casque("enqueue", "home")
    (tmp_path / "casque.toml").write_text(f'url = "{url}-here"')
    casque("enqueue", "here")
    monkeypatch.setenv("CASQUE_URL", f"{url}-variable")
    casque("enqueue", "variable")
    casque("enqueue", f"{url}-argument", "argument")
    casque("enqueue", "--queue", "mail", "mail")
    for name in ("home", "here", "variable", "argument", "mail"):
        [job] = on(f"{url}-{name}", lambda q: q.jobs())
        assert job.entrypoint == name
    assert "not several" in casque("enqueue", url, "send", "-q", "mail", ends=2).stderr
    assert "there are mail" in casque("enqueue", "send", "-q", "male", ends=2).stderr


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("url = ", "casque.toml"),
        ('uri = "file:///x"', "unknown field `uri`"),
        ('url = "file:///x"\nsettings = { retrention = 3 }', "did you mean 'retention'"),
        ("[queues.mail]\noptions = {}", "has no url"),
        ('[queues.mail]\nurl = "grpc://localhost:1"\noptions = { region = "x" }', "store options are for a bucket"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_what_is_wrong(tmp_path: Path, written: str, says: str) -> None:
    (tmp_path / "casque.toml").write_text(written)
    chosen = ["--queue", "mail"] if "queues" in written else []
    assert says in casque("enqueue", "send", *chosen, ends=2).stderr


async def test_a_bucket_that_a_broker_leads_is_reached_through_it(url: str) -> None:
    broker = BrokerServer(ServeOptions(url=url, listen=Address.parse("127.0.0.1:0")))
    await broker.start()
    try:
        await asyncio.to_thread(work_through, url, f"grpc://{broker.address}")
    finally:
        await broker.stop()
    async with Queue.open(url) as q:
        assert (await q.stats()).totals.done == 2


def work_through(*places: str) -> None:
    for place in places:
        casque("enqueue", place, "send", "hello")
        [job] = lines_of(casque("dequeue", place, "--json", "--wait", "5s"))
        casque("ack", place, job["id"], str(job["token"]))
