"""The archive: finished jobs as lines of JSON, in objects by hour.

A pure projection of the log: which jobs an object holds, its name and its bytes follow from the log and a range of
positions alone, so every writer of a range writes the same bytes. A range of several hours has an object in each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

import msgspec

from casque.codec.converter import converter
from casque.codec.head import UNREADABLE
from casque.codec.stored import end_alike
from casque.errors import CorruptQueueError
from casque.fields import GAINED, RECORD, SPEC
from casque.service import ArchivedAttempt, ArchivedJob
from casque.types import Attempt, Finished, JobState, from_ms, moment_of, ms_of, to_ms

ARCHIVE = "archive/"
SUFFIX = ".jsonl"
HOUR_MS = 3_600_000
PIECE_JOBS = 1_000
PIECE_BYTES = 256 * 1024
"""A piece takes about two milliseconds. Under load one is encoded between two commits of hundreds of jobs each."""

_WITHOUT_GAINED = {"fifo": False, **{field.name: field.default for field in GAINED}}
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ArchivedJob)


class Range(msgspec.Struct, frozen=True, order=True):
    """A range of positions, both ends included."""

    first: int
    last: int


def hour_of(at_ms: int) -> str:
    """The hour as `2026-02-15T10`, which sorts by time."""
    return from_ms(at_ms // HOUR_MS * HOUR_MS).isoformat()[:13]


def archive_key(hour: str, range_: Range) -> str:
    return f"{ARCHIVE}{hour}/{range_.first:020d}-{range_.last:020d}{SUFFIX}"


def parse_key(key: str) -> tuple[str, Range] | None:
    """Hour and range of an archive object; None for any other file."""
    hour = parse_hour(key)
    name = key.rpartition("/")[2]
    first, _, last = name.removesuffix(SUFFIX).partition("-")
    if not all(len(part) == 20 and part.isascii() and part.isdecimal() for part in (first, last)):
        return None
    range_ = Range(int(first), int(last))
    return (hour, range_) if key == archive_key(hour, range_) else None


def parse_hour(key: str) -> str:
    return key.removeprefix(ARCHIVE).partition("/")[0]


def archived_bytes(finished: Sequence[Finished]) -> int:
    """Estimated size of these jobs in the archive."""
    size = sum([len(one.job.spec.payload) for one in finished])
    size += sum([len(one.result) for one in finished if one.result is not None])
    return size + sum([one.job.tries_bytes for one in finished if one.job.tries])


def encode_archived(finished: Sequence[Finished]) -> Iterator[bytes]:
    """Yield their lines in pieces, so that the caller can do something else in between."""
    start = 0
    while start < len(finished):
        some = finished[start : start + PIECE_JOBS]
        while len(some) > 1 and archived_bytes(some) > PIECE_BYTES:
            some = some[: len(some) // 2]
        yield _encoder.encode_lines(archived_jobs(some))
        start += len(some)


def archived_jobs(finished: Iterable[Finished]) -> list[ArchivedJob]:
    """Finished jobs as the archive keeps them. Takes many at once because they share timestamps; one by one takes twice
    as long."""
    moments = _Moments()
    return [_to_archived(one, one.job, one.job.spec, moments) for one in finished]


class _Moments(dict[int, datetime]):
    def __missing__(self, ms: int) -> datetime:
        moment = self[ms] = from_ms(ms)
        return moment


def archived_try(tried: Attempt) -> ArchivedAttempt:
    claimed_at = moment_of(tried.claimed_ms)
    return ArchivedAttempt(from_ms(tried.ended_ms), tried.how, claimed_at, tried.worker, tried.token, tried.error)


def unarchived_try(tried: ArchivedAttempt) -> Attempt:
    claimed_ms = ms_of(tried.claimed_at)
    return Attempt(claimed_ms, to_ms(tried.ended_at), tried.how, tried.worker, tried.token, tried.error)


_to_archived = converter(
    ArchivedJob,
    "one, job, spec, moments",
    {
        **{field.archived: f"spec.{field.spec}" for field in SPEC if field.archived is not None},
        **{field.archived: f"job.{field.record}" for field in RECORD if field.archived is not None},
        "position": "one.position",
        "state": "one.state",
        "error": "one.error",
        "result": "one.result",
        "created_at": "moments[job.created_ms]",
        "due_at": "moments[job.due_ms]",
        "finished_at": "moments[one.at_ms]",
        "claimed_at": "None if job.claimed_ms is None else moments[job.claimed_ms]",
        "run_at": "None if spec.run_at_ms is None else moments[spec.run_at_ms]",
        "blob_bytes": "spec.blob_bytes if spec.blob is not None else None",
        "tries": "tuple([archived_try(tried) for tried in job.tries]) if job.tries else ()",
        "waiting": "job.state is not running",
    },
    archived_try=archived_try,
    running=JobState.RUNNING,
)


def agree(one: bytes, other: bytes) -> bool:
    """Whether two bodies of one object hold the same jobs, ignoring how far back their failed attempts reach, and
    fields that lines gained: an older release without them may have begun a range that this one continues."""
    if one == other:
        return True
    try:
        pairs = zip(_decoder.decode_lines(one), _decoder.decode_lines(other), strict=True)
        return all(end_alike(a.tries, b.tries) and _bare(a) == _bare(b) for a, b in pairs)
    except (*UNREADABLE, ValueError):
        return False


def _bare(job: ArchivedJob) -> ArchivedJob:
    return msgspec.structs.replace(job, tries=(), waiting=False, **_WITHOUT_GAINED)


def decode_archived(key: str, body: bytes) -> list[ArchivedJob]:
    """
    Raises:
        CorruptQueueError: `body` is not an archive object.
    """
    try:
        return _decoder.decode_lines(body)
    except UNREADABLE as error:
        raise CorruptQueueError(
            key, f"this is no part of an archive ({error}). Restore it from a backup or an older version"
        ) from error
