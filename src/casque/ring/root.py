"""The root of a ring on its store: read, created, and changed by compare-and-set."""

from __future__ import annotations

from collections.abc import Callable

from casque.clock import new_nonce
from casque.codec.head import KEY, RING, gone, read_layout
from casque.codec.ring import RingHead, decode_ring, encode_ring
from casque.environment import Environment
from casque.errors import CASConflictError, InvalidInputError, QueueReplacedError
from casque.journal.tries import Tries
from casque.storage.port import Store, Stored, Unchanged, Won, locate

CHANGES_MAX = 20


class Root:
    """`queue.json` of one ring."""

    def __init__(self, store: Store, env: Environment) -> None:
        self.store = store
        self._env = env
        self._known: tuple[RingHead, str] | None = None

    async def read(self) -> RingHead:
        """The current root.

        Raises:
            StorageError: the store did not answer.
            InvalidInputError: there is none, or it is a plain queue.
            QueueReplacedError: it was a ring before.
        """
        return (await self._read())[0]

    async def _read(self) -> tuple[RingHead, str]:
        """With its version on the store. Both are from one read: the last read may be another task's by now."""
        known = self._known
        read = await self._env.patience().insist(lambda: self.store.get(KEY, unless=known[1] if known else None))
        if isinstance(read, Unchanged):
            assert known is not None
            return known
        if not isinstance(read, Stored):
            raise gone() if known else InvalidInputError(f"there is no ring here: {KEY} is missing")
        layout = read_layout(KEY, read.body, locate(self.store, KEY)).layout
        if layout != RING:
            if known:
                raise QueueReplacedError(f"a queue in the layout {layout!r}")
            raise InvalidInputError(f"this is no ring of shards but a queue of its own ({layout})")
        head = decode_ring(read.body)
        if known and known[0].queue_id != head.queue_id:
            raise QueueReplacedError(f"the ring {head.queue_id} and not {known[0].queue_id}")
        self._known = found = head, read.etag
        return found

    async def create(self, head: RingHead) -> bool:
        """Create it, if there is none; True if exactly this one is there now."""
        body = encode_ring(head)
        tries = Tries("the ring", self._env.patience)
        while (outcome := await tries.attempt(lambda: self.store.create(KEY, body))) is None:
            pass
        if isinstance(outcome, Won):
            return True
        read = await self._env.patience().insist(lambda: self.store.get(KEY))
        return isinstance(read, Stored) and read.body == body

    async def change(self, changed: Callable[[RingHead], RingHead | None]) -> RingHead:
        """Replace it with the result of `changed`, or leave it if that is None. Adds the version and the writer.

        Raises:
            CASConflictError: others kept changing it.
            UnknownOutcomeError: the store did not say whether the change landed.
        """
        for _ in range(CHANGES_MAX):
            head, etag = await self._read()
            wanted = changed(head)
            if wanted is None:
                return head
            nonce = new_nonce(self._env.rng)
            body = encode_ring(wanted.next(nonce))
            tries = Tries("the change of the ring", self._env.patience)
            while (outcome := await tries.attempt(lambda: self.store.replace(KEY, body, expected=etag))) is None:  # noqa: B023
                pass
            now = await self.read()
            # Lost, or our own success seen by a retry: the writer decides.
            if isinstance(outcome, Won) or now.writer == nonce:
                return now
        raise CASConflictError("others keep changing the ring at the same time; nothing was changed. Try again")
