"""Gates: one entrypoint is paused and resumed, then the whole queue takes nothing more and runs empty."""

from __future__ import annotations

import asyncio

from casque import Queue, QueueDrainingError


async def main() -> None:
    async with Queue.open("memory://gates-example") as queue:
        await queue.enqueue_many([("mail", b"1"), ("mail", b"2"), ("report", b"3")])

        await queue.pause("mail")
        claimed = await queue.dequeue(batch_size=10)
        print("while mail is paused:", [job.entrypoint for job in claimed])
        await queue.settle(claimed)

        await queue.resume("mail")
        await queue.drain()
        try:
            await queue.enqueue("mail", b"4")
        except QueueDrainingError as error:
            print("refused:", str(error).partition(":")[0])

        while jobs := await queue.dequeue(batch_size=10):
            print("drained:", [job.payload.decode() for job in jobs])
            await queue.settle(jobs)
        totals = (await queue.stats()).totals
        print(f"{totals.done} done, {totals.ready} left")


if __name__ == "__main__":
    asyncio.run(main())
