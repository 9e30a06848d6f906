"""`brokers/ID` below the root of a ring: a broker, its address, and a number that rises while it lives."""

from __future__ import annotations

import msgspec

from casque.codec.head import UNREADABLE

FOLDER = "brokers/"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """Read by the other brokers and by clients looking for a broker. Only liveness depends on it."""

    id: str
    address: str
    beats: int = 0
    nonce: str = ""
    """Keeps two versions from having the same bytes."""
    place: str | None = None
    """The place of its ring; a copy of the ring is another place."""
    leads: tuple[int, ...] = ()
    """The shards that it leads now."""


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Member)


def member_key(member_id: str) -> str:
    return f"{FOLDER}{member_id}"


def encode_member(member: Member) -> bytes:
    return _encode(member) + b"\n"


def decode_member(body: bytes) -> Member | None:
    """None if `body` is not a member but another file."""
    try:
        return _decoder.decode(body)
    except UNREADABLE:
        return None
