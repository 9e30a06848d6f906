"""Puts bytes into a slot of the log."""

from __future__ import annotations

from collections.abc import Callable

from casque.codec.log import segment_key
from casque.errors import StorageError
from casque.journal.log.reader import Reader, Tail
from casque.journal.patience import Patience
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
    """Put these bytes, never others, into this slot, never another, until it is known whose it is.

    None if it is ours; otherwise what others have written there and after it.

    Raises:
        UnknownOutcomeError: the store failed for too long, and the bytes may be there or come later.
        StorageError: it failed for too long, and surely they are not.
    """
    key = segment_key(position)
    tries = Tries(f"commit {position}", patience)
    while True:
        outcome = await tries.attempt(lambda: store.create(key, body))
        if outcome is None:
            continue
        if isinstance(outcome, Won):
            return None
        tries.sent = True  # lost, and yet it may be ours: after a lost reply, or a retry below us that nobody asked for
        try:
            tail = await reader.tail(queue_id, position - 1, chain, ahead=2)
        except StorageError as error:
            raise tries.gave_up(error) from error
        if tail.found:
            return None if tail.found[0].body == body else tail
        if tail.broken is not None:
            return tail
        # Refused, and yet nothing is there: nothing can be concluded from that. Again.
        await tries.pause(StorageError(f"{key} is neither there nor free"))
