"""`python -m casque.testing.chaos.worker ORDERS`: claims and finishes jobs, most of them as it should.

Some are failed on purpose, and some are kept so long that their lease runs out before they are finished: an ack that
comes too late must be refused.
"""

from __future__ import annotations

from casque.client.job import Job
from casque.client.queue import Queue
from casque.clock import Random, SystemClock
from casque.testing.chaos.actor import ENTRYPOINT, Orders, run, told
from casque.testing.chaos.diary import OK, TRY, Diary

WAIT_S = 2.0
BATCH_MAX = 4
WORK_S = 0.005
DAWDLES = 0.003
FAILS = 0.03
SHOWS_LIFE = 0.05

_CLOCK = SystemClock()


async def work(queue: Queue[bytes], diary: Diary, orders: Orders, rng: Random, _name: str) -> None:
    """One batch."""
    held: list[Job[bytes]] = []
    diary.write(TRY, "dequeue")
    batch_size = rng.randint(1, BATCH_MAX)
    if not await told(diary, "dequeue", _claim(queue, diary, orders, batch_size, held)):
        return
    for job in held:
        await _finish(job, diary, orders, rng)


async def _claim(queue: Queue[bytes], diary: Diary, orders: Orders, batch_size: int, held: list[Job[bytes]]) -> None:
    jobs = await queue.dequeue(ENTRYPOINT, batch_size=batch_size, wait=WAIT_S, lease=orders.job_lease_s)
    for job in jobs:
        diary.write(OK, "dequeue", job=job.id, token=job.token)
    held += jobs


async def _finish(job: Job[bytes], diary: Diary, orders: Orders, rng: Random) -> None:
    chance = rng.random()
    await _CLOCK.sleep(orders.job_lease_s * 1.5 if chance < DAWDLES else rng.expovariate(1 / WORK_S))
    if chance > 1 - SHOWS_LIFE:
        await told(diary, "heartbeat", job.heartbeat())
    verb = "nack" if rng.random() < FAILS else "ack"
    diary.write(TRY, verb, job=job.id, token=job.token)
    if await told(diary, verb, job.nack(delay=0.1) if verb == "nack" else job.ack()):
        diary.write(OK, verb, job=job.id, token=job.token)


if __name__ == "__main__":
    run(work)
