"""`casque zones` and what other commands know of zones, as people run them, on real files."""

from __future__ import annotations

import base64
import inspect
import json
from dataclasses import fields
from pathlib import Path

import pytest

from casque import NewJob, Queue
from casque.cli.zones.consume import consume
from casque.worker import ConsumerOptions
from tests.integration.shell import casque, lines_of, on

pytestmark = pytest.mark.usefixtures("nothing_around")


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A zone with much to do, one with little, one that is FIFO, and jobs without a zone."""
    where = (tmp_path / "queue").as_uri()

    async def fill(q: Queue[bytes]) -> None:
        await q.enqueue_many([NewJob("send", b"giant %d" % n, zone="giant") for n in range(5)])
        await q.enqueue("send", b"small", zone="small")
        await q.enqueue("send", b"later", zone="small", delay=3600)
        await q.enqueue_many([NewJob("step", b"step %d" % n, zone="steps", fifo=True) for n in range(3)])
        await q.enqueue("send", b"nobody's")

    on(where, fill)
    return where


def test_zones_are_listed_by_when_their_first_job_is_due(url: str) -> None:
    casque("zones", "set", url, "empty", "--weight", "2")
    told = lines_of(casque("zones", "list", url, "--json"))
    assert [zone["zone"] for zone in told] == ["giant", "small", "steps", "empty"]
    giant, small, steps, empty = told
    assert (giant["ready"], giant["delayed"], giant["running"], giant["dead"]) == (5, 0, 0, 0)
    assert (small["ready"], small["delayed"]) == (1, 1)
    assert (steps["fifo"], giant["fifo"]) == (True, False)
    assert (empty["next_at"], empty["weight"]) == (None, 2.0)

    table = casque("zones", "list", url).stdout
    header, first = table.splitlines()[:2]
    assert header.split() == ["zone", "ready", "delayed", "running", "dead", "next", "weight", "order"]
    assert first.split()[:5] == ["giant", "5", "0", "0", "0"]
    assert "fifo" in table


def test_a_list_of_zones_that_is_cut_says_so(url: str, tmp_path: Path) -> None:
    cut = casque("zones", "list", url, "--limit", "2", "--json")
    assert [zone["zone"] for zone in lines_of(cut)] == ["giant", "small"]
    assert "there are more than 2" in cut.stderr
    assert "more than" not in casque("zones", "list", url, "--limit", "3").stderr

    bare = (tmp_path / "bare").as_uri()
    casque("queue", "create", bare)
    assert "no zone has jobs or rules" in casque("zones", "list", bare).stderr
    assert casque("zones", "list", bare, "--json").output == ""


def test_a_zone_is_shown_with_the_jobs_that_come_first(url: str) -> None:
    casque("enqueue", url, "send", "urgent", "--zone", "giant", "--priority", "-1")
    casque("dequeue", url, "--zone", "giant")
    casque("enqueue", url, "send", "more urgent", "--zone", "giant", "--priority", "-2")

    [story] = lines_of(casque("zones", "show", url, "giant", "--limit", "3", "--json"))
    assert [(job["state"], job["text"]) for job in story["jobs"]] == [
        ("running", "urgent"),
        ("ready", "more urgent"),
        ("ready", "giant 0"),
    ]
    assert (story["zone"]["ready"], story["zone"]["running"]) == (6, 1)
    said = casque("zones", "show", url, "giant").stdout
    assert "weight 1, no limits" in said
    assert "more urgent" in said
    assert "neither jobs nor rules" in casque("zones", "show", url, "nobody", ends=1).stderr


def test_a_zone_that_is_held_back_says_by_what(url: str) -> None:
    casque("dequeue", url, "--zone", "giant", "--batch", "2")
    casque("zones", "set", url, "giant", "--running-max", "2")
    assert "As many of its jobs run as may at a time, 2" in casque("zones", "show", url, "giant").stdout
    casque("dequeue", url, "--zone", "giant", ends=3)
    casque("zones", "pause", url, "small")
    assert (
        "paused: none of its jobs are claimed until `casque zones resume small`"
        in casque("zones", "show", url, "small").stdout
    )
    [job] = lines_of(casque("dequeue", url, "--zone", "steps", "--json"))
    assert "One of its jobs runs: in a FIFO zone" in casque("zones", "show", url, "steps").stdout
    casque("nack", url, job["id"], str(job["token"]), "--delay", "1h")
    assert "Its first job failed and waits" in casque("zones", "show", url, "steps").stdout


def test_what_is_set_of_a_zone_stays_until_it_is_taken_away(url: str) -> None:
    said = casque("zones", "set", url, "giant", "--weight", "0.5", "--running-max", "3").stdout
    assert said == "'giant': weight 0.5, at most 3 running\n"
    [told] = lines_of(casque("zones", "set", url, "giant", "--per-second", "2.5", "--json"))
    assert told == {"zone": "giant", "weight": 0.5, "running_max": 3, "per_second": 2.5, "paused": False}
    said = casque("zones", "set", url, "giant", "--running-max", "none").stdout
    assert said == "'giant': weight 0.5, at most 2.5 a second\n"
    said = casque("zones", "set", url, "giant", "--per-second", "none", "--weight", "1").stdout
    assert said == "'giant': weight 1, no limits\n"


def test_what_makes_no_sense_is_refused(url: str) -> None:
    for arguments, says in (
        (["set"], "which zone?"),
        (["set", "acme"], "what is to be set?"),
        (["set", "acme", "--weight", "0"], "weight"),
        (["set", "acme", "--running-max", "0"], "running_max"),
        (["set", "acme", "--running-max", "2.5"], "a whole number, or none"),
        (["set", "acme", "--per-second", "fast"], "a number, or none"),
        (["set", "acme", "--per-second", "0"], "per_second"),
        (["pause"], "which zone?"),
        (["pause", "with\nline"], "zone must"),
    ):
        verb, *rest = arguments
        assert says in casque("zones", verb, url, *rest, ends=2).stderr
    assert not any(zone["zone"] == "acme" for zone in lines_of(casque("zones", "list", url, "--json")))


def test_a_zone_is_paused_and_resumed(url: str) -> None:
    assert casque("zones", "pause", url, "giant").stdout == "'giant' is paused: none of its jobs are claimed\n"
    assert "is paused already" in casque("zones", "pause", url, "giant").stdout
    casque("dequeue", url, "--zone", "giant", ends=3)
    [job] = lines_of(casque("dequeue", url, "--zone", "giant", "--zone", "small", "--json"))
    assert job["zone"] == "small"
    [told] = lines_of(casque("zones", "resume", url, "giant", "--json"))
    assert told["paused"] is False
    assert casque("zones", "resume", url, "giant").stdout == "'giant' is open already\n"
    casque("dequeue", url, "--zone", "giant")


def test_jobs_of_a_fifo_zone_come_one_after_the_other(tmp_path: Path) -> None:
    url = (tmp_path / "queue").as_uri()
    for n in ("1", "2"):
        casque("enqueue", url, "step", n, "--zone", "acme", "--fifo", "--priority", f"-{n}")
    [job] = lines_of(casque("dequeue", url, "--batch", "10", "--json"))
    assert (job["text"], job["fifo"]) == ("1", True)
    casque("ack", url, job["id"], str(job["token"]))
    [job] = lines_of(casque("dequeue", url, "--batch", "10", "--json"))
    assert job["text"] == "2"

    assert "say which one with --zone" in casque("enqueue", url, "step", "--fifo", ends=2).stderr
    late = casque("enqueue", url, "step", "--fifo", "-z", "acme", "--delay", "1m", ends=2)
    assert "--delay or --at" in late.stderr
    assert "is FIFO" in casque("enqueue", url, "step", "--zone", "acme", ends=2).stderr


def test_a_job_that_waits_because_of_its_zone_says_so(url: str) -> None:
    def why(zone: str, at: int = 0) -> str:
        job = lines_of(casque("jobs", "list", url, "--zone", zone, "--json"))[at]
        [story] = lines_of(casque("jobs", "show", url, job["id"], "--json"))
        return str(story["why"])

    assert "come before it: 0; being worked on: 0. It takes turns with 2 other zones." in why("giant")
    assert "come before it: 4;" in why("giant", 4)
    casque("zones", "set", url, "giant", "--per-second", "2")
    assert "Its zone 'giant' is limited to 2 claims per second." in why("giant")
    casque("zones", "set", url, "giant", "--running-max", "1")
    casque("dequeue", url, "--zone", "giant")
    assert "because 1 of the jobs of its zone 'giant' run" in why("giant", 1)
    assert "`casque zones set giant --running-max N` allows more." in why("giant", 1)
    casque("zones", "pause", url, "small")
    assert "because its zone 'small' is paused. `casque zones resume small`" in why("small")
    assert "It is due at" in why("small", 1)

    first = lines_of(casque("jobs", "list", url, "--zone", "steps", "--json"))[0]
    assert "no worker has claimed it" in why("steps")
    assert f"FIFO, and 2 jobs of it came before. The first of them is {first['id']}: ready." in why("steps", 2)
    casque("dequeue", url, "--zone", "steps")
    assert f"FIFO, and 1 job of it came before. The first of them is {first['id']}: running." in why("steps", 1)


def test_a_zone_is_purged_and_others_are_left_alone(url: str) -> None:
    [dead] = lines_of(casque("dequeue", url, "--zone", "giant", "--json"))
    casque("nack", url, dead["id"], str(dead["token"]), "--final")
    casque("dequeue", url, "--zone", "giant")
    refused = casque("zones", "purge", url, "giant", ends=2)
    assert "cancel 3 waiting jobs and remove 1 dead job for good?" in refused.stderr
    assert "add --yes" in refused.stderr
    assert "nothing was done" in casque("zones", "purge", url, "giant", told="n\n", ends=1).stderr

    [told] = lines_of(casque("zones", "purge", url, "giant", "--yes", "--json"))
    assert told == {"zone": "giant", "cancelled": 3, "purged": 1, "kept": 0, "running": 1}
    left = {zone["zone"]: zone for zone in lines_of(casque("zones", "list", url, "--json"))}
    assert (left["giant"]["ready"], left["giant"]["running"], left["giant"]["dead"]) == (0, 1, 0)
    assert (left["small"]["ready"], left["small"]["delayed"], left["steps"]["ready"]) == (1, 1, 3)
    again = casque("zones", "purge", url, "giant", "--yes")
    assert again.stdout == "0 waiting jobs cancelled, 0 dead jobs removed\n"
    assert "left alone: 1" in again.stderr


def test_only_what_is_dead_is_purged_of_a_zone(url: str) -> None:
    [dead] = lines_of(casque("dequeue", url, "--zone", "small", "--json"))
    casque("nack", url, dead["id"], str(dead["token"]), "--final")
    assert casque("zones", "purge", url, "small", "--dead-only", "--yes").stdout == "1 dead job removed\n"
    [story] = lines_of(casque("zones", "show", url, "small", "--json"))
    assert (story["zone"]["delayed"], story["zone"]["dead"]) == (1, 0)
    assert casque("zones", "purge", url, "nobody").stdout == "0 waiting jobs cancelled, 0 dead jobs removed\n"


def test_all_of_a_zone_is_exported(url: str, tmp_path: Path) -> None:
    casque("dequeue", url, "--zone", "giant", "--batch", "2", "--ack")
    casque("dequeue", url, "--zone", "small", "--ack")

    told = casque("zones", "export", url, "giant")
    lines = lines_of(told)
    assert [(line["where"], line["state"], line["zone"]) for line in lines] == [
        *[("queue", "ready", "giant")] * 3,
        *[("archive", "done", "giant")] * 2,
    ]
    assert [base64.b64decode(line["payload"]) for line in lines] == [b"giant %d" % n for n in (2, 3, 4, 0, 1)]
    assert told.stderr == "3 jobs of 'giant' in the queue, 2 in the archive\n"

    file = tmp_path / "giant.jsonl"
    [counted] = lines_of(casque("zones", "export", url, "giant", "--output", str(file), "--json"))
    assert counted == {"zone": "giant", "jobs": 3, "finished": 2}
    assert [json.loads(line) for line in file.read_text().splitlines()] == lines
    missing = casque("zones", "export", url, "giant", "--output", str(tmp_path / "no" / "file"), ends=2)
    assert "cannot be written" in missing.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["giant.jsonl", "queue"]


def test_a_queue_says_how_many_zones_it_has(url: str, tmp_path: Path) -> None:
    casque("zones", "set", url, "giant", "--weight", "2")
    assert "3 with jobs, 1 with rules" in casque("queue", "info", url).stdout
    [told] = lines_of(casque("queue", "info", url, "--json"))
    assert (told["zones"], told["zones_with_rules"]) == (3, 1)
    bare = (tmp_path / "bare").as_uri()
    casque("queue", "create", bare)
    assert "zones" not in casque("queue", "info", bare).stdout


# --- Leases ---


def lease(url: str, zone: str) -> None:
    async def take(q: Queue[bytes]) -> None:
        assert await q.lease_zone(zone, lease=3600) is not None

    on(url, take)


def test_a_peek_shows_who_has_waited_longest_and_leaves_out_who_is_not_to_be_had(url: str) -> None:
    casque("enqueue", url, "send", "tomorrow", "--zone", "late", "--delay", "1d")
    lease(url, "giant")

    told = lines_of(casque("zones", "peek", url, "--json"))

    assert [(zone["zone"], zone["due"], zone["fifo"]) for zone in told] == [
        ("small", True, False),
        ("steps", True, True),
        ("late", False, False),
    ]
    assert [zone["zone"] for zone in lines_of(casque("zones", "peek", url, "-e", "step", "--json"))] == ["steps"]
    header, first = casque("zones", "peek", url, "--limit", "1").stdout.splitlines()
    assert header.split() == ["zone", "vests", "waits"]
    assert first.startswith("small")


def test_a_peek_at_nothing_says_where_to_look(tmp_path: Path) -> None:
    bare = (tmp_path / "bare").as_uri()
    casque("queue", "create", bare)
    assert "no zone has jobs to claim" in casque("zones", "peek", bare).stderr
    assert casque("zones", "peek", bare, "--json").output == ""


def test_a_leased_zone_is_shown_with_whoever_has_it(url: str) -> None:
    lease(url, "giant")

    giant, small, _ = lines_of(casque("zones", "list", url, "--json"))
    assert (giant["leased_by"], small["leased_by"]) == ("w1", None)
    assert giant["leased_at"] is not None
    table = casque("zones", "list", url).stdout
    assert "leased by" in table
    assert "w1" in table
    shown = casque("zones", "show", url, "giant").stdout
    assert "w1, since" in shown
    assert "only w1 is given its jobs" in shown
    [waiting, *_] = lines_of(casque("jobs", "list", url, "--zone", "giant", "--json"))
    assert "waits for w1, which leases its zone 'giant'" in casque("jobs", "show", url, waiting["id"]).stdout


def test_the_options_of_consume_are_those_of_the_library() -> None:
    asked = inspect.signature(consume.callback).parameters
    for option in fields(ConsumerOptions):
        assert asked[option.name].default == option.default, option.name
