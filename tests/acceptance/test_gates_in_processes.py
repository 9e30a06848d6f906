"""What is paused or drained stays so, though the broker that was told is really killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from casque import Gate, Queue, QueueDrainingError
from casque.client.opening import as_store
from tests.acceptance.fleet import addresses, kill_leader, processes


async def test_gates_hold_though_the_leader_is_killed(tmp_path: Path) -> None:
    url = (tmp_path / "queue").as_uri()
    store = as_store(url)
    with processes("broker", url, 2) as brokers:
        async with Queue.open(addresses(brokers)) as queue:
            kept = await queue.enqueue("paused", b"", priority=-1)  # the best there is, and nobody may have it
            await queue.enqueue("open", b"")
            await queue.pause("paused")
            await queue.drain("drained")
            await kill_leader(store, brokers)
            assert [job.entrypoint for job in await queue.dequeue(wait=30)] == ["open"]
            assert await queue.dequeue("paused") == []
            with pytest.raises(QueueDrainingError):
                await queue.enqueue("drained", b"")
            gates = (await queue.stats()).gates
            assert (gates.of("paused"), gates.of("drained"), gates.of(None)) == (Gate.PAUSED, Gate.DRAINING, Gate.OPEN)

            await queue.resume("paused")
            await queue.resume("drained")
            assert [job.id for job in await queue.dequeue("paused")] == [kept.id]
            await queue.enqueue("drained", b"")
    await store.close()
