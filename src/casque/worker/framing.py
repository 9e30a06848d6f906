"""Length-prefixed frames between a worker and its child processes."""

from __future__ import annotations

from typing import Protocol


class Source(Protocol):
    """A pipe, or a socket as a file."""

    def read(self, size: int, /) -> bytes: ...


def frame(body: bytes) -> bytes:
    """A frame with this body.

    >>> frame(b"abc")
    b'\\x00\\x00\\x00\\x03abc'
    """
    return len(body).to_bytes(4, "big") + body


def read_frame(pipe: Source) -> bytes | None:
    """The body of the next frame; None when the other end has closed, even in the middle of a frame."""
    length = pipe.read(4)
    if len(length) < 4:
        return None
    body = pipe.read(size := int.from_bytes(length, "big"))
    return body if len(body) == size else None
