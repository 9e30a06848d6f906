"""Checks an archive by its names, and by the log as far as it is kept. Decides; never reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from casque.codec.archive import Range, hour_of, parse_key
from casque.errors import CorruptQueueError
from casque.types import Finished

RESTORE = "Restore it from a backup or an older version"


def ranges_of(keys: Iterable[str]) -> list[Range]:
    """The ranges of an archive in order.

    Raises:
        CorruptQueueError: two of them overlap: jobs in both would be read twice.
    """
    first_key: dict[Range, str] = {}
    for key in keys:
        if (parsed := parse_key(key)) is not None:
            first_key.setdefault(parsed[1], key)
    ranges = sorted(first_key)
    for before, after in pairwise(ranges):
        if after.first <= before.last:
            raise CorruptQueueError(
                first_key[after],
                f"it overlaps with {first_key[before]}: another queue was archived here before, or an old queue.json "
                "was put back. Compare the two, and move one of them away",
            )
    return ranges


def check_end(ranges: list[Range], end: int) -> None:
    """
    Raises:
        CorruptQueueError: the archive goes on where nothing can have been archived yet.
    """
    if ranges and ranges[-1].last > end:
        raise CorruptQueueError(
            f"archive/.../{ranges[-1].first:020d}-{ranges[-1].last:020d}",
            f"the queue says that its archive ends at {end}: an old queue.json was put back. {RESTORE}",
        )


def expected(
    ranges: list[Range], finished: list[Finished], *, after: int, end: int
) -> Iterator[tuple[str, Range, list[Finished]]]:
    """The jobs of each hour and range, in any form, according to the kept log after a position."""
    for range_ in ranges:
        if range_.first <= after or range_.last > end:
            continue
        by_hour: dict[str, list[Finished]] = {}
        for one in finished:
            if range_.first <= one.position <= range_.last:
                by_hour.setdefault(hour_of(one.at_ms), []).append(one)
        for hour, some in by_hour.items():
            yield hour, range_, some
