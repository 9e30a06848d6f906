"""Stored objects that are damaged, or forged by someone who may write to the bucket.

A queue whose head, segment, snapshot, archive, staged part or member was changed either opens and works, or names the
object in one of casque's own errors. Anything else (a KeyError in the commit loop, an endless load) is a bug.
`make fuzz` looks for longer.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import zlib
from collections.abc import Callable
from contextlib import aclosing
from datetime import timedelta
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from casque import NewJob, Queue
from casque.client.opening import Parts
from casque.client.queue import DEFAULTS
from casque.client.staging import StagedJobs, Stager
from casque.codec.log import digest, segment_key
from casque.environment import Environment
from casque.errors import CasqueError
from casque.journal.log import pace
from casque.journal.verify import Verifier
from casque.storage.memory import MemoryStore
from casque.storage.port import Stored

Objects = dict[str, bytes]

EXAMPLES = int(os.environ.get("CASQUE_FUZZ", "40"))
LONG_S = 120.0
"""A look takes milliseconds: what takes this long has no end, and is not just slow on a busy machine."""
HEAD = "queue.json"
fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="CASQUE_FUZZ" not in os.environ,  # the normal run tries the same cases every time
    suppress_health_check=list(HealthCheck),
)

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(
        [0, -1, 1, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 2**70, 1e308, 0.5, "", "x" * 300, "\x00", "é"]
    ),
    st.sampled_from([[], {}, [[]], [None], {"": None}, ["x"], [0, 0, 0], {"id": 1}]),
)


async def make(layout: str) -> Objects:
    """A queue in which everything there is has been used."""
    store = MemoryStore()
    short: Any = {"archive_interval": timedelta(milliseconds=1), "blob_max": 64, "payload_max": 1_000_000}
    short["archive_format"] = {"log": "both", "document": "parquet"}.get(layout, "jsonl")
    if layout == "ring":
        await Parts(store, DEFAULTS).builder().create(2)
    async with Queue.open(store, layout=None if layout == "ring" else layout, **short) as q:
        await q.set_schedule("nightly", "0 3 * * *", ("report", b"all"))
        await q.set_zone("acme", weight=2.0, running_max=3, per_second=50)
        await q.pause("held")
        for n in range(14):
            await q.enqueue_many(
                [
                    NewJob("send", b"%d" % n, key=f"k{n}", headers={"h": "1"}, max_attempts=2, priority=n % 3),
                    NewJob("send", b"z", zone="acme", delay=3600 if n % 5 == 0 else None),
                    NewJob("send", b"f", zone="line", fifo=True),
                ],
                request_id=f"r{n}",
            )
        for job in await q.dequeue("send", batch_size=6):
            await job.nack(error="no", delay=0)
        for job in await q.dequeue("send", batch_size=8):
            await job.ack(result=b"1")
        await q.dequeue("send", batch_size=2)
        lease = await q.lease_zone("acme")
        assert lease is not None
        if layout == "log":
            with Stager(store) as stager:
                part = await asyncio.to_thread(stager.stage, StagedJobs(["s1", "s2"], "send", [b"1", b"2"]))
            await q.admit("nightly", 1, [part])
    return {key: stored.body for key, stored in store._objects.items()}


@cache
def made(layout: str) -> Objects:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pace, "SNAPSHOT_SEGMENTS", 12)
        return asyncio.run(make(layout))


def as_store(objects: Objects) -> MemoryStore:
    store = MemoryStore()
    store._objects = {key: Stored(body, f"v{n}") for n, (key, body) in enumerate(objects.items())}
    return store


async def use(store: MemoryStore) -> None:
    """Everything that reads, then a little that writes. Only casque's own errors may come of it."""
    patient: Any = {"storage_patience": timedelta(milliseconds=20), "storage_backoff": timedelta(milliseconds=1)}

    async def work() -> None:
        async with Queue.open(store, **patient) as q:
            await q.stats()
            await q.jobs()
            await q.zones()
            await q.peek_zones()
            await q.schedules()
            for job in await q.dequeue(batch_size=5):
                await job.ack()
            await q.enqueue("send", b"more", zone="acme")

    async def archive() -> None:
        async with aclosing(Queue.open(store, **patient).archive()) as jobs:
            async for _ in jobs:
                pass

    async def events() -> None:
        async with aclosing(Queue.open(store, **patient).events(from_position=0, follow=False)) as feed:
            async for _ in feed:
                pass

    async def verify() -> None:
        await Verifier(store, Environment()).verify()

    for look in (verify, archive, events, work):
        try:
            await asyncio.wait_for(look(), LONG_S)
        except TimeoutError:
            pytest.fail(f"{look.__name__} does not end")
        except CasqueError:
            pass


def pick(data: st.DataObject, objects: Objects) -> str:
    return data.draw(st.sampled_from(sorted(objects)), label="object")


@pytest.mark.parametrize("layout", ["log", "document", "ring"])
@given(data=st.data())
@fuzz
def test_an_object_with_changed_bytes_is_read_or_named(layout: str, data: st.DataObject) -> None:
    objects = dict(made(layout))
    key = pick(data, objects)
    body = bytearray(objects[key])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(len(body) - 1, 0)))
        match data.draw(st.sampled_from(["cut", "flip", "insert", "nest"])):
            case "cut":
                del body[at:]
            case "flip" if body:
                body[at % len(body)] ^= 1 << data.draw(st.integers(0, 7))
            case "insert":
                body[at:at] = data.draw(st.binary(max_size=8))
            case _:
                body[at:at] = b"[" * 5_000
    objects[key] = bytes(body)
    asyncio.run(use(as_store(objects)))


@pytest.mark.parametrize("layout", ["log", "document", "ring"])
@given(data=st.data())
@fuzz
def test_a_forged_object_whose_checksum_is_right_is_read_or_named(layout: str, data: st.DataObject) -> None:
    objects = dict(made(layout))
    key = pick(data, objects)
    forge(objects, key, lambda tree: change(tree, data))
    asyncio.run(use(as_store(objects)))


@pytest.mark.parametrize("layout", ["log", "document", "ring"])
@given(data=st.data())
@fuzz
def test_a_queue_with_an_object_missing_or_swapped_is_read_or_named(layout: str, data: st.DataObject) -> None:
    objects = dict(made(layout))
    key = pick(data, objects)
    if data.draw(st.booleans(), label="swapped"):
        objects[key] = objects[pick(data, objects)]
    else:
        del objects[key]
    asyncio.run(use(as_store(objects)))


def forge(objects: Objects, key: str, edit: Callable[[Any], Any]) -> None:
    """Change an object and make everything that vouches for it agree: checksum, digest, the chain."""
    body = objects[key]
    try:
        lines = [json.loads(line) for line in body.splitlines()] if key.endswith(".jsonl") else None
        tree = lines if lines is not None else json.loads(body)
    except ValueError:
        return  # packed columns of staged jobs: changed bytes are the other test's
    changed = edit(copy.deepcopy(tree))
    if lines is not None:
        rows = changed if isinstance(changed, list) else [changed]
        objects[key] = b"".join(dumped(row) + b"\n" for row in rows)
    elif "/log/" in f"/{key}" and isinstance(changed, dict):
        objects[key] = sealed(changed)
        rechain(objects, key)
    else:
        objects[key] = dumped(changed)
        vouch(objects, key)


def change(tree: Any, data: st.DataObject) -> Any:
    """One value somewhere in a tree of JSON is replaced, dropped or doubled."""
    path: list[Any] = []
    node = tree
    while isinstance(node, dict | list) and node and (not path or data.draw(st.integers(0, 3)) > 0):
        step = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        path.append((node, step))
        node = node[step]
    if not path:
        return data.draw(VALUES)
    parent, last = path[-1]
    match data.draw(st.sampled_from(["replace", "replace", "drop", "double"])):
        case "drop":
            del parent[last]
        case "double" if isinstance(parent, list):
            parent.insert(last, copy.deepcopy(parent[last]))
        case _:
            parent[last] = data.draw(VALUES)
    return tree


def dumped(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def sealed(segment: dict[str, Any]) -> bytes:
    """A segment with the checksum of what it says."""
    fields = {name: value for name, value in segment.items() if name != "crc"}
    start = dumped(fields)[:-1]
    return b'%b,"crc":"%08x"}\n' % (start, zlib.crc32(start))


def rechain(objects: Objects, key: str) -> None:
    """Whatever follows a changed segment names its new digest."""
    root, _, number = key.rpartition("log/")
    position = int(number)
    while (following := f"{root}{segment_key(position + 1)}") in objects:
        segment = json.loads(objects[following])
        segment["prev"] = digest(objects[f"{root}{segment_key(position)}"])
        objects[following] = sealed(segment)
        position += 1


def vouch(objects: Objects, key: str) -> None:
    """Whatever names a changed snapshot by its digest names the new one."""
    for head, body in list(objects.items()):
        if head.endswith(HEAD) and key.encode() != head.encode():
            tree = json.loads(body)
            named = [tree.get("snapshot"), *tree.get("kept", [])] if isinstance(tree, dict) else []
            for ref in named:
                if isinstance(ref, dict) and key.endswith(ref.get("key", "-")):
                    ref["sha256"], ref["bytes"] = digest(objects[key]), len(objects[key])
            objects[head] = dumped(tree)


def test_a_queue_that_was_not_touched_is_used_without_an_error() -> None:
    for layout in ("log", "document", "ring"):
        objects = made(layout)
        asyncio.run(sound(as_store(objects)))


async def sound(store: MemoryStore) -> None:
    async with Queue.open(store) as q:
        assert (await q.stats()).totals.enqueued > 20
        assert await q.dequeue(batch_size=2)
