"""Finding where one HTTP/1.1 message ends in a stream of bytes, and nothing more.

The proxy and the GCS shim hand whole messages on untouched, so they need the frame and a few headers, not a
parsed request. Stdlib only and without I/O, so it can be tested by feeding it bytes one at a time.
"""

from __future__ import annotations

END_OF_HEAD = b"\r\n\r\n"
HEAD_BYTES_MAX = 256 * 1024
CHUNK_LINE_BYTES_MAX = 1024


class BadMessageError(ValueError):
    """Not HTTP/1.1 as we know it; the connection is of no further use."""


class Message:
    """One whole message: the raw bytes, and the parts that somebody decides on."""

    __slots__ = ("head_end", "headers", "raw", "start")

    def __init__(self, raw: bytes, head_end: int, start: str, headers: dict[str, str]) -> None:
        self.raw = raw
        self.head_end = head_end
        self.start = start
        self.headers = headers

    @property
    def method(self) -> str:
        return self.start.partition(" ")[0]

    @property
    def target(self) -> str:
        return self.start.split(" ")[1]

    @property
    def status(self) -> int:
        return int(self.start.split(" ")[1])

    @property
    def keeps_alive(self) -> bool:
        return self.headers.get("connection", "").lower() != "close" and self.start.find("HTTP/1.0") < 0

    @property
    def body(self) -> bytes:
        """The content, with the chunks joined."""
        rest = self.raw[self.head_end :]
        return rest if "chunked" not in self.headers.get("transfer-encoding", "") else _join_chunks(rest)


class Framer:
    """Collects bytes and gives whole messages back. One per direction of a connection.

    `answers_to` is the method of the request that a response belongs to: an answer to HEAD has no body,
    whatever its headers say. None means that this side reads requests.
    """

    __slots__ = (
        "_buffer",
        "_head_end",
        "_headers",
        "_is_request",
        "_need",
        "_scanned",
        "_start",
        "answers_to",
    )

    def __init__(self, *, requests: bool) -> None:
        self._buffer = bytearray()
        self._is_request = requests
        self.answers_to = ""
        self._reset()

    def _reset(self) -> None:
        self._head_end = 0  # 0: the head is not complete yet
        self._need = 0  # whole length of the message; -1: chunked; -2: until the connection closes
        self._scanned = 0
        self._start = ""
        self._headers: dict[str, str] = {}

    def feed(self, data: bytes) -> None:
        self._buffer += data

    @property
    def waits_for_body(self) -> bool:
        """The head is here and asks for a go-ahead before the body is sent."""
        return self._head_end > 0 and self._headers.get("expect", "").lower() == "100-continue"

    @property
    def is_idle(self) -> bool:
        return not self._buffer

    def next(self, *, closed: bool = False) -> Message | None:
        """The next whole message, or None while bytes are missing.

        Raises:
            BadMessageError: what came is not a message.
        """
        if not self._head_end and not self._read_head():
            return None
        end = self._find_end(closed=closed)
        if end is None:
            return None
        message = Message(bytes(self._buffer[:end]), self._head_end, self._start, self._headers)
        del self._buffer[:end]
        self._reset()
        return message

    def _read_head(self) -> bool:
        # Three bytes back: the blank line may have been cut in two.
        found = self._buffer.find(END_OF_HEAD, max(0, self._scanned - 3))
        self._scanned = len(self._buffer)
        if found < 0:
            if self._scanned > HEAD_BYTES_MAX:
                raise BadMessageError("the head is too long")
            return False
        self._head_end = self._scanned = found + 4
        self._start, *lines = self._buffer[:found].decode("latin-1").split("\r\n")
        if self._start.count(" ") < (2 if self._is_request else 1):
            raise BadMessageError(f"not HTTP: {self._start[:40]!r}")
        for line in lines:
            name, _, value = line.partition(":")
            self._headers[name.strip().lower()] = value.strip()
        self._need = self._measure()
        return True

    def _measure(self) -> int:
        if not self._is_request:
            status = self._start.split(" ")[1]
            if self.answers_to == "HEAD" or status in ("204", "304") or status.startswith("1"):
                return self._head_end
        if "chunked" in self._headers.get("transfer-encoding", ""):
            return -1
        length = self._headers.get("content-length")
        if length is not None:
            if not length.isdigit():
                raise BadMessageError(f"content-length: {length[:40]!r}")
            return self._head_end + int(length)
        return self._head_end if self._is_request else -2

    def _find_end(self, *, closed: bool) -> int | None:
        have = len(self._buffer)
        if self._need >= 0:
            return self._need if have >= self._need else None
        if self._need == -2:
            return have if closed else None
        while True:  # chunk by chunk; `_scanned` stands at the start of a chunk's size line
            line_end = self._buffer.find(b"\r\n", self._scanned)
            if line_end < 0:
                if have - self._scanned > CHUNK_LINE_BYTES_MAX:
                    raise BadMessageError("a chunk without a size")
                return None
            size = _chunk_size(bytes(self._buffer[self._scanned : line_end]))
            if size == 0:
                return self._end_of_trailers(line_end)
            following = line_end + 2 + size + 2
            if have < following:
                return None
            self._scanned = following

    def _end_of_trailers(self, line_end: int) -> int | None:
        if self._buffer[line_end + 2 : line_end + 4] == b"\r\n":
            return line_end + 4
        found = self._buffer.find(END_OF_HEAD, line_end)
        return None if found < 0 else found + 4


def _chunk_size(line: bytes) -> int:
    try:
        return int(line.partition(b";")[0], 16)
    except ValueError:
        raise BadMessageError(f"a chunk's size is {line[:40]!r}") from None


def _join_chunks(rest: bytes) -> bytes:
    parts: list[bytes] = []
    at = 0
    while True:
        line_end = rest.index(b"\r\n", at)
        size = _chunk_size(rest[at:line_end])
        if size == 0:
            return b"".join(parts)
        parts.append(rest[line_end + 2 : line_end + 2 + size])
        at = line_end + 2 + size + 2
