"""Mistakes of conversions, each made for the length of a test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from casque.clock import new_id
from casque.codec.document import LAYOUT as DOCUMENT
from casque.codec.document import DocumentCodec
from casque.codec.head import KEY
from casque.codec.log import SnapshotRef, View
from casque.journal import cleanup, convert, opening
from casque.journal.convert import Converted, Converter
from casque.journal.log import LogJournal
from casque.storage.port import Stored


def logs_converted_without_a_fence(patch: pytest.MonkeyPatch) -> None:
    """Read and switched: what is committed in between is in no layout."""

    async def to_document(self: Converter, found: Stored) -> Converted:
        journal = LogJournal(self._store, self._env, limits=convert.LIMITS)
        state = await journal.load()
        codec = DocumentCodec(KEY, new_id(self._env.rng))
        codec.touch(job.spec.id for job in state.listed())
        body = codec.encode(state, version=state.position, writers=state.writers, archiving=state.archiving)
        await self._switch(body, codec.queue_id, expected=found.etag)
        return Converted(DOCUMENT, state.position, len(state.jobs), "")

    patch.setattr(Converter, "_to_document", to_document)


def documents_converted_over_what_was_written_meanwhile(patch: pytest.MonkeyPatch) -> None:
    switch = Converter._switch

    async def careless(self: Converter, body: bytes, queue_id: str, *, expected: str) -> None:
        await switch(self, body, queue_id, expected=(await self._read()).etag)

    patch.setattr(Converter, "_switch", careless)


def fences_removed_with_the_rest_of_the_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cleanup, "_may_be_fence", lambda _body: False)


def conversions_forget_what_is_yet_to_be_archived(patch: pytest.MonkeyPatch) -> None:
    _write_without(patch, lambda view: view.finished.clear())


def conversions_forget_the_rules_of_zones(patch: pytest.MonkeyPatch) -> None:
    _write_without(patch, lambda view: view.facets.pop("zones", None))


def _write_without(patch: pytest.MonkeyPatch, forget: Callable[[View], object]) -> None:
    written = Converter._write_snapshot

    async def forgetful(self: Converter, queue_id: str, view: View) -> SnapshotRef:
        forget(view)
        return await written(self, queue_id, view)

    patch.setattr(Converter, "_write_snapshot", forgetful)
    patch.setattr(Converter, "_compare", lambda *_: None)


def logs_removed_before_the_switch(patch: pytest.MonkeyPatch) -> None:
    switch = Converter._switch

    async def hasty(self: Converter, body: bytes, queue_id: str, *, expected: str) -> None:
        if b'"snapshot"' not in body:
            async for key in self._store.list(cleanup.SEGMENTS):
                await self._store.delete(key)
        await switch(self, body, queue_id, expected=expected)

    patch.setattr(Converter, "_switch", hasty)


def queues_opened_as_logs_whatever_their_head_says(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(opening.JOURNALS, DOCUMENT, LogJournal)
