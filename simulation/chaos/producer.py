"""`python -m simulation.chaos.producer ORDERS`: enqueues at a steady pace: plain jobs, several in one commit, jobs
with keys, with one attempt, of an entrypoint whose gate is closed now and then, jobs of zones and of FIFO zones, staged
batches, and requests that are asked again when no answer came."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from casque.clock import Random, SystemClock
from simulation.chaos.actor import Orders, run
from simulation.chaos.caller import GATED, Caller
from simulation.history import Outcome
from simulation.history.call import Wish

BULK_SHARE = 0.2
BULK_MAX = 8
BATCH_SHARE = 0.05
BATCH_MAX = 20
KEYS = 4
ZONES = 6
FIFO_ZONES = 2
REPEATED_SHARE = 0.2

_CLOCK = SystemClock()


async def produce(caller: Caller, orders: Orders, rng: Random, name: str) -> None:
    """One call, then a pause, unless the call took so long that there is none due."""
    began_ms = _CLOCK.monotonic_ms()
    count = rng.randint(2, BULK_MAX) if rng.random() < BULK_SHARE else 1
    chance = rng.random()
    if orders.stages and chance > 1 - BATCH_SHARE:
        count = rng.randint(2, BATCH_MAX)
        batch = [_staged(rng, f"{name}/{number}") for number in range(count)]
        source, _, number = name.rpartition("/")
        await _insist(caller, lambda: caller.admit(batch, source=source, batch=int(number)))
    elif chance < REPEATED_SHARE:
        repeated = [_wish(rng, f"{name}/{number}") for number in range(count)]
        await _insist(caller, lambda: caller.enqueue(repeated, request=name))
    else:
        await caller.enqueue([_wish(rng, f"{name}/{number}") for number in range(count)])
    left_s = count / orders.per_second - (_CLOCK.monotonic_ms() - began_ms) / 1000
    if left_s > 0:
        await _CLOCK.sleep(left_s)


async def _insist(caller: Caller, call: Callable[[], Awaitable[Outcome]]) -> None:
    """Ask until there is an answer; and once more, because a careful caller may."""
    if await caller.insist(call) is Outcome.OK:
        await call()


def _wish(rng: Random, tag: str) -> Wish:
    chance = rng.random()
    if chance < 0.1:
        return Wish(tag, key=f"key-{rng.randrange(KEYS)}")
    if chance < 0.2:
        return Wish(tag, zone=f"fifo-{rng.randrange(FIFO_ZONES)}", fifo=True)
    return _staged(rng, tag)


def _staged(rng: Random, tag: str) -> Wish:
    """What an admission may have as well: no key that another job may hold, and no FIFO."""
    chance = rng.random()
    zone = f"zone-{rng.randrange(ZONES)}" if chance < 0.4 else None
    return Wish(tag, zone=zone, entrypoint=GATED if rng.random() < 0.2 else "", once=rng.random() < 0.1)


if __name__ == "__main__":
    run(produce)
