"""What is in a queue, asked in plain Python and without Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from casque import Job, Queue
from casque.storage.url import open_store


def jobs_in(url: str, options: Mapping[str, str] | None = None, *, via: str | None = None) -> list[Job[bytes]]:
    async def look() -> list[Job[bytes]]:
        async with Queue.open(url, options=options, via=via) as queue:
            return await queue.jobs()

    return asyncio.run(look())


def payloads_in(url: str, options: Mapping[str, str] | None = None, *, via: str | None = None) -> list[bytes]:
    """Sorted, so that one that is there twice is seen."""
    return sorted(job.payload for job in jobs_in(url, options, via=via))


def commits_in(url: str, options: Mapping[str, str] | None = None) -> list[str]:
    """What the log says happened, in order, by kind."""

    async def look() -> list[str]:
        feed = Queue.open(url, options=options).events(from_position=0, follow=False)
        return [event.kind.value async for event in feed]

    return asyncio.run(look())


def keys_in(url: str, prefix: str, options: Mapping[str, str] | None = None) -> list[str]:
    async def look() -> list[str]:
        store = open_store(url, options=options)
        try:
            return [key async for key in store.list(prefix)]
        finally:
            await store.close()

    return asyncio.run(look())


def is_untouched(url: str) -> bool:
    path = Path(urlsplit(url).path)
    return not path.exists() or not any(path.iterdir())
