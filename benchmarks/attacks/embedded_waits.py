"""What an enqueue costs beside callers that wait, in one process and without a wire: 0, 1,000 and 64,000 of them, each
for an entrypoint or a zone of its own, and after they have left."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from casque import Queue

CALLERS = (0, 1_000, 64_000)
ENQUEUES = 300


async def enqueue_us(queue: Queue[bytes]) -> float:
    """The median."""
    took: list[float] = []
    for _ in range(ENQUEUES):
        began = time.perf_counter()
        await queue.enqueue("work", b"")
        took.append((time.perf_counter() - began) * 1e6)
    return sorted(took)[len(took) // 2]


async def measured(callers: int, what: str) -> tuple[float, float]:
    """While they wait, and after they have left."""
    async with Queue.open("memory://", layout="log") as queue:
        wishes: list[dict[str, Any]] = [
            {"entrypoint": f"never {n}"} if what == "entrypoints" else {"zone": f"zone {n}"} for n in range(callers)
        ]
        waiting = [asyncio.create_task(queue.dequeue(wait=600, **wish)) for wish in wishes]
        group: Any = queue._group
        while sum(1 for task in waiting if not task.done()) and group._pending:
            await asyncio.sleep(0)
        await asyncio.sleep(0.5)
        with_them = await enqueue_us(queue)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return with_them, await enqueue_us(queue)


async def run(most: int) -> None:
    for what in ("entrypoints", "zones"):
        alone, _ = await measured(0, what)
        for callers in [n for n in CALLERS if n <= most]:
            waiting, left = await measured(callers, what)
            print(
                f"{callers:>6,} callers, each for its own of the {what}: an enqueue takes {waiting:,.0f} µs "
                f"({waiting / alone:.1f}x), {left:,.0f} µs after they have left ({left / alone:.1f}x)",
                flush=True,
            )


def main(most: float = CALLERS[-1]) -> None:
    asyncio.run(run(int(most)))


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]))
