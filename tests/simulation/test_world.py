"""The simulator repeats itself, and the queue survives it. That it finds mistakes is in `test_mistakes.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from simulation.world import BRUTAL, CALM, PROFILES, ROUGH, Invariant, Profile, Report, simulate
from simulation.world.layout import (
    CONVERTING,
    COPIED,
    DAMAGED,
    DOCUMENT,
    ERASED,
    FLEET,
    FOREIGN,
    GUARDED,
    LAYOUTS,
    LED,
    LED_RING,
    LOG,
    RING,
    SERVED,
    STALLED,
    WATCHED,
    Layout,
)
from simulation.world.onlooker import Effect
from simulation.world.profile import DISK, STEPS, Fault
from tests.simulation.mistakes import SHARDS_AWAY, TAKEOVER, VISITORS

ROOT = Path(__file__).parents[2]
CHUNK = 20
every_layout = pytest.mark.parametrize(
    "layout",
    [DOCUMENT, LOG, LED, RING, SERVED, FLEET, COPIED, CONVERTING, WATCHED, FOREIGN, GUARDED, DAMAGED, ERASED],
    ids=lambda layout: layout.name,
)


def chunks(seeds: Mapping[str, int]) -> list[Any]:
    return [
        pytest.param(LAYOUTS[name], range(start, min(start + CHUNK, count)), id=f"{name}-{start}")
        for name, count in seeds.items()
        for start in range(0, count, CHUNK)
    ]


def failures(reports: list[Report]) -> list[str]:
    return [f"seed {r.seed}, {r.profile}, {r.layout}: {r.violated}: {r.detail}" for r in reports if not r.passed]


# --- The same seed, the same world ---


@every_layout
def test_the_same_seed_gives_the_same_run(layout: Layout) -> None:
    first, second = simulate(11, profile=ROUGH, layout=layout), simulate(11, profile=ROUGH, layout=layout)
    assert first == second
    assert first.commits > 10
    assert simulate(12, profile=ROUGH, layout=layout).digest != first.digest


def test_the_same_seed_gives_the_same_run_in_another_process() -> None:
    """Where strings have other hashes: in seed 903 a ring asked its shards in the order of a set."""
    code = (
        "from simulation.world import BRUTAL, simulate\n"
        "from simulation.world.layout import LAYOUTS, RING\n"
        "from simulation.world.profile import DISK\n"
        "print(*(simulate(3, profile=BRUTAL, layout=layout, duration_s=6).digest for layout in LAYOUTS.values()))\n"
        "print(simulate(903, profile=DISK, layout=RING).digest)"
    )
    env = {**os.environ, "PYTHONHASHSEED": "3"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [
        *(simulate(3, profile=BRUTAL, layout=layout, duration_s=6).digest for layout in LAYOUTS.values()),
        simulate(903, profile=DISK, layout=RING).digest,
    ]


# --- The queue survives ---


SEEDS = {
    "document": 20,
    "log": 40,
    "led": 10,
    "led-document": 10,
    "ring": 6,
    "served": 8,
    "fleet": 4,
    "fleet-document": 4,
    "fleet-served": 3,
    "fleet-ring": 3,
    "copied": 3,
    "copied-document": 3,
    "copied-ring": 3,
    "converting": 5,
    "watched": 3,
    "watched-ring": 3,
    "stalled": 3,
    "foreign": 4,
    "guarded": 4,
    "moved": 4,
    "moved-document": 6,
    "moved-ring": 3,
    "damaged": 5,
    "damaged-document": 5,
    "mixed": 5,
    "mixed-document": 5,
    "mixed-watched": 3,
    "erased": 5,
    "erased-document": 5,
    "erased-watched": 3,
    "paced": 5,
    "paced-document": 3,
    "paced-served": 3,
    "budgeted": 5,
    "budgeted-served": 3,
}


@pytest.mark.parametrize(("layout", "seeds"), chunks(SEEDS))
def test_rough_weather_breaks_no_invariant(layout: Layout, seeds: range) -> None:
    assert failures(_run(seeds, ROUGH, layout)) == []


@pytest.mark.parametrize(("layout", "seeds"), chunks(SEEDS))
def test_brutal_weather_breaks_no_invariant(layout: Layout, seeds: range) -> None:
    assert failures(_run([1000 + seed for seed in seeds], BRUTAL, layout)) == []


@pytest.mark.long
@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_rings_survive_many_worlds(profile: Profile) -> None:
    assert failures(_run(range(5000, 5100), profile, RING)) == []


@every_layout
def test_calm_weather_breaks_no_invariant(layout: Layout) -> None:
    assert failures(_run(range(2000, 2003), CALM, layout)) == []


WORLDS = (
    (BRUTAL, DOCUMENT),
    (ROUGH, LOG),
    (ROUGH, LED),
    (CALM, RING),
    (ROUGH, SERVED),
    (CALM, LED_RING),
    (CALM, FLEET),
    (CALM, COPIED),
    (CALM, CONVERTING),
    (CALM, STALLED),
    (CALM, GUARDED),
    (CALM, DAMAGED),
    (DISK, LOG),
    (STEPS, LOG),
    (TAKEOVER, LED),
    (VISITORS, LOG),
    (SHARDS_AWAY, RING),
)
"""Between them they have everything."""


def test_every_invariant_comes_up() -> None:
    assert never_seen(set(Invariant), seeds=6) == set()


@pytest.mark.long
def test_every_fault_and_every_change_comes_up() -> None:
    assert never_seen({*Fault, *Effect}, seeds=60) == set()


def never_seen(missing: set[Any], seeds: int) -> set[Any]:
    for seed in range(3000, 3000 + seeds):
        for profile, layout in WORLDS:
            report = simulate(seed, profile=profile, layout=layout)
            missing -= {*report.faults, *report.effects, *report.checked}
            if not missing:
                return missing
    return missing


def _run(seeds: Iterable[int], profile: Profile, layout: Layout) -> list[Report]:
    return [simulate(seed, profile=profile, layout=layout) for seed in seeds]
