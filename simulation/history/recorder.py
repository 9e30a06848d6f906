"""Writes a record that survives its process, and reads it back.

Each line is one system call: what was handed to the system outlives a process that is killed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from simulation.history.call import Answered, Asked, Call, Claim, Outcome, Wish

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
        whole: bool = False,
        entrypoint: str | None = None,
        gate: str | None = None,
        shards: int = 0,
    ) -> Asked:
        """A call starts now."""
        self._calls += 1
        asked = Asked(
            f"{self._name}/{self._calls}",
            verb,
            self.now_ms(),
            tuple(wishes),
            job,
            token,
            zone,
            lease_ms,
            request,
            whole,
            entrypoint,
            gate,
            shards,
        )
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
        repeated: bool = False,
        jobs: int = 0,
    ) -> None:
        """It ended just now."""
        answered = Answered(asked.call, self.now_ms(), outcome, tuple(claims), token, error, repeated, jobs)
        self._write(_Line(answered=answered))

    def _write(self, line: _Line) -> None:
        os.write(self._fd, _encoder.encode(line) + b"\n")


class Reader:
    """Records, read as they grow."""

    def __init__(self) -> None:
        self._read: dict[Path, int] = {}
        self._calls: dict[str, Call] = {}

    def read_on(self, path: Path) -> list[Call]:
        """The calls in one record that were answered since the last look."""
        ended = []
        for line in self._new_lines(path):
            if line.asked is not None:
                self._calls[line.asked.call] = Call(line.asked)
            elif line.answered is not None:
                call = Call(self._calls[line.answered.call].asked, line.answered)
                self._calls[line.answered.call] = call
                ended.append(call)
        return ended

    def _new_lines(self, path: Path) -> Iterator[_Line]:
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read[path] = self._read.get(path, 0) + len(whole)
        for line in whole.splitlines():
            yield _decoder.decode(line)

    def read_folder_on(self, folder: Path) -> list[Call]:
        """The same, for all records of a folder."""
        return [call for path in sorted(folder.glob(f"*{SUFFIX}")) for call in self.read_on(path)]

    def calls(self) -> list[Call]:
        """Every call read so far, in the order in which they began."""
        return sorted(self._calls.values(), key=lambda call: call.began_ms)


def read_record(path: Path) -> list[Call]:
    """Every call of one record, in the order in which they began."""
    reader = Reader()
    reader.read_on(path)
    return reader.calls()


def read_records(folder: Path) -> list[Call]:
    """Every call in the records of a folder, in the order in which they began."""
    reader = Reader()
    reader.read_folder_on(folder)
    return reader.calls()
