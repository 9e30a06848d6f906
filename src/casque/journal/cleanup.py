"""Removes the log that a queue leaves behind when it becomes a document."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial

import msgspec

from casque.codec.document import LAYOUT as DOCUMENT
from casque.codec.head import KEY, UNREADABLE, read_layout
from casque.codec.log import segment_key, snapshot_key
from casque.environment import Patience
from casque.storage.port import Store, Stored

AT_ONCE = 32
SEGMENTS, SNAPSHOTS = "log/", "snapshots/"


async def find_fences(store: Store, patience: Callable[[], Patience]) -> tuple[list[int], int]:
    """The fences of earlier logs, and the highest slot that holds anything.

    A fence stays for ever: a process that held the queue before it, and slept since, must lose its next slot whatever
    layouts the queue has had in between. An unreadable object counts as one: it keeps its slot as well.
    """
    keys = [key async for key in store.list(SEGMENTS) if _position(key) is not None]
    fences = [_position(key) or 0 async for key in _fences(store, patience, keys)]
    return fences, max((_position(key) or 0 for key in keys), default=0)


async def sweep(store: Store, patience: Callable[[], Patience]) -> int:
    """Remove the segments and snapshots of a queue that is a document now; returns their number.

    Lists first, and reads `queue.json` afterwards: a concurrent conversion back to a log begins at the document's
    version or above it, so nothing that it wrote is below.
    """
    segments = [key async for key in store.list(SEGMENTS) if _position(key) is not None]
    snapshots = [key async for key in store.list(SNAPSHOTS)]
    read = await patience().insist(lambda: store.get(KEY))
    if not isinstance(read, Stored) or read_layout(KEY, read.body).layout != DOCUMENT:
        return 0
    version = msgspec.json.decode(read.body, type=_Version).version
    segments = [key for key in segments if key <= segment_key(version)]
    kept = {key async for key in _fences(store, patience, segments)}
    doomed = [key for key in segments if key not in kept]
    doomed += [key for key in snapshots if key < snapshot_key(version, "")]
    for start in range(0, len(doomed), AT_ONCE):
        await asyncio.gather(*map(store.delete, doomed[start : start + AT_ONCE]))
    return len(doomed)


async def _fences(store: Store, patience: Callable[[], Patience], keys: list[str]) -> AsyncIterator[str]:
    for start in range(0, len(keys), AT_ONCE):
        some = keys[start : start + AT_ONCE]
        reads = await asyncio.gather(*(patience().insist(partial(store.get, key)) for key in some))
        for key, read in zip(some, reads, strict=True):
            if isinstance(read, Stored) and _may_be_fence(read.body):
                yield key


def _may_be_fence(body: bytes) -> bool:
    try:
        return not msgspec.json.decode(body, type=_Events).events
    except UNREADABLE:
        return True


def _position(key: str) -> int | None:
    digits = key.removeprefix(SEGMENTS)
    return int(digits) if len(digits) == 20 and digits.isascii() and digits.isdecimal() else None


class _Events(msgspec.Struct):
    events: list[msgspec.Raw]


class _Version(msgspec.Struct):
    version: int = 0
