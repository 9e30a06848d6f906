"""The records of a run as they grow: figures for people."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from simulation.history import Call
from simulation.history.recorder import Reader


class Ledger:
    """How the calls of a run have gone so far."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reader = Reader()
        self.succeeded: Counter[str] = Counter()
        """By verb."""
        self.errors: Counter[str] = Counter()
        """By verb and error: `ack LeaseLostError`."""
        self.longest_call_ms = 0
        self.longest_silence_ms = 0
        """The longest time in which no enqueue at all was answered, although producers keep calling."""
        self._answered: list[int] = []

    def read_on(self) -> None:
        """Take in what was written since."""
        for call in self._reader.read_folder_on(self._folder):
            self._note(call)
        self._answered.sort()
        for before, after in zip(self._answered, self._answered[1:], strict=False):
            self.longest_silence_ms = max(self.longest_silence_ms, after - before)
        del self._answered[:-1]

    def calls(self) -> list[Call]:
        """The whole record, as far as it has been read."""
        return self._reader.calls()

    def _note(self, call: Call) -> None:
        assert call.answered is not None
        if not call.is_ok:
            self.errors[f"{call.verb} {call.answered.error}"] += 1
            return
        self.succeeded[call.verb] += 1
        if call.verb == "enqueue":
            self._answered.append(call.ended_ms)
            self.longest_call_ms = max(self.longest_call_ms, call.ended_ms - call.began_ms)
