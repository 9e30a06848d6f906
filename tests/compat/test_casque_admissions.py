"""A kept log with admissions: every later casque reads it, and writes the same bytes for the same input."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from casque import EventKind, Queue
from casque.clock import Random
from casque.codec.document import DocumentCodec
from casque.codec.log import decode_segment, digest, replay, segment_key
from casque.environment import Environment
from casque.journal.verify import Verifier
from casque.state import Limits, State
from casque.storage.memory import MemoryStore
from casque.testing.clock import ManualClock

HERE = Path(__file__).parent
DIRECTORY = HERE / "casque-0.1-admitted"
OBJECTS = sorted(
    str(path.relative_to(DIRECTORY)) for path in DIRECTORY.rglob("*") if path.is_file() and path.suffix != ".state"
)


def _side() -> Any:
    spec = importlib.util.spec_from_file_location("casque_admission_side", HERE / "casque_admission_side.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


side = _side()


def kept(key: str) -> bytes:
    return (DIRECTORY / key).read_bytes()


async def store_of() -> MemoryStore:
    store = MemoryStore()
    for key in OBJECTS:
        if key != "document.json":
            await store.create(key, kept(key))
    return store


def opened(store: MemoryStore, **more: Any) -> Queue[bytes]:
    return Queue.open(store, clock=ManualClock(side.START_MS + 60_000), rng=Random(1), **more)


def holds(expected: Any, actual: Any, where: str = "state") -> None:
    """Everything that was there is there; fields that later releases added may be there too."""
    if isinstance(expected, dict):
        for name, value in expected.items():
            holds(value, actual[name], f"{where}.{name}")
    elif isinstance(expected, list):
        assert len(actual) >= len(expected), where
        for index, value in enumerate(expected):
            holds(value, actual[index], f"{where}[{index}]")
    else:
        assert actual == expected, where


def test_the_kept_log_replays_to_the_state_that_was_written() -> None:
    state, chain = State(Limits()), ""
    for position in range(1, len(side.HISTORY) + 1):
        body = kept(segment_key(position))
        segment = decode_segment(body, queue_id=side.QUEUE_ID, position=position, prev=chain)
        replay(state, side.whole(segment, body, kept))
        chain = digest(body)
    holds(json.loads(kept("expected.state")), side.plain(state))


def test_the_kept_document_knows_the_batches() -> None:
    state = DocumentCodec("queue.json", "").decode(kept("document.json"), Limits())
    expected = json.loads(kept("expected.state"))
    assert side.plain(state)["admissions"] == expected["admissions"]
    assert list(state.jobs) == [job["spec"]["id"] for job in expected["jobs"]]


async def test_the_kept_log_can_be_opened_followed_looked_back_on_and_verified() -> None:
    store = await store_of()
    events = [event async for event in opened(store).events(from_position=0, follow=False)]
    added = [event.job_id for event in events if event.kind is EventKind.ADDED]
    assert added == ["plain", "größe", "blob", "a", "b", "c"]
    assert [event.index for event in events if event.position == 4] == [0, 1, 2, 3]
    async with opened(store, as_of=1) as q:
        assert (await q.stats()).totals.enqueued == 5
    verifier = Verifier(store, Environment(clock=ManualClock(), rng=Random(2)))
    verdict = await verifier.verify()
    assert (verdict.position, verdict.jobs, verdict.replayed) == (5, 5, 1)
    async with opened(store) as q:
        assert (await q.admit("nightly", 42, [side.THREE])).repeated
        assert (await q.admit("nightly", 41, [side.ONE])).repeated
        assert (await q.enqueue("send", b"", key="order-17")).id == "größe"


@pytest.mark.parametrize("key", OBJECTS)
def test_the_same_input_makes_the_same_bytes(key: str) -> None:
    assert side.objects()[key] == kept(key)
