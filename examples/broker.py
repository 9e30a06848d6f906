"""Two brokers in front of one queue, and a program that does not notice when the leader is stopped.

In production each broker is a process of its own, `casque serve URL --listen HOST:PORT`; here both run in this one.

    python examples/broker.py
"""

from __future__ import annotations

import asyncio
import tempfile
from datetime import timedelta

from casque import Queue
from casque.app import BrokerServer, ServeOptions
from casque.settings import BrokerSettings
from casque.transport.listening import Address

QUICK = BrokerSettings(
    heartbeat=timedelta(milliseconds=200), lease=timedelta(seconds=1), poll=timedelta(milliseconds=100)
)


async def main(url: str) -> None:
    first, second = [
        BrokerServer(ServeOptions(url=url, listen=Address.parse("127.0.0.1:0"), broker=QUICK)) for _ in range(2)
    ]
    await first.start()
    await second.start()
    print("the first broker is", first.standing().role, "and the second", second.standing().role)

    # The bucket says who leads; `grpc://host:port` would do as well.
    async with Queue.open(url, via="broker") as queue:
        for n in range(3):
            await queue.enqueue("greet", b"number %d" % n)

        waiting = asyncio.create_task(queue.dequeue("late", wait=30))
        await first.stop()  # finishes what it was asked, resigns, and the other takes over
        await queue.enqueue("late", b"through the second broker")
        [job] = await waiting
        print("still there:", job.payload.decode())
        await job.ack()

        for job in await queue.dequeue("greet", batch_size=10):
            print("hello", job.payload.decode())
            await job.ack(result=b"greeted")
        print("done:", (await queue.stats()).totals.done)
    await second.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(f"file://{directory}/queue"))
