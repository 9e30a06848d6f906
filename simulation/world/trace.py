"""What happened in a run, line by line: all of it in the digest, the end of it for people."""

from __future__ import annotations

import hashlib
from collections import deque

from simulation.world.loop import VirtualLoop

KEPT = 400


class Trace:
    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._hash = hashlib.blake2b(digest_size=16)
        self._last: deque[str] = deque(maxlen=KEPT)

    def note(self, who: str, what: str) -> None:
        line = f"{self._loop.time():10.4f} {who:7} {what}"
        self._hash.update(line.encode())
        self._last.append(line)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def last(self, lines: int = KEPT) -> list[str]:
        return list(self._last)[-lines:]
