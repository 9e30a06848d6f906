"""The columns of an archive object say what its lines say, whichever of them are asked for."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from casque.errors import CorruptQueueError
from casque.scan.archive_columns import archive_batch
from casque.scan.attempt_columns import attempts_batch
from casque.scan.splits import ArchiveObject, ArchiveSplit
from casque.scan.tables import COLUMNS, Table
from casque.service import ArchivedAttempt, ArchivedJob
from casque.types import Ending, JobState

HOUR = datetime(2026, 2, 15, 10, tzinfo=UTC)
ONE = ArchiveObject("archive/2026-02-15T10/object", "2026-02-15T10", 1, 2**40)
TIMES = st.integers(0, 2**41).map(lambda ms: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms))
TEXTS = st.text(max_size=8) | st.sampled_from(['","', '":', "],[", "},", "\\", "\n", "ä", '{"id":"x"}', "007"])
NUMBERS = st.integers(0, 2**31 - 1)
TRIES = st.builds(
    ArchivedAttempt, TIMES, st.sampled_from(Ending), st.none() | TIMES, st.none() | TEXTS, NUMBERS, st.none() | TEXTS
)
JOBS = st.builds(
    ArchivedJob,
    id=TEXTS,
    entrypoint=TEXTS,
    payload=st.binary(max_size=50),
    state=st.sampled_from([JobState.DONE, JobState.DEAD, JobState.CANCELLED]),
    attempts=st.integers(0, 4),
    created_at=TIMES,
    due_at=TIMES,
    finished_at=TIMES,
    position=st.integers(1, 2**40),
    sequence=st.integers(0, 2**62),
    claimed_at=st.none() | TIMES,
    worker=st.none() | TEXTS,
    error=st.none() | TEXTS,
    result=st.none() | st.binary(max_size=9),
    priority=st.integers(-(2**31), 2**31 - 1),
    max_attempts=st.none() | NUMBERS,
    token=st.integers(0, 2**62),
    key=st.none() | TEXTS,
    headers=st.none() | st.dictionaries(st.text(max_size=3), TEXTS, min_size=1, max_size=2),
    zone=st.none() | TEXTS,
    run_at=st.none() | TIMES,
    blob_bytes=st.none() | NUMBERS,
    tries=st.lists(TRIES, max_size=4).map(tuple),
    waiting=st.booleans(),
    crashes=st.integers(0, 2),
)


def column(job: ArchivedJob, name: str) -> Any:
    match name:
        case "shard":
            return 0
        case "hour":
            return HOUR
        case "payload":
            return job.payload if job.blob_bytes is None else None
        case "payload_bytes":
            return len(job.payload) if job.blob_bytes is None else job.blob_bytes
        case "headers":
            return None if job.headers is None else list(job.headers.items())
        case "state":
            return job.state.value
        case "tags":
            return list(job.tags) or None
        case "result_bytes":
            return None if job.result is None else len(job.result)
        case "tries":
            return [attempt(one) for one in job.tries] or None
        case _:
            return getattr(job, name)


def attempt(one: ArchivedAttempt) -> dict[str, Any]:
    return {
        "claimed_at": one.claimed_at,
        "ended_at": one.ended_at,
        "outcome": one.how.value,
        "worker": one.worker,
        "token": one.token,
        "error": one.error,
    }


def columns_of(table: Table) -> st.SearchStrategy[list[str]]:
    return st.just(list(COLUMNS[table])) | st.lists(st.sampled_from(list(COLUMNS[table])), min_size=1, unique=True)


@settings(deadline=None, database=None)
@given(st.lists(JOBS, min_size=1, max_size=20), columns_of(Table.ARCHIVE))
def test_columns_say_what_the_lines_say(jobs: list[ArchivedJob], columns: list[str]) -> None:
    batch = archive_batch(ArchiveSplit(Table.ARCHIVE, (ONE,)), ONE, msgspec.json.Encoder().encode_lines(jobs), columns)
    assert batch.to_pylist() == [{name: column(job, name) for name in columns} for job in jobs]


@settings(deadline=None, database=None)
@given(st.lists(JOBS, min_size=1, max_size=20), columns_of(Table.ARCHIVE), st.integers(0, 2**41), st.integers(1, 2**40))
def test_a_split_has_the_jobs_that_finished_within_it(
    jobs: list[ArchivedJob], columns: list[str], ms: int, after: int
) -> None:
    body = msgspec.json.Encoder().encode_lines(jobs)
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    for split, wanted in (
        (ArchiveSplit(Table.ARCHIVE, (ONE,), since_ms=ms), [job for job in jobs if job.finished_at >= moment]),
        (ArchiveSplit(Table.ARCHIVE, (ONE,), until_ms=ms), [job for job in jobs if job.finished_at < moment]),
        (
            ArchiveSplit(Table.ARCHIVE, (ONE,), after, ms, ms + 1),
            [job for job in jobs if job.position > after and job.finished_at == moment],
        ),
    ):
        batch = archive_batch(split, ONE, body, columns)
        assert batch.to_pylist() == [{name: column(job, name) for name in columns} for job in wanted]


@settings(deadline=None, database=None)
@given(JOBS, columns_of(Table.ATTEMPTS))
def test_attempts_are_those_of_one_life_and_numbered_from_its_end(job: ArchivedJob, columns: list[str]) -> None:
    body = msgspec.json.Encoder().encode_lines([job])
    split = ArchiveSplit(Table.ATTEMPTS, (ONE,))
    rows = attempts_batch(split, ONE, body, list(COLUMNS[Table.ATTEMPTS])).to_pylist()
    assert attempts_batch(split, ONE, body, columns).to_pylist() == [
        {name: row[name] for name in columns} for row in rows
    ]
    *failed, last = rows if rows and rows[-1]["last"] else [*rows, None]
    if last is not None:
        assert job.claimed_at is not None
        assert not job.waiting
        assert (last["attempt"], last["outcome"]) == (job.attempts + job.crashes, job.state.value)
        assert (last["claimed_at"], last["ended_at"], last["token"]) == (job.claimed_at, job.finished_at, job.token)
        assert last["error"] == (job.error if job.state is JobState.DEAD else None)
    else:
        assert job.claimed_at is None or job.waiting
    numbers = job.attempts + job.crashes - (not job.waiting)
    kept = min(max(numbers, 0), len(job.tries))
    assert [row["attempt"] for row in failed] == list(range(numbers - kept + 1, numbers + 1))
    assert [
        (row["ended_at"], row["outcome"], row["claimed_at"], row["worker"], row["token"], row["error"])
        for row in failed
    ] == [
        (one.ended_at, one.how.value, one.claimed_at, one.worker, one.token, one.error)
        for one in job.tries[len(job.tries) - kept :]
    ]


USUAL = {
    "id": "a", "entrypoint": "send", "payload": "YQ==", "state": "done", "attempts": 1,
    "created_at": "2026-02-15T10:00:00Z", "due_at": "2026-02-15T10:00:00Z", "finished_at": "2026-02-15T10:00:01Z",
    "position": 3, "sequence": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"id": 7},
        {"id": True},
        {"id": None},
        {"attempts": "7"},
        {"attempts": 1.5},
        {"attempts": 9_999_999_999},
        {"sequence": 2**70},
        {"created_at": "yesterday"},
        {"created_at": 1},
        {"headers": ["x"]},
        *({"payload": text} for text in ("abc", "ab!d", "a===", "====ab==", "YQ==YQ==")),
    ],
)
def test_a_value_of_another_type_is_refused(changes: dict[str, Any]) -> None:
    lines = [USUAL, {**USUAL, **changes}, USUAL]
    with pytest.raises(CorruptQueueError, match=r"archive/.*this is no part of an archive"):
        read("\n".join(map(json.dumps, lines)).encode())


@pytest.mark.parametrize(
    "line",
    [b'{"id":"', b'{"id":"a\tb"}', b'{"id":"\xff"}', b"<html>", b"{}", b"[]", b'{"attempts":01}', b"[" * 100_000],
)
def test_a_line_that_is_no_job_is_refused(line: bytes) -> None:
    with pytest.raises(CorruptQueueError, match=r"archive/.*this is no part of an archive"):
        read(json.dumps(USUAL).encode() + b"\n" + line + b"\n")


def test_an_empty_object_is_refused() -> None:
    with pytest.raises(CorruptQueueError, match="it is empty"):
        read(b"")


def test_fields_of_a_later_release_are_ignored() -> None:
    assert read(json.dumps({**USUAL, "later": {"x": [1]}}).encode()).num_rows == 1


def read(body: bytes) -> Any:
    split = ArchiveSplit(Table.ARCHIVE, (ONE,))
    return archive_batch(split, ONE, body, list(COLUMNS[Table.ARCHIVE]))
