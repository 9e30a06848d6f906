"""Mistakes of those who erase from an archive, each made for the length of a test."""

from __future__ import annotations

import pytest

from casque.codec.archive import Form, Range, archive_key, decode_archived
from casque.journal import archive, erasing
from casque.journal.erasing import Chooser, Eraser


def missing_forms_left_to_late_writers(patch: pytest.MonkeyPatch) -> None:
    """A form that is not there gets no object, and a writer that slept creates it with all jobs."""

    async def rewrite(self: Eraser, takes: Chooser, hour: str, range_: Range) -> int:
        return sum([await self._replace(takes, form, hour, archive_key(hour, range_, form)) for form in Form])

    patch.setattr(Eraser, "_rewrite", rewrite)


def first_form_alone_erased(patch: pytest.MonkeyPatch) -> None:
    rewrite = Eraser._rewrite

    async def first(self: Eraser, takes: Chooser, hour: str, range_: Range) -> int:
        for form in Form:
            if await self._read(archive_key(hour, range_, form)) is not None:
                return await self._replace(takes, form, hour, archive_key(hour, range_, form))
        return await rewrite(self, takes, hour, range_)

    patch.setattr(Eraser, "_rewrite", first)


def erased_objects_taken_for_damage(patch: pytest.MonkeyPatch) -> None:
    """A writer that slept finds other jobs than it has to archive, and says that the archive is to be moved away."""

    async def never(*_args: object) -> bool:
        return False

    patch.setattr(archive, "holds_the_rest", never)


def rest_written_over_the_rest_of_another(patch: pytest.MonkeyPatch) -> None:
    """After a lost race it is not computed again: what the other one erased comes back."""

    async def stale(self: Eraser, takes: Chooser, form: Form, hour: str, key: str) -> int:
        if (read := await self._read(key)) is None:
            return 0
        jobs = decode_archived(key, read.body)
        rest = [job for job in jobs if not takes(job)]
        if len(rest) == len(jobs):
            return 0
        while read is not None and not await self._write(key, read.etag, erasing._body(form, hour, rest)):
            read = await self._read(key)
        return 1

    patch.setattr(Eraser, "_replace", stale)


def erasures_recorded_when_they_are_done(patch: pytest.MonkeyPatch) -> None:
    """Until then jobs are missing, and nothing says why."""
    write = Eraser._write

    async def late(self: Eraser, key: str, etag: str | None, body: bytes) -> bool:
        if key.startswith(erasing.ERASURES) and etag is None and b'"done":true' not in body:
            return True
        return await write(self, key, etag, body)

    patch.setattr(Eraser, "_write", late)


def objects_changed_by_others_left_as_they_are(patch: pytest.MonkeyPatch) -> None:
    """One try, and whether it was lost is not looked at."""

    async def once(self: Eraser, takes: Chooser, form: Form, hour: str, key: str) -> int:
        if (read := await self._read(key)) is None:
            return 0
        rest = [job for job in decode_archived(key, read.body) if not takes(job)]
        return int(await self._write(key, read.etag, erasing._body(form, hour, rest)))

    patch.setattr(Eraser, "_replace", once)
