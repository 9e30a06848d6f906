"""A worker inside a program: handlers for bytes, with retries, a timeout, a thread, and a payload that never fits.

`casque worker module:app` runs such handlers as a process of its own, until it is told to stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from casque import InvalidPayloadError, JobState, Queue
from casque.worker import Handler, JobContext, Retry, Worker


async def charge(payload: bytes, context: JobContext) -> bytes:
    """Returns the job's result. The first attempt fails, and the job waits as its `Retry` says."""
    if not payload.isdigit():
        raise InvalidPayloadError(context.entrypoint, f"{payload!r} is no amount")
    if context.attempt == 1:
        raise ConnectionError("the bank does not answer")
    print("charged", payload.decode(), "on attempt", context.attempt)
    return b"receipt " + payload


def thumbnail(payload: bytes, context: JobContext) -> None:
    """A plain function, which would hold up the loop: it runs in a thread."""
    print("made a thumbnail of", payload.decode(), "on attempt", context.attempt)


class Shop:
    """Where the queue is, and who works on what: all that a worker needs."""

    def __init__(self, url: str) -> None:
        self.url = url

    opening: Mapping[str, Any] = {}
    handlers: Mapping[str, Handler] = {
        "charge": Handler("charge", charge, timeout_s=10, retry=Retry(max_attempts=5, delays_s=(0,))),
        "thumbnail": Handler("thumbnail", thumbnail, is_async=False, executor="thread"),
    }


async def main(shop: Shop) -> None:
    async with Queue.open(shop.url) as queue:
        await queue.enqueue_many(
            [("charge", b"100"), ("charge", b"a lot"), ("thumbnail", b"cat.png"), ("fax", b"hello")]
        )

    summary = await Worker(shop, concurrency=4, burst=True).run()
    print(f"{summary.done} done, {summary.failed} failed attempts")

    async with Queue.open(shop.url) as queue:
        [dead] = await queue.jobs(states=[JobState.DEAD])
        print("dead:", dead.last_error)
        [waiting] = await queue.jobs(states=[JobState.READY])
        print("left alone:", waiting.entrypoint)


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        asyncio.run(main(Shop(Path(place).as_uri())))
