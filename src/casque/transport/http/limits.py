"""Limits of an HTTP server: bytes, connections, streams and time."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import msgspec

from casque.errors import InvalidInputError

MIB = 1024 * 1024


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of an HTTP server. A peer is an IP address; a proxy in front is one peer.

    >>> HttpLimits.parse(["streams=10", "header_s=2.5"]).streams
    10
    """

    body_bytes: int = 88 * MIB
    """Size of one request: the largest payload as base64, and room for the rest."""
    bodies_bytes: int = 192 * MIB
    """Size of all requests being read and carried out. At the limit, further ones are not read until there is room."""
    bodies_bytes_per_peer: int = 96 * MIB
    connections: int = 4_096
    """Open at a time; at most the process's limit on open files minus 128."""
    connections_per_peer: int = 1_024
    streams: int = 256
    """`/v1/events` and `/v1/archive`, open at a time."""
    streams_per_peer: int = 64
    unsent_bytes: int = 64 * MIB
    """Size of stream data produced but not yet taken, of all readers. At the limit, streams pause."""
    unsent_bytes_per_principal: int = 16 * MIB
    """The same, of one token, or of one address without tokens."""
    header_s: float = 15.0
    """How long the headers of a request may take, and the rest of a body that is being discarded."""
    idle_s: float = 75.0
    """How long a connection may be silent between two requests. Longer than clients keep one, so that none is closed
    just as it is reused."""
    body_s: float = 30.0
    """How long a body may take, plus a second for every `rate_min` bytes received."""
    stall_s: float = 30.0
    """How long a reader may stop reading an answer, or read less than `rate_min` bytes in a second."""
    rate_min: int = 4_096

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(type(self)):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 2**53:
                raise InvalidInputError(f"{field.name} must be a number of more than 0, not {value!r}")
        for whole, one in (("bodies_bytes", "body_bytes"), ("bodies_bytes_per_peer", "body_bytes")):
            if getattr(self, whole) < getattr(self, one):
                raise InvalidInputError(f"{whole} must be at least {one}, or the largest body never has room")

    @classmethod
    def parse(cls, pairs: list[str]) -> HttpLimits:
        """Parse `["streams=10"]`. Raises InvalidInputError, listing the known names."""
        known = {field.name: field.type for field in msgspec.structs.fields(cls)}
        given: dict[str, Any] = {}
        for pair in pairs:
            name, equals, value = pair.partition("=")
            if name not in known or not equals:
                near = get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]}=NUMBER?" if near else f"; there are {', '.join(known)}"
                raise InvalidInputError(f"--http-limit must be NAME=NUMBER, not {pair!r}{hint}")
            try:
                given[name] = msgspec.convert(value, known[name], strict=False)
            except msgspec.ValidationError as error:
                raise InvalidInputError(f"--http-limit {name} must be a number, not {value!r}") from error
        return cls(**given)
