"""`python -m casque.testing.chaos.producer ORDERS`: enqueues at a steady pace, and writes down what is acknowledged."""

from __future__ import annotations

from casque.client.queue import NewJob, Queue
from casque.clock import Random, SystemClock
from casque.testing.chaos.actor import ENTRYPOINT, Orders, run, told
from casque.testing.chaos.diary import OK, TRY, Diary

BULK_SHARE = 0.2
BULK_MAX = 8
ATTEMPTS = 1_000
"""Workers are killed often: no job is to die of that here, or its end would be another one than was asked for."""

_CLOCK = SystemClock()


async def produce(queue: Queue[bytes], diary: Diary, orders: Orders, rng: Random, name: str) -> None:
    """One call: a job, or a few in one commit. Then a pause, unless the call took so long that there is none due."""
    count = rng.randint(2, BULK_MAX) if rng.random() < BULK_SHARE else 1
    payloads = [f"{name}/{number}" for number in range(count)]
    began_ms = diary.now_ms()
    for payload in payloads:
        diary.write(TRY, "enqueue", payload=payload)
    await told(diary, "enqueue", _enqueue(queue, diary, payloads, began_ms))
    left_s = count / orders.per_second - (diary.now_ms() - began_ms) / 1000
    if left_s > 0:
        await _CLOCK.sleep(left_s)


async def _enqueue(queue: Queue[bytes], diary: Diary, payloads: list[str], began_ms: int) -> None:
    new = [NewJob(ENTRYPOINT, payload.encode(), max_attempts=ATTEMPTS) for payload in payloads]
    jobs = await queue.enqueue_many(new)
    for job in jobs:
        diary.write(OK, "enqueue", payload=job.payload.decode(), job=job.id, took_ms=diary.now_ms() - began_ms)


if __name__ == "__main__":
    run(produce)
