"""The OpenAPI document is valid, complete, and true: schemathesis makes requests of it and checks every answer."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from openapi_spec_validator import validate

from casque.codec.staged import ADMITTED_PARTS_MAX, StagedJobs
from casque.errors import NotAuthenticatedError
from casque.service import QueueEvent, QueueService
from casque.testing.hosting import leading
from casque.testing.service_suite.jobs import staged
from casque.transport.border import Wrapper, admit
from casque.transport.http.openapi import describe
from casque.transport.http.routes import ROUTES
from casque.transport.http.server import HttpServer
from casque.transport.http.simple_verbs import Part
from casque.types import StagedPart

TOKEN = "Bearer the-right-one"
KEYS = count()
PARTS: list[StagedPart] = []
"""One that is there: whoever names another is refused."""

PRINTABLE = st.characters(categories=["L", "N", "P", "S"], include_characters=" ").filter(str.isprintable)
schemathesis.openapi.format("printable", st.text(PRINTABLE, min_size=1, max_size=32))


def only_with_the_token(authorization: str | None) -> Wrapper:
    if authorization != TOKEN:
        raise NotAuthenticatedError("the token is not the right one")
    return lambda service: admit(None)(None)(Ending(service))


@contextmanager
def served() -> Iterator[str]:
    """A server in a thread of its own: schemathesis asks synchronously."""
    started = threading.Event()
    url: list[str] = []
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def serve() -> None:
        async with leading("memory://fuzzed") as host:
            PARTS.append(await staged("memory://fuzzed", StagedJobs(["a", "b"], "task", b"")))
            server = HttpServer(
                host, listen="127.0.0.1:0", admit=only_with_the_token, wait_max=timedelta(milliseconds=5)
            )
            await server.start()
            url.append(f"http://127.0.0.1:{server.port}")
            started.set()
            await over.wait()
            await server.stop(grace_s=1)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    started.wait()
    try:
        yield url[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


@pytest.fixture(scope="module")
def api() -> Iterator[Any]:
    with served() as url:
        yield schemathesis.openapi.from_url(f"{url}/openapi.json")


schema = schemathesis.pytest.from_fixture("api")


@dataclass
class Ending:
    """A queue whose feed ends where a follower would wait, because a fuzzer would wait with it."""

    service: QueueService

    def __getattr__(self, name: str) -> Any:
        return getattr(self.service, name)

    def events(self, *, from_position: int | None = None, follow: bool = True) -> AsyncGenerator[QueueEvent]:
        return self.service.events(from_position=from_position, follow=False)


def as_program(case: Any) -> None:
    """What a schema cannot say: values that are good by themselves, and refused for what else there is."""
    if isinstance(case.body, dict | list):
        case.body = whole_numbers(case.body)
        for job in case.body if isinstance(case.body, list) else [case.body]:
            if isinstance(job, dict) and is_name(job.get("id")):
                job["id"] = f"job {next(KEYS)}"  # two jobs of one id are refused
            if isinstance(job, dict) and job.get("fifo") is True:
                lines_up(job)
    if isinstance(case.body, dict) and are_parts(case.body.get("parts")):
        case.body["parts"] = [msgspec.structs.asdict(PARTS[0])]
        if isinstance(case.body.get("skip_known", True), bool):
            case.body["skip_known"] = True  # another batch has brought these jobs before
    if isinstance(case.body, dict) and "cron" in case.body:
        if isinstance(case.body["cron"], str) and 0 < len(case.body["cron"]) <= 256:
            case.body["cron"] = "@daily"  # what an expression is, only its parser knows
        if isinstance(case.body.get("tz"), str):
            case.body["tz"] = "UTC"
    headers, query = case.headers or {}, case.query or {}
    if re.fullmatch(r"[!-~]([ -~]{0,254}[!-~])?", str(headers.get("Idempotency-Key", ""))):
        headers["Idempotency-Key"] = f"request-{next(KEYS)}"  # one key for two different requests is refused
    if re.fullmatch(r"[0-9]{1,19}(\.[0-9]{1,19})?", str(headers.get("Last-Event-ID", ""))):
        headers["Last-Event-ID"] = "0.0"  # a position in the future is refused
    for name in ("name", "entrypoint"):
        if isinstance(query.get(name), bool | int | float):
            query[name] = ""  # in a query a number is text, and one text is a list of one: meant to be wrong, it is not
    if str(query.get("from_position", "")).isdecimal() and int(query["from_position"]) < 2**63:
        query["from_position"] = 0


def lines_up(job: dict[str, Any]) -> None:
    """A job of a FIFO zone has a zone, which is FIFO for all its jobs, and no time of its own."""
    if is_name(job.get("zone")) and "delay" not in job and "run_at" not in job:
        job["zone"] = f"line {next(KEYS)}"
    else:
        job["fifo"] = False


def are_parts(value: Any) -> bool:
    try:
        return 1 <= len(msgspec.convert(value, list[Part])) <= ADMITTED_PARTS_MAX
    except msgspec.ValidationError:
        return False


def is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 256 and value.isprintable()


def whole_numbers(value: Any) -> Any:
    """To a schema 5.0 is a whole number; here it has to be written as one."""
    if isinstance(value, dict):
        return {name: whole_numbers(one) for name, one in value.items()}
    if isinstance(value, list):
        return [whole_numbers(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@schema.parametrize()
@seed(20_260_215)
@settings(
    max_examples=4,
    deadline=None,
    derandomize=False,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_as_described(case: Any) -> None:
    as_program(case)

    case.call_and_validate(headers={"Authorization": TOKEN})


def test_the_document_is_valid() -> None:
    validate(describe(version="1", needs_token=True))


def test_every_route_is_in_the_document() -> None:
    paths = describe(version="1", needs_token=False)["paths"]
    described = {(method.upper(), path) for path, methods in paths.items() for method in methods}

    assert described >= {(route.method, route.path) for route in ROUTES}
    assert {path for _, path in described} >= {"/healthz", "/readyz", "/metrics"}
