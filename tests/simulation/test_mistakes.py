"""The simulator finds mistakes: each is made on purpose, and some seed must break the invariant that it endangers.

The search begins with the seed that found the mistake when `python -m tests.simulation.search_mistakes` ran last. Those
that took long to find are looked for by `make proof` only.
"""

from __future__ import annotations

import pytest

from simulation.world import CALM, ROUGH, Profile, simulate
from simulation.world.layout import (
    DAMAGED,
    DAMAGED_DOCUMENT,
    DOCUMENT,
    FOREIGN,
    GUARDED,
    LED,
    LED_DOCUMENT,
    LED_RING,
    LOG,
    RING,
    SERVED,
    STALLED,
    WATCHED,
    WATCHED_RING,
    Layout,
)
from simulation.world.profile import DISK, FLEETING, ROLLING
from tests.simulation.mistakes import (
    AHEAD,
    BLURRED,
    BULKY,
    BUSY,
    CLOSING,
    COARSE,
    CUT_OFF,
    DEAF,
    DOZING,
    DREAMS,
    DROWSY,
    FADING,
    FULL,
    HAZY,
    HEDGED,
    HEIRS,
    HELD,
    IMPATIENT,
    JUMPY,
    KEYED,
    LED_RING_TIGHT,
    LIDS,
    LOG_LONG,
    LOST_LIDS,
    MISTAKES,
    NAPS,
    NEIGHBOURS,
    NODDING,
    PAIR,
    RESTARTS,
    SECONDS_OFF,
    SETTLERS,
    SHARDS_AWAY,
    SLEEPY,
    STAFFED,
    STORMY,
    TRIO,
    VISITORS,
    WATCHES,
    Mistake,
)
from tests.simulation.search_mistakes import first_seeds, is_found

SEEDS = 100
"""More than any of them needs: the first that finds it ends the search."""
FIRST = first_seeds()


def _marked(mistake: Mistake) -> object:
    return pytest.param(mistake, id=mistake.name, marks=[] if mistake.name in FIRST else [pytest.mark.long])


@pytest.mark.parametrize("mistake", [_marked(mistake) for mistake in MISTAKES])
def test_a_mistake_is_found(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake.mutation(monkeypatch)
    first = FIRST.get(mistake.name, 1)
    assert any(is_found(mistake, seed) for seed in range(first, first + SEEDS))


def test_there_are_many_mistakes_and_seeds_are_kept_for_these_only() -> None:
    names = [mistake.name for mistake in MISTAKES]
    assert len(set(names)) == len(names) >= 120
    assert set(FIRST) <= set(names)


@pytest.mark.parametrize(
    ("layout", "weather"),
    [
        (DOCUMENT, STORMY),
        (DOCUMENT, JUMPY),
        (DOCUMENT, DEAF),
        (DOCUMENT, IMPATIENT),
        (LOG, STORMY),
        (LOG, FLEETING),
        (DOCUMENT, FLEETING),
        (RING, FLEETING),
        (LOG, SLEEPY),
        (LOG, PAIR),
        (LOG, NAPS),
        (LOG_LONG, DREAMS),
        (LOG, LIDS),
        (DOCUMENT, LOST_LIDS),
        (LOG, IMPATIENT),
        (DOCUMENT, FULL),
        (LOG, FULL),
        (DOCUMENT, DISK),
        (LOG, DISK),
        (LED, DISK),
        (LOG, VISITORS),
        (DOCUMENT, VISITORS),
        (LED, SLEEPY),
        (LED, TRIO),
        (LED, WATCHES),
        (LED_DOCUMENT, SLEEPY),
        (LED_DOCUMENT, TRIO),
        (LED_DOCUMENT, WATCHES),
        (RING, DROWSY),
        (RING, STORMY),
        (SERVED, CUT_OFF),
        (LED_RING, ROLLING),
        (LED_RING, CLOSING),
        (LED_RING, RESTARTS),
        (LED_RING_TIGHT, ROUGH),
        (LED, NODDING),
        (LED, DOZING),
        (LOG, STAFFED),
        (LED, STAFFED),
        (LOG, BLURRED),
        (LOG, NEIGHBOURS),
        (LOG, COARSE),
        (DOCUMENT, FADING),
        (DOCUMENT, HAZY),
        (DOCUMENT, BUSY),
        (LOG, KEYED),
        (DOCUMENT, KEYED),
        (DOCUMENT, SECONDS_OFF),
        (RING, SHARDS_AWAY),
        (RING, HEDGED),
        (RING, HELD),
        (RING, HEIRS),
        (RING, SETTLERS),
        (LOG, HEIRS),
        (LOG, AHEAD),
        (DOCUMENT, HEIRS),
        (SERVED, CLOSING),
        (WATCHED, CUT_OFF),
        (WATCHED, STORMY),
        (WATCHED, ROLLING),
        (WATCHED, BULKY),
        (WATCHED_RING, CUT_OFF),
        (STALLED, CALM),
        (FOREIGN, STORMY),
        (GUARDED, CALM),
        (DAMAGED, IMPATIENT),
        (DAMAGED_DOCUMENT, IMPATIENT),
    ],
    ids=lambda value: value.name,
)
def test_without_a_mistake_nothing_is_found(layout: Layout, weather: Profile) -> None:
    reports = [simulate(seed, profile=weather, layout=layout) for seed in range(1, 3)]
    assert [f"seed {r.seed}: {r.violated}: {r.detail}" for r in reports if not r.passed] == []
