"""The functions of the shop: quick and slow ones, some that fail and are tried again, and some that never succeed."""

from __future__ import annotations

import threading
from typing import Any

import casque
from casque.clock import SystemClock
from casque.functions.job import JobCall

app = casque.App()
clock = SystemClock()


class CardRefusedError(Exception):
    """The bank said no, this time."""


@app.job(priority=-1, backoff=0.3)
async def charge_card(context: casque.JobContext, order: int, cents: int) -> str:
    """The bank is slow, and refuses every third order at first."""
    await clock.sleep(0.02)
    if order % 3 == 0 and context.attempt <= 1 + order % 2:
        raise CardRefusedError(f"order {order}: the bank does not answer")
    return f"{cents / 100:.2f} for order {order}"


@app.job(backoff=0.3)
async def send_mail(to: str, subject: str) -> None:
    await clock.sleep(0.01 + 0.0001 * len(to + subject))


@app.job(executor="thread")
def make_thumbnail(image: str, width: int = 128) -> str:
    """A plain function: it runs in a thread, and the worker goes on meanwhile."""
    threading.Event().wait(0.04)
    return f"{image}@{width}"


@app.job(max_attempts=3, backoff=[0.2, 0.5])
async def import_file(name: str) -> int:
    """A broken file fails every time: after three attempts the job is kept as dead, with its error."""
    await clock.sleep(0.03)
    if name.endswith(".broken"):
        raise ValueError(f"{name}: line 7 has no price")
    return len(name)


@app.job(timeout=30)
async def write_report(day: int) -> str:
    """Slow, so that the worker that is killed is in the middle of one."""
    await clock.sleep(0.8 + 0.1 * (day % 5))
    return f"report of day {day}"


@app.job(priority=5)
async def send_newsletter(customer: int) -> casque.Cancel | None:
    await clock.sleep(0.01)
    return casque.Cancel("has unsubscribed") if customer % 3 == 0 else None


@app.cron("* * * * *", arguments={"shelf": "all of them"})
@app.job()
async def count_stock(shelf: str) -> int:
    """Every minute: the broker that leads turns each tick into one job."""
    await clock.sleep(0.05)
    return len(shelf)


def call(number: int) -> JobCall[Any]:
    """The jobs of a day, one after the other, of every kind."""
    match number % 10:
        case 0 | 1 | 2:
            return charge_card.bind(order=number, cents=100 + 7 * number)
        case 3 | 4 | 5:
            return send_mail.bind(to=f"customer-{number}@example.org", subject="thank you for your order")
        case 6 | 7:
            return make_thumbnail.bind(f"photo-{number}.jpg")
        case 8:
            broken = number % 50 == 8
            return import_file.bind(f"prices-{number}{'.broken' if broken else '.csv'}")
        case _:
            slow = number % 20 == 9
            return write_report.bind(day=number) if slow else send_newsletter.bind(customer=number // 10)
