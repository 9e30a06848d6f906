"""What travels between the driver and the executors: jobs one way, outcomes the other, as Arrow streams.

Spark sees neither. A parcel of many jobs is one binary cell for it, so that it copies bytes instead of turning every
row into its own form and back, and time zones, maps and large values are none of its business. For 100,000 small jobs
that is a third of the processor time of a frame with a row per job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa

from casque.client.job import Job
from casque.client.payloads import BytesCodec, PayloadCodec
from casque.service import Outcome
from casque.types import JobRecord, JobSpec, JobState

MOMENT = pa.timestamp("ms", tz="UTC")
JOBS = pa.schema(
    [
        ("id", pa.string()),
        ("entrypoint", pa.string()),
        ("payload", pa.binary()),
        ("token", pa.int64()),
        ("attempts", pa.int32()),
        ("priority", pa.int64()),
        ("created_at", MOMENT),
        ("due_at", MOMENT),
        ("claimed_at", MOMENT),
        ("max_attempts", pa.int64()),
        ("key", pa.string()),
        ("zone", pa.string()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("error", pa.string()),
        ("sequence", pa.int64()),
        ("max_crashes", pa.int64()),
        ("crashes", pa.int64()),
    ]
)
"""What a handler of many jobs is given, and what a job is put together from for a handler of one. `error` is that of
the attempt before."""
OUTCOMES = pa.schema(
    [
        ("id", pa.string()),
        ("token", pa.int64()),
        ("error", pa.string()),
        ("result", pa.binary()),
        ("delay_ms", pa.int64()),
        ("final", pa.bool_()),
        ("crashed", pa.bool_()),
        ("snoozed", pa.bool_()),
        ("cancelled", pa.bool_()),
    ]
)
"""As `Outcome` has them, but for its back-off. Null says nothing: a job without an error is done."""
BYTES: PayloadCodec[Any] = BytesCodec()
_RUNNING = JobState.RUNNING
_SMALL = pa.ipc.IpcWriteOptions(compression="lz4")
"""Spark copies a parcel several times on its way: to make it smaller takes less than that."""


def jobs_table(jobs: Sequence[Job[bytes]]) -> pa.Table:
    """Claimed jobs as columns."""
    records = [job.record for job in jobs]
    specs = [record.spec for record in records]
    headers = [spec.headers for spec in specs]
    if any(headers):
        packed_headers = pa.array(
            [None if one is None else list(one.items()) for one in headers], JOBS.field("headers").type
        )
    else:
        packed_headers = pa.nulls(len(specs), JOBS.field("headers").type)
    columns = [
        pa.array([spec.id for spec in specs], pa.string()),
        pa.array([spec.entrypoint for spec in specs], pa.string()),
        pa.array([spec.payload for spec in specs], pa.binary()),
        pa.array([record.token for record in records], pa.int64()),
        pa.array([record.attempts for record in records], pa.int32()),
        pa.array([spec.priority for spec in specs], pa.int64()),
        pa.array([record.created_ms for record in records], pa.int64()).cast(MOMENT),
        pa.array([record.due_ms for record in records], pa.int64()).cast(MOMENT),
        pa.array([record.claimed_ms for record in records], pa.int64()).cast(MOMENT),
        pa.array([spec.attempts_max for spec in specs], pa.int64()),
        pa.array([spec.key for spec in specs], pa.string()),
        pa.array([spec.zone for spec in specs], pa.string()),
        packed_headers,
        pa.array([record.error for record in records], pa.string()),
        pa.array([record.sequence for record in records], pa.int64()),
        pa.array([spec.max_crashes for spec in specs], pa.int64()),
        pa.array([record.crashes for record in records], pa.int64()),
    ]
    return pa.table(columns, schema=JOBS)


def jobs_of(table: pa.Table, codec: PayloadCodec[Any] = BYTES) -> Iterator[Job[Any]]:
    """The jobs again, one by one. Nobody holds their leases here: they cannot be finished by their handles."""
    columns = [
        (column.cast(pa.int64()) if column.type == MOMENT else column).to_pylist() for column in table.itercolumns()
    ]
    for (
        id_,
        entrypoint,
        payload,
        token,
        attempts,
        priority,
        created,
        due,
        claimed,
        most,
        key,
        zone,
        headers,
        error,
        n,
        crashes_max,
        crashes,
    ) in zip(*columns, strict=True):
        spec = JobSpec(
            id_,
            entrypoint,
            payload,
            priority,
            None,
            most,
            key,
            None if headers is None else dict(headers),
            zone,
            max_crashes=crashes_max,
        )
        yield Job(
            JobRecord(
                spec,
                n,
                created,
                _RUNNING,
                due,
                token=token,
                attempts=attempts,
                claimed_ms=claimed,
                error=error,
                crashes=crashes,
            ),
            codec,
        )


def outcomes_of(
    jobs: pa.Table, errors: Sequence[str | None] | pa.Array, results: Sequence[bytes | None] | pa.Array
) -> pa.Table:
    """What became of each of these jobs, in their order: done, or failed."""
    columns = [jobs.column("id"), jobs.column("token"), _as(errors, pa.string()), _as(results, pa.binary())]
    silent = [pa.nulls(jobs.num_rows, field.type) for field in list(OUTCOMES)[len(columns) :]]
    return pa.table([*columns, *silent], schema=OUTCOMES)


def outcomes_table(outcomes: Sequence[Outcome]) -> pa.Table:
    """The same of outcomes that may say anything else."""
    names = ["job_id", *OUTCOMES.names[1:]]
    columns = [
        pa.array([getattr(one, name) for one in outcomes], field.type)
        for name, field in zip(names, OUTCOMES, strict=True)
    ]
    return pa.table(columns, schema=OUTCOMES)


def outcomes_in(table: pa.Table) -> list[Outcome]:
    """The outcomes again, as a queue takes them."""
    columns = [column.to_pylist() for column in table.itercolumns()]
    return [
        Outcome(id_, token, error, result, delay_ms, None, bool(final), bool(crashed), bool(snoozed), bool(cancelled))
        for id_, token, error, result, delay_ms, final, crashed, snoozed, cancelled in zip(*columns, strict=True)
    ]


def packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_SMALL) as stream:
        stream.write_table(table)
    whole: bytes = sink.getvalue().to_pybytes()
    return whole


def unpacked(cell: pa.BinaryScalar) -> pa.Table:
    with pa.ipc.open_stream(cell.as_buffer()) as stream:
        return stream.read_all()


def pieces(table: pa.Table, most: int) -> list[pa.Table]:
    """Up to so many pieces of nearly the same size, none of them empty."""
    count = min(most, table.num_rows)
    bounds = [table.num_rows * n // count for n in range(count + 1)] if count else []
    return [table.slice(start, end - start) for start, end in pairwise(bounds)]


def _as(values: Any, kind: pa.DataType) -> Any:
    return values.cast(kind) if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, kind)
