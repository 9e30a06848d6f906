"""Brokers of a ring as real processes on local files: one joins, one is killed, one stops, and the ring grows."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from casque import Queue
from casque.client.connecting import through_brokers
from casque.client.opening import Parts, as_store
from casque.client.queue import DEFAULTS
from tests.acceptance.test_ring_processes import LONG_S, ROOT, actors, overlaps

NEWS = threading.Condition()
"""One of the brokers has said something."""
LEADS = re.compile(r"leads (\d+) of (\d+) shards")


class BrokerProcess:
    """`casque serve` on a ring, and what it said last of its share."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, "-W", "error", "-m", "casque.cli", "serve", url, "--listen", "127.0.0.1:0"]
        command += ["--no-http", "--heartbeat", "0.5", "--lease", "3"]
        self._popen = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self.leads = (0, 0)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            if (found := LEADS.search(line)) is not None:
                with NEWS:
                    self.leads = int(found[1]), int(found[2])
                    NEWS.notify_all()

    def kill(self) -> None:
        self._popen.kill()
        self._over()

    def stop(self) -> int:
        self._popen.terminate()
        return self._over()

    def _over(self) -> int:
        code = self._popen.wait(LONG_S)
        self._reader.join()
        assert self._popen.stdout is not None
        self._popen.stdout.close()
        return code

    @property
    def runs(self) -> bool:
        return self._popen.poll() is None


@contextmanager
def brokers(url: str, count: int) -> Iterator[list[BrokerProcess]]:
    started = [BrokerProcess(url) for _ in range(count)]
    try:
        yield started
    finally:
        for one in started:
            if one.runs:
                one.kill()


def shared(brokers: Sequence[BrokerProcess], shards: int) -> None:
    """Until they share the shards evenly."""
    few, more = divmod(shards, len(brokers))
    shares = [(few + (n >= len(brokers) - more), shards) for n in range(len(brokers))]
    with NEWS:
        evenly = NEWS.wait_for(lambda: sorted(one.leads for one in brokers) == shares, LONG_S)
        assert evenly, [one.leads for one in brokers]


@pytest.mark.long
async def test_brokers_come_and_go_while_a_ring_works_and_nothing_is_lost_or_done_twice(tmp_path: Path) -> None:
    url = (tmp_path / "queue").as_uri()
    parts = Parts(as_store(url), DEFAULTS)
    await parts.builder().create(8)
    with brokers(url, 3) as serving:
        shared(serving, 8)
        with actors(url, "broker") as (a, b, c, d):
            for actor in (a, b, c, d):
                actor.until(20)

            serving.append(BrokerProcess(url))
            shared(serving, 8)
            for actor in (a, b, c, d):
                actor.until(20)

            serving.pop(0).kill()
            shared(serving, 8)
            for actor in (a, b, c, d):
                actor.until(20)

            await parts.builder(through_brokers(parts)).resize(12)
            shared(serving, 12)
            for actor in (a, b, c, d):
                actor.until(40)

            assert serving.pop(0).stop() == 0
            shared(serving, 12)
            for actor in (a, b, c, d):
                actor.until(20)

            a.kill()
            b.kill()
            d.until(1)
        assert [one.stop() for one in serving] == [0, 0]
    acknowledged = Counter(a.said + b.said)
    async with Queue.open(url) as queue:
        while (totals := (await queue.stats()).totals).ready or totals.running:
            # What was claimed by the dead comes back when its lease runs out.
            await queue.settle(await queue.dequeue("task", batch_size=100, wait=5))

    done = Counter(job.payload.decode() for job in [job async for job in Queue.open(url).archive()])

    assert set(done.values()) == {1}, "a job was done twice"
    assert not acknowledged - done, "a job was lost"
    assert sum((done - acknowledged).values()) <= 2, "only what was under way when its producer was killed"
    assert set(c.said + d.said) <= set(done)
    assert await overlaps(parts) == []
