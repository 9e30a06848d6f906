"""Writes whole states and names them in the head, so that a log need not be read from its beginning."""

from __future__ import annotations

import hashlib

from casque.clock import new_nonce, yield_once
from casque.codec.log import LogHead, SnapshotRef, View, digest, snapshot_key
from casque.codec.snapshot import Part, encode_jobs, encode_part, encode_snapshot, part_key
from casque.environment import Environment
from casque.storage.port import Store, Won
from casque.types import JobRecord

KEPT_MAX = 16
"""Maximum number of older snapshots in a head. The past is replayed from one to the next, so fewer cost only time."""
PART_BYTES = 1024 * 1024
"""A commit that is synced to a disk at the same time waits for this much as well."""
REST_MAX_MS = 100
BLOCK_JOBS = 5_000
HASH_BYTES = 256 * 1024


class SnapshotWriter:
    """Commits continue meanwhile: none waits for longer than one piece takes."""

    def __init__(self, store: Store, env: Environment) -> None:
        self._store = store
        self._clock = env.clock
        self._rng = env.rng

    async def write(self, queue_id: str, view: View) -> SnapshotRef | None:
        """Write a snapshot; None if the store did not take it. Consumes the view.

        Its name is unique: a lost answer costs orphans, which the next collection finds.
        """
        key = snapshot_key(view.position, new_nonce(self._rng))
        parts: list[Part] = []
        pieces: list[bytes] = []
        blocks = await _blocks(view.records)
        size = 0
        while blocks:
            for piece in encode_jobs(blocks.pop()):
                pieces.append(piece)
                size += len(piece)
                if size >= PART_BYTES and not await self._write_part(queue_id, view.position, key, pieces, parts):
                    return None
                size = size if pieces else 0
                await yield_once()
        if parts and pieces and not await self._write_part(queue_id, view.position, key, pieces, parts):
            return None
        body = encode_snapshot(queue_id, view, pieces, parts)
        if not isinstance(await self._store.create(key, body), Won):
            return None
        total = len(body) + sum(part.bytes for part in parts)
        return SnapshotRef(view.position, key, digest(body), total, self._clock.wall_ms())

    async def _write_part(self, queue_id: str, position: int, of: str, pieces: list[bytes], parts: list[Part]) -> bool:
        """Move the pieces into a part."""
        key, body = part_key(of, len(parts)), encode_part(queue_id, position, pieces)
        sha256 = hashlib.sha256()
        for start in range(0, len(body), HASH_BYTES):
            sha256.update(memoryview(body)[start : start + HASH_BYTES])
            await yield_once()
        began_ms = self._clock.monotonic_ms()
        if not isinstance(await self._store.create(key, body), Won):
            return False
        # Leave as much time again for commits alone: there is no hurry.
        if (took_ms := self._clock.monotonic_ms() - began_ms) > 0:
            await self._clock.sleep(min(took_ms, REST_MAX_MS) / 1000)
        parts.append(Part(key, sha256.hexdigest(), len(body)))
        pieces.clear()
        return True


async def _blocks(records: list[JobRecord]) -> list[tuple[JobRecord, ...]]:
    """Consume the list in blocks, the first block last.

    Every full garbage collection would walk through a list of a million records, blocking all callers. Tuples of
    records are untracked once they have been seen.
    """
    blocks: list[tuple[JobRecord, ...]] = []
    while records:
        start = max(len(records) - BLOCK_JOBS, 0)
        blocks.append(tuple(records[start:]))
        del records[start:]
        await yield_once()
    return blocks


def naming(
    head: LogHead, ref: SnapshotRef, *, writer: str, retention_ms: int, archived: int | None = None
) -> LogHead | None:
    """The next head, which names this snapshot and raises the floor with the same write; the deletes follow.

    `archived`, if known better than in the head, is the position up to which nothing is left to archive. None if the
    head already names a newer snapshot.
    """
    if head.snapshot is not None and head.snapshot.position >= ref.position:
        return None
    kept, floor = _kept(head, begins_ms=ref.at - retention_ms)
    archived = head.archived if archived is None else archived
    if archived is not None:
        floor = min(floor, archived)
    archiving = head.archiving if archived is None or (head.archiving or 0) > archived else None
    floor = max(head.floor, floor)
    return head.next(writer, snapshot=ref, kept=kept, floor=floor, archived=archived, archiving=archiving)


def _kept(head: LogHead, *, begins_ms: int) -> tuple[tuple[SnapshotRef, ...], int]:
    """The snapshots kept before the newest one: at least one, and as many as the retention requires. Everything from
    the first of them on is kept, so it becomes the floor, once the retention has passed."""
    if head.snapshot is None:
        return (), 0
    kept = [*head.kept, head.snapshot]
    while len(kept) > 1 and kept[1].at <= begins_ms:
        del kept[0]
    if len(kept) > KEPT_MAX:
        del kept[1 : KEPT_MAX // 2 : 2]
    return tuple(kept), kept[0].position if kept[0].at <= begins_ms else 0
