"""`casque queue create --shards`, `resize`, `info` and `verify` on a ring, and the commands for jobs beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from casque import NewJob, Queue
from casque.state.ring import home
from tests.integration.shell import casque, lines_of, on

pytestmark = pytest.mark.usefixtures("nothing_around")


@pytest.fixture
def url(tmp_path: Path) -> str:
    place = (tmp_path / "queue").as_uri()
    assert "a ring of 3 shards" in casque("queue", "create", place, "--shards", "3").stdout
    return place


async def fill(queue: Queue[bytes]) -> None:
    await queue.enqueue_many([NewJob("send", b"%d" % n, zone=f"z{n}") for n in range(12)])


def test_a_ring_is_made_once_and_resized(url: str) -> None:
    [again] = lines_of(casque("queue", "create", url, "--shards", "3", "--json"))
    assert again == {"url": url, "layout": "ring", "created": False, "shards": 3}
    assert "resize" in casque("queue", "create", url, "--shards", "5", ends=1).stderr
    casque("queue", "create", url, ends=1)

    assert "has 6 shards now; it had 3" in casque("queue", "resize", url, "--shards", "6").stdout
    [told] = lines_of(casque("queue", "resize", url, "--shards", "6", "--json"))

    assert told == {"generation": 2, "shards": 6, "before": 6, "sizes": [3, 6]}
    for wrong in ("0", "-1", "4097", "many"):
        casque("queue", "resize", url, "--shards", wrong, ends=2)


def test_a_queue_cannot_become_a_ring_and_is_left_alone(tmp_path: Path) -> None:
    place = (tmp_path / "plain").as_uri()
    casque("queue", "create", place)
    assert "cannot become a ring" in casque("queue", "create", place, "--shards", "4", ends=1).stderr
    assert "no ring of shards" in casque("queue", "resize", place, "--shards", "4", ends=2).stderr
    casque("queue", "create", (tmp_path / "other").as_uri(), "--shards", "4", "--layout", "document", ends=2)
    assert not (tmp_path / "other").exists()
    assert json.loads((tmp_path / "plain" / "queue.json").read_text())["layout"] == "log"


def test_a_ring_is_shown_with_its_shards(url: str) -> None:
    on(url, fill)
    casque("queue", "resize", url, "--shards", "6")

    [info] = lines_of(casque("queue", "info", url, "--json"))

    assert (info["layout"], info["enqueued"], info["ready"]) == ("ring", 12, 12)
    assert info["ring"]["sizes"] == [3, 6]
    assert [shard["waiting"] for shard in info["ring"]["shards"]] == [
        sum(home(f"z{n}", 3) == token for n in range(12)) for token in range(6)
    ]
    assert info["entrypoints"][0]["ready"] == 12
    shown = casque("queue", "info", url).stdout
    assert "6 (generation 2, and zones that were made with 3)" in shown
    assert "0005" in shown


def test_jobs_of_a_ring_are_worked_on_from_a_shell(url: str) -> None:
    casque("enqueue", url, "send", "hello", "--zone", "acme")
    [job] = lines_of(casque("dequeue", url, "--entrypoint", "send", "--json"))
    casque("ack", url, job["id"], str(job["token"]))
    casque("enqueue", url, "send", "again", "--zone", "acme")
    [listed] = lines_of(casque("jobs", "list", url, "--json"))
    casque("jobs", "cancel", url, listed["id"], "--yes")
    states = [one["state"] for one in lines_of(casque("archive", "cat", url, "--json"))]
    assert states == ["done", "cancelled"]
    assert "ring of shards" in casque("convert", url, "--to", "document", ends=2).stderr


def test_a_ring_is_watched_shard_by_shard(url: str) -> None:
    on(url, fill)
    jobs = lines_of(casque("dequeue", url, "--entrypoint", "send", "--batch", "5", "--json"))
    for job in jobs:
        casque("ack", url, job["id"], str(job["token"]))
    events = lines_of(casque("tail", url, "--from", "start", "--no-follow", "--json"))
    assert {(one["shard"], one["job_id"]) for one in events if one["kind"] == "added"} == {
        (home(one["fields"]["zone"], 3), one["job_id"]) for one in events if one["kind"] == "added"
    }
    assert {one["fields"]["token"] for one in events if one["kind"] == "acked"} == {job["token"] for job in jobs}
    first = {f"{one['shard']:04d}": one["position"] for one in events if one["kind"] == "added"}
    later = lines_of(casque("tail", url, "--from", json.dumps(first), "--no-follow", "--json", "-e", "send"))
    assert {one["kind"] for one in later} >= {"claimed", "acked"}
    assert "added" not in {one["kind"] for one in later}
    shown = casque("tail", url, "--from", "0", "--no-follow", "--kind", "acked").stdout.splitlines()
    assert {line.split()[0] for line in shown} == {f"{int(job['token']) % 4096:04d}" for job in jobs}
    assert "one for each of them" in casque("tail", url, "--from", "5", "--no-follow", ends=2).stderr
    objects = lines_of(casque("archive", "ls", url, "--json"))
    assert {one["key"].split("/")[1] for one in objects} == {line.split()[0] for line in shown}
    assert "shard" in casque("archive", "ls", url).stdout
    [picture] = lines_of(casque("top", url, "--once", "--json", "--interval", "0.05"))
    assert (picture["layout"], picture["totals"]["ready"], picture["totals"]["done"]) == ("ring", 7, 5)


def test_a_ring_is_verified_shard_by_shard(url: str, tmp_path: Path) -> None:
    on(url, fill)
    [verdict] = lines_of(casque("queue", "verify", url, "--json"))
    assert (verdict["layout"], verdict["shards"], verdict["jobs"], verdict["notes"]) == ("ring", 3, 12, [])
    assert "3, all there" in casque("queue", "verify", url).stdout
    root = tmp_path / "queue" / "shards"
    last = max((root / "0001" / "log").iterdir())
    body = last.read_bytes()
    last.write_bytes(body.replace(b'"task"', b'"risk"')[:-5] + b"12345")
    assert "shards/0001/log" in casque("queue", "verify", url, ends=1).stderr
    last.write_bytes(body)
    (root / "0002").rename(tmp_path / "gone")
    assert "shards/0002/queue.json" in casque("queue", "verify", url, ends=1).stderr
