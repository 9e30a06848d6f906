"""`python -m simulation.chaos.steward ORDERS`: what is done to a queue as a whole: a gate is closed and opened, the
dead are retried, and a ring is resized. Each of its lanes does one of these."""

from __future__ import annotations

from functools import partial

from casque.clock import Random, SystemClock
from simulation.chaos.actor import Orders, run
from simulation.chaos.caller import Caller

CLOSED_S = 1.0
OPEN_S = 1.0
RETRIES = 3
RETRY_S = 0.3
RESIZE_S = 4.0

_CLOCK = SystemClock()


async def look_after(caller: Caller, orders: Orders, rng: Random, name: str) -> None:
    lane = int(name.partition("/")[0].rpartition(".")[2])
    if lane == 0:
        await _close_and_open(caller, rng, name)
    elif lane == 1:
        await _retry_the_dead(caller, rng, name)
    else:
        await _CLOCK.sleep(RESIZE_S * rng.uniform(0.5, 1.5))
        await caller.resize(rng.randint(1, orders.shards_max))


async def _close_and_open(caller: Caller, rng: Random, name: str) -> None:
    """One process at a time does this, so a gate is what it was set to last."""
    gate = rng.choice(("paused", "paused", "draining"))
    await caller.insist(lambda: caller.set_gate(gate, request=f"{name} close"))
    await _CLOCK.sleep(CLOSED_S * rng.uniform(0.5, 1.5))
    await caller.insist(lambda: caller.set_gate("open", request=f"{name} open"))
    await _CLOCK.sleep(OPEN_S * rng.uniform(0.5, 1.5))


async def _retry_the_dead(caller: Caller, rng: Random, name: str) -> None:
    dead = await caller.dead(20)
    for job in rng.sample(dead, min(RETRIES, len(dead))):
        await caller.insist(partial(caller.retry, job, request=f"{name} {job}"))
    await _CLOCK.sleep(RETRY_S)


if __name__ == "__main__":
    run(look_after)
