"""Writes whole states and names them in the head, so that nobody has to read a log from its beginning."""

from __future__ import annotations

import asyncio
import hashlib

import msgspec

from casque.clock import Clock, Random, new_nonce, yield_once
from casque.codec.log import LogHead, SnapshotRef, View, encode_snapshot, snapshot_key
from casque.journal.log.register import HeadRegister
from casque.settings import QueueSettings, milliseconds
from casque.storage.port import Store, Won

KEPT_MAX = 16
"""Older snapshots that a head may name. From one to the next the past is replayed, so fewer cost only time."""
INLINE_BYTES = 1024 * 1024


class Snapshots:
    """Commits go on meanwhile: nobody waits for longer than one piece takes."""

    def __init__(self, store: Store, head: HeadRegister, *, settings: QueueSettings, clock: Clock, rng: Random) -> None:
        self._store = store
        self._head = head
        self._retention_ms = milliseconds(settings.retention)
        self._clock = clock
        self._rng = rng

    async def write(self, view: View) -> SnapshotRef | None:
        """None if the store did not take it: another one is due soon."""
        pieces: list[bytes] = []
        sha256, size = hashlib.sha256(), 0
        for piece in encode_snapshot(self._head.queue_id, view):
            pieces.append(piece)
            sha256.update(piece)
            size += len(piece)
            await yield_once()
        key = snapshot_key(view.position, new_nonce(self._rng))
        # Joining hundreds of megabytes takes a while, and can be done beside the loop.
        body = b"".join(pieces) if size < INLINE_BYTES else await asyncio.to_thread(b"".join, pieces)
        pieces.clear()
        # Its name is nobody else's: a lost answer costs an orphan, which the next collection finds.
        outcome = await self._store.create(key, body)
        if not isinstance(outcome, Won):
            return None
        return SnapshotRef(view.position, key, sha256.hexdigest(), size, self._clock.wall_ms())

    async def publish(self, ref: SnapshotRef, head: LogHead, writer: str) -> LogHead | None:
        """Name it in the head, and with the same write say what may be collected: the floor first, then the deletes."""
        if head.snapshot is not None and head.snapshot.position >= ref.position:
            return None
        kept, floor = self._kept(head, ref.at)
        if head.archived is not None:
            floor = min(floor, head.archived)
        newer = msgspec.structs.replace(
            head, version=head.version + 1, writer=writer, snapshot=ref, kept=kept, floor=max(head.floor, floor)
        )
        return newer if await self._head.replace(newer) else None

    def _kept(self, head: LogHead, now_ms: int) -> tuple[tuple[SnapshotRef, ...], int]:
        """The snapshots before the newest one that stay: at least one, and as many as the retention asks for. From the
        first of them on everything stays, so below it lies the floor, once the retention has passed."""
        if head.snapshot is None:
            return (), 0
        kept = [*head.kept, head.snapshot]
        begins_ms = now_ms - self._retention_ms
        while len(kept) > 1 and kept[1].at <= begins_ms:
            del kept[0]
        if len(kept) > KEPT_MAX:
            del kept[1 : KEPT_MAX // 2 : 2]
        return tuple(kept), kept[0].position if kept[0].at <= begins_ms else 0
