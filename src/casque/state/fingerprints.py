"""What a request asks for, in sixteen characters: the same id with another fingerprint is another request."""

from __future__ import annotations

from hashlib import blake2b
from typing import Protocol

import msgspec

_encode = msgspec.msgpack.Encoder().encode


class Repeatable(Protocol):
    """A request that can have an id."""

    @property
    def request_id(self) -> str | None: ...

    def asked(self) -> object: ...


def fingerprint(request: Repeatable) -> str:
    return blake2b(_encode(request.asked()), digest_size=8).hexdigest()
