"""Which promise is looked after where: guarantees x ways to run a queue x (model, simulator, chaos).

Everything is read off the tests themselves. The simulator counts for a cell if a mistake is made there on purpose and
found (`mistakes.py`); a model, if dropping one of its rules breaks the promise; chaos, if the checker of recorded calls
has a rule for it and a run goes that way. `docs/reference/coverage.md` is made from this, and a test fails if a cell is
empty that `GAPS` does not name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from casque.testing.chaos.run import Way
from casque.testing.world import Invariant
from casque.testing.world.layout import DOCUMENT, LED, LED_DOCUMENT, LED_RING, LOG, RING, SERVED
from tests.simulation.mistakes import LED_RING_TIGHT, MISTAKES
from tests.simulation.search_mistakes import first_seeds

WAYS = {
    "document": (DOCUMENT.name,),
    "log": (LOG.name,),
    "brokers": (LED.name, LED_DOCUMENT.name),
    "gRPC": (SERVED.name, LED_RING.name, LED_RING_TIGHT.name),
    "ring": (RING.name,),
    "ring brokers": (LED_RING.name, LED_RING_TIGHT.name),
}
"""Columns, and the simulated layouts that count for each."""

CHAOS_WAYS: Mapping[Way, tuple[str, ...]] = {
    Way.EMBEDDED: ("log",),
    Way.BROKERS: ("brokers", "gRPC"),
    Way.RING: ("ring brokers", "gRPC"),
}


class Guarantee(NamedTuple):
    """A promise of `docs/explanation/guarantees.md`, by its heading, and what looks after it."""

    heading: str
    invariants: tuple[Invariant, ...] = ()
    chaos: bool = False
    """Whether the checker of recorded calls has a rule for it."""
    models: tuple[str, ...] = ()
    """Columns whose exhaustive model has a rule that it rests on."""


GUARANTEES = (
    Guarantee("Acknowledged means durable", (Invariant.DURABLE, Invariant.PAYLOADS), True, ("log", "brokers")),
    Guarantee(
        "One order of commits",
        (Invariant.ONE_HISTORY, Invariant.CURRENT, Invariant.EPOCHS, Invariant.SAME_STATE, Invariant.REPLAY),
        False,
        ("log", "brokers"),
    ),
    Guarantee(
        "At least once, and every state change once", (Invariant.CONSERVED, Invariant.TRIES, Invariant.COUNTED), True
    ),
    Guarantee("One live lease per job", (Invariant.TOKENS, Invariant.LEASE, Invariant.LEASED), True, ("log",)),
    Guarantee("Order", (Invariant.ORDER, Invariant.FIFO, Invariant.ZONES, Invariant.CLAIMABLE, Invariant.GATES), True),
    Guarantee(
        "A lost reply does nothing twice",
        (Invariant.ONE_EFFECT, Invariant.ADMITTED),
        True,
        ("log", "brokers", "ring", "ring brokers"),
    ),
    Guarantee(
        "Unknown is reported as unknown", (Invariant.ABSENT, Invariant.EXPECTED), True, ("log", "brokers", "ring")
    ),
    Guarantee("Time affects liveness, never safety", (Invariant.LEASE, Invariant.HEALTHY), True, ("log",)),
    Guarantee("Leases are recovered without a call", (Invariant.LIVE, Invariant.GIVEN_BACK), True),
    Guarantee("Finished jobs are archived once", (Invariant.ARCHIVED, Invariant.KEPT), True, ("log",)),
    Guarantee(
        "A failover loses nothing and repeats nothing",
        (Invariant.EPOCHS, Invariant.HEALTHY, Invariant.LIVE),
        True,
        ("brokers",),
    ),
    Guarantee("One job for each tick", (Invariant.TICKED,), True),
    Guarantee("A zone is in one shard", (Invariant.ONE_PLACE, Invariant.REACHED), False, ("ring", "ring brokers")),
    Guarantee("Tenants do not see each other", (Invariant.TENANTS,)),
)

OUTSIDE = {
    "The store is asked for one thing": "the store suite runs against every adapter",
    "Dead jobs are kept": "tests of the state machine against its model",
    "Idle costs nothing": "tests that count requests",
    "What is not promised": "nothing is promised",
}
"""Headings that no simulation is about, and what tests them instead."""


class Cell(NamedTuple):
    model: bool
    mistakes: int
    chaos: bool

    @property
    def is_empty(self) -> bool:
        return not (self.model or self.mistakes or self.chaos)

    def __str__(self) -> str:
        parts = ["M" if self.model else "", f"S{self.mistakes}" if self.mistakes else "", "C" if self.chaos else ""]
        return " ".join(part for part in parts if part) or "-"


def table() -> dict[tuple[str, str], Cell]:
    """Every cell, by heading and column."""
    seeds = first_seeds()
    found = Counter((mistake.invariant, mistake.layout.name) for mistake in MISTAKES if mistake.name in seeds)
    by_chaos = {column for columns in CHAOS_WAYS.values() for column in columns}
    return {
        (guarantee.heading, way): Cell(
            model=way in guarantee.models,
            mistakes=sum(found[invariant, layout] for invariant in guarantee.invariants for layout in layouts),
            chaos=guarantee.chaos and way in by_chaos,
        )
        for guarantee in GUARANTEES
        for way, layouts in WAYS.items()
    }


_NO_MISTAKE = "the simulator checks it in these worlds, but no mistake is made there on purpose"
_NO_SHARDS = "there are no shards"
_NOT_SIMULATED = "unit and integration tests alone"

GAPS: dict[tuple[str, str], str] = {
    ("One order of commits", "gRPC"): _NO_MISTAKE,
    ("One order of commits", "ring"): _NO_MISTAKE,
    ("One order of commits", "ring brokers"): _NO_MISTAKE,
    ("At least once, and every state change once", "ring"): _NO_MISTAKE,
    ("Leases are recovered without a call", "ring"): _NO_MISTAKE,
    ("A failover loses nothing and repeats nothing", "ring"): "no broker leads there",
    ("One job for each tick", "document"): _NO_MISTAKE,
    ("One job for each tick", "ring"): _NO_MISTAKE,
    ("A zone is in one shard", "document"): _NO_SHARDS,
    ("A zone is in one shard", "log"): _NO_SHARDS,
    ("A zone is in one shard", "brokers"): _NO_SHARDS,
    ("A zone is in one shard", "gRPC"): _NO_SHARDS,
    ("Tenants do not see each other", "gRPC"): _NOT_SIMULATED,
    ("Tenants do not see each other", "ring"): _NOT_SIMULATED,
    ("Tenants do not see each other", "ring brokers"): _NOT_SIMULATED,
}
"""Empty cells, and why they are."""

_HEAD = """# What is proven where

Each row is a promise of [the guarantees](../explanation/guarantees.md), each column a way to run a queue.
`make reference` makes this page from the tests, and a test fails if a cell is empty that is not explained below.

- **M**: an exhaustive model (`specs/`); each of its rules, dropped, breaks a promise.
- **S**: the simulator, and how many mistakes made on purpose it finds there (`tests/simulation/mistakes.py`).
- **C**: real processes that are killed, frozen and stopped while their clocks step, judged by their recorded calls
  alone (`make chaos`).
"""


def page() -> str:
    """`docs/reference/coverage.md`."""
    cells = table()
    rows = [
        f"| {guarantee.heading} | {' | '.join(str(cells[guarantee.heading, way]) for way in WAYS)} |"
        for guarantee in GUARANTEES
    ]
    gaps = [
        f"- {', '.join(f'{heading} ({way})' for (heading, way), why in GAPS.items() if why == reason)}: {reason}."
        for reason in dict.fromkeys(GAPS.values())
    ]
    return "\n".join(
        [
            _HEAD,
            f"| | {' | '.join(WAYS)} |",
            f"|---{'|---' * len(WAYS)}|",
            *rows,
            "\n## Empty cells\n",
            *gaps,
            "\n## Tested in other ways\n",
            *(f"- {heading}: {how}." for heading, how in OUTSIDE.items()),
            "",
        ]
    )
