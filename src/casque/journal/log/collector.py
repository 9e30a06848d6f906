"""Deletes objects that are no longer needed: segments up to the floor, and snapshots that the head does not name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection

from casque.codec.log import LogHead, segment_key
from casque.codec.snapshot import snapshot_of
from casque.storage.port import Store

AT_ONCE = 16


async def collect(store: Store, head: LogHead, *, fences: Collection[int]) -> None:
    """Delete according to a published head: the floor is raised first, the deletes follow.

    A delete may be late by any time, because the floor never falls. `fences` are all those up to the floor: a leader
    that was deposed while it slept must find its successor's fence in its next slot, however long it slept.
    """
    keep = {segment_key(position) for position in fences}
    doomed: list[str] = []
    async for key in _superfluous(store, head, keep):
        doomed.append(key)
        if len(doomed) == AT_ONCE:
            await asyncio.gather(*map(store.delete, doomed))
            doomed.clear()
    await asyncio.gather(*map(store.delete, doomed))


async def _superfluous(store: Store, head: LogHead, keep: Collection[str]) -> AsyncIterator[str]:
    floor = segment_key(head.floor)
    async for key in store.list("log/"):
        if key > floor:
            break
        if key not in keep:
            yield key
    if head.snapshot is None:
        return
    # A snapshot older than the newest that no head names can never be named again.
    named = {head.snapshot.key, *(ref.key for ref in head.kept)}
    async for key in store.list("snapshots/"):
        if key >= head.snapshot.key:
            break
        if snapshot_of(key) not in named:
            yield key
