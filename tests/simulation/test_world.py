"""The simulator: it repeats itself, the queue survives it, and it finds mistakes that are made on purpose."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from casque.testing.world import BRUTAL, CALM, ROUGH, Invariant, Profile, Report, simulate
from casque.testing.world.layout import LOG
from casque.testing.world.profile import Fault
from tests.simulation import mutations
from tests.simulation.mutations import Mutation

CHUNK = 20
STORMY = replace(ROUGH, name="stormy", every_s={**ROUGH.every_s, Fault.OUTAGE: 4.0})
"""With outages long enough for callers to be told of them."""


def failures(reports: list[Report]) -> list[str]:
    return [f"seed {r.seed}, {r.profile}: {r.violated}: {r.detail}" for r in reports if not r.passed]


# --- The same seed, the same world ---


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = simulate(11, profile=BRUTAL), simulate(11, profile=BRUTAL)
    assert first == second
    assert first.commits > 10
    assert simulate(12, profile=BRUTAL).digest != first.digest


def test_the_same_seed_gives_the_same_run_in_another_process() -> None:
    code = (
        "from casque.testing.world import BRUTAL, simulate\n"
        "print(*(simulate(seed, profile=BRUTAL).digest for seed in (3, 4)))"
    )
    env = {**os.environ, "PYTHONHASHSEED": "4711"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [simulate(seed, profile=BRUTAL).digest for seed in (3, 4)]


# --- The queue survives ---


@pytest.mark.parametrize("start", range(0, 160, CHUNK))
def test_rough_weather_breaks_no_invariant(start: int) -> None:
    assert failures([simulate(seed, profile=ROUGH) for seed in range(start, start + CHUNK)]) == []


@pytest.mark.parametrize("start", range(1000, 1120, CHUNK))
def test_brutal_weather_breaks_no_invariant(start: int) -> None:
    assert failures([simulate(seed, profile=BRUTAL) for seed in range(start, start + CHUNK)]) == []


def test_calm_weather_breaks_no_invariant() -> None:
    assert failures([simulate(seed, profile=CALM) for seed in range(2000, 2000 + CHUNK)]) == []


@pytest.mark.parametrize("profile", [ROUGH, BRUTAL], ids=lambda profile: profile.name)
@pytest.mark.parametrize("start", [4000, 4000 + CHUNK])
def test_the_log_survives_with_snapshots_all_the_time(
    start: int, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("casque.journal.log.SNAPSHOT_SEGMENTS", 8)
    assert failures([simulate(seed, profile=profile, layout=LOG) for seed in range(start, start + CHUNK)]) == []


def test_every_kind_of_fault_and_every_invariant_comes_up() -> None:
    reports = [simulate(seed, profile=BRUTAL) for seed in range(3000, 3000 + CHUNK)]
    assert {name for report in reports for name in report.faults} == {fault.value for fault in Fault}
    checked = {name for report in reports for name in report.checked}
    assert checked == {invariant.value for invariant in Invariant}


# --- It finds mistakes ---


@pytest.mark.parametrize(
    ("mutation", "invariant", "seeds"),
    [
        (mutations.ack_without_token_check, Invariant.TOKENS, range(1, 20)),
        (mutations.first_write_overwrites, Invariant.ONE_HISTORY, range(1, 20)),
        (mutations.request_ids_not_remembered, Invariant.ONE_EFFECT, range(1, 20)),
        (mutations.leases_judged_by_wall_clocks, Invariant.LEASE, range(1, 20)),
        (mutations.unknown_taken_for_failed, Invariant.ABSENT, range(1, 20)),
        (mutations.own_writes_not_recognised, Invariant.ABSENT, range(1, 20)),
        (mutations.failed_batches_not_rolled_back, Invariant.ABSENT, range(1, 20)),
        (mutations.claims_not_given_back, Invariant.GIVEN_BACK, range(1, 10)),
        (mutations.answered_before_it_landed, Invariant.DURABLE, range(1, 5)),
        (mutations.leases_never_run_out, Invariant.LIVE, range(1, 5)),
        (mutations.priorities_ignored, Invariant.ORDER, range(1, 10)),
        (mutations.heartbeats_not_written, Invariant.SAME_STATE, range(1, 20)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_mistake_is_found(
    mutation: Mutation, invariant: Invariant, seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    assert any(simulate(seed, profile=STORMY).violated is invariant for seed in seeds)


# --- What it found: each seed failed once ---


@pytest.mark.parametrize(
    ("seed", "profile"),
    [
        pytest.param(
            7,
            replace(ROUGH, startled=False),
            id="give back",
        ),
        pytest.param(
            15,
            CALM,
            id="cancelled answer",
        ),
        pytest.param(
            113,
            replace(CALM, every_s={Fault.OUTAGE: 5.0}, startled=False),
            id="failed give-back",
        ),
        pytest.param(
            28,
            replace(BRUTAL, startled=False),
            id="hidden retry",
        ),
        pytest.param(
            69,
            replace(ROUGH, skew_s=1200.0, every_s={Fault.CLOCK_JUMP: 3.0, Fault.CRASH: 8.0}, startled=False),
            id="forgotten request",
        ),
    ],
)
def test_what_was_found_and_mended_stays_mended(seed: int, profile: Profile) -> None:
    assert failures([simulate(seed, profile=profile)]) == []


def test_a_log_whose_head_cannot_be_read_after_a_win_does_not_report_failure() -> None:
    assert failures([simulate(14, profile=replace(BRUTAL, startled=False), layout=LOG)]) == []
