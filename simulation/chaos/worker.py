"""`python -m simulation.chaos.worker ORDERS`: claims and finishes jobs, most of them as it should.

Some are failed on purpose, some are given back, and some are kept so long that their lease runs out before they are
finished: an ack that comes too late must be refused. Now and then a whole zone is leased, and its jobs are claimed
under that lease. Some calls have a request id, and are asked again until there is an answer.
"""

from __future__ import annotations

from casque.client.job import Job
from casque.clock import Random, SystemClock
from simulation.chaos.actor import Orders, run
from simulation.chaos.caller import Caller

WAIT_S = 2.0
BATCH_MAX = 4
WORK_S = 0.005
DAWDLES = 0.003
FAILS = 0.03
FAILS_ONCE = 0.3
"""Of those that are dead then."""
GIVES_BACK = 0.03
SHOWS_LIFE = 0.05
LEASES_A_ZONE = 0.1
REPEATED_SHARE = 0.2

_CLOCK = SystemClock()


async def work(caller: Caller, orders: Orders, rng: Random, name: str) -> None:
    """One batch."""
    if rng.random() < LEASES_A_ZONE:
        await _consume_a_zone(caller, orders, rng, name)
        return
    batch_size, request = rng.randint(1, BATCH_MAX), f"{name} dequeue" if rng.random() < REPEATED_SHARE else None
    for job in await caller.dequeue(batch_size=batch_size, wait_s=WAIT_S, lease_s=orders.job_lease_s, request=request):
        await _finish(caller, job, orders, rng, name)


async def _consume_a_zone(caller: Caller, orders: Orders, rng: Random, name: str) -> None:
    lease = await caller.lease_zone(orders.job_lease_s)
    if lease is None:
        return
    jobs = await caller.dequeue(batch_size=BATCH_MAX, wait_s=0, lease_s=orders.job_lease_s, zone_lease=lease)
    for job in jobs:
        await _finish(caller, job, orders, rng, name)
    await caller.heartbeat_zone(lease)
    await caller.release_zone(lease)


async def _finish(caller: Caller, job: Job[bytes], orders: Orders, rng: Random, name: str) -> None:
    chance = rng.random()
    await _CLOCK.sleep(orders.job_lease_s * 1.5 if chance < DAWDLES else rng.expovariate(1 / WORK_S))
    if chance > 1 - SHOWS_LIFE:
        await caller.heartbeat(job)
    end, request = rng.random(), f"{name} {job.id}" if rng.random() < REPEATED_SHARE else None
    if end < GIVES_BACK:
        await caller.give_back(job)
        return
    settle = caller.nack if end > 1 - (FAILS_ONCE if job.max_attempts == 1 else FAILS) else caller.ack
    if request is None:
        await settle(job.id, job.token)
    else:
        await caller.insist(lambda: settle(job.id, job.token, request=request))


if __name__ == "__main__":
    run(work)
