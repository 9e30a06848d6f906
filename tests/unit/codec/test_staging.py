"""Jobs by column, in objects beside the queue."""

from __future__ import annotations

import asyncio
import pickle
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from casque import Queue
from casque.client.staging import Stager
from casque.clock import Random
from casque.codec.staged import FORMAT, StagedJobs, checked, decode_staged, encode_staged, staged_hour, staged_part
from casque.errors import CorruptQueueError, InvalidInputError, QueueClosedError, StorageError
from casque.settings import QueueSettings
from casque.storage.memory import MemoryStore
from casque.storage.port import Lost, Outcome, Stored, Unknown
from casque.testing.clock import ManualClock
from casque.types import JobSpec, StagedPart

EVERYTHING = StagedJobs(
    ["1", "2"],
    ["send", "fetch"],
    [b"hello", b""],
    [-1, 2**63 - 1],
    [None, 1_700_000_000_000],
    [None, 3],
    ["order-1", None],
    [None, {"trace": "ü"}],
    ["eu", None],
    [None, "blobs/2026-02-15T10/2-0123456789abcdef"],
    [0, 300_000],
)


def _body(store: MemoryStore, part: StagedPart) -> bytes:
    read = asyncio.run(store.get(part.key))
    assert isinstance(read, Stored)
    return read.body


def test_columns_of_values_come_back_as_jobs() -> None:
    body = encode_staged(EVERYTHING)
    assert decode_staged(staged_part("staged/x", EVERYTHING, body), body) == [
        JobSpec("1", "send", b"hello", -1, None, None, "order-1", None, "eu", None, 0),
        JobSpec(
            "2",
            "fetch",
            b"",
            2**63 - 1,
            1_700_000_000_000,
            3,
            None,
            {"trace": "ü"},
            None,
            "blobs/2026-02-15T10/2-0123456789abcdef",
            300_000,
        ),
    ]


def test_a_column_may_be_one_value_for_all_rows() -> None:
    jobs = StagedJobs(["1", "2", "3"], "send", b"same", 5, 17, 4, None, {"a": "b"}, "eu")
    body = encode_staged(jobs)
    expected = [JobSpec(i, "send", b"same", 5, 17, 4, None, {"a": "b"}, "eu") for i in ("1", "2", "3")]
    assert decode_staged(staged_part("staged/x", jobs, body), body) == expected
    assert len(body) < 60, "it is stored once"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": []}, "at least one job"),
        ({"ids": ["1", ""]}, "row 1: id must be 1 to 256 printable characters"),
        ({"ids": ["1", 2]}, "row 1: id must be a str"),
        ({"ids": ["1", "1"]}, "row 1: the id '1' is also that of an earlier row"),
        ({"ids": ["1", "x" * 257]}, "row 1: id must be 1 to 256"),
        ({"entrypoints": ["send", "a\nb"]}, "row 1: entrypoint must be 1 to 256 printable"),
        ({"entrypoints": ["send", None]}, "row 1: entrypoint must be a str"),
        ({"entrypoints": ["send"]}, "the column entrypoints must have a value for each of the 2 ids, not 1"),
        ({"entrypoints": 7}, "entrypoint must be a str"),
        ({"payloads": [b"", "text"]}, "row 1: payload must be bytes, not str; encode it"),
        ({"priorities": [0, 2**63]}, "row 1: priority must be a whole number"),
        ({"priorities": [1, True]}, "row 1: priority must be a whole number"),
        ({"run_at_ms": [0, 1.5]}, "row 1: run_at_ms must be a whole number"),
        ({"run_at_ms": [0, 2**62]}, "row 1: run_at_ms must be"),
        ({"max_attempts": [1, 0]}, "row 1: max_attempts must be a whole number from 1"),
        ({"max_crashes": [None, 0]}, "row 1: max_crashes must be a whole number from 1"),
        ({"keys": "one-for-all"}, "a unique key is of one job"),
        ({"keys": [None, "x" * 1025]}, "row 1: key must be 1 to 1024"),
        ({"headers": [None, {"a": 1}]}, "row 1: headers must map str to str"),
        ({"zones": [None, ""]}, "row 1: zone must be"),
        ({"blobs": [None, "queue.json"], "blob_bytes": 1}, "row 1: 'queue.json' is no object with a large payload"),
        ({"blob_bytes": 1}, "blob_bytes is for jobs"),
    ],
)
def test_what_an_enqueue_would_refuse_is_refused_with_its_row(changes: dict[str, object], message: str) -> None:
    jobs = msgspec.structs.replace(StagedJobs(["1", "2"], "send", b""), **changes)
    with pytest.raises(InvalidInputError, match=message):
        checked(jobs)


def test_payloads_that_are_views_of_bytes_are_stored_as_bytes() -> None:
    jobs = checked(StagedJobs(["1", "2"], "send", [memoryview(b"a"), bytearray(b"b")]))  # type: ignore[list-item]
    assert jobs.payloads == [b"a", b"b"]


def test_crashes_have_a_column_of_their_own_which_only_those_write_who_need_it() -> None:
    plain = StagedJobs(["1", "2"], "send", b"")
    assert msgspec.msgpack.decode(encode_staged(plain)) == [1, [["1", "2"], "send", b"", 0, *[None] * 6, 0]]
    for given, read in ((3, [3, 3]), ([None, 2], [None, 2])):
        jobs = checked(msgspec.structs.replace(plain, max_crashes=given))
        body = encode_staged(jobs)
        assert msgspec.msgpack.decode(body)[0] == 2, "who does not know the column must not pass over it"
        assert [spec.max_crashes for spec in decode_staged(staged_part("staged/x", jobs, body), body)] == read


def test_the_order_of_a_zone_has_a_column_that_an_older_release_refuses() -> None:
    jobs = checked(StagedJobs(["1", "2"], "send", b"", zones=["a", "b"], fifo=[True, False]))
    body = encode_staged(jobs)
    assert msgspec.msgpack.decode(body)[0] == 3, "who does not know the column must not pass over it"
    assert [spec.fifo for spec in decode_staged(staged_part("staged/x", jobs, body), body)] == [True, False]
    with pytest.raises(InvalidInputError, match="row 1: fifo must be true or false"):
        checked(StagedJobs(["1", "2"], "send", b"", fifo=[True, "no"]))  # type: ignore[list-item]


def test_a_changed_or_cut_object_is_recognised() -> None:
    jobs = StagedJobs(["1"], "send", b"x")
    body = encode_staged(jobs)
    part = staged_part("staged/x", jobs, body)
    for other in (body[:-1], body.replace(b"send", b"fend"), b""):
        with pytest.raises(CorruptQueueError, match="cut or changed"):
            decode_staged(part, other)


def test_what_is_no_object_of_staged_jobs_is_recognised() -> None:
    jobs = StagedJobs(["1"], "send", b"x")
    for body, message in (
        (b"\xc1", "no staged jobs"),
        (msgspec.msgpack.encode([FORMAT + 1, []]), "newer casque"),
        (encode_staged(StagedJobs(["1", "2"], "send", b"x")), "not of 1 jobs"),
        (encode_staged(StagedJobs(["1"], ["send", "send"], b"x")), "not of 1 jobs"),
    ):
        with pytest.raises(CorruptQueueError, match=message):
            decode_staged(staged_part("staged/x", jobs, body), body)


def test_a_stager_stores_a_part_under_its_hour_and_name() -> None:
    store = MemoryStore()
    clock = ManualClock()
    with Stager(store, txn="orders-7", clock=clock, rng=Random(1)) as stager:
        part = stager.stage(StagedJobs(["1", "2"], "send", [b"a", b"b"]))
    assert part.key.startswith(f"staged/{staged_hour(part.key)}/orders-7-")
    assert (part.jobs, part.bytes) == (2, len(_body(store, part)))
    specs = decode_staged(part, _body(store, part))
    assert [(s.id, s.payload, s.max_attempts) for s in specs] == [("1", b"a", 25), ("2", b"b", 25)]


def test_jobs_that_do_not_say_get_the_attempts_of_the_queue() -> None:
    store = MemoryStore()
    with Stager(store, settings=QueueSettings(max_attempts=7)) as stager:
        part = stager.stage(StagedJobs(["1", "2"], "send", b"", max_attempts=[None, 3]))
    assert [s.max_attempts for s in decode_staged(part, _body(store, part))] == [7, 3]


def test_large_payloads_get_objects_of_their_own() -> None:
    store = MemoryStore()
    with Stager(store, settings=QueueSettings(payload_max=10)) as stager:
        part = stager.stage(StagedJobs(["1", "2"], "send", [b"small", b"x" * 11]))
    small, large = decode_staged(part, _body(store, part))
    assert (small.payload, small.blob) == (b"small", None)
    assert (large.payload, large.blob_bytes) == (b"", 11)
    assert large.blob is not None
    read = asyncio.run(store.get(large.blob))
    assert isinstance(read, Stored)
    assert read.body == b"x" * 11


def test_a_payload_that_is_too_large_altogether_is_refused() -> None:
    with (
        Stager(MemoryStore(), settings=QueueSettings(payload_max=10, blob_max=20)) as stager,
        pytest.raises(InvalidInputError, match="at most 20 bytes"),
    ):
        stager.stage(StagedJobs(["1"], "send", b"x" * 21))


def test_many_jobs_become_several_parts() -> None:
    store = MemoryStore()
    ids = [str(i) for i in range(200_001)]
    with Stager(store) as stager:
        with pytest.raises(InvalidInputError, match="stage_all"):
            stager.stage(StagedJobs(ids, "send", b""))
        parts = stager.stage_all(StagedJobs(ids, "send", [b""] * len(ids)))
    assert [part.jobs for part in parts] == [100_000, 100_000, 1]
    assert [spec.id for part in parts for spec in decode_staged(part, _body(store, part))] == ids


def test_jobs_that_are_too_large_for_one_part_become_several() -> None:
    store = MemoryStore()
    payloads = [b"x" * 200_000 for _ in range(400)]
    with Stager(store) as stager:
        parts = stager.stage_all(StagedJobs([str(row) for row in range(400)], "send", payloads))
    assert [part.jobs for part in parts] == [100, 100, 100, 100]
    assert [spec.id for part in parts for spec in decode_staged(part, _body(store, part))] == list(map(str, range(400)))


def test_a_row_is_named_by_its_place_among_all() -> None:
    ids = [str(i) for i in range(100_001)]
    payloads: list[bytes] = [b""] * 100_000 + ["text"]  # type: ignore[list-item]
    with Stager(MemoryStore()) as stager, pytest.raises(InvalidInputError, match="row 100000: payload"):
        stager.stage_all(StagedJobs(ids, "send", payloads))


class _Forgetful(MemoryStore):
    """Writes and does not say so, for a while."""

    silent = 2

    async def create(self, key: str, body: bytes) -> Outcome:
        outcome = await super().create(key, body)
        if self.silent:
            self.silent -= 1
            return Unknown(TimeoutError())
        assert isinstance(outcome, Lost)
        return outcome


def test_a_write_whose_answer_is_lost_is_tried_again() -> None:
    store = _Forgetful()
    fast = QueueSettings(storage_backoff=timedelta(milliseconds=1))
    with Stager(store, settings=fast) as stager:
        part = stager.stage(StagedJobs(["1"], "send", b"x"))
    assert [spec.id for spec in decode_staged(part, _body(store, part))] == ["1"]


def test_a_store_that_never_answers_is_a_storage_error() -> None:
    store = _Forgetful()
    store.silent = 10**9
    fast = QueueSettings(storage_backoff=timedelta(milliseconds=1), storage_patience=timedelta(milliseconds=5))
    with Stager(store, settings=fast) as stager, pytest.raises(StorageError, match="nothing was enqueued"):
        stager.stage(StagedJobs(["1"], "send", b"x"))


def test_a_stager_can_be_sent_elsewhere() -> None:
    stager = Stager("memory://staging-pickle", txn="t-1", settings=QueueSettings(payload_max=10))
    with pickle.loads(pickle.dumps(stager)) as other:
        part = other.stage(StagedJobs(other.new_ids(3), "send", b"x"))
    assert part.key.partition("/")[2].partition("/")[2].startswith("t-1-")
    assert [s.entrypoint for s in decode_staged(part, _body(MemoryStore.named("staging-pickle"), part))] == ["send"] * 3


def test_a_closed_stager_says_so() -> None:
    stager = Stager(MemoryStore())
    stager.close()
    with pytest.raises(QueueClosedError):
        stager.stage(StagedJobs(["1"], "send", b"x"))


async def test_a_stager_works_where_an_event_loop_runs_already(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/queue"
    with Stager(url) as stager:
        part = stager.stage(StagedJobs(["1"], "send", b"x"))
        stager.stage(StagedJobs(["2"], "send", b"x"))
    async with Queue.open(url) as q:
        assert (await q.admit("s", 1, [part])).jobs == 1
