"""Processes that are killed, frozen and stopped by the second, their clocks shifted, on local files and on a real S3
server: behind brokers, without any, and on a ring. Every call is recorded, and the record alone is checked.

`make chaos MINUTES=10` runs the same for longer.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rich.console import Console

from casque.clock import system_random
from simulation.chaos.command import Place
from simulation.chaos.display import show
from simulation.chaos.failover import CRASH_GRACE_S, Rehearsal, rehearse, show_times
from simulation.chaos.run import Chaos, Plan, Way
from tests.support.servers import Server

SECONDS = 10.0
SEED = int(os.environ.get("CASQUE_CHAOS_SEED", system_random().randrange(1_000_000)))


def on_files(request: pytest.FixtureRequest) -> Place:
    path: Path = request.getfixturevalue("tmp_path")
    return Place((path / "queue").as_uri(), {})


def on_s3(request: pytest.FixtureRequest) -> Place:
    server: Server = request.getfixturevalue("s3_server")
    return Place(server.fresh_url(), server.options)


@pytest.fixture(
    params=[
        pytest.param(on_files, id="files"),
        pytest.param(on_s3, id="s3", marks=[pytest.mark.xdist_group("s3"), pytest.mark.long]),
    ]
)
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.param(request)
    return found


@pytest.mark.parametrize(
    "way",
    [
        Way.BROKERS,
        Way.EMBEDDED,
        pytest.param(Way.RING, marks=pytest.mark.long),
        pytest.param(Way.EMBEDDED_RING, marks=pytest.mark.long),
    ],
    ids=lambda way: way.value,
)
async def test_one_order_explains_every_call_whichever_process_is_killed_or_stopped(
    tmp_path: Path, place: Place, way: Way
) -> None:
    print(f"\nCASQUE_CHAOS_SEED={SEED} repeats the faults, roughly")
    plan = Plan(
        url=place.url,
        options=place.options,
        folder=tmp_path / "records",
        way=way,
        clocks=way is not Way.BROKERS,  # with true clocks the log is followed as well
        seconds=SECONDS,
        rate=240,
        every_s=0.8,
        seed=SEED,
    )
    report = await Chaos(plan).run()
    show(report, Console(width=120))
    assert not report.problems
    assert report.jobs > 200
    assert report.calls > report.jobs
    assert {"admit", "cancel", "gate", "lease_zone", "retry"} <= report.succeeded.keys()
    if way is Way.BROKERS:
        assert report.leaders_hit > 0
        assert report.leaderships > 1
    assert sum(report.faults.values()) > SECONDS / 2


async def test_another_broker_answers_within_the_lease_and_two_seconds_of_a_crash(tmp_path: Path, place: Place) -> None:
    """A clean stop is promised to take about one poll, which is half a second: here it only has to be quicker than the
    lease and what a crash is allowed besides, because a machine that runs many tests at once keeps nobody's time."""
    rehearsal = Rehearsal(
        url=place.url,
        options=place.options,
        folder=tmp_path / "brokers",
        heartbeat_s=0.5,
        lease_s=2.0,
        rounds=3,
        freeze=False,
    )
    times = await rehearse(rehearsal)
    show_times(rehearsal, times, Console(width=120))
    assert len(times.crash_s) == len(times.resign_s) == rehearsal.rounds
    assert max(times.crash_s) <= rehearsal.lease_s + CRASH_GRACE_S
    assert max(times.resign_s) <= rehearsal.lease_s + CRASH_GRACE_S
