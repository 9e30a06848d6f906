"""What a process was told, written down so that it survives the process.

A line before each call (`try`) and one after its answer (`ok`, or `no` with the error). Killed in between, the call may
have happened, once; answered, it must have happened, once. Each line is one system call: what was handed to the system
outlives a process that is killed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from casque.clock import SystemClock

TRY, OK, NO = "try", "ok", "no"


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line."""

    what: str
    verb: str
    at_ms: int
    """By the machine's monotonic clock, which all its processes share."""
    payload: str | None = None
    job: str | None = None
    token: int | None = None
    took_ms: int | None = None
    error: str | None = None


class Diary:
    """One process's own."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self._clock = SystemClock()
        self._encoder = msgspec.json.Encoder()

    def now_ms(self) -> int:
        return self._clock.monotonic_ms()

    def write(
        self,
        what: str,
        verb: str,
        *,
        payload: str | None = None,
        job: str | None = None,
        token: int | None = None,
        took_ms: int | None = None,
        error: str | None = None,
    ) -> None:
        entry = Entry(what, verb, self.now_ms(), payload, job, token, took_ms, error)
        os.write(self._fd, self._encoder.encode(entry) + b"\n")


class Ledger:
    """All diaries of a run, read as they grow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._decoder = msgspec.json.Decoder(Entry)
        self.tried: Counter[str] = Counter()
        self.told: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        """By verb and error: `ack LeaseLostError`."""
        self.offered: set[str] = set()
        """Payloads that somebody tried to enqueue."""
        self.enqueued: dict[str, str] = {}
        """Payload to job, for every enqueue that was acknowledged."""
        self.doubled: list[str] = []
        self.claims: dict[tuple[str, int], int] = {}
        """How often a token was handed out for a job: by whoever asked again, or else never more than once."""
        self.acks: list[tuple[str, int]] = []
        """Job and token of every ack that was said to have succeeded."""
        self.tried_acks: set[tuple[str, int]] = set()
        self.longest_call_ms = 0
        self.longest_silence_ms = 0
        """The longest time in which no producer at all was answered, although they keep calling."""
        self._answered: list[int] = []

    def read_on(self) -> None:
        """Take in what was written since."""
        for path in sorted(self._folder.glob("*.diary")):
            for entry in self._new_lines(path):
                self._note(entry)
        self._answered.sort()
        for before, after in zip(self._answered, self._answered[1:], strict=False):
            self.longest_silence_ms = max(self.longest_silence_ms, after - before)
        del self._answered[:-1]

    def _new_lines(self, path: Path) -> Iterator[Entry]:
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read[path] = self._read.get(path, 0) + len(whole)
        for line in whole.splitlines():
            yield self._decoder.decode(line)

    def _note(self, entry: Entry) -> None:
        match entry.what:
            case "try":
                self.tried[entry.verb] += 1
                self._note_try(entry)
            case "ok":
                self.told[entry.verb] += 1
                self._note_ok(entry)
            case _:
                self.refused[f"{entry.verb} {entry.error}"] += 1

    def _note_try(self, entry: Entry) -> None:
        if entry.verb == "enqueue" and entry.payload is not None:
            self.offered.add(entry.payload)
        elif entry.verb == "ack" and entry.job is not None and entry.token is not None:
            self.tried_acks.add((entry.job, entry.token))

    def _note_ok(self, entry: Entry) -> None:
        if entry.verb == "enqueue":
            assert entry.payload is not None
            assert entry.job is not None
            if entry.payload in self.enqueued:
                self.doubled.append(entry.payload)
            self.enqueued[entry.payload] = entry.job
            self._answered.append(entry.at_ms)
            self.longest_call_ms = max(self.longest_call_ms, entry.took_ms or 0)
        elif entry.job is not None and entry.token is not None:
            claim = (entry.job, entry.token)
            if entry.verb == "dequeue":
                self.claims[claim] = self.claims.get(claim, 0) + 1
            elif entry.verb == "ack":
                self.acks.append(claim)
