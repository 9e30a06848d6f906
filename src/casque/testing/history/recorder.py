"""Writes a record that survives its process, and reads it back.

Each line is one system call: what was handed to the system outlives a process that is killed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from casque.testing.history.call import Answered, Asked, Call, Claim, Outcome, Wish

SUFFIX = ".record"

_encoder = msgspec.json.Encoder()


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """Either half of a call."""

    asked: Asked | None = None
    answered: Answered | None = None


_decoder = msgspec.json.Decoder(_Line)


class Recorder:
    """The record of one process."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self._name = path.stem
        self._calls = 0

    @staticmethod
    def now_ms() -> int:
        # The machine's own, not a Clock: a run may shift what its processes take for the time.
        return time.monotonic_ns() // 1_000_000

    def ask(
        self,
        verb: str,
        *,
        wishes: Sequence[Wish] = (),
        job: str | None = None,
        token: int = 0,
        zone: str | None = None,
        lease_ms: int = 0,
        request: str | None = None,
    ) -> Asked:
        """A call starts now."""
        self._calls += 1
        call = f"{self._name}/{self._calls}"
        asked = Asked(call, verb, self.now_ms(), tuple(wishes), job, token, zone, lease_ms, request)
        self._write(_Line(asked=asked))
        return asked

    def answer(
        self,
        asked: Asked,
        outcome: Outcome,
        *,
        claims: Sequence[Claim] = (),
        token: int = 0,
        error: str | None = None,
    ) -> None:
        """It ended just now."""
        self._write(_Line(answered=Answered(asked.call, self.now_ms(), outcome, tuple(claims), token, error)))

    def _write(self, line: _Line) -> None:
        os.write(self._fd, _encoder.encode(line) + b"\n")


def read_records(folder: Path) -> list[Call]:
    """Every call in the records of a folder, in the order in which they began."""
    calls: list[Call] = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        calls += _pair(_lines(path))
    return sorted(calls, key=lambda call: call.began_ms)


def _lines(path: Path) -> Iterator[_Line]:
    text = path.read_bytes()
    for line in text[: text.rfind(b"\n") + 1].splitlines():
        yield _decoder.decode(line)


def _pair(lines: Iterator[_Line]) -> list[Call]:
    calls: dict[str, Call] = {}
    for line in lines:
        if line.asked is not None:
            calls[line.asked.call] = Call(line.asked)
        elif line.answered is not None:
            calls[line.answered.call] = Call(calls[line.answered.call].asked, line.answered)
    return list(calls.values())
