"""Files of other queues: every job is understood, or the file is refused by the job's name and field."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from casque.compat.files import ForeignStatus, Kind, read_foreign
from casque.errors import InvalidInputError

KEPT = Path(__file__).parents[2] / "compat" / "jqueue-1.0"

GO_JOB = {
    "id": "b7c9",
    "data": "eyJuYW1lIjogImluZGV4In0=",
    "status": "unclaimed",
    "attempts": 0,
    "created_at": "2026-02-15T10:00:00.123456789Z",
}
TS_JOB = {"id": "c1", "status": "unclaimed", "payload": {"to": "ada"}, "createdAt": 1706000000000, "attempts": 0}
JQUEUE_JOB = {
    "id": "a1",
    "entrypoint": "send",
    "payload": "e30=",
    "status": "queued",
    "priority": 0,
    "created_at": "2026-01-01T12:00:00+00:00",
    "heartbeat_at": None,
}


def go(*jobs: dict[str, Any]) -> bytes:
    return json.dumps({"broker": "host-1:7", "jobs": list(jobs)}).encode()


def ts(*jobs: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"broker": "0.0.0.0:8080", "brokerHeartbeat": 1706000000000, "jobs": list(jobs), **more}).encode()


def jqueue(*jobs: dict[str, Any]) -> bytes:
    return json.dumps({"version": 7, "jobs": list(jobs)}).encode()


@pytest.mark.parametrize("name", sorted(path.stem for path in KEPT.glob("*.json")))
def test_every_document_that_jqueue_wrote_is_understood(name: str) -> None:
    body = (KEPT / f"{name}.json").read_bytes()

    file = read_foreign(body)

    stored = json.loads(body)["jobs"]
    assert file.kind is Kind.JQUEUE
    assert {job.id for job in file.jobs} == {job["id"] for job in stored}
    by_id = {job["id"]: job for job in stored}
    for job in file.jobs:
        there = by_id[job.id]
        assert (job.entrypoint, job.priority) == (there["entrypoint"], there["priority"])
        assert job.created_at == datetime.fromisoformat(there["created_at"])
        assert job.max_attempts is None


def test_jobs_of_jqueue_are_in_the_order_of_their_age() -> None:
    older = {**JQUEUE_JOB, "id": "older", "created_at": "2026-01-01T12:59:59+01:00"}

    assert [job.id for job in read_foreign(jqueue(JQUEUE_JOB, older)).jobs] == ["older", "a1"]


def test_a_file_of_osqueue_in_go() -> None:
    running = {
        **GO_JOB,
        "id": "r",
        "data": None,
        "status": "in_progress",
        "worker_id": "w-1",
        "heartbeat_at": "2026-02-15T10:00:05+01:00",
        "attempts": 2,
        "created_at": "0001-01-01T00:00:00Z",
    }

    file = read_foreign(go(GO_JOB, running))

    assert file.kind is Kind.OSQUEUE_GO
    first, second = file.jobs
    assert (first.id, first.entrypoint, first.payload) == ("b7c9", "osqueue", b'{"name": "index"}')
    assert (first.status, second.status) == (ForeignStatus.WAITING, ForeignStatus.RUNNING)
    assert (second.payload, second.attempts) == (b"", 2)
    assert file.headers_of(first) == {
        "imported-from": "osqueue-go",
        "created-at": "2026-02-15T10:00:00.123457+00:00",
    }
    assert file.headers_of(second)["attempts"] == "2"


def test_a_list_that_go_writes_as_null_has_no_jobs() -> None:
    assert read_foreign(b'{"broker":"","jobs":null}').jobs == ()


def test_a_file_of_osqueue_in_typescript() -> None:
    running = {**TS_JOB, "id": "r", "status": "in_progress", "type": "email:send", "attempts": 2, "maxAttempts": 5}
    running |= {"workerId": "w", "heartbeat": 1706000001000}
    spent = {**TS_JOB, "id": "s", "attempts": 3}

    file = read_foreign(ts(TS_JOB, running, spent, completedTotal=4))

    assert file.kind is Kind.OSQUEUE_TS
    assert [job.entrypoint for job in file.jobs] == ["osqueue", "email:send", "osqueue"]
    assert [job.max_attempts for job in file.jobs] == [3, 3, 1]
    assert [job.payload for job in file.jobs] == [b'{"to":"ada"}'] * 3
    assert file.jobs[0].created_at == datetime(2024, 1, 23, 8, 53, 20, tzinfo=UTC)
    assert (file.jobs[0].unnamed, file.jobs[1].unnamed) == (True, False)


def test_a_broker_that_was_never_there_and_a_payload_that_was_undefined() -> None:
    body = b"""{"broker": null, "brokerHeartbeat": 0, "jobs": [
        {"id": "u", "status": "unclaimed", "createdAt": 1706000000000.5, "attempts": 0},
        {"id": "n", "status": "unclaimed", "createdAt": 0, "attempts": 0, "payload": [ 1.50, 12345678901234567890123 ]}
    ]}"""

    assert [job.payload for job in read_foreign(body).jobs] == [b"null", b"[1.50,12345678901234567890123]"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "empty"),
        (b"\n", "empty"),
        (b"hello", "not the JSON"),
        (b"\xff\xfe", "not the JSON"),
        (b"[]", "archive"),
        (b"{}", "has the fields none"),
        (b'{"name": "shop", "version": "1.0.0", "jobs": {}}', "'name'"),
        (b'{"format": 1, "layout": "log", "queue_id": "q"}', "casque queue clone"),
        (b'{"version": 1, "jobs": {}}', "not a list"),
        (b'{"version": 1, "jobs": [3]}', "job 1 is not understood: Expected `object`"),
        (b'{"version": 1, "jobs": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "recursion"),
        (jqueue(JQUEUE_JOB, {**JQUEUE_JOB, "id": "x", "shade": 1}), r"job 2 \('x'\).*unknown field `shade`"),
        (jqueue({"id": "x"}), r"job 1 \('x'\).*missing required field `entrypoint`"),
        (jqueue({**JQUEUE_JOB, "payload": "%%"}), r"job 1 \('a1'\).*base64.*payload"),
        (jqueue({**JQUEUE_JOB, "status": "paused"}), r"job 1 .*'paused'.*status"),
        (jqueue({**JQUEUE_JOB, "created_at": "2026-01-01T12:00:00"}), r"job 1 .*created_at"),
        (jqueue({**JQUEUE_JOB, "entrypoint": ""}), r"job 1 .*entrypoint must be"),
        (jqueue({**JQUEUE_JOB, "priority": 2**70}), r"job 1 .*priority"),
        (jqueue(JQUEUE_JOB, JQUEUE_JOB), "two jobs of the file have the id 'a1'"),
        (go({**GO_JOB, "attempts": -1}), r"job 1 \('b7c9'\).*attempts"),
        (go({**GO_JOB, "id": 7}), r"job 1 is not understood.*id"),
        (ts({**TS_JOB, "createdAt": 1e300}), r"job 1 \('c1'\).*createdAt"),
        (ts({**TS_JOB, "type": "a\nb"}), r"job 1 .*entrypoint must be"),
        (ts(TS_JOB, newField=1), "'newField'"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(body: bytes, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        read_foreign(body)


def test_a_kind_that_is_given_is_not_guessed() -> None:
    with pytest.raises(InvalidInputError, match="unknown field `payload`"):
        read_foreign(ts(TS_JOB), Kind.OSQUEUE_GO)
    with pytest.raises(InvalidInputError, match="no jobs"):
        read_foreign(b'{"version": 1}', Kind.JQUEUE)


def test_progress_ends_with_all_jobs() -> None:
    seen: list[tuple[int, int]] = []
    body = jqueue(*({**JQUEUE_JOB, "id": str(n)} for n in range(2_500)))

    read_foreign(body, progress=lambda done, total: seen.append((done, total)))

    assert seen == [(0, 2500), (1000, 2500), (2000, 2500), (2500, 2500)]
