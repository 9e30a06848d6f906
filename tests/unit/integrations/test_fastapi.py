"""The lifespan and the dependency, in Starlette, which FastAPI's are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import casque
from casque.integrations.fastapi import lifespan, queue_of
from casque.testing import assert_enqueued, in_memory


def make_app(name: str) -> tuple[casque.App, Any]:
    jobs = casque.App(f"memory://{name}")

    @jobs.job()
    async def send(to: str) -> None: ...

    return jobs, send


@asynccontextmanager
async def serving(server: Starlette) -> AsyncIterator[tuple[httpx.AsyncClient, Any]]:
    """A client for it, and the state of its lifespan."""
    transport = httpx.ASGITransport(server)
    async with (
        server.router.lifespan_context(server) as state,
        httpx.AsyncClient(transport=transport, base_url="http://server") as web,
    ):
        yield web, state


async def test_the_queue_is_open_while_the_server_runs_and_at_no_other_time() -> None:
    jobs, send = make_app("lifespan-open")
    get_queue = queue_of(jobs)

    async def add(request: Request) -> JSONResponse:
        await send.enqueue("ada")
        totals = (await (await get_queue()).stats()).totals
        return JSONResponse({"ready": totals.ready})

    server = Starlette(routes=[Route("/", add)], lifespan=lifespan(jobs))
    async with serving(server) as (web, _):
        assert (await web.get("/")).json() == {"ready": 1}
        assert (await web.get("/")).json() == {"ready": 2}
    with pytest.raises(casque.QueueClosedError, match="async with app"):
        print(jobs.queue)


async def test_a_lifespan_of_ones_own_runs_inside_and_its_state_is_passed_on() -> None:
    jobs, send = make_app("lifespan-also")
    happened: list[str] = []

    @asynccontextmanager
    async def own(server: Starlette) -> AsyncIterator[dict[str, str]]:
        handle = await send.enqueue("from the lifespan")
        happened.append(f"{type(server).__name__} {await handle.status()}")
        yield {"word": "hello"}
        happened.append(f"{(await jobs.queue.stats()).totals.ready} ready at the end")

    async with serving(Starlette(lifespan=lifespan(jobs, own))) as (_, state):
        assert state == {"word": "hello"}
    assert happened == ["Starlette ready", "1 ready at the end"]


async def test_an_app_that_a_test_has_opened_stays_with_the_test() -> None:
    jobs, send = make_app("lifespan-in-a-test")

    async with in_memory(jobs) as (queue, _):
        async with lifespan(jobs)(None):
            await send.enqueue("ada")
        assert_enqueued(jobs, send, to="ada")
        assert len(await queue.dequeue("send")) == 1


async def test_an_error_while_the_queue_is_opened_is_not_swallowed() -> None:
    jobs = casque.App("nowhere://x")

    with pytest.raises(casque.InvalidInputError, match="nowhere"):
        async with lifespan(jobs)(None):
            pass


async def test_without_a_lifespan_the_dependency_says_what_is_missing() -> None:
    jobs, _ = make_app("no-lifespan")

    with pytest.raises(casque.QueueClosedError, match=r"lifespan=casque.integrations.fastapi.lifespan\(app\)"):
        await queue_of(jobs)()
