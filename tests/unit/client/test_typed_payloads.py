"""Typed payloads: values in, the same values out, and nothing that does not fit on either way."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from casque import InMemoryStorage, InvalidInputError, NewJob, Queue, SyncQueue


class StructEmail(msgspec.Struct):
    to: str
    tries: int = 0


@dataclass
class DataEmail:
    to: str
    tries: int = 0
    tags: list[str] = field(default_factory=list)


class ModelEmail(pydantic.BaseModel):
    to: str
    tries: int = pydantic.Field(default=0, ge=0)
    sent_at: datetime | None = None


class AliasedEmail(pydantic.BaseModel):
    to: str = pydantic.Field(alias="To")


class DictEmail(TypedDict):
    to: str


VALUES: list[tuple[Any, Any]] = [
    (StructEmail, StructEmail("alice", 3)),
    (DataEmail, DataEmail("alice", 3, ["new"])),
    (ModelEmail, ModelEmail(to="alice", tries=3, sent_at=datetime(2026, 1, 1, tzinfo=UTC))),
    (DictEmail, {"to": "alice"}),
    (list[int], [1, 2, 3]),
    (dict[str, float], {"a": 1.5}),
    (int | None, None),
    (str, "größe 🦆"),
    (datetime, datetime(2026, 1, 1, tzinfo=UTC)),
    (list[StructEmail], [StructEmail("a"), StructEmail("b")]),
]
MISFITS: list[tuple[Any, Any]] = [
    (StructEmail, StructEmail(to=7)),  # type: ignore[arg-type]
    (StructEmail, {"nothing": "known"}),
    (StructEmail, b'{"to": "alice"}'),
    (StructEmail, None),
    (DataEmail, DataEmail("alice", "three")),  # type: ignore[arg-type]
    (DataEmail, object()),
    (ModelEmail, {"to": "alice"}),
    (ModelEmail, StructEmail("alice")),
    (ModelEmail, ModelEmail.model_construct(to="alice", tries=-1)),
    (list[int], [1, "two"]),
    (list[int], (1, "two")),
    (list[int], "123"),
    (list[int], {1, "two"}),
    (list[int], [object()]),
    (int, "7"),
]


def named(cases: list[tuple[Any, Any]]) -> pytest.MarkDecorator:
    # No text of the values: some name their address, and every worker must collect the same tests.
    ids = [f"{getattr(kind, '__name__', kind)}-{type(value).__name__}-{n}" for n, (kind, value) in enumerate(cases)]
    return pytest.mark.parametrize(("kind", "value"), cases, ids=ids)


@named(VALUES)
async def test_a_value_comes_out_as_it_went_in(kind: Any, value: Any) -> None:
    storage = InMemoryStorage()
    async with Queue.open(storage, type=kind) as q:
        added = await q.enqueue("task", value)
        assert added.payload == value

    async with Queue.open(storage, type=kind) as q:
        [job] = await q.dequeue("task")
        assert job.payload == value
        assert type(job.payload) is type(value)
        assert job.payload is job.payload
        await job.ack()


@named(VALUES)
def test_the_same_without_asyncio(kind: Any, value: Any) -> None:
    with SyncQueue.open(InMemoryStorage(), type=kind) as q:
        q.enqueue("task", value)
        [job] = q.dequeue("task")
        assert job.payload == value
        job.ack()


async def test_what_is_stored_is_plain_json() -> None:
    async with Queue.open(InMemoryStorage(), type=StructEmail) as q:
        job = await q.enqueue("task", StructEmail("alice"))

        assert job.raw_payload == b'{"to":"alice","tries":0}'


@named(MISFITS)
async def test_a_value_that_does_not_fit_is_refused_and_nothing_is_enqueued(kind: Any, value: Any) -> None:
    storage = InMemoryStorage()

    async with Queue.open(storage, type=kind) as q:
        with pytest.raises(InvalidInputError, match="payload"):
            await q.enqueue("task", value)
        with pytest.raises(InvalidInputError, match="payload"):
            await q.enqueue_many([NewJob("task", value)])

        assert (await q.stats()).totals.enqueued == 0

    assert await storage.read() == (b"", None)


async def test_one_misfit_among_many_refuses_them_all() -> None:
    async with Queue.open(InMemoryStorage(), type=list[int]) as q:
        with pytest.raises(InvalidInputError, match="payload"):
            await q.enqueue_many([("task", [1]), ("task", ["two"])])  # type: ignore[list-item]

        assert (await q.stats()).totals.enqueued == 0


@pytest.mark.parametrize("kind", [StructEmail, DataEmail, ModelEmail, list[int]])
@pytest.mark.parametrize("stored", [b"", b"not json", b'{"to": 7}', b"\xff\xfe", b"[1", b'"text"'])
async def test_a_stored_payload_that_does_not_fit_is_refused_when_it_is_looked_at(kind: Any, stored: bytes) -> None:
    storage = InMemoryStorage()
    async with Queue.open(storage) as q:
        await q.enqueue("task", stored)

    async with Queue.open(storage, type=kind) as q:
        [job] = await q.dequeue("task")
        with pytest.raises(InvalidInputError, match="payload"):
            _ = job.payload

        assert job.raw_payload == stored
        await job.nack(delay=0, error="does not fit")
        [failed] = await q.jobs()
        assert failed.last_error == "does not fit"


async def test_a_queue_of_bytes_reads_what_a_typed_one_wrote() -> None:
    storage = InMemoryStorage()
    async with Queue.open(storage, type=ModelEmail) as q:
        await q.enqueue("task", ModelEmail(to="alice"))

    async with Queue.open(storage, type=bytes) as q:
        [job] = await q.dequeue("task")
        assert ModelEmail.model_validate_json(job.payload) == ModelEmail(to="alice")


@pytest.mark.parametrize("kind", [lambda: None, 7, "list[int]x("])
def test_a_type_without_a_json_form_is_refused_at_once(kind: Any) -> None:
    with pytest.raises(InvalidInputError, match="payload type"):
        Queue.open("memory://", type=kind)


async def test_a_model_with_an_alias_comes_out_as_it_went_in() -> None:
    async with Queue.open(InMemoryStorage(), type=AliasedEmail) as q:
        job = await q.enqueue("task", AliasedEmail(To="alice"))

        assert job.payload.to == "alice"


@pytest.mark.parametrize("value", ["half \ud800", [1, "half \ud800"]])
async def test_text_that_is_no_text_is_refused(value: Any) -> None:
    async with Queue.open(InMemoryStorage(), type=Any) as q:
        with pytest.raises(InvalidInputError, match="payload"):
            await q.enqueue("task", value)

        assert (await q.stats()).totals.enqueued == 0


async def test_a_model_that_cannot_be_written_is_refused() -> None:
    async with Queue.open(InMemoryStorage(), type=ModelEmail) as q:
        with pytest.raises(InvalidInputError, match="payload"):
            await q.enqueue("task", ModelEmail.model_construct(to=object()))

        assert (await q.stats()).totals.enqueued == 0
