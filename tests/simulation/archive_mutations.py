"""Mistakes with the forms of an archive, each made for the length of a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from casque.codec import archive as codec
from casque.codec import parquet
from casque.codec.archive import ARCHIVE, Form, OnePerRange, Range, form_of, parse_key
from casque.journal import archive, document
from casque.journal.log import archiver
from casque.storage.port import Store
from casque.types import Finished


def every_form_of_a_range_read(patch: pytest.MonkeyPatch) -> None:
    """Readers take all objects of the archive, as they did when there was one form."""
    patch.setattr(OnePerRange, "takes", lambda _self, key: parse_key(key) is not None)


def parquet_passed_over(patch: pytest.MonkeyPatch) -> None:
    """A reader that knows lines alone, and takes the rest for other files."""
    takes = OnePerRange.takes
    patch.setattr(OnePerRange, "takes", lambda self, key: form_of(key) is Form.LINES and takes(self, key))


def one_object_read_of_each_range(patch: pytest.MonkeyPatch) -> None:
    """Though a range has an object in each of its hours."""
    seen: dict[OnePerRange, set[Range]] = {}

    def takes(self: OnePerRange, key: str) -> bool:
        parsed, known = parse_key(key), seen.setdefault(self, set())
        if parsed is None or parsed[1] in known:
            return False
        known.add(parsed[1])
        return True

    patch.setattr(OnePerRange, "takes", takes)


def other_form_taken_for_the_whole_range(patch: pytest.MonkeyPatch) -> None:
    """Whoever completes a range finds an object of it in another form than its own, and takes all of it for done."""
    write = archive.write_range

    async def trusting(
        store: Store, patience: Any, range_: Range, finished: Sequence[Finished], forms: Sequence[Form]
    ) -> None:
        async for key in store.list(ARCHIVE):
            parsed = parse_key(key)
            if parsed is not None and parsed[1] == range_ and form_of(key) not in forms:
                return
        await write(store, patience, range_, finished, forms)

    for module in (document, archiver):
        patch.setattr(module, "write_range", trusting)


def forms_share_a_name(patch: pytest.MonkeyPatch) -> None:
    key_of: Callable[..., str] = codec.archive_key
    patch.setattr(archive, "archive_key", lambda hour, range_, _form=None: key_of(hour, range_))


def parquet_of_the_first_piece_alone(patch: pytest.MonkeyPatch) -> None:
    write = parquet.file_of
    patch.setattr(parquet, "file_of", lambda batches: write(batches[:1]))
