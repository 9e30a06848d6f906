"""A process that looks after the schedules of a queue, as a broker or with the queue open: run by the tests.

`python -m tests.acceptance.ticking broker|embedded URL`. It says `ready` and where it can be reached. What is a minute
elsewhere is a second here.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

from casque import Queue
from casque.app import BrokerServer, ServeOptions
from casque.engine import ticker
from casque.settings import BrokerSettings
from casque.transport.listening import Address

SECOND_MS = 1_000


class Seconds:
    """Stands in the place of `casque.cron.Cron`."""

    def next_after(self, ms: int) -> int:
        return (ms // SECOND_MS + 1) * SECOND_MS


async def lead(url: str) -> None:
    quick = BrokerSettings(heartbeat=timedelta(seconds=0.3), lease=timedelta(seconds=1.5), poll=timedelta(seconds=0.1))
    server = BrokerServer(ServeOptions(url=url, listen=Address.parse("127.0.0.1:0"), broker=quick))
    await server.start()
    print("ready", server.address, flush=True)
    await server.wait()


async def work(url: str) -> None:
    async with Queue.open(url) as queue:
        print("ready", "here", flush=True)
        while True:
            for job in await queue.dequeue("tick", wait=60):
                await job.ack()


if __name__ == "__main__":
    vars(ticker)["parse"] = lambda _expression, _tz: Seconds()
    asyncio.run({"broker": lead, "embedded": work}[sys.argv[1]](sys.argv[2]))
