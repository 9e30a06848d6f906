"""The archive: finished jobs as lines of JSON or as Parquet, in objects by hour.

A pure projection of the log: which jobs an object holds, its name and its contents follow from the log and a range of
positions alone, so every writer of a range writes the same. A range of several hours has an object in each.

Objects of one hour and range hold the same jobs, whatever their form. Writers with different settings may each leave
theirs, so every reader takes one of them: see `OnePerRange` and `choose`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum

import msgspec

from casque.codec import parquet
from casque.codec.converter import converter
from casque.codec.head import UNREADABLE
from casque.codec.stored import end_alike
from casque.errors import CorruptQueueError
from casque.fields import GAINED, RECORD, SPEC
from casque.service import ArchivedAttempt, ArchivedJob
from casque.types import Attempt, Finished, JobState, from_ms, moment_of, ms_of, to_ms

ARCHIVE = "archive/"
HOUR_MS = 3_600_000
PIECE_JOBS = 1_000
PIECE_BYTES = 256 * 1024
"""A piece takes about two milliseconds. Under load one is encoded between two commits of hundreds of jobs each."""

_WITHOUT_GAINED = {"fifo": False, **{field.name: field.default for field in GAINED}}
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ArchivedJob)


class Form(StrEnum):
    """How an object keeps its jobs, as its name ends."""

    LINES = "jsonl"
    PARQUET = "parquet"


FORMS = {"jsonl": (Form.LINES,), "parquet": (Form.PARQUET,), "both": (Form.LINES, Form.PARQUET)}
"""What each value of the setting `archive_format` writes."""


_SUFFIXES = frozenset(form.value for form in Form)


class Range(msgspec.Struct, frozen=True, order=True):
    """A range of positions, both ends included."""

    first: int
    last: int


def hour_of(at_ms: int) -> str:
    """The hour as `2026-02-15T10`, which sorts by time."""
    return from_ms(at_ms // HOUR_MS * HOUR_MS).isoformat()[:13]


def archive_key(hour: str, range_: Range, form: Form = Form.LINES) -> str:
    return f"{ARCHIVE}{hour}/{range_.first:020d}-{range_.last:020d}.{form.value}"


def parse_key(key: str) -> tuple[str, Range] | None:
    """Hour and range of an archive object, in any form; None for any other file."""
    hour = parse_hour(key)
    name, _, form = key.rpartition("/")[2].partition(".")
    first, _, last = name.partition("-")
    if not all(len(part) == 20 and part.isascii() and part.isdecimal() for part in (first, last)):
        return None
    range_ = Range(int(first), int(last))
    return (hour, range_) if form in _SUFFIXES and key == archive_key(hour, range_, Form(form)) else None


def form_of(key: str) -> Form:
    """The form of an archive object by its name."""
    return Form.PARQUET if key.endswith(f".{Form.PARQUET.value}") else Form.LINES


class OnePerRange:
    """Takes one archive object for each hour and range from a sorted listing, as it comes: lines where there are some,
    which sort first. For readers of jobs: lines become jobs several times as fast as Parquet does."""

    def __init__(self) -> None:
        self._last: tuple[str, Range] | None = None

    def takes(self, key: str) -> bool:
        """False for a second form of the object before it, and for other files."""
        place = parse_key(key)
        if place is None or place == self._last:
            return False
        self._last = place
        return True


def choose(keys: Iterable[str]) -> list[str]:
    """One archive object for each hour and range of a sorted listing: Parquet where this process can read it. For
    readers of columns.

    What is only there as Parquet stays: where pyarrow is missing, reading it fails and says so. Other files are left
    out.
    """
    best = Form.PARQUET if parquet.is_installed() else Form.LINES
    chosen: dict[tuple[str, Range], str] = {}
    for key in keys:
        if (place := parse_key(key)) is not None and (place not in chosen or form_of(key) is best):
            chosen[place] = key
    return list(chosen.values())


def parse_hour(key: str) -> str:
    return key.removeprefix(ARCHIVE).partition("/")[0]


def archived_bytes(finished: Sequence[Finished]) -> int:
    """Estimated size of these jobs in the archive."""
    size = sum([len(one.job.spec.payload) for one in finished])
    size += sum([len(one.result) for one in finished if one.result is not None])
    return size + sum([one.job.tries_bytes for one in finished if one.job.tries])


def encode_archived(finished: Sequence[Finished]) -> Iterator[bytes]:
    """Yield their lines in pieces, so that the caller can do something else in between."""
    for some in archived_pieces(finished):
        yield encode_lines(some)


def encode_lines(jobs: Sequence[ArchivedJob]) -> bytes:
    return _encoder.encode_lines(jobs)


def archived_pieces(finished: Sequence[Finished]) -> Iterator[list[ArchivedJob]]:
    """Yield them as the archive keeps them, some at a time."""
    start = 0
    while start < len(finished):
        some = finished[start : start + PIECE_JOBS]
        while len(some) > 1 and archived_bytes(some) > PIECE_BYTES:
            some = some[: len(some) // 2]
        yield archived_jobs(some)
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


def agree(key: str, one: bytes, other: bytes) -> bool:
    """Whether two bodies of one object hold the same jobs, ignoring how far back their failed attempts reach, and
    fields that lines gained: an older release without them may have begun a range that this one continues."""
    if one == other:
        return True
    try:
        return _same_jobs(decode_archived(key, one), decode_archived(key, other))
    except CorruptQueueError:
        return False


def holds(key: str, body: bytes, finished: Sequence[Finished]) -> bool:
    """The same of an object and the jobs that it should hold."""
    if form_of(key) is Form.LINES:
        return agree(key, body, b"".join(encode_archived(finished)))
    try:
        return _same_jobs(decode_archived(key, body), archived_jobs(finished))
    except CorruptQueueError:
        return False


def _same_jobs(some: Sequence[ArchivedJob], others: Sequence[ArchivedJob]) -> bool:
    """The same of decoded jobs."""
    if len(some) != len(others):
        return False
    pairs = zip(some, others, strict=True)
    return all(end_alike(a.tries, b.tries) and _bare(a) == _bare(b) for a, b in pairs)


def _bare(job: ArchivedJob) -> ArchivedJob:
    return msgspec.structs.replace(job, tries=(), waiting=False, **_WITHOUT_GAINED)


def decode_archived(key: str, body: bytes) -> list[ArchivedJob]:
    """
    Raises:
        CorruptQueueError: `body` is not an archive object of the form that its name says.
        NotInstalledError: it is Parquet, and pyarrow is not installed.
    """
    return [job for some in decode_pieces(key, body) for job in some]


def decode_pieces(key: str, body: bytes) -> Iterator[list[ArchivedJob]]:
    """The same, some jobs at a time where decoding all of them would take long."""
    if form_of(key) is Form.LINES:
        yield _decode_lines(key, body)
        return
    require_for(key)
    try:
        yield from parquet.jobs_of(body)
    except parquet.unfit() as error:
        raise no_archive(key, error) from error


def require_for(key: str) -> None:
    """
    Raises:
        NotInstalledError: this object is Parquet, and pyarrow is not installed.
    """
    if form_of(key) is Form.PARQUET:
        parquet.require(f"{key} of the archive is Parquet")


def _decode_lines(key: str, body: bytes) -> list[ArchivedJob]:
    try:
        return _decoder.decode_lines(body)
    except UNREADABLE as error:
        raise no_archive(key, error) from error


def no_archive(key: str, error: Exception) -> CorruptQueueError:
    return CorruptQueueError(
        key, f"this is no part of an archive ({error}). Restore it from a backup or an older version"
    )
