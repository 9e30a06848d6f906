"""Jobs that expire as they were first stored: in an event, in a job's line, in the archive and in staged jobs."""

from __future__ import annotations

import msgspec

from casque.codec.archive import decode_archived, encode_archived
from casque.codec.staged import StagedJobs, decode_staged, encode_staged, staged_part
from casque.codec.stored import decode_job, encode_job, record_of
from casque.state import Added, Event, Lapsed
from casque.types import Finished, JobRecord, JobSpec, JobState

SPEC = JobSpec("j", "mail", b"hello", max_attempts=3, expires_ms=600_000)
RECORD = JobRecord(SPEC, 1, 1_771_149_600_000, JobState.READY, 1_771_149_600_000)
EVENTS = {
    b'["added",{"id":"j","entrypoint":"mail","payload":"aGVsbG8=","attempts_max":3,"expires_ms":600000},'
    b"1,1771149600000,false]": Added(SPEC, 1, 1_771_149_600_000, False),
    b'["lapsed","j","expired: no worker claimed it in time"]': Lapsed("j", "expired: no worker claimed it in time"),
}
LINE = (
    b'{"id":"j","entrypoint":"mail","payload":"aGVsbG8=","status":"queued","priority":0,'
    b'"created_at":"2026-02-15T10:00:00Z","heartbeat_at":null,"sequence":1,"max_attempts":3,"expires_ms":600000}'
)
ARCHIVED = (
    b'{"id":"j","entrypoint":"mail","payload":"aGVsbG8=","state":"cancelled","attempts":0,'
    b'"created_at":"2026-02-15T10:00:00Z","due_at":"2026-02-15T10:00:00Z","finished_at":"2026-02-15T10:10:00Z",'
    b'"position":2,"sequence":1,"error":"expired: no worker claimed it in time","max_attempts":3,"waiting":true,'
    b'"expires_ms":600000}\n'
)
STAGED = bytes.fromhex("92029f91a16aa46d61696cc40568656c6c6f00c003c0c0c0c000c0c2c091ce000927c0")


def test_events_are_read_and_written_as_they_were() -> None:
    for body, event in EVENTS.items():
        assert msgspec.json.decode(body, type=Event) == event
        assert msgspec.json.encode(event) == body


def test_a_line_of_a_job_is_read_and_written_as_it_was() -> None:
    assert record_of(decode_job(LINE), 0) == RECORD
    assert encode_job(RECORD) == LINE


def test_a_line_of_the_archive_is_read_and_written_as_it_was() -> None:
    [job] = decode_archived("archive/x", ARCHIVED)
    assert job.expires_ms == SPEC.expires_ms
    why = "expired: no worker claimed it in time"
    assert b"".join(encode_archived([Finished(2, 1_771_150_200_000, RECORD, JobState.CANCELLED, why)])) == ARCHIVED


def test_staged_jobs_are_read_and_written_as_they_were() -> None:
    jobs = StagedJobs(["j"], "mail", b"hello", max_attempts=3, expires_ms=[SPEC.expires_ms])
    assert encode_staged(jobs) == STAGED
    assert decode_staged(staged_part("staged/x", jobs, STAGED), STAGED) == [SPEC]
