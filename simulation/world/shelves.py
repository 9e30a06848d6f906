"""Somebody who knows every job that was ever finished, and holds the archive to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from casque.codec.archive import (
    ARCHIVE,
    Form,
    OnePerRange,
    Range,
    archive_key,
    archived_jobs,
    choose,
    decode_archived,
    encode_archived,
    form_of,
    hour_of,
    parse_key,
)
from casque.errors import CorruptQueueError
from casque.journal.erasing import ERASURES, Erasure
from casque.storage.port import Stored
from casque.types import Finished, JobState
from simulation.world.history import History
from simulation.world.invariants import Invariant

if TYPE_CHECKING:
    from simulation.world.erasers import Wish


Finish: TypeAlias = tuple[str, int]
"""A job, and the position of the commit that finished it."""


class Shelves:
    """Ranges are begun one after the other, what lands is what they hold, and each is whole before the next ends."""

    def __init__(self, history: History) -> None:
        self._h = history
        self._finished: list[Finished] = []
        self._archived = 0
        self._begun: Range | None = None
        """The last range that was begun."""
        self._ranges: set[Range] = set()
        self._wishes: list[Wish] = []
        self._recorded: list[Erasure] = []
        """What is to be erased, as the bucket has it."""
        self.gone: set[Finish] = set()
        """What was erased for certain: no object may hold it again."""

    def happened(self, finished: Iterable[Finished]) -> None:
        """A commit finished these."""
        self._finished += finished

    def after(self, position: int) -> list[Finished]:
        return [one for one in self._finished if one.position > position]

    @property
    def finished(self) -> list[Finished]:
        """In the order of their commits."""
        return self._finished

    @property
    def archived(self) -> int:
        """Up to which position all of them are called archived."""
        return self._archived

    def marked(self, objects: Mapping[str, Stored], archived: int, archiving: int | None, *, position: int) -> None:
        """The queue says so now, and it has come to this position."""
        h = self._h
        h.demand(
            archived >= self._archived,
            Invariant.ARCHIVED,
            lambda: f"what is archived fell from {self._archived} to {archived}",
        )
        for one in self._finished:
            if self._archived < one.position <= archived:
                keys = self._homes(one)
                h.demand(
                    any(key in objects for key in keys),
                    Invariant.ARCHIVED,
                    lambda: f"{one.job.id[:8]}, finished by {one.position}, is called archived, and is not: {keys}",  # noqa: B023
                )
        self._archived = archived
        if archiving is None:
            return
        range_ = Range(archived + 1, archiving)
        if range_ == self._begun:
            return
        h.demand(
            self._begun is None or range_.first > self._begun.last,
            Invariant.ARCHIVED,
            lambda: f"the range {range_} was begun after {self._begun}, which holds some of it",
        )
        h.demand(
            range_.first <= range_.last <= position,
            Invariant.ARCHIVED,
            lambda: f"the range {range_} was begun, and the history ends at {position}",
        )
        self._begun = range_
        self._ranges.add(range_)

    # --- Erasures ---

    def wished(self, wish: Wish) -> None:
        """An operator begins to erase this: it may be missing from now on."""
        self._wishes.append(wish)

    def erased(self, wish: Wish, archived: int) -> None:
        """An operator was told that this is erased, and had asked when this position was archived."""
        self.gone |= {_finish(one) for one in self._finished if one.position <= archived and wish.names(one)}

    def may_be_erased(self, one: Finished) -> bool:
        return any(wish.names(one) for wish in self._wishes)

    # --- Objects ---

    def landed(self, key: str, body: bytes) -> None:
        if key.startswith(ERASURES):
            self._recorded.append(msgspec.json.decode(body, type=Erasure))
            return
        parsed = parse_key(key)
        if parsed is None or parsed[1] not in self._ranges:
            self._h.broken(Invariant.ARCHIVED, f"{key} is no range that was begun")
        hour, range_ = parsed
        held = [one for one in self._of(range_) if hour_of(one.at_ms) == hour]
        self._h.demand(
            bool(held) and (_is(key, body, held) or self._is_rest(key, body, held)),
            Invariant.ARCHIVED,
            lambda: f"{key} is not what was finished then",
        )
        if self.gone:
            self._check_gone(key, body)

    def _is_rest(self, key: str, body: bytes, held: list[Finished]) -> bool:
        """Whether an object holds all of these but some that are recorded as to be erased."""
        jobs = archived_jobs(held)
        try:
            rest = decode_archived(key, body)
        except CorruptQueueError:
            return False
        kept = {(job.id, job.position) for job in rest}
        lacking = [job for job in jobs if (job.id, job.position) not in kept]
        return rest == [job for job in jobs if (job.id, job.position) in kept] and all(
            any(erasure.chooser()(job) for erasure in self._recorded) for job in lacking
        )

    def _check_gone(self, key: str, body: bytes) -> None:
        back = self.gone & {(job.id, job.position) for job in decode_archived(key, body)}
        self._h.demand(not back, Invariant.ARCHIVED, lambda: f"{back} were erased, and are in {key}")

    def deleted(self, key: str) -> None:
        self._h.broken(Invariant.ARCHIVED, f"{key} was deleted")

    def complete(self, objects: Mapping[str, Stored]) -> bool:
        """Whether everything has been archived. If so, each of them must be there once, read as anybody would."""
        if any(one.position > self._archived for one in self._finished):
            return False
        keys = sorted(key for key in objects if key.startswith(ARCHIVE))
        for key in keys if self.gone else []:
            if parse_key(key) is not None:
                self._check_gone(key, objects[key].body)
        optional = Counter(_told(one) for one in self._finished if self.may_be_erased(one))
        expected = Counter(map(_told, self._finished))
        one_per_range = OnePerRange()
        for who, read in (
            ("readers of jobs", [key for key in keys if one_per_range.takes(key)]),
            ("readers of columns", choose(keys)),
        ):
            found = Counter(
                (job.id, job.position, job.token, job.state)
                for key in read
                for job in decode_archived(key, objects[key].body)
            )
            self._h.demand(
                found <= expected and expected - optional <= found,
                Invariant.ARCHIVED,
                lambda: f"{who} miss {expected - found} in the archive, and find {found - expected} too often",  # noqa: B023
            )
        return True

    def _homes(self, one: Finished) -> list[str]:
        """Its place in the archive, in all forms."""
        range_ = next((r for r in self._ranges if r.first <= one.position <= r.last), None)
        return [] if range_ is None else [archive_key(hour_of(one.at_ms), range_, form) for form in Form]

    def _of(self, range_: Range) -> list[Finished]:
        return [one for one in self._finished if range_.first <= one.position <= range_.last]


def _finish(one: Finished) -> Finish:
    return one.job.id, one.position


def _told(one: Finished) -> tuple[str, int, int, JobState]:
    """As the archive shows it."""
    return one.job.id, one.position, one.job.token, one.state


def _is(key: str, body: bytes, held: list[Finished]) -> bool:
    """Whether an object is what these make: lines to the byte, Parquet to the row."""
    if form_of(key) is Form.LINES:
        return body == b"".join(encode_archived(held))
    try:
        return decode_archived(key, body) == archived_jobs(held)
    except CorruptQueueError:
        return False
