"""Single objects of a store, read and written with the patience of a queue. For data that lies beside queues.

Reads are retried for as long as a queue would; objects are created under unique names, so a create whose answer was
lost is simply sent again.
"""

from __future__ import annotations

from casque.environment import Environment, Patience
from casque.errors import CASConflictError
from casque.journal.tries import Tries
from casque.storage.port import Read, Store, Stored, Won


def _patience() -> Patience:
    return Environment().patience()


async def get(store: Store, key: str) -> Read:
    """
    Raises:
        StorageError: the store failed for too long.
    """
    return await _patience().insist(lambda: store.get(key))


async def body_of(store: Store, key: str) -> bytes | None:
    read = await get(store, key)
    return read.body if isinstance(read, Stored) else None


async def create_new(store: Store, key: str, body: bytes) -> None:
    """Create an object under a unique name.

    Raises:
        StorageError, UnknownOutcomeError: the store failed for too long.
        CASConflictError: another object has this name.
    """
    tries = Tries(f"the creation of {key}", _patience)
    while True:
        outcome = await tries.attempt(lambda: store.create(key, body))
        if isinstance(outcome, Won) or (outcome is not None and tries.sent):
            return  # lost after an attempt without an answer: that attempt had landed
        if outcome is not None:
            raise CASConflictError(f"{key} exists already, though its name is unique to this write")


async def swap(store: Store, key: str, body: bytes, *, expected: str | None) -> bool:
    """Replace a version, or create if `expected` is None, with a unique body; False if another writer was first.

    Raises:
        StorageError, UnknownOutcomeError: the store failed for too long.
    """
    tries = Tries(f"the change of {key}", _patience)
    while True:
        outcome = await tries.attempt(
            lambda: store.create(key, body) if expected is None else store.replace(key, body, expected=expected)
        )
        if isinstance(outcome, Won):
            return True
        if outcome is not None and not tries.sent:
            return False
        if tries.sent:
            # An attempt went unanswered: the object itself shows whether ours landed.
            read = await get(store, key)
            if isinstance(read, Stored) and read.body == body:
                return True
            if outcome is not None:
                return False
