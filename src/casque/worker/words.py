"""How a worker and the processes that it starts speak: a length, and so many bytes."""

from __future__ import annotations

from typing import Protocol


class Source(Protocol):
    """A pipe, or a socket as a file."""

    def read(self, size: int, /) -> bytes: ...


def word(body: bytes) -> bytes:
    """As it goes over the line.

    >>> word(b"abc")
    b'\\x00\\x00\\x00\\x03abc'
    """
    return len(body).to_bytes(4, "big") + body


def read_word(pipe: Source) -> bytes | None:
    """The next one, or None when the other end has ended, be it in the middle of a word."""
    length = pipe.read(4)
    if len(length) < 4:
        return None
    body = pipe.read(size := int.from_bytes(length, "big"))
    return body if len(body) == size else None
