"""Answers that are remembered for callers who ask again, bounded in number, in shares by caller.

When there are too many, the caller with the most of them loses its oldest. So a caller that sends many requests pushes
out its own, and those of others stay: with `n` callers each keeps at least an n-th part of what is remembered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice

import msgspec

from casque.state.request_ids import scope_of


class Answered(msgspec.Struct, frozen=True, gc=False):
    """A remembered answer."""

    at_ms: int
    verb: str
    """What was asked, and a fingerprint of it after a space; a release that took none left it out."""
    jobs: tuple[tuple[str, int], ...] = ()
    count: int = 0


class RequestMemory:
    """Answers by request id, the oldest first. What a step costs grows only with the logarithm of the callers."""

    def __init__(self, answers: Iterable[tuple[str, Answered]] = ()) -> None:
        self.answers: dict[str, Answered] = dict(answers)
        self._ids: dict[str, deque[str]] = {}
        """Request ids by caller, the oldest first."""
        for request_id in self.answers:
            self._ids.setdefault(scope_of(request_id), deque()).append(request_id)
        self._most = [(-len(ids), scope) for scope, ids in self._ids.items()]
        """A heap in which the caller with the most comes first; of equals, the first by name, so that every replica
        forgets alike. An entry that is not true any more is dropped when it comes up."""
        heapify(self._most)

    def add(self, request_id: str, answered: Answered) -> None:
        known = request_id in self.answers
        self.answers[request_id] = answered
        if known:
            return  # an older release, which forgot by another rule, has carried it out again
        scope = scope_of(request_id)
        ids = self._ids.get(scope)
        if ids is None:
            ids = self._ids[scope] = deque()
        ids.append(request_id)
        self._changed(scope, len(ids))

    def take_back(self, request_ids: Iterable[str]) -> None:
        """The last ones, the very last first: they were never committed."""
        for request_id in request_ids:
            del self.answers[request_id]
            scope = scope_of(request_id)
            last = self._ids[scope].pop()
            assert last == request_id, "what was remembered last is taken back first"
            self._left(scope)

    def trim(self, forgets: str | None, *, least: int, most: int) -> None:
        """Forget what a writer says it has seen for long, up to and with `forgets`, but for the last few; and by count.
        Never by the times that writers wrote: one clock that is far ahead, on the machine that takes over, would make
        the queue forget what its callers are about to ask again."""
        if forgets is not None and forgets in self.answers and len(self.answers) > least:
            old = list(islice(self._up_to(forgets), len(self.answers) - least))
            for request_id in old:
                self._drop_oldest(scope_of(request_id))
        while len(self.answers) > most:
            self._drop_oldest(self._largest())

    def after(self, forgets: str | None, *, least: int, most: int) -> dict[str, Answered]:
        """What `trim` would leave. Costs a copy of everything."""
        if len(self.answers) <= most and (forgets is None or forgets not in self.answers):
            return self.answers
        copied = RequestMemory(self.answers.items())
        copied.trim(forgets, least=least, most=most)
        return copied.answers

    def _up_to(self, last: str) -> Iterator[str]:
        for request_id in self.answers:
            yield request_id
            if request_id == last:
                return

    def _drop_oldest(self, scope: str) -> None:
        del self.answers[self._ids[scope].popleft()]
        self._left(scope)

    def _left(self, scope: str) -> None:
        ids = self._ids[scope]
        if ids:
            self._changed(scope, len(ids))
        else:
            del self._ids[scope]

    def _changed(self, scope: str, count: int) -> None:
        heappush(self._most, (-count, scope))
        if len(self._most) > 64 + 4 * len(self._ids):
            self._most = [(-len(ids), scope) for scope, ids in self._ids.items()]
            heapify(self._most)

    def _largest(self) -> str:
        while True:
            count, scope = self._most[0]
            if len(self._ids.get(scope, ())) == -count:
                return scope
            heappop(self._most)
