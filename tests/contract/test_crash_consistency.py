"""The power fails, at every step: what was acknowledged is there afterwards, and the queue opens.

The steps of a queue on local files are recorded: writes, links, renames, deletions and syncs, some of which fail. Then
each prefix of them is rebuilt, without those that were not synced, or with some of them, and opened again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from casque import Queue
from casque.clock import Random, SystemClock
from casque.errors import CasqueError
from casque.storage import files, local
from casque.storage.port import LOST, Unknown
from tests.contract.recorded_disk import Recorder

PATIENCE = timedelta(seconds=20)
WORDS = ("added", "claimed", "done")
Mutation = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Run:
    layout: str
    refuse: float


RUNS = [Run("log", 0.0), Run("log", 0.4), Run("document", 0.0), Run("document", 0.4)]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.layout}-{run.refuse}")
async def test_nothing_acknowledged_is_lost_when_the_power_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    disk = await _record(tmp_path, monkeypatch, run, jobs=8)

    assert (disk.failed > 0) == (run.refuse > 0)
    assert await _losses(disk, tmp_path, monkeypatch, crashes=100) == []


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.layout}-{run.refuse}")
async def test_nothing_acknowledged_is_lost_at_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, seed: int
) -> None:
    disk = await _record(tmp_path, monkeypatch, run, jobs=30, seed=seed)

    assert await _losses(disk, tmp_path, monkeypatch, crashes=1500) == []


async def _record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, *, jobs: int, seed: int = 1) -> Recorder:
    """Two processes, as far as files can tell, that add, claim and finish jobs of one queue."""
    disk = Recorder(str(tmp_path), Random(seed), refuse=run.refuse)
    sleep = SystemClock.sleep
    with monkeypatch.context() as patch, disk.recording(monkeypatch):
        # A disk that fails is tried again after a while, and the test need not wait for that.
        patch.setattr(SystemClock, "sleep", lambda clock, seconds: sleep(clock, min(seconds, 0.001)))
        url = (tmp_path / "q").as_uri()
        async with (
            Queue.open(url, layout=run.layout, storage_patience=PATIENCE) as one,
            Queue.open(url, layout=run.layout, storage_patience=PATIENCE) as other,
        ):
            for n in range(jobs):
                job = await (one, other)[n % 2].enqueue("work", b"payload")
                disk.acknowledge(f"added {job.id}")
                if n % 3 == 2:
                    [claimed] = await (one, other)[n // 3 % 2].dequeue()
                    disk.acknowledge(f"claimed {claimed.id}")
                    await claimed.ack()
                    disk.acknowledge(f"done {claimed.id}")
    return disk


async def _losses(disk: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, crashes: int) -> list[str]:
    lost = []
    steps = len(disk.steps)
    monkeypatch.setattr(os, "fsync", lambda _fd: None)  # this disk is not the one that fails
    for n in range(crashes):
        at = steps * n // crashes + 1
        target = tmp_path / f"crash-{n}"
        acknowledged = disk.crash(at, (0.0, 0.5, 1.0)[n % 3], target)
        lost += [f"after step {at} of {steps}: {loss}" for loss in await _missing(target, acknowledged)]
    return lost


async def _missing(target: Path, acknowledged: list[str]) -> list[str]:
    try:
        async with Queue.open((target / "q").as_uri()) as queue:
            there = {job.id for job in await queue.jobs()}
            await queue.enqueue("work", b"after the crash")
    except CasqueError as error:
        return [f"the queue does not open: {error}"]
    said = {word: {what.split()[1] for what in acknowledged if what.startswith(word)} for word in WORDS}
    # One that is claimed may be finished already; only nobody has heard of it.
    gone = said["added"] - said["claimed"] - there
    return [f"{job} is gone" for job in gone] + [f"{job} is back" for job in said["done"] & there]


# --- Mistakes that the run must find ---


def names_believed_before_they_are_synced(patch: pytest.MonkeyPatch) -> None:
    """The mark of a name that is not synced is not looked at: what was made visible counts as durable."""
    opened = local._Open.__init__

    def believing(self: local._Open, fd: int) -> None:
        opened(self, fd)
        self.settled = True

    patch.setattr(local._Open, "__init__", believing)
    patch.setattr(local.LocalStore, "_lost", lambda *_: LOST)
    patch.setattr(local, "is_in_doubt", lambda _directory: False)


def marks_taken_away_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    def hasty(self: local.LocalStore, parts: local._Parts, path: str, temp: files.Temp) -> Unknown | None:
        temp.settle()
        try:
            files.sync_directory(str(Path(path).parent))
        except OSError as error:
            return Unknown(error)
        return None

    patch.setattr(local.LocalStore, "_settled", hasty)
    patch.setattr(local, "is_in_doubt", lambda _directory: False)


def directories_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(local, "sync_directory", lambda _path: None)


def files_not_synced(patch: pytest.MonkeyPatch) -> None:
    def careless(self: files.Temp, body: bytes, *, mode: int | None = None) -> None:
        os.write(self.fd, body)

    patch.setattr(files.Temp, "write", careless)


def new_directories_not_synced(patch: pytest.MonkeyPatch) -> None:
    def careless(directory: Path, *, root: Path, modes: files.Modes) -> None:
        directory.mkdir(parents=True, exist_ok=True)

    patch.setattr(local, "make_durable", careless)


@pytest.mark.parametrize(
    ("mutation", "run"),
    [
        (names_believed_before_they_are_synced, Run("log", 0.4)),
        (names_believed_before_they_are_synced, Run("document", 0.4)),
        (marks_taken_away_before_the_sync, Run("log", 0.4)),
        (marks_taken_away_before_the_sync, Run("document", 0.4)),
        (directories_not_synced, Run("log", 0.0)),
        (files_not_synced, Run("document", 0.0)),
        (new_directories_not_synced, Run("log", 0.0)),
    ],
    ids=lambda value: value.layout if isinstance(value, Run) else value.__name__,
)
async def test_the_run_finds_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutation: Mutation, run: Run
) -> None:
    with monkeypatch.context() as patch:
        mutation(patch)
        disk = await _record(tmp_path, patch, run, jobs=8)

    assert await _losses(disk, tmp_path, monkeypatch, crashes=60) != []
