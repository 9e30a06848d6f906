"""Tell the formats apart, and read every job or none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from casque import checks
from casque.checks import shown
from casque.compat.files import jqueue, osqueue_go, osqueue_ts
from casque.compat.files.foreign import ForeignFile, ForeignJob, Kind
from casque.errors import InvalidInputError

STEP = 1_000
"""Jobs between two reports of progress."""

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

Progress = Callable[[int, int], None]
"""Called with how many jobs of how many are read."""


class Format(Protocol):
    """What a module of a format offers."""

    Job: Any
    FIELDS: frozenset[str]
    OLDEST_FIRST: bool

    def foreign(self, job: Any) -> ForeignJob: ...


FORMATS: dict[Kind, Any] = {Kind.JQUEUE: jqueue, Kind.OSQUEUE_GO: osqueue_go, Kind.OSQUEUE_TS: osqueue_ts}


def read_foreign(body: bytes, kind: Kind | None = None, progress: Progress | None = None) -> ForeignFile:
    """Every job of a file; `kind` says whose it is if that shall not be guessed from its fields.

    >>> body = b'{"version": 1, "jobs": []}'
    >>> read_foreign(body)
    ForeignFile(kind=<Kind.JQUEUE: 'jqueue'>, jobs=())

    Raises:
        InvalidInputError: it is not such a file, or has a job that is not understood; the message names the job and the
            field.
    """
    fields = _fields(body)
    found = kind or _kind_of(fields)
    chosen: Format = FORMATS[found]
    raw = _jobs(fields, found)
    jobs = list(_each(raw, chosen, progress or (lambda _done, _total: None)))
    _refuse_duplicates(jobs)
    if chosen.OLDEST_FIRST:
        jobs.sort(key=lambda job: job.created_at)
    return ForeignFile(found, tuple(jobs))


def _fields(body: bytes) -> dict[str, msgspec.Raw]:
    if not body.strip():
        raise InvalidInputError("the file is empty; there is nothing to import")
    try:
        found = msgspec.json.decode(body, type=dict[str, msgspec.Raw] | list[msgspec.Raw])
    except UNREADABLE as error:
        raise InvalidInputError(f"the file is not the JSON of jqueue or osqueue: {error}") from error
    if isinstance(found, list):
        raise InvalidInputError(
            "the file is a list, as osqueue's archive is: its jobs are finished. Import the queue itself, queue.json"
        )
    return found


def _kind_of(fields: dict[str, msgspec.Raw]) -> Kind:
    names = frozenset(fields)
    if "format" in names or "layout" in names:
        raise InvalidInputError(
            "the file belongs to a queue of casque's: `casque queue clone` copies it, and `casque queue convert` "
            "changes its layout"
        )
    for kind, one in FORMATS.items():
        if one.FIELDS <= names <= one.FIELDS | getattr(one, "MAY_HAVE", frozenset()):
            return kind
    raise InvalidInputError(
        f"the file is not one that can be imported: it has the fields {_listed(names)}. jqueue's has version and jobs; "
        "osqueue's has broker and jobs (Go), or broker, brokerHeartbeat and jobs (TypeScript). If you know whose it "
        "is, say so with --from"
    )


def _jobs(fields: dict[str, msgspec.Raw], kind: Kind) -> list[msgspec.Raw]:
    if "jobs" not in fields:
        raise InvalidInputError(f"the file has no jobs, which that of {kind} has; it has {_listed(fields)}")
    try:
        return msgspec.json.decode(fields["jobs"], type=list[msgspec.Raw] | None) or []
    except UNREADABLE as error:
        raise InvalidInputError(f"the field jobs is not a list of jobs: {error}") from error


def _each(raw: list[msgspec.Raw], chosen: Format, progress: Progress) -> Iterator[ForeignJob]:
    decode = msgspec.json.Decoder(chosen.Job).decode
    for number, one in enumerate(raw):
        if number % STEP == 0:
            progress(number, len(raw))
        try:
            yield _checked(chosen.foreign(decode(one)))
        except (*UNREADABLE, InvalidInputError) as error:
            raise InvalidInputError(f"{_job_name(number, one)} is not understood: {error}") from error
    progress(len(raw), len(raw))


def _checked(job: ForeignJob) -> ForeignJob:
    """The job, if casque takes all of its values."""
    checks.name("id", job.id, checks.NAME_MAX)
    checks.entrypoint(job.entrypoint)
    checks.priority(job.priority)
    if job.max_attempts is not None:
        checks.max_attempts(job.max_attempts)
    return job


def _job_name(number: int, raw: msgspec.Raw) -> str:
    """The job's place in the file, from 1, and its id if it has one."""
    try:
        known = msgspec.json.decode(raw, type=dict[str, msgspec.Raw]).get("id")
        job_id = None if known is None else msgspec.json.decode(known, type=str)
    except UNREADABLE:
        job_id = None
    return f"job {number + 1}" + ("" if job_id is None else f" ({shown(job_id)})")


def _refuse_duplicates(jobs: Sequence[ForeignJob]) -> None:
    seen: set[str] = set()
    for job in jobs:
        if job.id in seen:
            raise InvalidInputError(f"two jobs of the file have the id {shown(job.id)}; give one of them another")
        seen.add(job.id)


def _listed(names: Any) -> str:
    some = sorted(names)[:8]
    return ", ".join(shown(name) for name in some) + (", ..." if len(names) > len(some) else "") if some else "none"
