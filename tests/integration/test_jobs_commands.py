"""`casque jobs list|show|cancel|retry|purge` and `casque queue info|create|convert`, on files and through a broker."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from casque import JobState, Queue
from casque.app import BrokerServer, ServeOptions
from casque.cli.jobs import change, select
from casque.transport.listening import Address
from tests.integration.shell import casque, lines_of, on

pytestmark = pytest.mark.usefixtures("nothing_around")


@pytest.fixture
def url(tmp_path: Path) -> str:
    """One job of each kind: its name is its key."""
    place = (tmp_path / "queue").as_uri()

    async def fill(q: Queue[bytes]) -> None:
        await q.enqueue("send", b"first", key="dead", max_attempts=2, zone="a")
        for n in range(2):
            [job] = await q.dequeue("send")
            await job.nack(error=f"no luck {n}", delay=0)
        await q.enqueue("send", b"second", key="done")
        [job] = await q.dequeue("send")
        await job.ack(result=b"[sent]")
        await q.enqueue("send", b"third", key="failed")
        [job] = await q.dequeue("send")
        await job.nack(error="later", delay=3600)
        await q.enqueue("send", b"fourth", key="running")
        await q.dequeue("send", lease=3600)
        await q.enqueue("send", b"fifth", key="later", delay=timedelta(hours=2), zone="a")
        await q.enqueue("send", b"sixth", key="urgent", priority=-1)
        await q.enqueue("send", b"seventh", key="ready", headers={"lang": "en"})
        await q.enqueue("resize", b"\xff" * 100, key="alone", zone="a")

    on(place, fill)
    return place


def keys(*arguments: str) -> list[str]:
    return [job["key"] for job in lines_of(casque("jobs", "list", *arguments, "--json"))]


def id_of(url: str, key: str) -> str:
    [found] = [job["id"] for job in lines_of(casque("jobs", "list", url, "--json")) if job["key"] == key]
    return str(found)


# --- list ---


def test_jobs_are_listed_by_state_entrypoint_and_zone(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "PAGE", 2)
    assert keys(url) == ["dead", "failed", "running", "later", "urgent", "ready", "alone"]
    assert keys(url, "--state", "ready") == ["urgent", "ready", "alone"]
    assert keys(url, "-s", "running", "-s", "delayed", "-e", "send") == ["failed", "running", "later"]
    assert keys(url, "--zone", "a") == ["dead", "later", "alone"]
    assert keys(url, "--zone", "a", "--limit", "2") == ["dead", "later"]
    assert keys(url, "--limit", "3") == ["dead", "failed", "running"]
    assert keys(url, "-e", "nobody") == []


def test_a_list_for_people_cuts_nothing_that_goes_into_a_pipe(url: str) -> None:
    result = casque("jobs", "list", url, "--limit", "2")
    [heading, dead, failed] = result.stdout.splitlines()
    assert heading.split() == ["id", "entrypoint", "state", "due", "attempts", "zone", "error"]
    assert dead.split()[2] == "dead"
    assert "2/2" in dead
    assert "no luck 1" in dead
    assert failed.startswith(id_of(url, "failed"))
    assert "more than 2" in result.stderr
    assert "no jobs match" in casque("jobs", "list", url, "-e", "nobody").stderr


# --- show ---


def test_the_story_of_a_dead_job_has_every_attempt(url: str) -> None:
    dead = id_of(url, "dead")
    told = casque("jobs", "show", url, dead).stdout
    for part in (dead, "no luck 0", "no luck 1", "w1", "All of its 2 attempts failed", "casque jobs retry"):
        assert part in told, part
    [story] = lines_of(casque("jobs", "show", url, dead, "--json"))
    assert [(one["how"], one["error"]) for one in story["job"]["tries"]] == [
        ("failed", "no luck 0"),
        ("failed", "no luck 1"),
    ]


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("failed", "It waits after attempt 1/25: it is tried again at "),
        ("later", "It was enqueued for later: it is due at "),
        ("running", "w1 has been running it since "),
        ("ready", "Jobs of 'send' that come before it: 1; being worked on: 1."),
        ("alone", "Jobs of 'resize' that come before it: 0; being worked on: 0. Is there a worker for 'resize'?"),
    ],
)
def test_a_job_that_is_not_done_says_why(url: str, key: str, says: str) -> None:
    assert says in casque("jobs", "show", url, id_of(url, key)).stdout


def test_a_job_that_is_over_is_found_in_the_archive(url: str) -> None:
    async def finished(q: Queue[bytes]) -> str:
        [job_id] = [job.id async for job in q.archive(states=[JobState.DONE])]
        return job_id

    done = on(url, finished)
    told = casque("jobs", "show", url, done).stdout
    assert "It was done at " in told
    assert "on attempt 1/25" in told
    assert "[sent]" in told
    [story] = lines_of(casque("jobs", "show", url, done, "--since", "1h", "--json"))
    assert story["job"] is None
    assert [finish["state"] for finish in story["finishes"]] == ["done"]
    assert "not in the archive since then" in casque("jobs", "show", url, done, "--since", "2099-01-01", ends=1).stderr
    assert "never enqueued" in casque("jobs", "show", url, "nobody", ends=1).stderr
    assert "which job?" in casque("jobs", "show", url, ends=2).stderr


# --- cancel, retry, purge ---


def test_cancelling_asks_first(url: str) -> None:
    ready = id_of(url, "ready")
    assert "add --yes" in casque("jobs", "cancel", url, ready, ends=2).stderr
    assert "nothing was done" in casque("jobs", "cancel", url, ready, told="n\n", ends=1).stderr
    assert "ready" in keys(url), "nothing has changed"
    assert "1 job cancelled" in casque("jobs", "cancel", url, ready, told="y\n").stdout
    assert "ready" not in keys(url)


def test_what_cannot_be_cancelled_does_not_spare_the_others(url: str) -> None:
    dead, ready = id_of(url, "dead"), id_of(url, "ready")
    result = casque("jobs", "cancel", url, "nobody", dead, ready, "--yes", "--json", ends=1)
    assert [(one["id"], one["done"]) for one in lines_of(result)] == [("nobody", False), (dead, False), (ready, True)]
    assert keys(url) == ["dead", "failed", "running", "later", "urgent", "alone"]


def test_all_that_fit_are_cancelled_at_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change, "CALLS_MAX", 2)
    assert "2 jobs cancelled" in casque("jobs", "cancel", url, "--all", "--zone", "a", "-y").stdout
    assert keys(url) == ["dead", "failed", "running", "urgent", "ready"]
    assert "1 job cancelled" in casque("jobs", "cancel", url, "--all", "--state", "running", "-y").stdout
    assert "3 jobs cancelled" in casque("jobs", "cancel", url, "--all", "-y").stdout
    assert keys(url) == ["dead"]
    for wrong in ([], ["id", "--all"], ["id", "--zone", "a"]):
        casque("jobs", "cancel", url, *wrong, "-y", ends=2)


def test_dead_jobs_are_given_fresh_attempts(url: str) -> None:
    dead = id_of(url, "dead")
    assert "needs it to be dead" in casque("jobs", "retry", url, id_of(url, "ready"), ends=1).stderr
    assert "1 job retried" in casque("jobs", "retry", url, dead).stdout
    assert "0 jobs retried" in casque("jobs", "retry", url, "--all").stdout
    [story] = lines_of(casque("jobs", "show", url, dead, "--json"))
    assert (story["job"]["state"], story["job"]["attempts"], len(story["job"]["tries"])) == ("ready", 0, 2)


def test_waiting_jobs_are_rescheduled(url: str) -> None:
    ready = id_of(url, "ready")
    assert "1 job rescheduled" in casque("jobs", "reschedule", url, ready, "--delay", "2h", "--priority", "3").stdout
    [story] = lines_of(casque("jobs", "show", url, ready, "--json"))
    assert (story["job"]["state"], story["job"]["priority"]) == ("delayed", 3)
    assert "1 job rescheduled" in casque("jobs", "reschedule", url, ready, "--at", "2026-01-01").stdout
    [story] = lines_of(casque("jobs", "show", url, ready, "--json"))
    assert (story["job"]["state"], story["job"]["priority"]) == ("ready", 3)
    assert (
        "needs it to be waiting"
        in casque("jobs", "reschedule", url, id_of(url, "dead"), "--delay", "1s", ends=1).stderr
    )
    casque("jobs", "reschedule", url, "--all", "--priority", "1", ends=2)  # there is nobody to ask
    done = lines_of(casque("jobs", "reschedule", url, "--all", "--priority", "1", "--yes", "--json"))
    assert len(done) > 1
    assert all(one["done"] for one in done)
    for wrong in ([], ["--at", "2026-01-01", "--delay", "1s"], ["--at", "soon"], ["--delay", "-1s"]):
        casque("jobs", "reschedule", url, ready, *wrong, ends=2)


def test_purging_asks_first_and_removes_what_is_dead(url: str) -> None:
    assert "Remove 1 dead job for good?" in casque("jobs", "purge", url, told="n\n", ends=1).output
    assert "dead" in keys(url)
    assert "0 dead jobs removed" in casque("jobs", "purge", url, "-e", "resize").stdout
    assert lines_of(casque("jobs", "purge", url, "--yes", "--json")) == [{"purged": 1}]
    assert "dead" not in keys(url)


# --- queue ---


def test_running_jobs_are_taken_back_by_their_age(url: str) -> None:
    assert keys(url, "--state", "running") == ["running"]
    assert "--stale" in casque("jobs", "requeue", url, ends=2).output
    [said] = lines_of(casque("jobs", "requeue", url, "--stale", "3600", "--yes", "--json"))
    assert said == {"requeued": 0}
    casque("jobs", "requeue", url, "--stale", "0", told="n\n", ends=1)
    assert keys(url, "--state", "running") == ["running"]
    assert "1 job taken back" in casque("jobs", "requeue", url, "--stale", "0", "--yes").output
    assert keys(url, "--state", "running") == []


def test_a_queue_tells_how_it_stands(url: str) -> None:
    [info] = lines_of(casque("queue", "info", url, "--json"))
    counts = {name: info[name] for name in ("enqueued", "ready", "delayed", "running", "dead", "done", "cancelled")}
    assert counts == {"enqueued": 8, "ready": 3, "delayed": 2, "running": 1, "dead": 1, "done": 1, "cancelled": 0}
    assert (info["layout"], info["leader"]) == ("log", None)
    resize, send = info["entrypoints"]
    assert (resize["entrypoint"], resize["ready"]) == ("resize", 1)
    assert (send["ready"], send["delayed"], send["running"], send["dead"]) == (2, 2, 1, 1)
    told = casque("queue", "info", url).stdout
    assert "oldest due" in told
    assert "resize" in told


def test_every_command_about_a_bucket_finds_it_by_variable_or_name(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "casque.toml").write_text(f'[queues.mail]\nurl = "{url}"')
    for arguments in (
        ["tail", "--no-follow", "--from", "start"],
        ["archive"],
        ["queue", "verify"],
        ["queue", "release"],
        ["queue", "convert", "--to", "log"],
        ["queue", "info"],
        ["jobs", "list"],
    ):
        assert "CASQUE_URL" in casque(*arguments, ends=2).stderr
        assert "there are mail" in casque(*arguments, "--queue", "male", ends=2).stderr
        by_name = casque(*arguments, "--queue", "mail").output
        monkeypatch.setenv("CASQUE_URL", url)
        by_variable = casque(*arguments).output
        monkeypatch.delenv("CASQUE_URL")
        if arguments != ["queue", "info"]:  # which says how long the oldest job has waited
            assert by_name == by_variable


@pytest.mark.parametrize("layout", ["log", "document"])
def test_a_queue_is_made_empty_and_works(tmp_path: Path, layout: str) -> None:
    place = (tmp_path / "new").as_uri()
    assert "there is no queue" in casque("queue", "info", place, ends=2).stderr
    assert "is a queue now" in casque("queue", "create", place, "--layout", layout).stdout
    assert "was a queue already" in casque("queue", "create", place, "--layout", layout).stdout
    other = "document" if layout == "log" else "log"
    assert f"--to {other}" in casque("queue", "create", place, "--layout", other, ends=1).stderr
    casque("queue", "verify", place)
    casque("enqueue", place, "send", "hello")
    casque("queue", "convert", place, "--to", other)
    assert lines_of(casque("queue", "create", place, "--layout", other, "--json")) == [
        {"url": place, "layout": other, "created": False}
    ]
    assert lines_of(casque("queue", "info", place, "--json"))[0]["ready"] == 1


async def test_everything_goes_through_the_broker_that_leads(url: str) -> None:
    broker = BrokerServer(ServeOptions(url=url, listen=Address.parse("127.0.0.1:0")))
    await broker.start()
    try:
        await asyncio.to_thread(look_after, url, f"grpc://{broker.address}")
    finally:
        await broker.stop()


def counts(place: str) -> tuple[int, int, int]:
    """Enqueued, dead and purged jobs, after a check that all of them add up."""
    [info] = lines_of(casque("queue", "info", place, "--json"))
    parts = ("ready", "delayed", "running", "done", "dead", "cancelled", "purged")
    assert info["enqueued"] == sum(info[part] for part in parts)
    return info["enqueued"], info["dead"], info["purged"]


def look_after(bucket: str, broker: str) -> None:
    [info] = lines_of(casque("queue", "info", bucket, "--json"))
    assert broker == f"grpc://{info['leader']}"
    [asked] = lines_of(casque("queue", "info", broker, "--json"))
    assert (asked["ready"], asked["entrypoints"]) == (3, None)
    for place in (bucket, broker):
        assert keys(place, "-s", "dead") == ["dead"]
        assert "no luck 1" in casque("jobs", "show", place, id_of(place, "dead")).stdout
    assert counts(bucket) == counts(broker) == (8, 1, 0)
    casque("jobs", "purge", bucket, "--yes")
    assert counts(bucket) == counts(broker) == (8, 0, 1)
    casque("jobs", "cancel", broker, "--all", "-e", "resize", "--yes")
    assert keys(bucket, "-s", "dead") == []
    assert "of the bucket" in casque("queue", "create", broker, ends=2).stderr
