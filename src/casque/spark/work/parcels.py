"""The data between the driver and the executors: jobs one way, outcomes the other.

Spark sees neither. A parcel of many jobs is one binary cell, so Spark copies bytes instead of converting every row to
its own format and back, and need not handle time zones, maps and large values. Jobs travel in the queue's own format,
encoded in one pass: splitting them into columns would take one pass per column, and they do not fit into a processor's
cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

import msgspec
import pyarrow as pa

from casque.arrow_types import arrow_type
from casque.client.job import Job
from casque.fields import GAINED
from casque.scan.arrays import MS, column, each
from casque.scan.job_columns import OF_RECORD
from casque.service import Outcome, is_silent_ack
from casque.types import JobRecord

T = TypeVar("T")

JOBS = pa.schema(
    [
        ("id", pa.string()),
        ("entrypoint", pa.string()),
        ("payload", pa.binary()),
        ("token", pa.int64()),
        ("attempts", pa.int32()),
        ("priority", pa.int64()),
        ("created_at", MS),
        ("due_at", MS),
        ("claimed_at", MS),
        ("max_attempts", pa.int64()),
        ("key", pa.string()),
        ("zone", pa.string()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("error", pa.string()),
        ("sequence", pa.int64()),
        ("max_crashes", pa.int64()),
        ("crashes", pa.int64()),
        *((field.name, arrow_type(str(field.sql))) for field in GAINED),
    ]
)
"""The columns for a handler of many jobs. `error` is that of the previous attempt."""


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """What a task says about the jobs of a parcel that it has not reported before."""

    outcomes: list[Outcome]
    running: list[int] = []
    """Jobs, by their place in the parcel, whose handlers had not returned when the time was up."""
    unstarted: list[int] = []
    """Jobs whose handlers were not called, because the time was up."""
    handed_over: bool = False
    """Whether other jobs of the parcel were handed over to the driver before."""


_encoder = msgspec.msgpack.Encoder()
_answer = msgspec.msgpack.Decoder(Answer)
_jobs = msgspec.msgpack.Decoder(list[JobRecord])
_SIZE_BYTES = 8
_CODEC = "lz4"
"""Spark copies a parcel several times on its way: compressing it costs less than that."""


def packed(jobs: Sequence[Job[bytes]]) -> bytes:
    """Encode claimed jobs for an executor."""
    return _small(_encoder.encode([job.record for job in jobs]))


def unpacked(parcel: bytes) -> list[JobRecord]:
    """Decode the jobs. Executors do not hold their leases."""
    return _jobs.decode(_large(parcel))


def answer_packed(answer: Answer) -> bytes:
    """Encode an answer. If all jobs are done without a result, it is empty."""
    quiet = not (answer.running or answer.unstarted or answer.handed_over) and all(map(is_silent_ack, answer.outcomes))
    return b"" if quiet else _small(_encoder.encode(answer))


def answer_unpacked(parcel: bytes) -> Answer:
    return _answer.decode(_large(parcel))


def _small(body: bytes) -> bytes:
    small: bytes = pa.compress(body, codec=_CODEC, asbytes=True)
    return len(body).to_bytes(_SIZE_BYTES, "big") + small


def _large(parcel: bytes) -> bytes:
    size = int.from_bytes(parcel[:_SIZE_BYTES], "big")
    body: bytes = pa.decompress(parcel[_SIZE_BYTES:], decompressed_size=size, codec=_CODEC, asbytes=True)
    return body


def jobs_table(records: Sequence[JobRecord]) -> pa.Table:
    """The jobs as columns."""
    specs = each("spec", records)
    columns = [
        column(each(OF_RECORD[one.name], records) if one.name in OF_RECORD else each(one.name, specs), one.type)
        for one in JOBS
    ]
    return pa.table(columns, schema=JOBS)


def pieces(jobs: Sequence[T], most: int) -> list[Sequence[T]]:
    """Up to `most` pieces of nearly equal size, none of them empty."""
    count = min(most, len(jobs))
    bounds = [len(jobs) * n // count for n in range(count + 1)] if count else []
    return [jobs[start:end] for start, end in pairwise(bounds)]
