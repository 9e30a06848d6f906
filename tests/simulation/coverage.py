"""Which promise is looked after where: guarantees x ways to run a queue x (model, simulator, chaos).

Everything is read off the tests themselves. The simulator counts for a cell if a mistake is made there on purpose and
found (`mistakes.py`); a model, if dropping one of its rules breaks the promise; chaos, if the checker of recorded calls
has a rule for it and a run goes that way. `docs/reference/coverage.md` is made from this, and a test fails if a cell is
empty that `GAPS` does not name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from simulation.chaos.run import Way
from simulation.world import Invariant
from simulation.world.layout import (
    BUDGETED,
    BUDGETED_SERVED,
    CONVERTING,
    COPIED,
    COPIED_DOCUMENT,
    COPIED_RING,
    DAMAGED,
    DAMAGED_DOCUMENT,
    DOCUMENT,
    ERASED,
    ERASED_DOCUMENT,
    ERASED_WATCHED,
    FLEET,
    FLEET_DOCUMENT,
    FLEET_RING,
    FLEET_SERVED,
    FOREIGN,
    GUARDED,
    LED,
    LED_DOCUMENT,
    LED_RING,
    LOG,
    MIXED,
    MIXED_DOCUMENT,
    MIXED_WATCHED,
    MOVED,
    MOVED_DOCUMENT,
    MOVED_RING,
    PACED,
    PACED_DOCUMENT,
    PACED_SERVED,
    RING,
    SERVED,
    STALLED,
    WATCHED,
    WATCHED_RING,
    Layout,
)
from tests.simulation.mistakes import LED_RING_TIGHT, LOG_LONG, MISTAKES
from tests.simulation.search_mistakes import first_seeds

RING_BROKERS = (LED_RING, LED_RING_TIGHT, FLEET_RING, WATCHED_RING, COPIED_RING, MOVED_RING)
WAYS: dict[str, tuple[Layout, ...]] = {
    "document": (
        DOCUMENT,
        FLEET_DOCUMENT,
        MOVED_DOCUMENT,
        DAMAGED_DOCUMENT,
        MIXED_DOCUMENT,
        ERASED_DOCUMENT,
        CONVERTING,
    ),
    "log": (LOG, LOG_LONG, FLEET, DAMAGED, MIXED, ERASED, PACED, BUDGETED, CONVERTING),
    "brokers": (LED, LED_DOCUMENT, PACED_DOCUMENT, COPIED, COPIED_DOCUMENT),
    "gRPC": (
        SERVED,
        FLEET_SERVED,
        WATCHED,
        MIXED_WATCHED,
        ERASED_WATCHED,
        PACED_SERVED,
        BUDGETED_SERVED,
        STALLED,
        FOREIGN,
        GUARDED,
        MOVED,
        COPIED,
        COPIED_DOCUMENT,
        *RING_BROKERS,
    ),
    "ring": (RING,),
    "ring brokers": RING_BROKERS,
}
"""Columns, and the simulated layouts that count for each."""

CHAOS_WAYS: Mapping[Way, tuple[str, ...]] = {
    Way.EMBEDDED: ("log",),
    Way.BROKERS: ("brokers", "gRPC"),
    Way.RING: ("ring brokers", "gRPC"),
    Way.EMBEDDED_RING: ("ring",),
}
EVERY_WAY = tuple(Way)
BROKERS = tuple(way for way in Way if way.has_brokers)
RINGS = tuple(way for way in Way if way.is_ring)


class Guarantee(NamedTuple):
    """A promise of `docs/explanation/guarantees.md`, by its heading, and what looks after it."""

    heading: str
    invariants: tuple[Invariant, ...] = ()
    chaos: Collection[Way] = ()
    """The ways of a chaos run in which the checker of recorded calls has a rule for it."""
    models: tuple[str, ...] = ()
    """Columns whose exhaustive model has a rule that it rests on."""


GUARANTEES = (
    Guarantee("Acknowledged means durable", (Invariant.DURABLE, Invariant.PAYLOADS), EVERY_WAY, ("log", "brokers")),
    Guarantee(
        "One order of commits",
        (Invariant.ONE_HISTORY, Invariant.CURRENT, Invariant.EPOCHS, Invariant.SAME_STATE, Invariant.REPLAY),
        (),
        ("log", "brokers"),
    ),
    Guarantee(
        "At least once, and every state change once",
        (Invariant.CONSERVED, Invariant.TRIES, Invariant.COUNTED, Invariant.DECLINED),
        EVERY_WAY,
    ),
    Guarantee("One live lease per job", (Invariant.TOKENS, Invariant.LEASE, Invariant.LEASED), EVERY_WAY, ("log",)),
    Guarantee(
        "Order",
        (
            Invariant.ORDER,
            Invariant.PLACE,
            Invariant.LAPSED,
            Invariant.FIFO,
            Invariant.ZONES,
            Invariant.CLAIMABLE,
            Invariant.GATES,
        ),
        EVERY_WAY,
    ),
    Guarantee(
        "A lost reply does nothing twice",
        (Invariant.ONE_EFFECT, Invariant.ADMITTED),
        EVERY_WAY,
        ("log", "brokers", "ring", "ring brokers"),
    ),
    Guarantee(
        "Unknown is reported as unknown", (Invariant.ABSENT, Invariant.EXPECTED), EVERY_WAY, ("log", "brokers", "ring")
    ),
    Guarantee("Time affects liveness, never safety", (Invariant.LEASE, Invariant.HEALTHY), EVERY_WAY, ("log",)),
    Guarantee("Leases are recovered without a call", (Invariant.LIVE, Invariant.GIVEN_BACK), EVERY_WAY),
    Guarantee("Finished jobs are archived once", (Invariant.ARCHIVED, Invariant.KEPT), EVERY_WAY, ("log",)),
    Guarantee(
        "A failover loses nothing and repeats nothing",
        (Invariant.EPOCHS, Invariant.HEALTHY, Invariant.LIVE),
        BROKERS,
        ("brokers",),
    ),
    Guarantee("One job for each tick", (Invariant.TICKED,), EVERY_WAY),
    Guarantee("Readers see what happened", (Invariant.FOLLOWED, Invariant.SHOWN, Invariant.HELD)),
    Guarantee("A zone is in one shard", (Invariant.ONE_PLACE, Invariant.REACHED), RINGS, ("ring", "ring brokers")),
    Guarantee("Tenants do not see each other", (Invariant.TENANTS,)),
    Guarantee("A copy is a queue of its own", (Invariant.COPIED,)),
    Guarantee("A conversion changes the layout and nothing else", (Invariant.CONVERTED,)),
)

OUTSIDE = {
    "One requirement for the store": "the store suite runs against every adapter",
    "Dead jobs are kept": "tests of the state machine against its model",
    "Idle costs nothing": "tests that count requests",
    "What is not promised": "nothing is promised",
    "Where each is proven": "a test checks that the files it names exist",
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
    return {
        (guarantee.heading, way): Cell(
            model=way in guarantee.models,
            mistakes=sum(found[invariant, layout.name] for invariant in guarantee.invariants for layout in layouts),
            chaos=any(way in CHAOS_WAYS[by] for by in guarantee.chaos),
        )
        for guarantee in GUARANTEES
        for way, layouts in WAYS.items()
    }


_NO_SHARDS = "there are no shards"
_COPIED_WHERE_LED = "copies are simulated where brokers lead the original, which is where they are dangerous"
_NOT_CONVERTED = "a queue that is led, or is a ring, cannot be converted"
_READ_FROM_THE_STORE = "readers of the store itself: who follows a log is simulated under one order of commits"
_NOT_SIMULATED = "unit and integration tests alone"

GAPS: dict[tuple[str, str], str] = {
    ("A zone is in one shard", "document"): _NO_SHARDS,
    ("A zone is in one shard", "log"): _NO_SHARDS,
    ("A zone is in one shard", "brokers"): _NO_SHARDS,
    ("Readers see what happened", "document"): _READ_FROM_THE_STORE,
    ("Readers see what happened", "log"): _READ_FROM_THE_STORE,
    ("Readers see what happened", "brokers"): "readers come to brokers by a wire: see gRPC",
    ("Readers see what happened", "ring"): _NOT_SIMULATED,
    ("A copy is a queue of its own", "document"): _COPIED_WHERE_LED,
    ("A copy is a queue of its own", "log"): _COPIED_WHERE_LED,
    ("A copy is a queue of its own", "ring"): _COPIED_WHERE_LED,
    ("A conversion changes the layout and nothing else", "brokers"): _NOT_CONVERTED,
    ("A conversion changes the layout and nothing else", "gRPC"): _NOT_CONVERTED,
    ("A conversion changes the layout and nothing else", "ring"): _NOT_CONVERTED,
    ("A conversion changes the layout and nothing else", "ring brokers"): _NOT_CONVERTED,
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
