"""Jobs that are functions: typed arguments, keys, handles, and a test without a queue."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import casque
from casque import InvalidInputError, JobContext
from casque.testing import assert_enqueued, inline

app = casque.App("memory://functions-example", max_attempts=5)


@dataclass
class Order:
    number: int
    items: list[str]


@app.job(key="order-{order.number}", backoff=[1, 10, 60])
async def ship(context: JobContext, order: Order, express: bool = False) -> str:
    how = "express" if express else "by post"
    return f"order {order.number}, {len(order.items)} items, {how}, attempt {context.attempt}"


@app.job(priority=10)
def thank(name: str) -> str:
    return f"thank you, {name}"


async def enqueue() -> None:
    async with app:
        job = await ship.enqueue(Order(7, ["pen", "ink"]))
        again = await ship.enqueue(Order(7, ["pen"]), express=True)
        print("one job for one order:", job.id == again.id)
        later = await thank.delay(seconds=3600).enqueue("ada")
        print("now and later:", await job.status(), await later.status())
        await later.cancel()
        try:
            await ship.enqueue(Order("seven", []))  # type: ignore[arg-type]
        except InvalidInputError as error:
            print("refused:", error)


def test_without_a_queue() -> None:
    with inline(app):
        print("inline:", ship.enqueue_sync(Order(8, ["pen"])).result())
        assert_enqueued(app, ship, express=False)


if __name__ == "__main__":
    print("a plain call:", thank("ada"))
    asyncio.run(enqueue())
    test_without_a_queue()
