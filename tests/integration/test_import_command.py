"""`casque queue import`: all jobs of a file or none, once, and the file stays as it is."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from casque import Job, Queue
from casque.cli.queue import importing
from casque.errors import UnknownOutcomeError
from tests.integration.shell import casque, on
from tests.support.servers import Server
from tests.unit.compat.test_files import GO_JOB, JQUEUE_JOB, KEPT, TS_JOB, go, jqueue, ts

pytestmark = pytest.mark.usefixtures("nothing_around")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return (tmp_path / "queue").as_uri()


def written(tmp_path: Path, body: bytes) -> Path:
    path = tmp_path / "other.json"
    path.write_bytes(body)
    return path


async def jobs_of(q: Queue[bytes]) -> list[Job[bytes]]:
    return await q.jobs(limit=100)


def exists(url: str) -> bool:
    return Path(url.removeprefix("file://")).exists()


def answer(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(casque(*arguments, "--json").stdout)
    return found


@pytest.mark.parametrize("layout", ["log", "document"])
def test_jobs_of_jqueue_keep_their_ids_payloads_priorities_and_order(tmp_path: Path, url: str, layout: str) -> None:
    source = KEPT / "worked.json"
    before = source.read_bytes()
    stored = {job["id"]: job for job in json.loads(before)["jobs"]}
    casque("queue", "create", url, "--layout", layout)

    said = casque("queue", "import", str(source), url).stdout

    assert f"{len(stored)} of {len(stored)} jobs imported, written by jqueue" in said
    assert "1 of them were running" in said
    jobs = on(url, lambda q: q.dequeue(batch_size=100))
    assert {job.id for job in jobs} == set(stored)
    order = sorted(stored.values(), key=lambda job: (job["priority"], job["created_at"]))
    assert [job.id for job in jobs] == [job["id"] for job in order]
    for job in jobs:
        assert (job.entrypoint, job.priority) == (stored[job.id]["entrypoint"], stored[job.id]["priority"])
        assert job.headers["imported-from"] == "jqueue"
    assert source.read_bytes() == before


def test_jobs_of_osqueue_in_both_languages_go_into_one_queue(tmp_path: Path, url: str) -> None:
    (tmp_path / "go.json").write_bytes(go(GO_JOB, {**GO_JOB, "id": "second", "attempts": 1}))
    (tmp_path / "ts.json").write_bytes(ts({**TS_JOB, "type": "email:send"}, {**TS_JOB, "id": "c2", "maxAttempts": 7}))

    casque("import", "go.json", url, "--entrypoint", "build")
    casque("import", "ts.json", url)

    jobs = on(url, lambda q: q.dequeue(batch_size=10))
    assert [(job.id, job.entrypoint, job.payload, job.max_attempts) for job in jobs] == [
        ("b7c9", "build", b'{"name": "index"}', 25),
        ("second", "build", b'{"name": "index"}', 25),
        ("c1", "email:send", b'{"to":"ada"}', 3),
        ("c2", "osqueue", b'{"to":"ada"}', 7),
    ]
    assert jobs[1].headers["attempts"] == "1"


def test_a_file_is_imported_once_even_if_its_jobs_are_done_by_then(tmp_path: Path, url: str) -> None:
    source = str(written(tmp_path, jqueue(JQUEUE_JOB)))
    assert answer("import", source, url)["imported"] == 1

    async def finish(q: Queue[bytes]) -> None:
        for job in await q.dequeue():
            await job.ack()

    on(url, finish)
    again = answer("import", source, url)

    assert (again["imported"], again["repeated"]) == (0, True)
    assert "was imported before; nothing was added" in casque("import", source, url).stdout
    assert on(url, jobs_of) == []


def test_a_dry_run_says_what_would_happen_and_makes_no_queue(tmp_path: Path, url: str) -> None:
    running = {**JQUEUE_JOB, "id": "r", "entrypoint": "resize", "status": "in_progress"}
    source = str(written(tmp_path, jqueue(JQUEUE_JOB, running)))

    found = answer("queue", "import", source, url, "--dry-run")

    assert found == {
        "source": source,
        "kind": "jqueue",
        "dry_run": True,
        "imported": 2,
        "skipped": 0,
        "repeated": False,
        "statuses": {"waiting": 1, "running": 1},
        "entrypoints": {"send": 1, "resize": 1},
    }
    assert "2 of 2 jobs to import" in casque("queue", "import", source, "--dry-run").stdout
    assert not exists(url)


def test_one_job_that_is_not_understood_refuses_the_file(tmp_path: Path, url: str) -> None:
    source = written(tmp_path, jqueue(JQUEUE_JOB, {**JQUEUE_JOB, "id": "x", "shade": "blue"}))
    before = source.read_bytes()

    said = casque("queue", "import", str(source), url, ends=2).output

    assert str(source) in said.replace("\n", "")
    assert "job 2 ('x')" in said
    assert "shade" in said
    assert not exists(url)
    assert source.read_bytes() == before


def test_a_job_whose_id_the_queue_has_refuses_the_file_unless_it_may_be_skipped(tmp_path: Path, url: str) -> None:
    casque("import", str(written(tmp_path, jqueue(JQUEUE_JOB))), url)
    more = str(written(tmp_path, jqueue(JQUEUE_JOB, {**JQUEUE_JOB, "id": "new"})))

    said = casque("import", more, url, ends=2).output
    assert "a1" in said
    assert [job.id for job in on(url, jobs_of)] == ["a1"]

    found = answer("import", more, url, "--skip-known")
    assert (found["imported"], found["skipped"]) == (1, 1)
    assert {job.id for job in on(url, jobs_of)} == {"a1", "new"}


def test_dead_jobs_are_a_decision(tmp_path: Path, url: str) -> None:
    source = str(KEPT / "dead.json")

    said = casque("import", source, url, ends=2).output.replace("\n", " ")
    assert "1 of 2 jobs are dead" in said
    assert "--dead skip" in said
    assert not exists(url)

    assert answer("import", source, url, "--dead", "skip")["imported"] == 1
    assert answer("import", source, url + "-2", "--dead", "retry")["imported"] == 2


def test_finished_jobs_that_osqueue_had_not_removed_yet_stay_out(tmp_path: Path, url: str) -> None:
    done = {**GO_JOB, "id": "d", "status": "completed", "completed_at": "2026-02-15T10:00:09Z"}

    assert answer("import", str(written(tmp_path, go(GO_JOB, done))), url)["imported"] == 1
    assert [job.id for job in on(url, jobs_of)] == ["b7c9"]


def test_a_file_without_jobs_makes_no_queue(tmp_path: Path, url: str) -> None:
    said = casque("import", str(KEPT / "empty.json"), url).stdout

    assert "0 of 0 jobs imported" in said
    assert not exists(url)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.json", "memory://q"], "No such file"),
        (["other.json", "grpc://127.0.0.1:9"], "not that of a broker"),
        (["other.json", "memory://q", "--source-option", "region=x"], "leave it out"),
        (["other.json", "memory://q", "--entrypoint", "e"], "jqueue's have theirs"),
        (["other.json", "memory://q", "--entrypoint", ""], "entrypoint must be"),
        (["other.json"], "which queue"),
        (["memory://nothing/queue.json", "memory://q"], "no such object"),
    ],
)
def test_a_mistake_is_answered_with_what_to_do(tmp_path: Path, arguments: list[str], said: str) -> None:
    written(tmp_path, jqueue(JQUEUE_JOB))

    assert said in " ".join(casque("queue", "import", *arguments, ends=2).output.split())


def test_a_file_is_not_imported_into_itself(tmp_path: Path) -> None:
    place = tmp_path / "queue"
    place.mkdir()
    (place / "queue.json").write_bytes(jqueue(JQUEUE_JOB))
    before = (place / "queue.json").read_bytes()

    for source in (str(place / "queue.json"), (place / "queue.json").as_uri(), "queue/queue.json"):
        said = casque("import", source, place.as_uri(), ends=2).output
        assert "opened as it is" in " ".join(said.split())

    assert (place / "queue.json").read_bytes() == before
    assert [path.name for path in place.iterdir()] == ["queue.json"]


def test_many_jobs_are_one_commit(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "STAGE_JOBS", 100)
    source = str(written(tmp_path, jqueue(*({**JQUEUE_JOB, "id": f"{n:04}"} for n in range(1_050)))))
    casque("queue", "create", url)
    before = json.loads(casque("queue", "info", url, "--json").stdout)["position"]

    assert answer("import", source, url)["imported"] == 1_050

    after = json.loads(casque("queue", "info", url, "--json").stdout)["position"]
    assert after == before + 1
    assert [job.id for job in on(url, lambda q: q.dequeue(batch_size=2_000))] == [f"{n:04}" for n in range(1_050)]


def test_a_ring_takes_the_jobs_too(tmp_path: Path, url: str) -> None:
    casque("queue", "create", url, "--shards", "2")
    source = str(written(tmp_path, go(*({**GO_JOB, "id": str(n)} for n in range(20)))))

    assert answer("import", source, url)["imported"] == 20
    assert answer("import", source, url)["repeated"] is True
    assert len(on(url, jobs_of)) == 20


def test_an_outcome_that_is_unknown_is_said_and_the_import_can_be_repeated(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(written(tmp_path, jqueue(JQUEUE_JOB)))
    admit = Queue.admit

    async def lost(self: Queue[bytes], *arguments: Any, **more: Any) -> Any:
        await admit(self, *arguments, **more)
        raise UnknownOutcomeError("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(Queue, "admit", lost)
        casque("import", source, url, ends=4)

    assert answer("import", source, url)["repeated"] is True
    assert [job.id for job in on(url, jobs_of)] == ["a1"]


@pytest.mark.xdist_group("s3")
def test_a_file_in_a_bucket_goes_into_a_queue_in_a_bucket(s3_server: Server) -> None:
    from casque.storage.url import open_store

    async def put() -> None:
        store = open_store(f"s3://{s3_server.bucket}/import/old", options=s3_server.options)
        await store.create("jobs.json", go(GO_JOB))
        await store.close()

    asyncio.run(put())
    pairs = [f"{name}={value}" for name, value in s3_server.options.items()]
    options = [part for pair in pairs for part in ("-o", pair, "--source-option", pair)]

    found = answer(
        "import", f"s3://{s3_server.bucket}/import/old/jobs.json", f"s3://{s3_server.bucket}/import/new", *options
    )

    assert (found["kind"], found["imported"]) == ("osqueue-go", 1)
