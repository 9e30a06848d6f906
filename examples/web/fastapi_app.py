"""A web application with FastAPI whose requests enqueue jobs and look after them.

Run it with `fastapi run fastapi_app.py`, and the jobs with `casque worker fastapi_app:app`. Both on one queue: any URL
will do, and any number of machines.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx
from fastapi import FastAPI, Header, HTTPException
from pydantic import BaseModel

import casque
from casque import JobFailedError
from casque.worker import Worker

app = casque.App(os.environ.get("CASQUE_URL", "memory://fastapi-example"))


class Order(BaseModel):
    number: int
    items: list[str]


@app.job(key="order-{order.number}", backoff=[1, 10, 60])
async def ship(order: Order) -> str:
    return f"order {order.number}: {', '.join(order.items)}"


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """The queue is open for as long as the server runs, in the server's event loop."""
    async with app:
        yield


api = FastAPI(lifespan=lifespan)


@api.post("/orders", status_code=202)
async def add(order: Order, idempotency_key: Annotated[str | None, Header()] = None) -> dict[str, str]:
    """Durable when this answers. A client that repeats itself gets the same job."""
    [job] = await app.enqueue_many([ship.bind(order)], request_id=idempotency_key)
    return {"job": job.id}


@api.get("/orders/{job_id}")
async def look(job_id: str) -> dict[str, Any]:
    state = await ship.handle(job_id).status()
    if state is None:
        raise HTTPException(404, "no such job, or it has only just finished")
    return {"job": job_id, "state": state}


@api.get("/orders/{job_id}/result")
async def result(job_id: str) -> dict[str, str]:
    try:
        return {"result": await ship.handle(job_id).result(timeout=25)}
    except TimeoutError:
        raise HTTPException(504, "it is not done yet: ask again") from None
    except JobFailedError as error:
        raise HTTPException(410, str(error)) from None


async def main() -> None:
    """Requests to the application, without a server."""
    async with (
        api.router.lifespan_context(api),
        httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://shop") as web,
    ):
        order = {"number": 7, "items": ["pen", "ink"]}
        first = await web.post("/orders", json=order, headers={"Idempotency-Key": "click-1"})
        again = await web.post("/orders", json=order, headers={"Idempotency-Key": "click-1"})
        print(f"{first.status_code}, and again the same job: {first.json() == again.json()}")
        job = first.json()["job"]
        print("it is", (await web.get(f"/orders/{job}")).json()["state"])
        await Worker(app, burst=True).run()  # or casque worker fastapi_app:app, elsewhere
        print((await web.get(f"/orders/{job}/result")).json()["result"])
        print("refused:", (await web.post("/orders", json={"number": "seven"})).status_code)


if __name__ == "__main__":
    asyncio.run(main())
