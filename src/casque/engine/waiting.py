"""Dequeues that wait for a first job, indexed by what they wait for.

A commit visits only those that a due job may match, and a caller that leaves is removed at once: neither costs more
because others wait, too. The state is asked each time which jobs are due, so that none is missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, TypeAlias

from casque.engine.operation import Operation
from casque.service.requests import Dequeue
from casque.state import State

Wanted: TypeAlias = tuple[tuple[str, ...] | None, tuple[str, ...] | None, tuple[str, int] | None]
"""What a waiting dequeue matches: entrypoints, zones, and the lease of a zone."""


class Waiting(Operation):
    """A dequeue that waits for a first job."""

    __slots__ = ("timed_out",)

    def __init__(self, future: asyncio.Future[Any], command: Dequeue) -> None:
        super().__init__(future, command)
        self.timed_out = False

    @property
    def goes_on_waiting(self) -> bool:
        return self.error is None and not self.answer and not self.timed_out and not self.abandoned

    @property
    def wanted(self) -> Wanted:
        assert isinstance(self.command, Dequeue)
        return self.command.entrypoints, self.command.zones, self.command.zone_lease


class _Group:
    """Operations that wait for the same, in order of arrival."""

    __slots__ = ("number", "operations", "wanted")

    def __init__(self, wanted: Wanted, number: int) -> None:
        self.wanted = wanted
        self.number = number
        self.operations: dict[Waiting, None] = {}


class Parked:
    """All waiting operations. Adding, removing and serving one takes time proportional to its own request."""

    def __init__(self) -> None:
        self._groups: dict[Wanted, _Group] = {}
        self._numbered = 0
        self._for_any: dict[Wanted, _Group] = {}
        """For any entrypoint and any zone."""
        self._by_entrypoint: dict[str, dict[Wanted, _Group]] = {}
        """For any zone."""
        self._by_zone: dict[str, dict[Wanted, _Group]] = {}
        """For any entrypoint, and those with the lease of a zone."""
        self._by_lease: dict[tuple[str, int], dict[Wanted, _Group]] = {}

    def __len__(self) -> int:
        return sum(len(group.operations) for group in self._groups.values())

    def __bool__(self) -> bool:
        return bool(self._groups)

    def add(self, operation: Waiting) -> None:
        wanted = operation.wanted
        group = self._groups.get(wanted)
        if group is None:
            self._numbered += 1
            group = self._groups[wanted] = _Group(wanted, self._numbered)
            for index, name in self._places(wanted):
                index.setdefault(name, {})[wanted] = group
            if _is_for_any(wanted):
                self._for_any[wanted] = group
        group.operations[operation] = None

    def discard(self, operation: Waiting) -> bool:
        """True if it was waiting here."""
        group = self._groups.get(operation.wanted)
        if group is None or operation not in group.operations:
            return False
        del group.operations[operation]
        self._drop_if_empty(group)
        return True

    def take_all(self) -> list[Waiting]:
        operations = [operation for group in self._groups.values() for operation in group.operations]
        for index in (self._groups, self._for_any, self._by_entrypoint, self._by_zone, self._by_lease):
            index.clear()
        return operations

    def served(self, state: State, now_ms: int) -> Iterator[Waiting]:
        """Take out operations that can be answered now, one at a time: each must be decided before the next is
        requested.
        Among operations that match the same, the first to arrive is served first; among groups, the oldest."""
        if not self._groups:
            return
        for group in self._that_may_be_served(state, now_ms):
            entrypoints, zones, zone_lease = group.wanted
            while group.operations and state.has_due(entrypoints, now_ms, zones, zone_lease):
                operation = next(iter(group.operations))
                del group.operations[operation]
                if not operation.abandoned:
                    yield operation
            self._drop_if_empty(group)

    def _that_may_be_served(self, state: State, now_ms: int) -> list[_Group]:
        found: dict[Wanted, _Group] = {}
        if self._for_any and state.has_due(None, now_ms):
            found |= self._for_any
        for name in state.due_among(self._by_entrypoint, now_ms):
            found |= self._by_entrypoint[name]
        for zone in state.due_zones_among(self._by_zone, now_ms):
            found |= self._by_zone[zone]
        for lease, groups in self._by_lease.items():
            if state.has_due((), now_ms, None, lease):
                found |= groups  # the lease was lost, which is an answer
        return sorted(found.values(), key=lambda group: group.number)

    def _places(self, wanted: Wanted) -> Iterator[tuple[dict[Any, dict[Wanted, _Group]], Any]]:
        entrypoints, zones, zone_lease = wanted
        if zone_lease is not None:
            yield self._by_lease, zone_lease
            yield self._by_zone, zone_lease[0]
        elif zones is not None:
            for zone in zones:
                yield self._by_zone, zone
        else:
            for name in entrypoints or ():
                yield self._by_entrypoint, name

    def _drop_if_empty(self, group: _Group) -> None:
        if group.operations or self._groups.get(group.wanted) is not group:
            return
        del self._groups[group.wanted]
        self._for_any.pop(group.wanted, None)
        for index, name in self._places(group.wanted):
            groups = index.get(name, {})  # a name may be given twice
            groups.pop(group.wanted, None)
            if not groups:
                index.pop(name, None)


def _is_for_any(wanted: Wanted) -> bool:
    return wanted == (None, None, None)
