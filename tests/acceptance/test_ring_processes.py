"""A ring that grows and shrinks under load, on local files, with real processes that are really killed."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from casque import Queue
from casque.client.opening import Parts, as_store
from casque.client.queue import DEFAULTS

ROOT = Path(__file__).parents[2]
LONG_S = 60.0


class Actor:
    """A process and what it said so far."""

    def __init__(self, *told: str) -> None:
        command = [sys.executable, "-W", "error", "-m", "tests.acceptance.ringing", *told]
        self._popen = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self.said: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            with self._news:
                self.said.append(line.strip())
                self._news.notify_all()

    def until(self, more: int) -> None:
        """Until it has said so much more."""
        with self._news:
            enough = len(self.said) + more
            assert self._news.wait_for(lambda: len(self.said) >= enough, LONG_S), "it fell silent"

    def kill(self) -> None:
        """As the machine would: it finishes nothing."""
        self._popen.kill()
        self._popen.wait()
        self._reader.join()
        assert self._popen.stdout is not None
        self._popen.stdout.close()


CREW = (("produce", "a"), ("produce", "b"), ("work", "c"), ("work", "d"))
RESIZERS = (("resize", "e"), ("resize", "f"))


@contextmanager
def actors(url: str, *via: str, crew: Sequence[tuple[str, str]] = CREW) -> Iterator[list[Actor]]:
    started = [Actor(kind, url, name, *via) for kind, name in crew]
    try:
        yield started
    finally:
        for actor in started:
            if actor._popen.poll() is None:
                actor.kill()


@pytest.mark.long
async def test_a_ring_is_resized_under_load_and_nothing_is_lost_or_done_twice(tmp_path: Path) -> None:
    url = (tmp_path / "queue").as_uri()
    parts = Parts(as_store(url), DEFAULTS)
    await parts.builder().create(2)
    with actors(url) as (a, b, c, d):
        for actor in (a, b, c, d):
            actor.until(10)
        for size, victim in ((4, a), (3, c), (1, None)):
            head = await parts.builder().resize(size)
            assert head.size == size
            if victim is not None:
                victim.kill()
            for actor in (b, d):
                actor.until(40)
        b.kill()
        d.until(1)
    await check_all_is_done(url, [a, b], [c, d])
    assert await overlaps(parts) == []


@pytest.mark.long
async def test_zones_run_empty_and_come_back_elsewhere_while_those_who_resize_are_killed(tmp_path: Path) -> None:
    url = (tmp_path / "queue").as_uri()
    parts = Parts(as_store(url), DEFAULTS)
    await parts.builder().create(2)
    with actors(url, crew=(*CREW, *RESIZERS)) as (a, b, c, d, e, f):
        for actor in (a, b, c, d):
            actor.until(10)
        e.until(3)
        e.kill()
        for actor in (a, b, d):
            actor.until(20)
        c.kill()
        f.until(3)
        a.kill()
        f.kill()
        for actor in (b, d):
            actor.until(20)
        b.kill()
    await check_all_is_done(url, [a, b], [c, d])
    told = await stays(parts)
    assert any(len({token for _, _, token in several}) > 1 for several in told.values()), "no zone has moved"
    assert await overlaps(parts) == []


async def check_all_is_done(url: str, producers: Sequence[Actor], workers: Sequence[Actor]) -> None:
    """Once, whoever was killed."""
    acknowledged = Counter(payload for one in producers for payload in one.said)
    async with Queue.open(url) as queue:
        while (totals := (await queue.stats()).totals).ready or totals.running:
            # What was claimed by the dead comes back when its lease runs out.
            await queue.settle(await queue.dequeue("task", batch_size=100, wait=5))

    done = Counter(job.payload.decode() for job in [job async for job in Queue.open(url).archive()])

    assert set(done.values()) == {1}, "a job was done twice"
    assert not acknowledged - done, "a job was lost"
    assert sum((done - acknowledged).values()) <= len(producers), "only what was under way when its producer was killed"
    assert {payload for one in workers for payload in one.said} <= set(done)


async def overlaps(parts: Parts) -> list[str]:
    """Zones that were in two shards at once, by the histories of the shards; one machine, one clock."""
    return [
        f"{zone} came to {other[2]} at {other[0]}, and left {one[2]} at {one[1]}"
        for zone, several in (await stays(parts)).items()
        for one, other in zip(sorted(several), sorted(several)[1:], strict=False)
        if one[2] != other[2] and other[0] < one[1]
    ]


async def stays(parts: Parts) -> dict[str, list[tuple[int, int, int]]]:
    """From when to when each zone was in which shards."""
    found: dict[str, list[tuple[int, int, int]]] = {}
    for token in range((await parts.root().read()).shards):
        jobs: dict[str, str] = {}
        here: Counter[str] = Counter()
        since: dict[str, int] = {}
        async for event in parts.shard(token).history().events(from_position=0, follow=False):
            at = round(event.at.timestamp() * 1000)
            if event.kind.value == "added":
                zone = jobs[str(event.job_id)] = str(event.fields["zone"])
                if not here[zone]:
                    since[zone] = at
                here[zone] += 1
            elif event.kind.value == "acked":
                zone = jobs[str(event.job_id)]
                here[zone] -= 1
                if not here[zone]:
                    found.setdefault(zone, []).append((since[zone], at, token))
    return found
