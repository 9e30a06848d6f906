"""Mistakes with copies of a queue, each made for the length of a test."""

from __future__ import annotations

import msgspec
import pytest

from casque.broker.broker import Broker
from casque.codec.head import KEY, Owner
from casque.codec.log import LAYOUT as LOG
from casque.codec.log import decode_head, encode_head
from casque.journal import copying, discovery
from casque.journal.copying import Copier
from casque.ring import members
from casque.storage.port import Store


def head_and_broker_do_not_compare_their_place(patch: pytest.MonkeyPatch) -> None:
    """As it was: the head of a copy names the broker of the original, and whoever reads it goes there."""

    async def never(_store: Store, _owner: Owner) -> bool:
        return False

    patch.setattr(discovery, "is_copy", never)
    patch.setattr(members, "_is_at", lambda _member, _place: True)


def brokers_of_copies_send_callers_to_the_original(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Broker, "_leads_here", lambda _self, _owner: True)


def payloads_left_behind_by_copies(patch: pytest.MonkeyPatch) -> None:
    async def nothing(_self: Copier, _moment: object) -> bool:
        return True

    patch.setattr(Copier, "copy_blobs", nothing)


def copies_forget_the_rules_of_zones(patch: pytest.MonkeyPatch) -> None:
    load = Copier.load

    async def forgetful(self: Copier) -> copying._Moment:
        moment = await load(self)
        moment.state.rules.clear()
        return moment

    patch.setattr(Copier, "load", forgetful)


def copies_without_the_archive(patch: pytest.MonkeyPatch) -> None:
    async def nothing(_self: Copier, _moment: object) -> None: ...

    patch.setattr(Copier, "copy_beside", nothing)


def copies_are_called_after_the_original(patch: pytest.MonkeyPatch) -> None:
    """A copy that keeps the leader of the original is led by it, for all who read it."""
    write = Copier.write

    async def named(self: Copier, moment: copying._Moment) -> copying.Copied:
        put = self._put

        async def keep(key: str, body: bytes) -> None:
            if key == KEY and moment.layout == LOG:
                original = decode_head(key, (await self._read()).body)
                head = decode_head(key, body)
                kept = msgspec.structs.replace(head, mode=original.mode, owner=original.owner, epoch=original.epoch)
                body = encode_head(kept)
            await put(key, body)

        self._put = keep  # type: ignore[method-assign]
        return await write(self, moment)

    patch.setattr(Copier, "write", named)
