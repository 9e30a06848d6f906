"""The archive as Parquet: the same jobs as its lines, for casque and for programs that know nothing of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from casque.codec import parquet
from casque.codec.archive import (
    Form,
    OnePerRange,
    Range,
    agree,
    archive_key,
    choose,
    decode_archived,
    encode_lines,
    form_of,
)
from casque.errors import CorruptQueueError, NotInstalledError
from casque.scan.archive_columns import archive_batch
from casque.scan.attempt_columns import attempts_batch
from casque.scan.splits import ArchiveObject, ArchiveSplit
from casque.scan.tables import COLUMNS, Table
from casque.service import ArchivedJob
from casque.types import JobState
from tests.unit.scan.test_archive_columns import JOBS

HOUR = "2026-02-15T10"
RANGE = Range(1, 2**40)
LINES, PARQUET = (archive_key(HOUR, RANGE, form) for form in (Form.LINES, Form.PARQUET))
PLAIN = JOBS.map(lambda job: msgspec.structs.replace(job, payload=b"" if job.blob_bytes is not None else job.payload))
"""A payload that lay beside the queue is empty in the archive."""


def encoded(jobs: Sequence[ArchivedJob]) -> bytes:
    return parquet.file_of([parquet.batch_of(HOUR, jobs)])


def a_job(payload: bytes = b"x", **changes: Any) -> ArchivedJob:
    now = msgspec.json.decode(b'"2026-02-15T10:00:00Z"', type=datetime)
    job = ArchivedJob("1", "send", payload, JobState.DONE, 1, now, now, now, 7, 1)
    return msgspec.structs.replace(job, **changes)


# --- The same jobs ---


@settings(deadline=None, database=None)
@given(st.lists(PLAIN, min_size=1, max_size=20))
def test_jobs_come_back_as_they_were(jobs: list[ArchivedJob]) -> None:
    body = encoded(jobs)
    assert decode_archived(PARQUET, body) == jobs == decode_archived(LINES, encode_lines(jobs))
    assert agree(PARQUET, body, encoded(jobs))
    assert parquet.row_count(body) == len(jobs)


@settings(deadline=None, database=None)
@given(st.lists(PLAIN, min_size=1, max_size=20), st.integers(0, 2**41), st.integers(1, 2**40))
def test_both_forms_have_the_same_columns(jobs: list[ArchivedJob], ms: int, after: int) -> None:
    for table, make in ((Table.ARCHIVE, archive_batch), (Table.ATTEMPTS, attempts_batch)):
        for split in (
            ArchiveSplit(table, ()),
            ArchiveSplit(table, (), since_ms=ms),
            ArchiveSplit(table, (), after, until_ms=ms),
        ):
            found = [
                make(split, ArchiveObject(key, HOUR, RANGE.first, RANGE.last), body, list(COLUMNS[table]))
                for key, body in ((LINES, encode_lines(jobs)), (PARQUET, encoded(jobs)))
            ]
            assert found[0].to_pylist() == found[1].to_pylist()
            assert found[0].schema == found[1].schema


def test_the_columns_are_those_of_the_table() -> None:
    others = {"payload_json": "string", "result_json": "string"}
    assert COLUMNS[Table.ARCHIVE] | others == {"shard": "int"} | parquet.COLUMNS


def test_many_jobs_are_decoded_in_pieces() -> None:
    jobs = [a_job(position=number) for number in range(2 * parquet.DECODED_ROWS + 1)]
    pieces = list(parquet.jobs_of(encoded(jobs)))
    assert [len(piece) for piece in pieces] == [parquet.DECODED_ROWS, parquet.DECODED_ROWS, 1]
    assert [job for piece in pieces for job in piece] == jobs


def test_two_writings_differ_if_their_jobs_do() -> None:
    assert not agree(PARQUET, encoded([a_job()]), encoded([a_job(b"y")]))
    assert not agree(PARQUET, encoded([a_job()]), encoded([a_job(), a_job()]))
    assert not agree(PARQUET, encoded([a_job()]), encode_lines([a_job()]))


# --- JSON ---


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b'{"a": [1, 2.5, null]}', '{"a": [1, 2.5, null]}'),
        (b" [] ", " [] "),
        (b"7", "7"),
        ('"ä"'.encode(), '"ä"'),
        (b"", None),
        (b"hello", None),
        (b"{", None),
        (b'"\xff"', None),
        (b"\xff\xfe", None),
        (b"NaN", None),
        (b'{"a":1} {"b":2}', None),
        (b"[" * 100_000, None),
        (b"[" * 100_000 + b"]" * 100_000, None),
        (b'"' + b"x" * parquet.JSON_BYTES_MAX + b'"', None),
    ],
)
def test_what_is_json_is_text_as_well(payload: bytes, text: str | None) -> None:
    table = pq.read_table(pa.BufferReader(encoded([a_job(payload, result=payload)])))
    assert table["payload"].to_pylist() == table["result"].to_pylist() == [payload]
    assert table["payload_json"].to_pylist() == table["result_json"].to_pylist() == [text]


# --- Other releases, and damage ---


def test_a_file_without_a_column_that_jobs_gained_has_its_default() -> None:
    job = a_job(tags=("urgent",), crashes=2)
    table = parquet.read_whole(encoded([job])).drop_columns(["tags", "crashes"])
    older = parquet.write_table(table.append_column("later", pa.array([1])))
    assert decode_archived(PARQUET, older) == [msgspec.structs.replace(job, tags=(), crashes=0)]
    assert agree(PARQUET, older, encoded([msgspec.structs.replace(job, crashes=0)]))
    one = ArchiveObject(PARQUET, HOUR, RANGE.first, RANGE.last)
    [row] = archive_batch(ArchiveSplit(Table.ARCHIVE, ()), one, older, ["id", "tags", "fifo"]).to_pylist()
    assert row == {"id": "1", "tags": None, "fifo": False}


@pytest.mark.parametrize("name", ["id", "payload", "position", "finished_at"])
def test_a_file_without_a_column_that_all_jobs_have_is_none_of_the_archive(name: str) -> None:
    body = parquet.write_table(parquet.read_whole(encoded([a_job()])).drop_columns([name]))
    with pytest.raises(CorruptQueueError, match="no part of an archive"):
        decode_archived(PARQUET, body)


def test_a_number_that_fits_into_no_column_is_refused() -> None:
    with pytest.raises((ValueError, OverflowError)):
        parquet.batch_of(HOUR, [a_job(attempts=2**40)])


@pytest.mark.parametrize("body", [b"", b"PAR1", b"{}\n", encode_lines([a_job()]), b"PAR1" + bytes(100) + b"PAR1"])
def test_what_is_no_parquet_is_named(body: bytes) -> None:
    with pytest.raises(CorruptQueueError, match="no part of an archive"):
        decode_archived(PARQUET, body)


def test_damage_of_a_page_is_found() -> None:
    body = encoded([a_job(bytes(range(256)) * 8, position=number) for number in range(20)])
    found = 0
    for at in range(0, len(body), 7):
        damaged = body[:at] + bytes([body[at] ^ 0x55]) + body[at + 1 :]
        try:
            jobs = decode_archived(PARQUET, damaged)
        except CorruptQueueError:
            found += 1
        else:
            assert len(jobs) <= 20  # names in the footer, statistics and the like
    assert found > len(body) / 7 / 4


@pytest.mark.parametrize("length", range(0, 400, 13))
def test_a_file_that_is_cut_off_is_named(length: int) -> None:
    with pytest.raises(CorruptQueueError, match=PARQUET):
        decode_archived(PARQUET, encoded([a_job()])[:length])


# --- One of several ---


def test_a_reader_of_jobs_takes_lines_and_what_is_only_there_as_parquet() -> None:
    one, later = OnePerRange(), archive_key("2026-02-15T11", RANGE, Form.PARQUET)
    assert [key for key in (LINES, f"{LINES}.bak", PARQUET, later) if one.takes(key)] == [LINES, later]


def test_a_reader_of_columns_takes_parquet_and_what_is_only_there_as_lines() -> None:
    later = archive_key("2026-02-15T11", RANGE, Form.PARQUET)
    other = archive_key(HOUR, Range(2**40 + 1, 2**41))
    keys = [LINES, PARQUET, other, f"archive/{HOUR}/notes.txt", later]
    assert choose(keys) == choose([PARQUET, LINES, other, later]) == [PARQUET, other, later]
    assert [form_of(key) for key in (LINES, PARQUET)] == [Form.LINES, Form.PARQUET]


def test_without_pyarrow_lines_are_read_and_parquet_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    body, later = encoded([a_job()]), archive_key("2026-02-15T11", RANGE, Form.PARQUET)
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    assert choose([LINES, PARQUET, later]) == [LINES, later]
    with pytest.raises(NotInstalledError, match=r"archive/2026-02-15T11/.*parquet.*pip install .casque\[parquet\]"):
        decode_archived(later, body)
