"""`python -m casque.testing.chaos.producer ORDERS`: enqueues at a steady pace: plain jobs, several in one commit, jobs
with keys, jobs of zones and of FIFO zones, and requests that are asked again when no answer came."""

from __future__ import annotations

from casque.clock import Random, SystemClock
from casque.testing.chaos.actor import Orders, run
from casque.testing.chaos.caller import Caller
from casque.testing.history.call import Wish

BULK_SHARE = 0.2
BULK_MAX = 8
KEYS = 4
ZONES = 6
FIFO_ZONES = 2
REPEATED_SHARE = 0.2
ASKED_AGAIN_MAX = 20
PAUSE_S = 0.2

_CLOCK = SystemClock()


async def produce(caller: Caller, orders: Orders, rng: Random, name: str) -> None:
    """One call, then a pause, unless the call took so long that there is none due."""
    count = rng.randint(2, BULK_MAX) if rng.random() < BULK_SHARE else 1
    wishes = [_wish(rng, f"{name}/{number}") for number in range(count)]
    began_ms = _CLOCK.monotonic_ms()
    if rng.random() < REPEATED_SHARE:
        await _insist(caller, wishes, name)
    else:
        await caller.enqueue(wishes)
    left_s = count / orders.per_second - (_CLOCK.monotonic_ms() - began_ms) / 1000
    if left_s > 0:
        await _CLOCK.sleep(left_s)


async def _insist(caller: Caller, wishes: list[Wish], request: str) -> None:
    """Ask until there is an answer; and once more, because a careful caller may."""
    for _ in range(ASKED_AGAIN_MAX):
        if await caller.enqueue(wishes, request=request) is not None:
            await caller.enqueue(wishes, request=request)
            return
        await _CLOCK.sleep(PAUSE_S)


def _wish(rng: Random, tag: str) -> Wish:
    chance = rng.random()
    if chance < 0.1:
        return Wish(tag, key=f"key-{rng.randrange(KEYS)}")
    if chance < 0.2:
        return Wish(tag, zone=f"fifo-{rng.randrange(FIFO_ZONES)}", fifo=True)
    if chance < 0.5:
        return Wish(tag, zone=f"zone-{rng.randrange(ZONES)}")
    return Wish(tag)


if __name__ == "__main__":
    run(produce)
