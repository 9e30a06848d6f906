"""Opens the journal of a queue: in the layout that its head names, or in a requested one if there is no queue yet."""

from __future__ import annotations

from casque.codec.document import LAYOUT as DOCUMENT
from casque.codec.head import KEY, Head, check_layout, check_same_queue, check_single, gone, read_layout
from casque.codec.log import LAYOUT as LOG
from casque.environment import Environment
from casque.errors import CorruptQueueError, QueueReplacedError
from casque.journal.document import DocumentJournal
from casque.journal.log import LogJournal
from casque.journal.port import Opened
from casque.storage.port import Store, Stored, locate

OPENINGS_MAX = 3

JOURNALS: dict[str, type[DocumentJournal | LogJournal]] = {DOCUMENT: DocumentJournal, LOG: LogJournal}


async def open_journal(store: Store, env: Environment, before: Head | None = None, *, layout: str) -> Opened:
    """Open the queue in `queue.json`. `layout` applies to a queue that does not exist yet; `before` is the head of the
    queue that was open until now.

    Raises:
        StorageError: the store did not answer.
        CorruptQueueError: its contents are not a queue, or `before` is gone.
        QueueReplacedError: there is another queue than `before`, or the same one in another layout.
    """
    for _ in range(OPENINGS_MAX):
        try:
            return await _open(store, env, before, layout)
        except QueueReplacedError:
            # Converted while it was opened for the first time: no caller has seen the old layout.
            if before is not None:
                raise
    return await _open(store, env, before, layout)


async def _open(store: Store, env: Environment, before: Head | None, layout: str) -> Opened:
    read = await store.get(KEY)
    if not isinstance(read, Stored) and (leftover := await _leftover(store)) is not None:
        # Another process may have created the queue since the first read.
        read = await store.get(KEY)
        if not isinstance(read, Stored):
            raise CorruptQueueError(
                KEY, f"is missing although there is {leftover}: it was deleted. Restore it from a backup"
            )
    found = read if isinstance(read, Stored) else None
    head = None
    if found is not None:
        head = check_single(read_layout(KEY, found.body, locate(store, KEY)))
        layout = head.layout
    if before is not None:
        # A restart after a failure continues with the same queue, or fails.
        if head is None:
            raise gone()
        check_layout(head, before.layout)
        check_same_queue(head, before.queue_id)
    if layout not in JOURNALS:
        raise CorruptQueueError(KEY, f"the layout {layout!r} is none that this release knows. Upgrade casque")
    journal = JOURNALS[layout](store, env)
    return Opened(journal, await journal.load(found), head)


async def _leftover(store: Store) -> str | None:
    """A segment of a queue without a head. Only looked for before a first commit."""
    async for key in store.list("log/"):
        return key
    return None
