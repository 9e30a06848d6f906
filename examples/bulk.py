"""Jobs from many processes, in one commit: each stages its share, one call admits them all, once."""

from __future__ import annotations

import asyncio
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from casque import Queue
from casque.client.staging import StagedJobs, StagedPart, Stager

USERS = 1_000
SHARES = 4


def stage(url: str, share: int) -> list[StagedPart]:
    """What one of many machines does. Run twice, it stages twice, and only what is named counts."""
    users = range(share, USERS, SHARES)
    with Stager(url, txn=f"newsletter-{share}") as stager:
        return stager.stage_all(
            StagedJobs(
                ids=[f"newsletter-7-{user}" for user in users],
                entrypoints="send",
                payloads=[f"user {user}".encode() for user in users],
                headers={"campaign": "7"},
            )
        )


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        url = f"file://{directory}/queue"
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            shares = pool.map(stage, [url] * SHARES, range(SHARES))
            parts = [part for share in shares for part in share]
        async with Queue.open(url) as q:
            print("staged:", sum(part.jobs for part in parts), "in the queue:", (await q.stats()).totals.enqueued)
            print("admitted:", (await q.admit("newsletter", 7, parts)).jobs)
            again = await q.admit("newsletter", 7, parts)
            print("again:", "nothing happened" if again.repeated else "twice!")
            print("in the queue:", (await q.stats()).totals.enqueued)


if __name__ == "__main__":
    asyncio.run(main())
