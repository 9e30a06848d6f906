"""`python -m tests.simulation.search_mistakes`: which seed finds each mistake first, written to `first_seeds.json`.

Run it after a change of the simulated world: every draw that is added shifts all that follow, so that a seed finds
other things. A mistake that is not found in time is left out of the file, and `make proof` looks for it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
from collections.abc import Iterator, Sequence
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import pytest

from simulation.world import simulate
from tests.simulation.mistakes import MISTAKES, Mistake

FORK = multiprocessing.get_context("fork")
FILE = Path(__file__).with_name("first_seeds.json")
MEMORY_MAX = 4 << 30


def first_seeds() -> dict[str, int]:
    """By the name of the mistake."""
    return msgspec.json.decode(FILE.read_bytes(), type=dict[str, int])


def is_found(mistake: Mistake, seed: int) -> bool:
    """Whether the world of this seed shows it. The mistake has been made."""
    report = simulate(seed, profile=mistake.weather, layout=mistake.layout)
    return not report.passed and mistake.invariant in (None, report.violated)


def search(mistake: Mistake, begin: int, answer: Connection) -> None:
    """Look for the first seed from `begin` on that finds this mistake; in a process of its own, which may be ended."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    with pytest.MonkeyPatch.context() as patch:
        mistake.mutation(patch)
        answer.send(next(seed for seed in count(begin) if is_found(mistake, seed)))


class Search:
    """One that is under way."""

    def __init__(self, mistake: Mistake, begin: int) -> None:
        self.mistake = mistake
        self._answer, theirs = FORK.Pipe(duplex=False)
        self._process = FORK.Process(target=search, args=(mistake, begin, theirs))
        self._process.start()
        theirs.close()

    def result(self, seconds: float) -> int | None:
        """The seed; None if there is none in so many seconds, or the process ran out of memory."""
        try:
            found: int | None = self._answer.recv() if self._answer.poll(seconds) else None
        except EOFError:
            found = None
        self._process.kill()
        self._process.join()
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=40, help="how long to look for each")
    parser.add_argument("--only", default="", help="only those whose name holds this")
    parser.add_argument("--missing", action="store_true", help="only those that have no seed yet")
    parser.add_argument("--jobs", type=int, default=FORK.cpu_count())
    args = parser.parse_args()
    known = first_seeds() if FILE.exists() else {}
    wanted = [one for one in MISTAKES if args.only in one.name and not (args.missing and one.name in known)]
    for several in batched(wanted, args.jobs):
        for under_way in [Search(mistake, known.get(mistake.name, 1)) for mistake in several]:
            name = under_way.mistake.name
            seed = under_way.result(args.seconds)
            known.pop(name, None)
            if seed is not None:
                known[name] = seed
            print(f"{name}: {seed}", flush=True)
        kept = {one.name: known[one.name] for one in MISTAKES if one.name in known}
        FILE.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=2) + b"\n")
    return 0


def batched(mistakes: Sequence[Mistake], size: int) -> Iterator[Sequence[Mistake]]:
    for at in range(0, len(mistakes), size):
        yield mistakes[at : at + size]


if __name__ == "__main__":
    sys.exit(main())
