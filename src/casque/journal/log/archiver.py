"""Moves finished jobs from a log into the archive, alongside the commits, a range of positions at a time.

The head defines the ranges: `archived` is where the archive ends, and `archiving`, set by one compare-and-set before
anything is written, is where the next range ends. So ranges never overlap, and a job is in one of them only. A process
that finds a range already begun, after a crash or by a slow process, writes exactly that range; the log determines its
contents, so both write the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from casque.codec.archive import Form, Range, archived_bytes
from casque.codec.log import LogHead
from casque.environment import Patience
from casque.journal import archive
from casque.journal.archive import write_range
from casque.journal.log.register import HeadRegister
from casque.state import State
from casque.state.staged import position_of
from casque.storage.port import Store
from casque.types import Finished

RANGE_JOBS = 20_000
RANGE_BYTES = 16 * 1024 * 1024
"""Maximum size of one range, unless a single commit is larger: readers load an object as a whole."""
LOSSES_MAX = 10
"""How often the head may be changed by other writers before a pass is put off."""


class Archiver:
    """Runs one pass at a time."""

    def __init__(
        self, store: Store, head: HeadRegister, patience: Callable[[], Patience], forms: Sequence[Form]
    ) -> None:
        self._forms = forms
        self._store = store
        self._head = head
        self._patience = patience
        self._written: Range | None = None
        """The last range whose objects certainly exist."""

    async def archive(
        self,
        state: State,
        finished: Sequence[Finished],
        position: int,
        *,
        writer: str,
        may_write: Callable[[LogHead], bool],
    ) -> None:
        """Archive the jobs finished up to a position, which is certain to be history.

        `finished` is everything that the head does not call archived yet; `state` drops what is.
        """
        losses = 0
        while losses < LOSSES_MAX:
            head = await self._head.read()
            begin, end = head.archived_to, head.archiving
            if not may_write(head) or (end is not None and end > position):
                return
            if end is not None:
                range_ = Range(begin + 1, end)
                if range_ != self._written:
                    await write_range(self._store, self._patience, range_, finished, self._forms)
                    self._written = range_
                    if len(state.finished) - len(finished) >= archive.ARCHIVE_JOBS:
                        return  # many more already: the next pass ends this range with the write that begins its own
                    head = await self._head.read()
                    if (head.archived_to, head.archiving) != (begin, end) or not may_write(head):
                        continue
                begin = end
            claimed = claim(finished, begin, position)
            if end is None and claimed is None:
                break
            if not await self._head.replace(head.next(writer, archived=begin, archiving=claimed)):
                losses += 1
            elif claimed is None:
                break
        if self._head.known is not None:
            state.shed(self._head.known.archived_to)


def claim(finished: Sequence[Finished], begin: int, position: int) -> int | None:
    """The end of the next range, at `position` or before it; None if there is nothing to archive."""
    jobs = size = 0
    last, start = begin, bisect_right(finished, begin, key=position_of)
    while start < len(finished):
        if jobs >= RANGE_JOBS or size >= RANGE_BYTES:
            return last
        # All jobs of one commit. Their size matters only if their number is within bounds.
        last = finished[start].position
        end = bisect_right(finished, last, start, key=position_of)
        jobs += end - start
        if jobs < RANGE_JOBS:
            size += archived_bytes(finished[start:end])
        start = end
    return position if jobs else None
