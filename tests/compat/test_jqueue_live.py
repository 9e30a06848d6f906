"""A round trip through jqueue 1.0 itself: written here, read and changed there, opened here again."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from casque import BrokerQueue, DirectQueue, Job, LocalFileSystemStorage, NewJob, Queue

HERE = Path(__file__).parent
NO_PYTHON = 3

pytestmark = pytest.mark.xdist_group("jqueue")


@pytest.fixture(scope="session")
def jqueue_python() -> str:
    made = subprocess.run([HERE.parents[1] / "scripts" / "jqueue-venv"], capture_output=True, text=True)
    if made.returncode == NO_PYTHON:
        pytest.skip(made.stderr.strip())
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def jqueue(python: str, verb: str, path: Path) -> Any:
    """What jqueue says about the document after having done this to it."""
    ran = subprocess.run([python, HERE / "jqueue_side.py", verb, path], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout) if ran.stdout else None


def seen_here(jobs: tuple[Job[bytes], ...]) -> list[tuple[object, ...]]:
    fields = [(j.id, j.entrypoint, j.payload, j.status.value, j.priority, j.created_at, j.heartbeat_at) for j in jobs]
    return sorted(fields, key=lambda job: str(job[0]))


def seen_there(jobs: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    return sorted(
        (
            (
                j["id"],
                j["entrypoint"],
                base64.b64decode(j["payload"]),
                j["status"],
                j["priority"],
                _to_the_millisecond(j["created_at"]),
                j["heartbeat_at"] and _to_the_millisecond(j["heartbeat_at"]),
            )
            for j in jobs
        ),
        key=lambda job: str(job[0]),
    )


def _to_the_millisecond(text: str) -> datetime:
    exact = datetime.fromisoformat(text)
    return exact.replace(microsecond=exact.microsecond // 1000 * 1000)


async def _fill(path: Path) -> None:
    """One of everything that this side can write."""
    async with Queue.open(LocalFileSystemStorage(path)) as q:
        await q.enqueue_many([NewJob("task", b"%d" % n, priority=n % 3) for n in range(6)], request_id="fill")
        await q.enqueue("größe 🦆", bytes(range(256)), headers={"trace": "1"}, key="k", zone="acme")
        await q.enqueue("later", b"delayed", delay=timedelta(hours=1))
        await q.enqueue("dying", b"dead", max_attempts=1)
        [dying] = await q.dequeue("dying")
        await dying.nack(error="broken")
        await q.enqueue("held", b"in progress")
        await q.dequeue("held")
        await q.enqueue("failed", b"nacked")
        [failed] = await q.dequeue("failed")
        await failed.nack(delay=3600, error="no luck")


async def test_jqueue_reads_every_job_that_casque_wrote(jqueue_python: str, tmp_path: Path) -> None:
    path = tmp_path / "queue.json"
    await _fill(path)
    state = await DirectQueue(LocalFileSystemStorage(path)).read_state()

    there = await asyncio.to_thread(jqueue, jqueue_python, "decode", path)

    assert there["version"] == state.version
    assert seen_there(there["jobs"]) == seen_here(state.jobs)
    assert {job["status"] for job in there["jobs"]} == {"queued", "in_progress", "dead"}


async def test_what_jqueue_made_of_casques_document_opens_here_and_is_worked_off(
    jqueue_python: str, tmp_path: Path
) -> None:
    path = tmp_path / "queue.json"
    await _fill(path)

    there = await asyncio.to_thread(jqueue, jqueue_python, "work", path)

    async with BrokerQueue(LocalFileSystemStorage(path)) as q:
        state = await q.read_state()
        assert state.version == there["version"]
        assert seen_there(there["jobs"]) == seen_here(state.jobs)
        assert [job.payload for job in state.queued_jobs("from-jqueue")] == [b"added there"]
        for job in await q.dequeue(batch_size=100):
            await q.ack(job.id, job.token)
        for job in (await q.read_state()).in_progress_jobs():
            await q.ack(job.id)
        left = (await q.read_state()).jobs

    assert [job.payload for job in left] == [b"dead"]
    after = await asyncio.to_thread(jqueue, jqueue_python, "decode", path)
    assert seen_there(after["jobs"]) == seen_here(left)


async def test_a_queue_that_is_open_here_takes_in_what_jqueue_did_meanwhile(jqueue_python: str, tmp_path: Path) -> None:
    path = tmp_path / "queue.json"

    async with BrokerQueue(LocalFileSystemStorage(path)) as q:
        for n in range(4):
            await q.enqueue("task", b"%d" % n)
        before = (await q.read_state()).version
        await asyncio.to_thread(jqueue, jqueue_python, "work", path)

        mine = await q.enqueue("task", b"after")
        state = await q.read_state()

        assert state.version > before + 1
        assert state.find(mine.id) is not None
        assert [job.payload for job in state.queued_jobs("from-jqueue")] == [b"added there"]
        assert len(state.in_progress_jobs()) == 1


async def test_the_kept_documents_are_what_jqueue_writes_today(jqueue_python: str, tmp_path: Path) -> None:
    await asyncio.to_thread(jqueue, jqueue_python, "write", tmp_path)

    for kept in (HERE / "jqueue-1.0").glob("*.json"):
        then, now = json.loads(kept.read_bytes()), json.loads((tmp_path / kept.name).read_bytes())
        assert then["version"] == now["version"]
        assert [
            {name: job[name] for name in ("entrypoint", "payload", "status", "priority")} for job in then["jobs"]
        ] == [{name: job[name] for name in ("entrypoint", "payload", "status", "priority")} for job in now["jobs"]]


async def test_jqueue_refuses_a_log_and_does_not_write_over_it(jqueue_python: str, tmp_path: Path) -> None:
    """It would take a head without jobs for an empty queue."""
    async with Queue.open(tmp_path.as_uri(), layout="log") as q:
        await q.enqueue("task", b"1")
    path = tmp_path / "queue.json"
    before = path.read_bytes()

    command: list[str | Path] = [jqueue_python, HERE / "jqueue_side.py", "work", path]
    ran = await asyncio.to_thread(lambda: subprocess.run(command, capture_output=True, text=True))

    assert ran.returncode != 0
    assert "ValidationError" in ran.stderr
    assert path.read_bytes() == before
