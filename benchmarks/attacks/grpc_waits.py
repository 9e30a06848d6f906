"""A caller with a token opens long polls for jobs that never come, and leaves: what an enqueue costs then.

Each waits for an entrypoint of its own. `waiting` is while they wait, `left` after all of them have gone.
"""

from __future__ import annotations

import asyncio
import sys
import time

from benchmarks.attacks.grpc_victim import victim
from casque.errors import CasqueError
from casque.transport.grpc.client import GrpcService
from casque.types import JobSpec

WAITS = 64_000
PER_CONNECTION = 8_000
ENQUEUES = 50
SETTLED_S = 3.0
"""The attacker is in this process, and has to clear up too."""


async def enqueue_ms(service: GrpcService, name: str) -> float:
    """The median."""
    took: list[float] = []
    for n in range(ENQUEUES):
        began = time.monotonic()
        await service.enqueue([JobSpec(f"{name} {n}", "work", b"")])
        took.append((time.monotonic() - began) * 1000)
    return sorted(took)[len(took) // 2]


async def run(waits: int) -> None:
    with victim() as attacked:
        bystander = GrpcService(attacked.address, token=attacked.token)
        alone_ms = await enqueue_ms(bystander, "alone")
        services = [GrpcService(attacked.address, token=attacked.token) for _ in range(0, waits, PER_CONNECTION)]
        waiting = [
            asyncio.create_task(services[n // PER_CONNECTION].dequeue(entrypoints=(f"never {n}",), limit=1, wait_s=240))
            for n in range(waits)
        ]
        await _begun(services)
        refused = sum(task.done() for task in waiting)
        waiting_ms = await enqueue_ms(bystander, "waiting")
        for task in waiting:
            task.cancel()
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        for service in services:
            await service.close()
        waiting.clear()
        await asyncio.sleep(SETTLED_S)
        left_ms = await enqueue_ms(bystander, "left")
        await bystander.close()
        kinds = sorted({type(one).__name__ for one in answers if isinstance(one, CasqueError)})
        print(
            f"waits: {waits:,} asked for, {refused:,} refused {kinds}; an enqueue takes {alone_ms:.1f} ms before, "
            f"{waiting_ms:.1f} ms while they wait ({waiting_ms / alone_ms:.1f}x), {left_ms:.1f} ms after all have left "
            f"({left_ms / alone_ms:.1f}x)"
        )


async def _begun(services: list[GrpcService]) -> None:
    """Until the broker has seen all of them: each connection is answered in the order in which it was asked."""
    for service in services:
        await service.stats()
    await asyncio.sleep(SETTLED_S)


def main(waits: float = WAITS) -> None:
    asyncio.run(run(int(waits)))


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]))
