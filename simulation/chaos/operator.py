"""`python -m simulation.chaos.operator ORDERS`: looks at jobs, and cancels some of its own."""

from __future__ import annotations

from casque.clock import Random, SystemClock
from simulation.chaos.actor import Orders, run
from simulation.chaos.caller import Caller
from simulation.history.call import Wish

CANCELS = 0.3
LOOKS = 3

_CLOCK = SystemClock()


async def operate(caller: Caller, orders: Orders, rng: Random, name: str) -> None:
    """A job of its own, looked at a few times while others may claim and finish it, and perhaps cancelled."""
    await caller.enqueue([Wish(name, once=rng.random() < 0.3)])
    if caller.known and rng.random() < CANCELS:
        job = rng.choice(caller.known[-3:])
        await caller.insist(lambda: caller.cancel(job, request=f"{name} cancel"))
    for _ in range(LOOKS):
        if caller.known:
            await caller.find(rng.choice(caller.known[-5:]))
    await _CLOCK.sleep(1 / orders.per_second)


if __name__ == "__main__":
    run(operate)
