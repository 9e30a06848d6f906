"""Payloads that are values instead of bytes: a dataclass, a msgspec struct, a pydantic model, an annotation.

They are stored as JSON and checked on the way in and on the way out.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec

from casque import InvalidInputError, Queue


@dataclass
class Email:
    to: str
    subject: str


class Thumbnail(msgspec.Struct, frozen=True):
    path: str
    width: int = 128


async def with_a_dataclass() -> None:
    async with Queue.open("memory://emails", type=Email) as queue:
        await queue.enqueue("send", Email(to="ada@example.org", subject="hello"))
        [job] = await queue.dequeue("send")
        print("dataclass:", job.payload.to, "stored as", job.raw_payload.decode())
        await job.ack()


async def with_a_struct() -> None:
    async with Queue.open("memory://thumbnails", type=Thumbnail) as queue:
        await queue.enqueue("shrink", Thumbnail("cat.png"))
        [job] = await queue.dequeue("shrink")
        print("struct:", job.payload)
        await job.ack()
        try:
            await queue.enqueue("shrink", Thumbnail("cat.png", width="wide"))  # type: ignore[arg-type]
        except InvalidInputError as error:
            print("refused:", error)


async def with_an_annotation() -> None:
    async with Queue.open("memory://numbers", type=list[int]) as queue:
        await queue.enqueue("sum", [1, 2, 3])
        [job] = await queue.dequeue("sum")
        print("annotation:", sum(job.payload))
        await job.ack()


async def with_a_model() -> None:
    try:
        from pydantic import BaseModel
    except ImportError:
        print("pydantic: not installed")
        return

    class Order(BaseModel):
        number: int
        items: list[str]

    async with Queue.open("memory://orders", type=Order) as queue:
        await queue.enqueue("ship", Order(number=7, items=["pen"]))
        [job] = await queue.dequeue("ship")
        print("pydantic:", job.payload.number, job.payload.items)
        await job.ack()


async def main() -> None:
    await with_a_dataclass()
    await with_a_struct()
    await with_an_annotation()
    await with_a_model()


if __name__ == "__main__":
    asyncio.run(main())
