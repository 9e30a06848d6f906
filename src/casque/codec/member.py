"""`brokers/ID` below the root of a ring: one broker, where it is, and a number that rises while it lives."""

from __future__ import annotations

import msgspec

from casque.codec.head import UNREADABLE

FOLDER = "brokers/"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """For the other brokers, and for clients that look for one. Nothing but liveness depends on it."""

    id: str
    address: str
    beats: int = 0
    nonce: str = ""
    """Two versions are never the same bytes."""
    place: str | None = None
    """Of the ring that it is a broker of: in a copy this is another place."""
    leads: tuple[int, ...] = ()
    """The shards that it leads just now."""


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Member)


def member_key(member_id: str) -> str:
    return f"{FOLDER}{member_id}"


def encode_member(member: Member) -> bytes:
    return _encode(member) + b"\n"


def decode_member(body: bytes) -> Member | None:
    """None for what is no member: somebody put another file there."""
    try:
        return _decoder.decode(body)
    except UNREADABLE:
        return None
