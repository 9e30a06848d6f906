"""Writes bytes into a slot of the log."""

from __future__ import annotations

from collections.abc import Callable

from casque.codec.log import segment_key
from casque.environment import Patience
from casque.errors import StorageError
from casque.journal.log.reader import Reader, Tail
from casque.journal.tries import Tries
from casque.storage.port import Store, Won


async def place(
    store: Store,
    reader: Reader,
    patience: Callable[[], Patience],
    *,
    queue_id: str,
    position: int,
    chain: str,
    body: bytes,
) -> Tail | None:
    """Put exactly these bytes into exactly this slot, until it is known who won it.

    None if it is ours; otherwise the segments that others have written there and after it.

    Raises:
        UnknownOutcomeError: the store failed for too long, and the bytes may be there or come later.
        StorageError: it failed for too long, and they are certainly not there.
    """
    key = segment_key(position)
    tries = Tries(f"commit {position}", patience)
    while True:
        outcome = await tries.attempt(lambda: store.create(key, body))
        if outcome is None:
            continue
        if isinstance(outcome, Won):
            return None
        tries.sent = True  # lost, but it may still be ours: after a lost reply, or a retry in a layer below
        try:
            tail = await reader.tail(queue_id, position - 1, chain, ahead=2)
        except StorageError as error:
            raise tries.gave_up(error) from error
        if tail.found:
            return None if tail.found[0].body == body else tail
        if tail.broken is not None:
            return tail
        # Refused, although the slot is empty: nothing can be concluded from that. Try again.
        await tries.pause(StorageError(f"{key} is neither there nor free"))
