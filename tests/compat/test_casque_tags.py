"""Tags as they were first stored: in an event, in a job's line, in the archive and in staged jobs."""

from __future__ import annotations

import msgspec

from casque.codec.archive import decode_archived, encode_archived
from casque.codec.staged import StagedJobs, decode_staged, encode_staged, staged_part
from casque.codec.stored import decode_job, encode_job, record_of
from casque.state import Added, Event
from casque.types import Finished, JobRecord, JobSpec, JobState

SPEC = JobSpec("j", "mail", b"hello", max_attempts=3, tags=("urgent", "billing"))
RECORD = JobRecord(SPEC, 1, 1_771_149_600_000, JobState.READY, 1_771_149_600_000)
EVENT = (
    b'["added",{"id":"j","entrypoint":"mail","payload":"aGVsbG8=","attempts_max":3,"tags":["urgent","billing"]},'
    b"1,1771149600000,false]"
)
LINE = (
    b'{"id":"j","entrypoint":"mail","payload":"aGVsbG8=","status":"queued","priority":0,'
    b'"created_at":"2026-02-15T10:00:00Z","heartbeat_at":null,"sequence":1,"max_attempts":3,"tags":["urgent","billing"]}'
)
ARCHIVED = (
    b'{"id":"j","entrypoint":"mail","payload":"aGVsbG8=","state":"cancelled","attempts":0,'
    b'"created_at":"2026-02-15T10:00:00Z","due_at":"2026-02-15T10:00:00Z","finished_at":"2026-02-15T10:00:01Z",'
    b'"position":2,"sequence":1,"max_attempts":3,"waiting":true,"tags":["urgent","billing"]}\n'
)
STAGED = bytes.fromhex("92029e91a16aa46d61696cc40568656c6c6f00c003c0c0c0c000c0c29192a6757267656e74a762696c6c696e67")


class _OldSpec(msgspec.Struct):
    """A job as a release before tags read it."""

    id: str
    entrypoint: str
    payload: bytes


def test_an_event_is_read_and_written_as_it_was() -> None:
    event = Added(SPEC, 1, 1_771_149_600_000, False)
    assert msgspec.json.decode(EVENT, type=Event) == event
    assert msgspec.json.encode(event) == EVENT


def test_a_line_of_a_job_is_read_and_written_as_it_was() -> None:
    assert record_of(decode_job(LINE), 0) == RECORD
    assert encode_job(RECORD) == LINE


def test_a_line_of_the_archive_is_read_and_written_as_it_was() -> None:
    [job] = decode_archived("archive/x", ARCHIVED)
    assert job.tags == SPEC.tags
    assert b"".join(encode_archived([Finished(2, 1_771_149_601_000, RECORD, JobState.CANCELLED)])) == ARCHIVED


def test_staged_jobs_are_read_and_written_as_they_were() -> None:
    jobs = StagedJobs(["j"], "mail", b"hello", max_attempts=3, tags=[SPEC.tags])
    assert encode_staged(jobs) == STAGED
    assert decode_staged(staged_part("staged/x", jobs, STAGED), STAGED) == [SPEC]


def test_a_release_before_tags_reads_such_a_job_without_them() -> None:
    assert msgspec.json.decode(LINE, type=_OldSpec) == _OldSpec("j", "mail", b"hello")
