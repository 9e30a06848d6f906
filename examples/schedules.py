"""Jobs that are due again and again: declared on a function, kept in the queue, one job for each tick."""

from __future__ import annotations

import asyncio

import casque
from casque import JobContext
from casque.testing import ManualClock, in_memory

app = casque.App("memory://schedules")


@app.cron("0 7 * * mon-fri", tz="Europe/Berlin", name="morning", arguments={"to": "ada"})
@app.cron("*/20 * * * *", name="often", missed="skip", arguments={"to": "bob"})
@app.job()
async def remind(context: JobContext, to: str) -> None:
    print("remind", to, "of", context.headers["casque-tick"])


async def main() -> None:
    # A worker tells the queue of them. Here a test does, with a clock that it moves: it is a Monday, 05:50 in UTC.
    async with in_memory(app, clock=ManualClock(1_771_221_000_000)) as (queue, clock):
        for schedule in await queue.schedules():
            print(schedule.name, "is next due at", f"{schedule.next_at:%a %H:%M}")
        await clock.advance(25 * 60)
        for job in await queue.dequeue("remind", batch_size=10):
            print(job.id)
            await job.ack()

        # By hand, beside all ticks; and not at all for a while.
        await app.trigger("morning")
        [triggered] = await queue.jobs()
        print("triggered:", triggered.headers)
        await queue.pause_schedule("often")
        await clock.advance(24 * 3600)
        print("a day later:", [job.id for job in await queue.jobs()][1:])


if __name__ == "__main__":
    asyncio.run(main())
