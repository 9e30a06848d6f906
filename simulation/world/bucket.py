"""The store as it really is, whatever its callers get to hear."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from casque.clock import Random
from casque.storage.port import LOST, MISSING, UNCHANGED, Outcome, Read, Stored, Unknown, Won

if TYPE_CHECKING:
    from simulation.world.life import Life

OnChanged: TypeAlias = Callable[[str, "Life"], None]
"""Called after every write and every deletion that landed, with its key and who sent it."""


class Bucket:
    """Objects by key. Version tokens are derived from the content, as S3's are."""

    def __init__(self, on_landed: OnChanged, on_deleted: OnChanged) -> None:
        self.objects: dict[str, Stored] = {}
        self.unsynced: dict[str, tuple[bytes, Life]] = {}
        """What was written and could not be synced: the next request for the key tries again, before anything else."""
        self._on_landed = on_landed
        self._on_deleted = on_deleted

    def get(self, key: str, unless: str | None) -> Read:
        stored = self.objects.get(key)
        if stored is None:
            return MISSING
        return UNCHANGED if stored.etag == unless else stored

    def create(self, key: str, body: bytes, sender: Life, *, synced: bool = True) -> Outcome:
        if key in self.objects:
            return LOST
        return self._write(key, body, sender) if synced else self._leave(key, body, sender)

    def replace(self, key: str, body: bytes, expected: str, sender: Life, *, synced: bool = True) -> Outcome:
        current = self.objects.get(key)
        if current is None or current.etag != expected:
            return LOST
        return self._write(key, body, sender) if synced else self._leave(key, body, sender)

    def delete(self, key: str, sender: Life) -> None:
        if self.objects.pop(key, None) is not None:
            self._on_deleted(key, sender)

    def _leave(self, key: str, body: bytes, sender: Life) -> Outcome:
        """Visible and not on disk. It lands with the next sync that works, see `settle`."""
        self.unsynced[key] = body, sender
        return Unknown(OSError("the sync failed"))

    def settle(self, key: str) -> None:
        """A sync that works."""
        if (pending := self.unsynced.pop(key, None)) is not None:
            self._write(key, *pending)

    def lose(self, rng: Random) -> None:
        """The power fails: what was not synced may be on disk all the same."""
        for key in list(self.unsynced):
            if rng.random() < 0.5:
                self.settle(key)
        self.unsynced.clear()

    def list(self, prefix: str, after: str | None, limit: int) -> list[str]:
        """One page of keys."""
        keys = sorted(key for key in self.objects if key.startswith(prefix) and (after is None or key > after))
        return keys[:limit]

    def _write(self, key: str, body: bytes, sender: Life) -> Won:
        etag = hashlib.blake2b(body, digest_size=8).hexdigest()
        self.objects[key] = Stored(body, etag)
        self._on_landed(key, sender)
        return Won(etag)
