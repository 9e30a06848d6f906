"""The head of a log, `queue.json`: the one object that changes, by compare-and-set."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from casque.codec.head import KEY, check_same_queue, gone
from casque.codec.log import LogHead, decode_head, encode_head
from casque.environment import Patience
from casque.errors import StorageError
from casque.journal.tries import Tries
from casque.storage.port import Missing, Store, Stored, Unchanged, Won


class HeadRegister:
    """The head as last read. Commits and maintenance share it, so an operation that decides on a head keeps the one
    that
    its own read returned."""

    def __init__(self, store: Store, patience: Callable[[], Patience]) -> None:
        self._store = store
        self._patience = patience
        self.known: LogHead | None = None
        self._etag: str | None = None

    @property
    def queue_id(self) -> str:
        assert self.known is not None, "the head is read or created first"
        assert self.known.queue_id is not None
        return self.known.queue_id

    async def find(self) -> LogHead | None:
        """The current head; None if there is no queue yet.

        Raises:
            CorruptQueueError: it was deleted, or belongs to another queue.
        """
        match await self._store.get(KEY, unless=self._etag):
            case Unchanged():
                return self.known
            case Missing():
                if self.known is not None:
                    raise gone()
                return None
            case Stored() as stored:
                return self.adopt(stored)
            case _ as never:
                assert_never(never)

    def adopt(self, stored: Stored) -> LogHead:
        """Record a head that was just read."""
        head = decode_head(KEY, stored.body)
        check_same_queue(head, self.known.queue_id if self.known is not None else None)
        # Two reads may be answered out of order.
        if self.known is None or head.version >= self.known.version:
            self.known, self._etag = head, stored.etag
        return self.known

    async def read(self) -> LogHead:
        """The current head, with retries."""
        head = await self._patience().insist(self.find)
        assert head is not None, "only asked about a queue that is there"
        return head

    async def create(self, head: LogHead) -> LogHead:
        """Create the first object of a new queue. Two processes that start together agree on one."""
        body = encode_head(head)
        tries = Tries(f"the creation of {KEY}", self._patience)
        while True:
            outcome = await tries.attempt(lambda: self._store.create(KEY, body))
            # Won, lost or unknown: the object there now is the head.
            if (standing := await self._patience().insist(self.find)) is not None:
                return standing
            if outcome is not None:
                await tries.pause(StorageError(f"{KEY} is neither there nor free"))

    async def replace(self, newer: LogHead) -> bool:
        """Replace the known head with `newer`; True if it is in place now.

        False says nothing about later: a lost attempt may still land, if the head is still the one it expects.
        """
        assert self._etag is not None
        assert self.known is not None
        assert newer.version == self.known.version + 1
        expected, body = self._etag, encode_head(newer)
        tries = Tries(f"a new version of {KEY}", self._patience)
        while True:
            match await tries.attempt(lambda: self._store.replace(KEY, body, expected=expected)):
                case None:
                    continue
                case Won(etag=etag):
                    if newer.version >= self.known.version:
                        self.known, self._etag = newer, etag
                    return True
                case _:
                    # A lost race, or our own success seen by a retry.
                    return await self.read() == newer
