"""Work in the background."""

from __future__ import annotations

import asyncio
import gc

import pytest

from casque.tasks import Background


async def test_work_is_held_until_it_ends() -> None:
    background, gate, done = Background(), asyncio.Event(), []

    async def work() -> None:
        await gate.wait()
        done.append(1)

    background.start(work())
    gc.collect()
    assert len(background) == 1
    gate.set()
    await background.ended()
    assert done == [1]
    assert len(background) == 0


async def test_a_failure_ends_the_wait_and_is_the_callers() -> None:
    background = Background()

    async def work() -> None:
        raise ValueError("broken")

    task = background.start(work())
    await background.ended()
    with pytest.raises(ValueError, match="broken"):
        task.result()


async def test_a_cancelled_wait_does_not_cancel_the_work() -> None:
    background, gate = Background(), asyncio.Event()
    task = background.start(gate.wait())
    waiting = asyncio.create_task(background.ended())
    await asyncio.sleep(0)  # noqa: TID251
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.set()
    assert await task is True


async def test_work_that_takes_too_long_is_left_and_may_be_cancelled() -> None:
    background = Background()
    task = background.start(asyncio.Event().wait())
    await background.ended(0.001)
    assert not task.done()
    background.cancel()
    await background.ended()
    assert task.cancelled()
