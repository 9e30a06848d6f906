"""Check a whole queue, and give it the other layout."""

from __future__ import annotations

from collections.abc import Callable

from casque.environment import Environment
from casque.journal.convert import Converted, Converter
from casque.journal.verify import Progress, Verdict, Verifier
from casque.storage.port import Store

__all__ = ["Converted", "Verdict", "convert_queue", "verify_queue"]


async def verify_queue(store: Store, *, progress: Progress | None = None) -> Verdict:
    """Read every object of a queue, and check that it is what it must be. Never writes.

    Raises:
        InvalidInputError: there is no queue.
        CorruptQueueError: it is damaged; names the object.
    """
    return await Verifier(store, Environment(), progress=progress).verify()


async def convert_queue(store: Store, layout: str, *, say: Callable[[str], None]) -> Converted:
    """Give a queue this layout, with everything in it; `say` is called with each step.

    Raises:
        CASConflictError: another process wrote meanwhile; the queue is unchanged.
        UnknownOutcomeError: the store did not say whether the switch landed. The queue is whole either way.
        QueueLedError: a broker leads the queue.
    """
    return await Converter(store, Environment(), say=say).convert(layout)
