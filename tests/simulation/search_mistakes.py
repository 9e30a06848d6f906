"""`python -m tests.simulation.search_mistakes`: which seed finds each mistake first, written to `first_seeds.json`.

Run it after a change of the simulated world: every draw that is added shifts all that follow, so that a seed finds
other things. A mistake that is not found in time is left out of the file, and `make proof` looks for it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import FrameType

import msgspec
import pytest

from casque.clock import SystemClock
from casque.testing.world import simulate
from tests.simulation.mistakes import MISTAKES, Mistake

FILE = Path(__file__).with_name("first_seeds.json")
MEMORY_MAX = 4 << 30


def first_seeds() -> dict[str, int]:
    """By the name of the mistake."""
    return msgspec.json.decode(FILE.read_bytes(), type=dict[str, int])


def is_found(mistake: Mistake, seed: int) -> bool:
    """Whether the world of this seed shows it. The mistake has been made."""
    report = simulate(seed, profile=mistake.weather, layout=mistake.layout)
    return not report.passed and mistake.invariant in (None, report.violated)


class _TooLongError(Exception):
    pass


def search(number: int, begin: int, seconds: int) -> int | None:
    """The first seed from `begin` on that finds this mistake; None if there is none in so many seconds."""

    def too_long(_number: int, _frame: FrameType | None) -> None:
        raise _TooLongError

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(seconds)
    mistake = MISTAKES[number]
    try:
        with pytest.MonkeyPatch.context() as patch:
            mistake.mutation(patch)
            for seed in range(begin, begin + 10_000):
                if is_found(mistake, seed):
                    return seed
    except (_TooLongError, MemoryError):
        pass
    finally:
        signal.alarm(0)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=40, help="how long to look for each")
    parser.add_argument("--only", default="", help="only those whose name holds this")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    args = parser.parse_args()
    known = first_seeds() if FILE.exists() else {}
    clock = SystemClock()
    wanted = [number for number, mistake in enumerate(MISTAKES) if args.only in mistake.name]
    with ProcessPoolExecutor(args.jobs, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=4) as pool:
        began_ms = clock.monotonic_ms()
        begins = [known.get(MISTAKES[number].name, 1) for number in wanted]
        results = pool.map(search, wanted, begins, [args.seconds] * len(wanted))
        for number, seed in zip(wanted, results, strict=True):
            name = MISTAKES[number].name
            known.pop(name, None)
            if seed is not None:
                known[name] = seed
            print(f"{(clock.monotonic_ms() - began_ms) / 1000:6.0f} s  {name}: {seed}", flush=True)
            names = [mistake.name for mistake in MISTAKES]
            kept = {name: known[name] for name in names if name in known}
            FILE.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=2) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
