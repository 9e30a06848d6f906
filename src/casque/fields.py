"""The fields of a job, in one table: what each is called in every form that a job has, and who sets it.

Forms with many readers (stored lines, staged columns, JSON, protobuf, Arrow, Spark, commands) derive from this table or
are compared with it by `tests/unit/test_fields.py`. A field that is marked `gained` is in all of them without a line of
its own: its row here, `JobSpec`, `GainedFields` and `GainedColumns` in `types.py`, and proto/ are enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from casque import checks
from casque.errors import InvalidInputError
from casque.types import EXPIRES_MS_MAX, JobSpec


class SetBy(StrEnum):
    """Who sets a field."""

    PRODUCER = "producer"
    """With the job, once and for all."""
    QUEUE = "queue"
    WORKER = "worker"


JOBS, EVENTS, ARCHIVE = "jobs", "events", "archive"


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One field of a job. A name that is None: that form does not have the field."""

    name: str
    """In `Queue`, in `Job`, in commands, and in the tables of Arrow and Spark."""
    meaning: str
    set_by: SetBy
    sql: str | None
    """Its type in Spark; Arrow's follows from it. None: no table has it as a column."""
    tables: tuple[str, ...] = ()
    """The tables that have it as a column."""
    spec: str | None = None
    """The attribute of `JobSpec`."""
    record: str | None = None
    """The attribute of `JobRecord`."""
    logged: str | None = None
    """The key in an event of the log, and between brokers and Python clients."""
    stored: str
    """The key in a line of a snapshot or document."""
    staged: str | None = None
    """The column of `StagedJobs`."""
    archived: str | None
    """The key in a line of the archive."""
    http: str | None
    """The key in HTTP's jobs, and in a new job or schedule if a producer sets it."""
    grpc: str | None
    """The field of gRPC's jobs, and of a new job if a producer sets it."""
    check: Callable[[Any], Any] | None = None
    """Returns the value that a producer gave, or raises InvalidInputError. Not for None."""
    shown: bool = True
    """Whether people see it: in `Job`, in `casque jobs show` and in JSON output."""
    gained: bool = False
    """Whether every form has it under its name, without code of its own."""

    @property
    def default(self) -> Any:
        """The default in `JobSpec`; NODEFAULT for a field that every job has."""
        return _DEFAULTS[self.spec or ""]


TAGS_MAX = 16
TAG_MAX = 64


def check_tags(value: Any) -> tuple[str, ...]:
    """Distinct short texts. No commas, because commas separate tags where they are written in one text."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidInputError(f"tags must be a list of str, such as ['urgent'], not {checks.shown(value)}")
    if len(value) > TAGS_MAX:
        raise InvalidInputError(f"tags must be at most {TAGS_MAX}, not {len(value)}; use headers or the payload")
    tags = tuple([checks.name("a tag", tag, TAG_MAX) for tag in value])
    for tag in tags:
        if "," in tag:
            raise InvalidInputError(f"a tag must have no comma, not {tag!r}; give several tags instead")
    if len(set(tags)) != len(tags):
        raise InvalidInputError(f"tags must differ from each other: {[*tags]!r} names one twice; leave it out once")
    return tags


_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(JobSpec)}
_ALL = (JOBS, EVENTS, ARCHIVE)


def _asked(
    name: str,
    sql: str | None,
    meaning: str,
    check: Callable[[Any], Any],
    *,
    staged: str | None = "",
    gained: bool = False,
    tables: tuple[str, ...] = _ALL,
    **other: str | None,
) -> Field:
    """A field that a producer sets."""
    names: dict[str, Any] = {"spec": name, "archived": name, "http": name, "grpc": name, **other}
    names.setdefault("logged", names["spec"])
    return Field(
        name=name,
        meaning=meaning,
        set_by=SetBy.PRODUCER,
        sql=sql,
        tables=tables,
        stored=names.pop("stored", None) or name,
        staged=name if staged == "" else staged,
        check=check,
        gained=gained,
        **names,
    )


def _kept(
    name: str,
    sql: str | None,
    meaning: str,
    *,
    set_by: SetBy = SetBy.QUEUE,
    tables: tuple[str, ...] = (JOBS, ARCHIVE),
    **other: str | None,
) -> Field:
    """A field that changes with the job's life."""
    names: dict[str, Any] = {"record": name, "archived": name, "http": name, "grpc": name, **other}
    stored = names.pop("stored", None) or name
    return Field(name=name, meaning=meaning, set_by=set_by, sql=sql, tables=tables, stored=stored, **names)


FIELDS = (
    _asked(
        "id",
        "string",
        "The job's.",
        lambda v: checks.name("id", v, checks.NAME_MAX),
        staged="ids",
        tables=(JOBS, ARCHIVE),
    ),
    _asked("entrypoint", "string", "Which handler it is for.", checks.entrypoint, staged="entrypoints"),
    _asked(
        "payload",
        "binary",
        "As it was enqueued. Null if it was too large for a commit and lies elsewhere.",
        checks.payload,
        staged="payloads",
    ),
    _asked("priority", "bigint", "Lower goes first.", checks.priority, staged="priorities"),
    _asked(
        "run_at",
        "timestamp",
        "The time that the producer asked for.",
        lambda v: checks.whole("run_at_ms", v, *checks.MOMENTS_MS),
        spec="run_at_ms",
        stored="run_at_ms",
        staged="run_at_ms",
        grpc="run_at_ms",
    ),
    _asked(
        "max_attempts",
        "bigint",
        "How often it may be claimed before it is dead; null for no limit.",
        checks.max_attempts,
        logged="attempts_max",
    ),
    _asked("key", "string", "Its unique key.", lambda v: checks.name("key", v, checks.KEY_MAX), staged="keys"),
    _asked("headers", "map<string,string>", "As they were given.", checks.few_headers),
    _asked("zone", "string", "The tenant that it belongs to.", checks.zone, staged="zones"),
    Field(
        name="blob",
        meaning="The object that holds its payload.",
        set_by=SetBy.QUEUE,
        sql=None,
        spec="blob",
        logged="blob",
        stored="blob",
        staged="blobs",
        archived=None,
        http=None,
        grpc=None,
        shown=False,
    ),
    Field(
        name="blob_bytes",
        meaning="The size of that payload.",
        set_by=SetBy.QUEUE,
        sql=None,
        spec="blob_bytes",
        logged="blob_bytes",
        stored="blob_bytes",
        staged="blob_bytes",
        archived="blob_bytes",
        http=None,
        grpc=None,
        shown=False,
    ),
    _asked(
        "max_crashes",
        "bigint",
        "How often its worker may crash before it is dead; null: a crash is a failed attempt.",
        checks.max_crashes,
    ),
    _asked(
        "fifo",
        "boolean",
        "Whether its zone hands out its jobs strictly in enqueue order, one at a time.",
        lambda v: checks.flag("fifo", v),
    ),
    _asked("tags", "array<string>", "Its tags, in the order given; null for none.", check_tags, gained=True),
    _asked(
        "expires_ms",
        "bigint",
        "How long after its enqueue it may be claimed; null if it does not expire.",
        lambda v: checks.whole("expires_ms", v, 1, EXPIRES_MS_MAX),
        gained=True,
    ),
    _kept(
        "sequence",
        "bigint",
        "Its number in the order of enqueueing; of a ring with the shard in the lowest digits, like tokens.",
        tables=_ALL,
    ),
    _kept(
        "created_at",
        "timestamp",
        "When it was enqueued.",
        record="created_ms",
        stored="created_at",
        grpc="created_at_ms",
    ),
    _kept(
        "state",
        "string",
        "`ready`, `delayed`, `running` or `dead`; judged by the time of the plan.",
        stored="status",
    ),
    _kept(
        "due_at",
        "timestamp",
        "Since when, or from when on, it can be claimed.",
        tables=_ALL,
        record="due_ms",
        stored="due_ms",
        grpc="due_at_ms",
    ),
    _kept("token", "bigint", "The token of the last claim; 0 before the first.", tables=_ALL),
    _kept("attempts", "int", "How often it was claimed, without claims that were given back."),
    _kept("worker", "string", "The worker that has it, or had it last.", set_by=SetBy.WORKER, tables=_ALL),
    _kept(
        "lease_ms",
        "bigint",
        "How long the lease lasts without a heartbeat.",
        set_by=SetBy.WORKER,
        tables=(JOBS, EVENTS),
        http="lease",
        archived=None,
    ),
    _kept(
        "claimed_at",
        "timestamp",
        "When it was claimed last.",
        record="claimed_ms",
        stored="claimed_ms",
        grpc="claimed_at_ms",
    ),
    _kept(
        "beat_at",
        "timestamp",
        "The last heartbeat.",
        tables=(JOBS,),
        record="beat_ms",
        stored="heartbeat_at",
        http="heartbeat_at",
        grpc="beat_at_ms",
        archived=None,
    ),
    _kept("error", "string", "The error of the last attempt that failed.", set_by=SetBy.WORKER, tables=_ALL),
    _kept(
        "tries",
        "array<struct<claimed_at:timestamp,ended_at:timestamp,outcome:string,worker:string,token:bigint,error:string>>",
        "Its attempts that failed, the last 50 at most; null for none.",
    ),
    _kept("crashes", "int", "How often its worker crashed on it, if crashes do not count as attempts."),
    _kept("progress", None, "The progress of the current attempt.", set_by=SetBy.WORKER, tables=(), archived=None),
    _kept("declined", None, "How often a worker gave it back.", tables=(), archived=None),
)
"""All of them: first those of `JobSpec`, in its order, then those of `JobRecord`, in its order."""

SPEC = tuple(field for field in FIELDS if field.spec is not None)
RECORD = tuple(field for field in FIELDS if field.record is not None)
ASKED = tuple(field for field in SPEC if field.set_by is SetBy.PRODUCER)
GAINED = tuple(field for field in SPEC if field.gained)
BY_NAME: Mapping[str, Field] = {field.name: field for field in FIELDS}

_GAINED = tuple((field.name, field.default) for field in GAINED)


def gained(job: Any) -> dict[str, Any]:
    """The gained fields of any form of a job, by name, without those that have their default: keywords for another."""
    return {name: value for name, default in _GAINED if (value := getattr(job, name)) != default}


def shown(value: Any) -> str:
    """A value as people read it, in one line."""
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return "" if value is None or value is False else str(value)


def in_table(table: str) -> dict[str, str]:
    """The columns of a table that are fields of a job, and their types."""
    return {field.name: field.sql or "" for field in FIELDS if table in field.tables}


def omitted_values() -> dict[str, Any]:
    """The values of fields that are columns and that a stored line omits: null there is not null in a table."""
    return {
        field.name: field.default for field in ASKED if type(field.default) in (bool, int) and field.sql is not None
    }
