"""Staged jobs: columns of many jobs in one immutable object, named by an admission.

MessagePack, written by executors of a cluster from columns that they already have, and read when the log is replayed:
Python touches no row on the way in, and each row only once on the way out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import msgspec

from casque import checks
from casque.clock import Random, new_nonce
from casque.codec.archive import hour_of
from casque.codec.blobs import is_blob
from casque.codec.head import UNREADABLE
from casque.errors import CorruptQueueError, InvalidInputError
from casque.fields import GAINED, SPEC
from casque.types import GainedColumns, JobSpec, StagedPart

STAGED = "staged/"
FORMAT = 3
"""The newest format. Jobs are written in the oldest format that has their columns: 2 has `max_crashes`, 3 has `fifo`.
Releases that read a format ignore the columns after its own."""
_FIRST_COLUMNS = 11
"""Number of columns in format 1."""
PART_JOBS_MAX = 100_000
PART_BYTES_MAX = 64 * 1024 * 1024
"""Largest size of one object: a reader holds all of it in memory and blocks while it decodes."""

ADMITTED_PARTS_MAX = 10_000
ADMITTED_JOBS_MAX = 2_000_000
ADMITTED_BYTES_MAX = 1024 * 1024 * 1024
"""Largest size of one admission: its jobs are in memory together and join the queue together."""

_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
KEY_PATTERN = "staged/[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}/[A-Za-z0-9_.-]{1,128}-[0-9a-f]{16}"
_KEY = re.compile(KEY_PATTERN)


class _Renaming(type(msgspec.Struct)):  # type: ignore[misc]
    def __call__(cls, *columns: Any, **named: Any) -> Any:
        if "attempts_max" in named:
            named["max_attempts"] = named.pop("attempts_max")
        return super().__call__(*columns, **named)


class StagedJobs(GainedColumns, frozen=True, array_like=True, gc=False, metaclass=_Renaming):
    """Many jobs by column. A column is a list with a value for each row, or one value for all rows. `max_attempts` may
    also be given under its first name, `attempts_max`.

    This is a stored format: new columns come at the end and have defaults.
    """

    ids: list[str]
    entrypoints: list[str] | str
    payloads: list[bytes] | bytes
    priorities: list[int] | int = 0
    run_at_ms: list[int | None] | int | None = None
    """Milliseconds since the epoch; None or a time in the past means at once."""
    max_attempts: list[int | None] | int | None = None
    keys: list[str | None] | None = None
    headers: list[dict[str, str] | None] | dict[str, str] | None = None
    zones: list[str | None] | str | None = None
    blobs: list[str | None] | None = None
    """Keys of payloads that were too large to inline; set while staging, never by a client."""
    blob_bytes: list[int] | int = 0
    max_crashes: list[int | None] | int | None = None
    fifo: list[bool] | bool = False

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, start: int, end: int) -> StagedJobs:
        """A slice of the rows."""
        return self._mapped(lambda column: column[start:end])

    def chosen(self, rows: list[int]) -> StagedJobs:
        """A selection of rows."""
        if len(rows) == len(self):
            return self
        return self._mapped(lambda column: [column[row] for row in rows])

    def specs(self, start: int, end: int) -> list[JobSpec]:
        some = self if not start and end >= len(self) else self.rows(start, end)
        return list(map(JobSpec, *map(_each, some.columns(), _ABSENT)))

    def columns(self) -> tuple[Any, ...]:
        """In the order of a job's fields."""
        return msgspec.structs.astuple(self)

    def _mapped(self, change: Callable[[list[Any]], list[Any]]) -> StagedJobs:
        lists = {name: column for name, column in msgspec.structs.asdict(self).items() if isinstance(column, list)}
        return msgspec.structs.replace(self, **{name: change(column) for name, column in lists.items()})


_ABSENT = tuple(None if field.default is msgspec.NODEFAULT else field.default for field in SPEC)
"""What a job has of a column that is None."""


class _Raw(msgspec.Struct, array_like=True):
    format: int
    jobs: msgspec.Raw


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(StagedJobs)
_raw_decoder = msgspec.msgpack.Decoder(_Raw)


def staged_key(txn: str, at_ms: int, rng: Random) -> str:
    """`staged/2026-02-15T10/<txn>-<nonce>`: sweeping goes by the hour, people by the name."""
    name = txn if _PLAIN.fullmatch(txn) else "part"
    return f"{STAGED}{hour_of(at_ms)}/{name}-{new_nonce(rng)}"


def staged_hour(key: str) -> str:
    return key.removeprefix(STAGED).partition("/")[0]


def encode_staged(jobs: StagedJobs) -> bytes:
    """The bytes of an object. Expects columns that passed `checked`."""
    columns = list(jobs.columns())
    while columns[-1] is None or columns[-1] is False:  # absent at the end, as in jobs that never had such a column
        columns.pop()
    if jobs.fifo is not False:
        return _encode((3, columns))
    return _encode((1 if len(columns) <= _FIRST_COLUMNS else 2, columns))


def staged_part(key: str, jobs: StagedJobs, body: bytes) -> StagedPart:
    return StagedPart(key, hashlib.sha256(body).hexdigest(), len(jobs), len(body))


def expanded_bytes(jobs: StagedJobs) -> int:
    """Size of the payloads and headers of these jobs. One value that stands for all rows is small in its object, and
    large in everything that is written about the jobs later."""
    payloads, headers = jobs.payloads, jobs.headers
    total = sum(map(len, payloads)) if isinstance(payloads, list) else len(payloads) * len(jobs)
    if isinstance(headers, dict):
        total += sum(len(name) + len(value) for name, value in headers.items()) * len(jobs)
    return total


def decode_columns(part: StagedPart, body: bytes) -> StagedJobs:
    """The columns of the object that `part` names.

    Raises:
        CorruptQueueError: the object is cut or changed, or is not a staged object.
    """
    if len(body) != part.bytes or hashlib.sha256(body).hexdigest() != part.sha256:
        raise CorruptQueueError(part.key, f"it is not what was staged: cut or changed. {RESTORE}")
    try:
        raw = _raw_decoder.decode(body)
        if raw.format > FORMAT:
            raise CorruptQueueError(part.key, f"written in format {raw.format} by a newer casque. Upgrade casque")
        jobs = _decoder.decode(raw.jobs)
    except UNREADABLE as error:
        raise CorruptQueueError(part.key, f"these are no staged jobs ({error}). {RESTORE}") from error
    if len(jobs) != part.jobs or any(len(column) != len(jobs) for column in _lists(jobs)):
        raise CorruptQueueError(part.key, f"its columns are not of {part.jobs} jobs each. {RESTORE}")
    return jobs


def decode_staged(part: StagedPart, body: bytes) -> list[JobSpec]:
    """The jobs of the object that `part` names. Raises CorruptQueueError if `body` is not that object."""
    return decode_columns(part, body).specs(0, part.jobs)


RESTORE = (
    "Restore the object from a backup or an older version of it. If its jobs were never admitted, stage them again"
)


def missing_part(key: str) -> CorruptQueueError:
    """The error for a staged object that is missing from the store."""
    return CorruptQueueError(key, f"the staged jobs that a commit names are missing: the object was deleted. {RESTORE}")


def checked_parts(parts: Any) -> tuple[StagedPart, ...]:
    """Check the parts of an admission and return them.

    Raises:
        InvalidInputError: names the part, counted from 0, and what it should be.
    """
    if isinstance(parts, str | bytes) or not isinstance(parts, Sequence):
        raise InvalidInputError(f"parts must be a list of staged parts, not {type(parts).__name__}")
    if not 1 <= len(parts) <= ADMITTED_PARTS_MAX:
        raise InvalidInputError(f"parts must be 1 to {ADMITTED_PARTS_MAX:,} staged parts, not {len(parts):,}")
    for number, part in enumerate(parts):
        if not isinstance(part, StagedPart):
            raise InvalidInputError(f"part {number} must be what a Stager returned, not {type(part).__name__}")
        if type(part.key) is not str or _KEY.fullmatch(part.key) is None:
            raise InvalidInputError(f"part {number}: {checks.shown(part.key)} is no key of a staged object")
        if type(part.sha256) is not str or _SHA256.fullmatch(part.sha256) is None:
            raise InvalidInputError(f"part {number}: {checks.shown(part.sha256)} is no SHA-256 in lower-case hex")
        checks.whole(f"part {number}: jobs", part.jobs, 1, PART_JOBS_MAX)
        checks.whole(f"part {number}: bytes", part.bytes, 1, PART_BYTES_MAX)
    if len({part.key for part in parts}) != len(parts):
        raise InvalidInputError("two parts of one admission are the same object")
    for what, total, most in (
        ("jobs", sum(part.jobs for part in parts), ADMITTED_JOBS_MAX),
        ("bytes", sum(part.bytes for part in parts), ADMITTED_BYTES_MAX),
    ):
        if total > most:
            raise InvalidInputError(f"one admission takes at most {most:,} {what}, not {total:,}; make several batches")
    return tuple(parts)


# --- Checking: a column at a time, which is almost free. Only a refusal walks rows, to name the first bad one. ---


def checked(jobs: StagedJobs) -> StagedJobs:
    """The same jobs, if an ordinary enqueue would accept each of them.

    Raises:
        InvalidInputError: names the row, counted from 0, and what it should be.
    """
    rows = len(jobs)
    if not rows:
        raise InvalidInputError("there must be at least one job to stage")
    for name, column in zip(StagedJobs.__struct_fields__, jobs.columns(), strict=True):
        if isinstance(column, list) and len(column) != rows:
            raise InvalidInputError(
                f"the column {name} must have a value for each of the {rows} ids, not {len(column)}"
            )
    _check_ids(jobs.ids)
    _check_some(jobs.entrypoints, checks.entrypoint)
    payloads = _checked_payloads(jobs.payloads)
    _check_some(jobs.priorities, checks.priority)
    _check_some(jobs.run_at_ms, _optional(_moment))
    _check_some(jobs.max_attempts, _optional(checks.max_attempts))
    _check_keys(jobs.keys)
    _check_headers(jobs.headers)
    _check_some(jobs.zones, _optional(lambda value: checks.name("zone", value, checks.NAME_MAX)))
    _check_blobs(jobs)
    _check_some(jobs.max_crashes, _optional(checks.max_crashes))
    _check_some(jobs.fifo, lambda value: checks.flag("fifo", value))
    for field in GAINED:
        assert field.check is not None
        check = _optional(field.check) if field.default is None else field.check
        _check_gained(field.name, getattr(jobs, field.name), check)
    return jobs if payloads is jobs.payloads else msgspec.structs.replace(jobs, payloads=payloads)


def _check_ids(ids: Any) -> None:
    if not isinstance(ids, list):
        raise InvalidInputError(f"the column ids must be a list with an id for each job, not {type(ids).__name__}")
    if not _are_names(ids, checks.NAME_MAX):
        _name_row(ids, lambda value: checks.name("id", value, checks.NAME_MAX))
    if len(set(ids)) != len(ids):
        seen: set[str] = set()
        for row, one in enumerate(ids):
            if one in seen:
                raise InvalidInputError(f"row {row}: the id {one!r} is also that of an earlier row")
            seen.add(one)


def _check_keys(keys: Any) -> None:
    if keys is None:
        return
    if not isinstance(keys, list):
        raise InvalidInputError("the column keys must be a list, or None for no keys: a unique key is of one job")
    given = [key for key in keys if key is not None]
    if given and not _are_names(given, checks.KEY_MAX):
        _name_row(keys, _optional(lambda value: checks.name("key", value, checks.KEY_MAX)))


def _checked_payloads(payloads: Any) -> Any:
    if not isinstance(payloads, list):
        return checks.payload(payloads)
    if set(map(type, payloads)) == {bytes}:
        return payloads
    if any(not isinstance(value, bytes | bytearray | memoryview) for value in payloads):
        _name_row(payloads, checks.payload)
    return [bytes(value) for value in payloads]


def _check_headers(headers: Any) -> None:
    if isinstance(headers, list):
        for row, value in enumerate(headers):
            if value is not None:
                _at_row(row, checks.few_headers, value)
    elif headers is not None:
        checks.few_headers(headers)


def _check_gained(name: str, values: Any, check: Callable[[Any], object]) -> None:
    if values is None:
        return
    if not isinstance(values, list):
        raise InvalidInputError(f"the column {name} must be a list with a value for each job, or None")
    _check_some(values, check)


def _check_blobs(jobs: StagedJobs) -> None:
    if jobs.blobs is None:
        if jobs.blob_bytes != 0:
            raise InvalidInputError("blob_bytes is for jobs whose payload lies in an object of its own")
        return
    for row, key in enumerate(jobs.blobs):
        if key is not None and not is_blob(key):
            raise InvalidInputError(f"row {row}: {checks.shown(key)} is no object with a large payload")
    _check_some(jobs.blob_bytes, lambda value: checks.whole("blob_bytes", value, 0))


def _check_some(values: Any, check: Callable[[Any], object]) -> None:
    """Check each distinct value once: most columns have few."""
    if not isinstance(values, list):
        check(values)
    elif len(kinds := set(map(type, values)) - {type(None)}) > 1 or kinds & {list, dict, set}:
        _name_row(values, check)  # a set takes 1, True and 1.0 for one value, and cannot hold a list
    else:
        for value in set(values):
            try:
                check(value)
            except InvalidInputError:
                _name_row(values, check)


def _are_names(values: Sequence[Any], longest: int) -> bool:
    return (
        set(map(type, values)) == {str}
        and min(map(len, values)) > 0
        and max(map(len, values)) <= longest
        and "".join(values).isprintable()
    )


def _name_row(values: Sequence[Any], check: Callable[[Any], object]) -> None:
    for row, value in enumerate(values):
        _at_row(row, check, value)


def _at_row(row: int, check: Callable[[Any], object], value: Any) -> None:
    try:
        check(value)
    except InvalidInputError as error:
        raise InvalidInputError(f"row {row}: {error}") from error


def _optional(check: Callable[[Any], object]) -> Callable[[Any], object]:
    return lambda value: None if value is None else check(value)


def _moment(value: Any) -> int:
    return checks.whole("run_at_ms", value, *checks.MOMENTS_MS)


def _each(column: Any, absent: Any) -> Iterable[Any]:
    return column if isinstance(column, list) else repeat(absent if column is None else column)


def _lists(jobs: StagedJobs) -> Iterator[list[Any]]:
    return (column for column in jobs.columns() if isinstance(column, list))
