"""Real processes on real files and a real S3 server: killed at random by the hundred, or sharing one queue."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from casque.clock import Random, SystemClock
from casque.codec.log import decode_head
from casque.storage.port import Store, Stored
from casque.storage.url import open_store
from tests.acceptance.actors import Actor, Ledger
from tests.support.servers import Server

KILLS = int(os.environ.get("CASQUE_KILLS", "100"))
STOPS = max(5, KILLS // 40)


class Place(NamedTuple):
    """Where the queue is."""

    url: str
    options: Mapping[str, str] | None = None
    kills: int = KILLS


def on_files(request: pytest.FixtureRequest) -> Place:
    path: Path = request.getfixturevalue("tmp_path")
    return Place((path / "queue").as_uri())


def on_s3(request: pytest.FixtureRequest) -> Place:
    server: Server = request.getfixturevalue("s3_server")
    return Place(server.fresh_url(), server.options, KILLS // 2)


@pytest.fixture(
    params=[
        pytest.param(on_files, id="files"),
        pytest.param(on_s3, id="s3", marks=pytest.mark.xdist_group("s3")),
    ]
)
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.param(request)
    return found


@pytest.mark.parametrize("layout", ["document", "log"])
async def test_whatever_was_acknowledged_survives_hundreds_of_kills(tmp_path: Path, place: Place, layout: str) -> None:
    rng = Random(20261115)
    logs = tmp_path / "logs"
    logs.mkdir()
    started = 0
    actors: list[Any] = []

    def start() -> None:
        nonlocal started
        name = f"a{started}"
        started += 1
        process = Actor(place.url, logs / f"{name}.log", name, layout, None, 0.5, place.options).process()
        process.start()
        actors.append(process)

    for _ in range(3):
        start()
    for _ in range(place.kills):
        victim = actors.pop(rng.randrange(len(actors)))
        # Anywhere between its first line and some dozens later: within a claim, a write, a rename, an answer.
        await wait_for_lines(logs / f"{victim.name}.log", rng.randint(1, 40), victim)
        os.kill(victim.pid, signal.SIGKILL)
        victim.join()
        assert victim.exitcode == -signal.SIGKILL, "it ended by itself"
        start()
    for actor in actors:
        os.kill(actor.pid, signal.SIGKILL)
        actor.join()

    ledger = Ledger.read(logs)
    await ledger.hold_to_account(place.url, place.options)
    assert ledger.told["enqueue"] > place.kills
    assert ledger.told["ack"] > 10


@pytest.mark.parametrize("layout", ["document", "log"])
async def test_eight_processes_share_one_queue_and_nothing_is_lost_or_claimed_twice(
    tmp_path: Path, place: Place, layout: str
) -> None:
    actors = [
        Actor(place.url, tmp_path / f"p{n}.log", f"p{n}", layout, 40, 300, place.options).process() for n in range(8)
    ]
    for actor in actors:
        actor.start()
    for actor in actors:
        actor.join()
    assert [actor.exitcode for actor in actors] == [0] * 8
    ledger = Ledger.read(tmp_path)
    assert not ledger.refused
    # No lease ran out, so a job was claimed again only if it had been given back.
    again = len(ledger.claims) - len({job for job, _ in ledger.claims})
    assert again <= ledger.told["nack"]
    await ledger.hold_to_account(place.url, place.options)


async def test_a_process_that_slept_while_its_slots_were_collected_loses_nothing_and_doubles_nothing(
    tmp_path: Path, place: Place
) -> None:
    rng = Random(20261116)
    store = open_store(place.url, options=place.options)
    actors = [
        Actor(place.url, tmp_path / f"s{n}.log", f"s{n}", "log", None, 0.5, place.options).process() for n in range(3)
    ]
    for actor in actors:
        actor.start()
    slept_long = 0
    for _ in range(STOPS * 4):
        if slept_long == STOPS:
            break
        sleeper = rng.choice(actors)
        written = lines_in(tmp_path / f"{sleeper.name}.log")
        await wait_for_lines(tmp_path / f"{sleeper.name}.log", written + rng.randint(1, 20), sleeper)
        os.kill(sleeper.pid, signal.SIGSTOP)
        # Wherever it stands, the slot it would try next is collected, or holds a fence.
        slept_long += await collected(store, 100)
        os.kill(sleeper.pid, signal.SIGCONT)
    for actor in actors:
        assert actor.is_alive(), f"{actor.name} ended by itself with {actor.exitcode}"
        os.kill(actor.pid, signal.SIGKILL)
        actor.join()
    await store.close()

    ledger = Ledger.read(tmp_path)
    await ledger.hold_to_account(place.url, place.options)
    assert ledger.told["ack"] > 10
    assert slept_long, "each time it was stopped it held the lock of the head"


async def collected(store: Store, segments: int) -> bool:
    """Until so many more are. False if the floor stands still: on files a sleeper may hold the lock of the head."""
    clock = SystemClock()
    floor = await floor_of(store)
    wanted, rose_ms = floor + segments, clock.monotonic_ms()
    while floor < wanted:
        await clock.sleep(0.01)
        if (now := await floor_of(store)) > floor:
            floor, rose_ms = now, clock.monotonic_ms()
        elif clock.monotonic_ms() > rose_ms + 3_000:
            return False
    return True


async def floor_of(store: Store) -> int:
    read = await store.get("queue.json")
    return decode_head("queue.json", read.body).floor if isinstance(read, Stored) else 0


async def wait_for_lines(path: Path, wanted: int, process: Any) -> None:
    """Until the log has so many lines; the process must be alive to write them."""
    clock = SystemClock()
    deadline_ms = clock.monotonic_ms() + 60_000
    while lines_in(path) < wanted:
        assert process.is_alive(), f"{process.name} ended by itself with {process.exitcode}"
        if clock.monotonic_ms() > deadline_ms:
            pytest.fail(f"{process.name} wrote nothing for a minute")
        await clock.sleep(0.001)


def lines_in(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
