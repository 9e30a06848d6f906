"""The table of a job's fields, and every form of a job beside it: what one of them forgot is named here."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from casque import Job, NewJob, Queue, SyncQueue
from casque.arrow_types import arrow_type
from casque.cli.cron import ScheduleView
from casque.cli.job_view import JobView, view_job
from casque.cli.new_job import NewJobOptions
from casque.client.job import plain_job
from casque.clock import system_random
from casque.codec.archive import archived_jobs, decode_archived, encode_archived
from casque.codec.staged import StagedJobs, checked, decode_staged, encode_staged, staged_part
from casque.codec.stored import StoredJob, decode_job, encode_job, record_of
from casque.errors import InvalidInputError
from casque.fields import ARCHIVE, ASKED, EVENTS, FIELDS, GAINED, JOBS, RECORD, SPEC, Field, SetBy, gained
from casque.functions.app import App
from casque.functions.job import Enqueuing, Options
from casque.scan.event_columns import Specs
from casque.scan.tables import COLUMNS, Table
from casque.service import ArchivedJob
from casque.transport.arguments import check_specs
from casque.transport.grpc import casque_v1_pb2 as pb
from casque.transport.grpc import messages as grpc
from casque.transport.http import messages as http
from casque.transport.limits import DEFAULT_LIMITS
from casque.types import (
    Attempt,
    Ending,
    Finished,
    GainedColumns,
    GainedFields,
    JobRecord,
    JobSpec,
    JobState,
    Progress,
    Schedule,
    ScheduleSpec,
)

DOCS = Path(__file__).resolve().parents[2] / "docs" / "reference"
AT_MS = 1_771_150_000_000

VALUES: dict[str, Any] = {
    "id": "job-1",
    "entrypoint": "send",
    "payload": b"hello",
    "priority": -3,
    "run_at": AT_MS + 5_000,
    "max_attempts": 7,
    "key": "once",
    "headers": {"trace": "abc"},
    "zone": "acme",
    "max_crashes": 4,
    "fifo": True,
    "tags": ("urgent", "billing"),
    "expires_ms": 600_000,
    "sequence": 12,
    "created_at": AT_MS,
    "state": JobState.RUNNING,
    "due_at": AT_MS + 5_000,
    "token": 9,
    "attempts": 2,
    "worker": "w-1",
    "lease_ms": 30_000,
    "claimed_at": AT_MS + 6_000,
    "beat_at": AT_MS + 7_000,
    "error": "ValueError: no",
    "tries": (Attempt(AT_MS, AT_MS + 1, Ending.FAILED, "w-0", 8, "ValueError: no"),),
    "crashes": 1,
    "progress": Progress(1, 2, "pages"),
    "declined": 3,
}
"""A value for each field that is not its default. A field without one here fails the tests below."""


def of(form: str, fields: tuple[Field, ...] = FIELDS) -> list[str]:
    if form == "argument":
        return [ARGUMENTS.get(field.name, field.name) for field in fields]
    return [name for field in fields if (name := getattr(field, form)) is not None]


def whole_spec() -> JobSpec:
    """Without an object for its payload: a job has either."""
    return JobSpec(**{str(field.spec): VALUES[field.name] for field in ASKED})


def whole_record() -> JobRecord:
    return JobRecord(whole_spec(), **{str(field.record): VALUES[field.name] for field in RECORD})


# --- Names ---


def test_the_table_has_the_fields_of_a_job_in_their_order() -> None:
    assert tuple(of("spec")) == JobSpec.__struct_fields__
    assert ("spec", *of("record")) == JobRecord.__struct_fields__
    assert len({field.name for field in FIELDS}) == len(FIELDS)
    assert all((field.spec is None) is not (field.record is None) for field in FIELDS)
    assert {field.name for field in ASKED} == set(VALUES) & {field.name for field in SPEC}


def test_events_keep_the_names_that_were_written_first() -> None:
    assert {field.name: field.encode_name for field in msgspec.structs.fields(JobSpec)} == {
        field.spec: field.logged for field in SPEC
    }


def test_one_thing_has_one_name_and_its_first_name_is_still_read() -> None:
    assert JobSpec("1", "send", b"", max_attempts=3).attempts_max == 3
    assert msgspec.json.encode(JobSpec("1", "send", b"", max_attempts=3)).endswith(b',"attempts_max":3}')
    assert StagedJobs(["1"], "send", b"", attempts_max=3) == StagedJobs(["1"], "send", b"", max_attempts=3)  # type: ignore[call-arg]


def test_what_producers_set_has_bounds_and_a_default_within_them() -> None:
    for field in SPEC:
        assert (field.check is None) is (field.set_by is not SetBy.PRODUCER), field.name
        if field.check is not None:
            assert field.check(VALUES[field.name]) == VALUES[field.name]
            with pytest.raises(InvalidInputError):
                field.check(object())
            if field.default not in (None, msgspec.NODEFAULT):
                assert field.check(field.default) == field.default, field.name


@pytest.mark.parametrize(
    ("form", "kind", "others"),
    [
        ("stored", StoredJob, {"delayed"}),
        ("archived", ArchivedJob, {"position", "finished_at", "result", "waiting"}),
        ("http", http.Job, {"payload_json"}),
    ],
)
def test_a_form_has_every_field_that_the_table_says_and_no_other(
    form: str, kind: type[msgspec.Struct], others: set[str]
) -> None:
    assert sorted(kind.__struct_fields__) == sorted({*of(form), *others})


def test_staged_columns_stand_in_the_order_of_a_jobs_fields() -> None:
    assert tuple(of("staged")) == StagedJobs.__struct_fields__
    assert all(field.staged for field in SPEC)


def test_http_takes_every_field_that_a_producer_sets() -> None:
    payloads = {"payload_text", "payload_json"}
    asked = set(of("http", ASKED))
    assert set(http.NewJob.__struct_fields__) == asked | payloads | {"delay"}
    scheduled = asked - {"id", "run_at"}
    assert set(http.NewSchedule.__struct_fields__) == scheduled | payloads | {"name", "cron", "tz", "missed", "origin"}
    standing = {"name", "cron", "tz", "missed", "origin", "next_at", "last_at", "paused"}
    assert set(http.ScheduleOf.__struct_fields__) == scheduled | standing


def test_grpc_has_every_field() -> None:
    assert set(pb.NewJob.DESCRIPTOR.fields_by_name) == {*of("grpc", ASKED), "delay_ms"}
    assert set(pb.Job.DESCRIPTOR.fields_by_name) == set(of("grpc"))
    kept = {str(field.grpc or field.archived) for field in FIELDS if field.archived is not None}
    assert set(pb.ArchivedJob.DESCRIPTOR.fields_by_name) == kept | {"position", "finished_at_ms", "result", "waiting"}


def test_gained_fields_are_the_last_ones_and_have_their_own_name_everywhere() -> None:
    names = tuple(field.name for field in GAINED)
    assert JobSpec.__struct_fields__[len(JobSpec.__struct_fields__) - len(names) :] == names
    assert GainedFields.__struct_fields__ == names
    assert GainedColumns.__struct_fields__ == names
    for field in GAINED:
        assert {field.spec, field.stored, field.staged, field.archived, field.http, field.grpc} == {field.name}
        assert set(field.tables) == {JOBS, EVENTS, ARCHIVE}


@pytest.mark.parametrize(
    "kind", [StoredJob, ArchivedJob, http.NewJob, http.NewSchedule, http.Job, http.ScheduleOf, NewJob, Options]
)
def test_defaults_are_those_of_a_job(kind: type[msgspec.Struct]) -> None:
    found = {field.name: field.default for field in msgspec.structs.fields(kind)}
    for field in ASKED:
        for name in {field.name, field.stored} & found.keys():
            if field.default is not msgspec.NODEFAULT and found[name] not in (msgspec.UNSET, msgspec.NODEFAULT):
                assert found[name] == field.default, (kind, name)


# --- What people call ---

ARGUMENTS = {"expires_ms": "expires"}
"""Spans are arguments without a unit."""


def arguments() -> set[str]:
    return {ARGUMENTS.get(field.name, field.name) for field in ASKED}


@pytest.mark.parametrize("function", [Queue.enqueue, SyncQueue.enqueue])
def test_enqueue_takes_every_field_that_a_producer_sets(function: Callable[..., Any]) -> None:
    taken = set(inspect.signature(function).parameters)
    assert arguments() == taken - {"self", "delay", "request_id"}
    assert arguments() == set(NewJob.__struct_fields__) - {"delay"}


def test_functions_take_every_field_that_a_producer_sets() -> None:
    of_the_function = {"entrypoint", "payload", "id"}
    kept = {field.name for field in ASKED} - of_the_function
    assert set(Options.__struct_fields__) == kept | {"delay", "zone_of"}
    options = arguments() - of_the_function
    assert set(inspect.signature(Enqueuing.using).parameters) == options - {"run_at"} | {"self"}
    assert options - {"run_at", "headers"} <= set(inspect.signature(App.job).parameters)


def test_a_job_shows_every_field() -> None:
    names = {"state": "state", "lease_ms": "lease", "beat_at": "heartbeat_at", "error": "last_error"}
    names["expires_ms"] = "expires_at"
    hidden = {"run_at", "sequence", "claimed_at", "fifo", "declined"}
    """Only in `job.record`."""
    for field in FIELDS:
        if field.shown and field.name not in hidden:
            assert hasattr(Job, names.get(field.name, field.name)), field.name


def test_commands_show_every_field() -> None:
    names = {"lease_ms": "lease_s", "beat_at": "heartbeat_at"}
    shown = {names.get(field.name, field.name) for field in FIELDS if field.shown}
    assert set(JobView.__struct_fields__) | {"run_at", "sequence"} == shown | {"text"}
    asked = {field.name for field in ASKED} - {"id", "run_at", "fifo"}
    assert asked <= set(ScheduleView.__struct_fields__)


def test_commands_take_every_field_that_a_producer_sets() -> None:
    given = {"entrypoint", "payload", "id", "run_at", "fifo"}
    """Arguments, made by the queue, and options of `casque enqueue` alone."""
    names = {"header": "headers", "tag": "tags"}
    options = {names.get(name, name) for name in NewJobOptions.__struct_fields__}
    assert arguments() - given == options


# --- Tables ---

OF_NO_JOB = {
    "shard", "position", "hour", "finished_at", "payload_bytes", "result", "index", "at", "kind", "job_id", "delayed",
    "request_id", "verb", "count", "epoch", "writer", "batch",
    "waiting", "result_bytes",
}  # fmt: skip


@pytest.mark.parametrize("table", [Table.JOBS, Table.EVENTS, Table.ARCHIVE])
def test_a_table_has_the_columns_that_the_table_of_fields_says(table: Table) -> None:
    said = {field.name: field.sql for field in FIELDS if table in field.tables}
    assert {name: kind for name, kind in COLUMNS[table].items() if name not in OF_NO_JOB} == said


def test_data_frames_take_every_field_that_a_producer_sets() -> None:
    pytest.importorskip("pyspark")
    from casque.spark import columns, write_options

    taken = {field.name for field in ASKED}
    assert set(columns.FIELDS) == taken
    assert taken - {"id", "key", "payload"} == set(write_options._CONSTANTS)
    assert taken - {"id", "key"} <= set(write_options.ABOUT)


def test_workers_on_spark_get_every_field_of_a_claim() -> None:
    pytest.importorskip("pyspark")
    from casque.spark.work.parcels import JOBS as COLUMNS_OF_A_CLAIM
    from casque.spark.work.parcels import jobs_table, packed, unpacked

    record = whole_record()
    assert unpacked(packed([plain_job(record)])) == [record]
    table = jobs_table([record, JobRecord(JobSpec("2", "send", b""), 1, 2, JobState.RUNNING, 3)])
    not_there = {"run_at", "fifo", "state", "worker", "lease_ms", "beat_at", "tries", "progress", "declined"}
    assert set(COLUMNS_OF_A_CLAIM.names) == {field.name for field in FIELDS if field.shown} - not_there
    for field in ASKED:
        if field.name not in not_there:
            assert _of_arrow(table.column(field.name)[0].as_py()) == VALUES[field.name]


def test_a_field_that_a_table_has_is_a_column_of_specs() -> None:
    specs = Specs([whole_spec(), JobSpec("2", "other", b"")])
    for field in ASKED:
        if field.sql is not None:
            found = specs.column(field.name, arrow_type(field.sql))
            assert found is not None, field.name
            first, second = (
                found.cast(arrow_type("timestamp")).to_pylist() if field.name == "run_at" else found.to_pylist()
            )
            assert first not in (None, second), field.name


# --- There and back: every form keeps every field ---


def test_a_stored_line_keeps_every_field() -> None:
    record = whole_record()
    assert record_of(decode_job(encode_job(record)), 0) == record


def test_a_line_of_the_archive_keeps_every_field() -> None:
    one = Finished(3, AT_MS + 9_000, whole_record(), JobState.DONE, None, b"42")
    [line] = archived_jobs([one])
    assert decode_archived("archive/x", b"".join(encode_archived([one]))) == [line]
    values = {"state": JobState.DONE, "error": None, "tries": line.tries}
    for field in FIELDS:
        if field.archived is not None and field.name != "blob_bytes":
            value = values.get(field.name, VALUES[field.name]) if field.name in values else VALUES[field.name]
            assert _plain(getattr(line, field.archived)) == value, field.name


def test_http_keeps_every_field_in_both_directions() -> None:
    record = whole_record()
    job = msgspec.json.decode(msgspec.json.encode(http.to_job(record)), type=http.Job)
    assert http.from_job(job) == record
    new = msgspec.json.decode(msgspec.json.encode(http.from_spec(record.spec)), type=http.NewJob)
    for field in ASKED:
        assert _plain(getattr(new, str(field.http))) == VALUES[field.name], field.name


def whole_schedule() -> Schedule:
    job = msgspec.structs.replace(whole_spec(), id="", run_at_ms=None)
    return Schedule(ScheduleSpec("nightly", "@daily", job), AT_MS)


def test_http_keeps_every_field_of_a_schedule() -> None:
    schedule = whole_schedule()
    sent = msgspec.json.decode(msgspec.json.encode(http.to_schedule(schedule)), type=http.ScheduleOf)
    assert http.from_schedule(sent) == schedule
    new = msgspec.json.decode(msgspec.json.encode(http.from_schedule_spec(schedule.spec)), type=http.NewSchedule)
    for field in ASKED:
        if field.name not in ("id", "run_at"):
            assert _plain(getattr(new, str(field.http))) == VALUES[field.name], field.name


def test_grpc_keeps_every_field() -> None:
    record = whole_record()
    sent = pb.Job.FromString(grpc.job(record).SerializeToString())
    for field in FIELDS:
        if field.grpc is not None and field.name not in ("state", "tries", "progress"):
            assert _of_message(getattr(sent, field.grpc)) == VALUES[field.name], field.name
    assert sent.state == pb.JOB_STATE_RUNNING
    assert len(sent.tries) == 1
    assert sent.progress.note == "pages"
    [line] = archived_jobs([Finished(3, AT_MS, record, JobState.DONE)])
    kept = pb.ArchivedJob.FromString(grpc.archived(line).SerializeToString())
    for field in ASKED:
        if field.archived is not None:
            assert _of_message(getattr(kept, str(field.grpc))) == VALUES[field.name], field.name


def test_grpc_takes_every_field() -> None:
    schedule = whole_schedule()
    sent = pb.Schedule.FromString(grpc.schedule(schedule).SerializeToString())
    assert grpc.schedule_spec(sent, max_attempts=None, clock=None, rng=system_random()) == schedule.spec  # type: ignore[arg-type]
    new = pb.NewJob()
    new.CopyFrom(sent.job)
    new.id, new.run_at_ms = "job-1", VALUES["run_at"]
    assert grpc.spec(new, max_attempts=None, clock=None, rng=None) == whole_spec()  # type: ignore[arg-type]


def test_staged_jobs_keep_every_field() -> None:
    columns = {field.staged: [VALUES[field.name]] for field in ASKED if field.staged is not None}
    jobs = checked(StagedJobs(**columns))
    body = encode_staged(jobs)
    [spec] = decode_staged(staged_part("staged/x", jobs, body), body)
    assert spec == whole_spec()


def test_what_commands_show_of_a_job_is_every_value() -> None:
    view = view_job(plain_job(whole_record()))
    for field in ASKED:
        if field.name != "run_at":
            assert getattr(view, field.name) == VALUES[field.name], field.name


def test_gained_are_those_that_a_job_has() -> None:
    assert gained(JobSpec("1", "send", b"")) == {}
    assert gained(whole_spec()) == {field.name: VALUES[field.name] for field in GAINED}


def test_the_border_refuses_a_bad_value_of_every_field() -> None:
    good = whole_spec()
    check_specs([good], DEFAULT_LIMITS)
    for field in ASKED:
        with pytest.raises(InvalidInputError):
            check_specs([msgspec.structs.replace(good, **{str(field.spec): object()})], DEFAULT_LIMITS)


# --- Pages ---


@pytest.mark.parametrize(
    ("page", "form", "fields"),
    [
        ("python.md", "argument", ASKED),
        ("http.md", "http", ASKED),
        ("log-format.md", "logged", SPEC),
        ("document-format.md", "stored", FIELDS),
        ("spark.md", "name", ASKED),
    ],
)
def test_a_page_of_the_reference_names_every_field(page: str, form: str, fields: tuple[Field, ...]) -> None:
    text = (DOCS / page).read_text()
    assert [name for name in of(form, fields) if f"`{name}`" not in text and f'"{name}"' not in text] == []


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return round(value.astimezone(UTC).timestamp() * 1000)
    return value


def _of_arrow(value: Any) -> Any:
    if isinstance(value, list):
        return dict(value) if isinstance(value[0], tuple) else tuple(value)
    return value


def _of_message(value: Any) -> Any:
    if isinstance(value, str | bytes | int | bool):
        return value
    return dict(value) if hasattr(value, "items") else tuple(value)
