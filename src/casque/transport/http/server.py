"""The HTTP server: starlette routes, uvicorn serves, in the caller's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import timedelta
from email.utils import formatdate
from importlib.metadata import PackageNotFoundError, version

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route as Served
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from casque.clock import Clock, Random, SystemClock, system_random
from casque.errors import CasqueError, InvalidInputError, LimitReachedError, NotAuthenticatedError, UnknownOutcomeError
from casque.request_budget import RequestBudget
from casque.service import Host, Stats
from casque.settings import QueueSettings
from casque.telemetry import logger
from casque.telemetry.metrics import CONTENT_TYPE, Metrics
from casque.transport import audit
from casque.transport.border import Admit, Wrapper, admit, principal_of
from casque.transport.http import streams
from casque.transport.http.answering import ClaimResponse, Streamed, answer, refusal, unless_gone
from casque.transport.http.browsers import BrowserRules, is_preflight
from casque.transport.http.budget import Budget
from casque.transport.http.entrypoint_numbers import EntrypointNumbers
from casque.transport.http.limits import HttpLimits
from casque.transport.http.messages import Jobs
from casque.transport.http.monitoring import Gauges, is_ready, readiness
from casque.transport.http.network import Connection, QuietServer, bound, connection_class
from casque.transport.http.openapi import describe
from casque.transport.http.reading import (
    GoneError,
    RefusedError,
    Room,
    read_body,
    read_job_id,
    read_query,
    read_request_id,
)
from casque.transport.http.route import EVENTS, JSON, Route
from casque.transport.http.routes import ROUTES
from casque.transport.http.simple_verbs import BY_VERB, Call
from casque.transport.http.verbs import Verbs
from casque.transport.http.zone_numbers import ZoneNumbers
from casque.transport.measured import Measured, Numbers
from casque.transport.quotas import Bytes
from casque.transport.scopes import ANYBODY
from casque.transport.tls import ServerTls

log = logger("transport.http")

EVERYBODY = admit(None)
DEFAULTS = QueueSettings(max_attempts=25)
DEFAULT_LIMITS = HttpLimits()
TOO_SLOW = "bytes waiting for a slow reader, who may go on from the last event that came"
UNTAKEN = "bytes of streams that their readers have not taken"
UNSENT = 64 * 1024
"""Bytes buffered for a reader, approximately, before the feed waits for it."""


class HttpServer:
    """Offers a host's queue over HTTP and JSON.

    `listen` is `host:port`; port 0 takes a free one, which `port` returns. `admit` is called once per request; without
    it, every caller may do everything. `metrics` may be shared with other parts of the process. `entrypoints` adds
    numbers by entrypoint, for callers that may see them. `settings` are the
    defaults for what a caller leaves out: the back-off of failed jobs, and the limit of their attempts.

    `/healthz`, `/readyz`, `/metrics` and the description need no token; `guarded` requires one for `/metrics` and
    `/readyz` as well.

    `hosts` are names by which clients call this server, besides `localhost`, IP addresses and the name it listens on;
    `origins` are sites whose pages may call it.

    >>> import asyncio
    >>> from casque.testing.hosting import leading
    >>> from casque.transport.http.client import HttpService
    >>> async def main():
    ...     async with leading("memory://http-example") as host:
    ...         server = HttpServer(host, listen="127.0.0.1:0")
    ...         await server.start()
    ...         async with HttpService(f"127.0.0.1:{server.port}") as client:
    ...             print((await client.stats()).totals.enqueued)
    ...         await server.stop(grace_s=1)
    >>> asyncio.run(main())
    0
    """

    def __init__(
        self,
        host: Host,
        *,
        listen: str,
        tls: ServerTls | None = None,
        admit: Admit = EVERYBODY,
        metrics: Metrics | None = None,
        entrypoints: EntrypointNumbers | None = None,
        budget: RequestBudget | None = None,
        settings: QueueSettings = DEFAULTS,
        guarded: bool = False,
        hosts: Sequence[str] = (),
        origins: Sequence[str] = (),
        limits: HttpLimits = DEFAULT_LIMITS,
        wait_max: timedelta = timedelta(seconds=50),
        keep_alive: timedelta = timedelta(seconds=15),
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        self._host = host
        self._listen = listen
        self._admit = admit
        self._tls = tls
        self._guarded = guarded
        self._browsers = BrowserRules([*_names(listen), *hosts], origins, tls=tls is not None)
        self._limits = limits
        self._bodies = Budget("bytes of bodies", limits.bodies_bytes, limits.bodies_bytes_per_peer)
        self._streams = Budget("streams", limits.streams, limits.streams_per_peer)
        self._unsent = Bytes(most=limits.unsent_bytes, each=limits.unsent_bytes_per_principal, what=UNTAKEN)
        self._quiet_s = keep_alive.total_seconds()
        self._clock = clock or SystemClock()
        self._leaving = asyncio.Event()
        self._verbs = Verbs(
            settings,
            self._clock,
            rng or system_random(),
            # Proxies commonly cut a request that is silent for a minute.
            wait_max_s=wait_max.total_seconds(),
            leaving=self._leaving,
        )
        self.metrics = metrics or Metrics()
        self._entrypoints = entrypoints
        self._gauges = Gauges(host, self.metrics, _release(), entrypoints, self._clock, budget)
        self._zones = ZoneNumbers(self._clock)
        Numbers(self.metrics)
        self._requests = self.metrics.counter(
            "casque_http_requests_total", "HTTP requests that were answered.", ("method", "route", "status")
        )
        self._server: QuietServer | None = None
        self._serving: asyncio.Task[None] | None = None
        self._port = 0

    @property
    def port(self) -> int:
        """The port it listens on, once it has started."""
        return self._port

    async def start(self) -> None:
        """Listen.

        Raises:
            InvalidInputError: the address is malformed or in use.
        """
        listening = bound(self._listen)
        self._port = listening.getsockname()[1]
        self._server = QuietServer(self._config(), self._leaving)
        self._serving = asyncio.create_task(self._server.serve([listening]), name="casque http")
        ready = asyncio.create_task(self._server.ready.wait())
        await asyncio.wait({self._serving, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._serving.done():
            listening.close()
            self._serving.result()

    def _config(self) -> uvicorn.Config:
        config = uvicorn.Config(
            self._app(),
            http=connection_class(self._limits),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",  # the host process logs start and stop
            access_log=False,
            proxy_headers=False,  # a caller must not be able to fake its address
            server_header=False,
            date_header=False,
            timeout_keep_alive=self._limits.idle_s,  # type: ignore[arg-type]  # a float does as well
        )
        config.load()
        config.ssl = None if self._tls is None else self._tls.context
        return config

    async def stop(self, grace_s: float = 30.0) -> None:
        """Stop listening. Waiting claims return no jobs, feeds end, and other calls have the grace period to finish."""
        server, serving = self._server, self._serving
        if server is None or serving is None:
            return
        server.config.timeout_graceful_shutdown = grace_s  # type: ignore[assignment]  # a float does as well
        server.should_exit = True
        self._leaving.set()
        await serving
        # Another call to stop may have finished by now.
        await asyncio.gather(*server.server_state.tasks, return_exceptions=True)
        self._server = self._serving = None

    # --- Routes ---

    def _app(self) -> ASGIApp:
        by_path: dict[str, dict[str, Route]] = {}
        for route in ROUTES:
            by_path.setdefault(route.path, {})[route.method] = route
        served = [self._served(path, methods) for path, methods in by_path.items()]
        served += [
            Served("/", self._page),
            Served("/healthz", self._healthz),
            Served("/readyz", self._readyz),
            Served("/metrics", self._show_metrics),
            Served("/openapi.json", self._openapi),
        ]
        app = Starlette(routes=served, exception_handlers={HTTPException: self._no_such_route})
        app.router.redirect_slashes = False
        return self._unless_of_a_page(self._by_raw_path(app))

    def _unless_of_a_page(self, app: ASGIApp) -> ASGIApp:
        """Refuse requests that a web page makes a browser send; runs first, so that it covers every path."""
        rules = self._browsers

        async def checked(scope: Scope, receive: Receive, send: Send) -> None:
            if (problem := rules.problem_with(scope)) is not None:
                audit.calls_from("HTTP", scope["client"][0] if scope["client"] else "")
                audit.refused("a web page's call", InvalidInputError(problem))
                # The body stays unread, so the connection cannot be reused.
                refused = refusal(InvalidInputError(problem), path="", status=403, headers={"Connection": "close"})
                await refused(scope, receive, send)
                return
            headers = rules.cross_origin_headers(scope)
            if not headers:
                await app(scope, receive, send)
            elif is_preflight(scope):
                await Response(status_code=204, headers=_decoded(headers))(scope, receive, send)
            else:
                await app(scope, receive, _adding(headers, send))

        return checked

    def _by_raw_path(self, app: ASGIApp) -> ASGIApp:
        """Match routes on the raw path: decoded, an id with a slash would look like two segments."""

        async def matched(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, "path": scope["raw_path"].decode("ascii")}, receive, send)

        return matched

    def _served(self, path: str, methods: dict[str, Route]) -> Served:
        async def endpoint(request: Request) -> Response:
            return await self._answered(request, methods[request.method])

        served = Served(path, endpoint, methods=list(methods))
        assert served.methods is not None
        served.methods.discard("HEAD")
        return served

    async def _answered(self, request: Request, route: Route) -> Response:
        room = Room(self._bodies, _peer(request))
        audit.calls_from("HTTP", _peer(request))
        try:
            response = await self._carried_out(request, route, room)
        except RefusedError as refused:
            response = refusal(refused.error, path=route.path, status=refused.status, headers=refused.headers)
        except CasqueError as error:
            response = refusal(error, path=request.scope["path"])
        except GoneError:
            self._requests.of(route.method, route.path, "gone").add()
            return Response(status_code=499)  # the client is gone
        except Exception:
            log.exception("%s %s failed", route.method, route.path)
            response = refusal(UnknownOutcomeError("the broker failed in this call; its log says how"), path="")
        finally:
            room.give_back()
        response.headers["Date"] = formatdate(self._clock.wall_ms() / 1000, usegmt=True)
        if self._leaving.is_set():
            response.headers["Connection"] = "close"  # the client must not reuse this connection
        self._requests.of(route.method, route.path, str(response.status_code)).add()
        return response

    async def _carried_out(self, request: Request, route: Route, room: Room) -> Response:
        admitted = self._admit(request.headers.get("authorization"))
        call = await self._call(request, route, room, admitted)
        if route.verb == "events":
            feed = streams.feed(call, clock=self._clock, quiet_s=self._quiet_s, leaving=self._leaving)
            return await self._streamed(request, feed, route.media, admitted)
        if route.verb == "archive":
            return await self._streamed(request, streams.archive(call), route.media, admitted)
        simple = BY_VERB.get(route.verb)
        carry_out = getattr(self._verbs, route.verb) if simple is None else simple.carry_out
        message = await unless_gone(request, carry_out(call))
        if isinstance(message, Jobs) and route.verb == "claim":
            return ClaimResponse(message, request.state.connection.is_gone, lambda: self._verbs.unclaim(call, message))
        return answer(message)

    async def _streamed(
        self, request: Request, pieces: AsyncGenerator[bytes], media: str, admitted: Wrapper
    ) -> Response:
        """A streaming response. Errors before the first piece become an error status."""
        peer = _peer(request)
        if not self._streams.try_take(peer, 1):
            await pieces.aclose()
            raise self._streams.refusal(peer)
        try:
            first = await unless_gone(request, _first(pieces))
        except BaseException:
            self._streams.give_back(peer, 1)
            await pieces.aclose()
            raise
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"} if media == EVENTS else {}
        connection: Connection = request.state.connection
        if media == EVENTS:
            connection.last_words = streams.failure(LimitReachedError(TOO_SLOW, UNSENT))
        taken = self._as_taken(_all(first, pieces), principal_of(admitted) or peer, connection)
        return Streamed(taken, media, headers, ended=lambda: self._streams.give_back(peer, 1))

    async def _as_taken(
        self, pieces: AsyncGenerator[bytes], name: str, connection: Connection
    ) -> AsyncGenerator[bytes]:
        """Produce the next piece when the last one is nearly sent and its principal has room for it."""
        async with aclosing(pieces):
            while True:
                try:
                    await self._unsent.room_in_time(name, self._limits.stall_s)
                except LimitReachedError as error:
                    if connection.last_words is None:
                        raise  # a stream that breaks off has no end marker, so it cannot pass for a complete answer
                    yield streams.failure(error)
                    return
                if (piece := await anext(pieces, None)) is None:
                    return
                with self._unsent.held(name, len(piece)):
                    yield piece
                    del piece
                    await connection.flow.drain()

    async def _call(self, request: Request, route: Route, room: Room, admitted: Wrapper) -> Call:
        service = admitted(self._host.service())
        query = read_query(request, route)
        return Call(
            service=Measured(service, self.metrics),
            body=await read_body(request, route, self._limits, room),
            query=query,
            job_id=read_job_id(request),
            request_id=read_request_id(request) if route.repeatable else None,
            last_event_id=request.headers.get("last-event-id") if route.resumable else None,
        )

    # --- For operators and readers ---

    async def _healthz(self, request: Request) -> Response:  # noqa: ARG002
        return PlainTextResponse("ok\n")

    async def _readyz(self, request: Request) -> Response:
        if (refused := self._kept_out(request)) is not None:
            return refused
        standing = self._host.standing()
        body = msgspec.json.encode(readiness(standing))
        return Response(body, 200 if is_ready(standing) else 503, media_type=JSON)

    async def _show_metrics(self, request: Request) -> Response:
        if (refused := self._kept_out(request)) is not None:
            return refused
        stats = await self._gauges.take()
        text = self.metrics.text()
        if stats is not None:
            text += await self._seen_by(request.headers.get("authorization"), stats)
        return Response(text, headers={"Content-Type": CONTENT_TYPE})

    async def _seen_by(self, authorization: str | None, stats: Stats) -> str:
        """Numbers with names in them, as far as this caller may see them."""
        try:
            service = self._admit(authorization)(self._host.service())
        except CasqueError:
            return ""
        text = await self._zones.text(authorization, service, stats)
        if self._entrypoints is not None:
            principal = getattr(service, "principal", ANYBODY)
            text += self._entrypoints.text(self._gauges.depths, principal)
        return text

    def _kept_out(self, request: Request) -> Response | None:
        if self._guarded:
            try:
                self._admit(request.headers.get("authorization"))
            except CasqueError as error:
                return refusal(error, path="")
        return None

    async def _openapi(self, request: Request) -> Response:  # noqa: ARG002
        document = describe(version=_release(), needs_token=self._needs_token())
        return Response(msgspec.json.encode(document), media_type=JSON)

    def _needs_token(self) -> bool:
        try:
            self._admit(None)
        except NotAuthenticatedError:
            return True
        return False

    async def _page(self, request: Request) -> Response:  # noqa: ARG002
        rows = "\n".join(f"<tr><td>{r.method}<td><code>{r.path}</code><td>{r.summary}" for r in ROUTES)
        return HTMLResponse(PAGE.format(version=_release(), rows=rows))

    async def _no_such_route(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        what = f"{request.method} {request.scope['path']}"
        problem = InvalidInputError(f"there is no {what} here; /openapi.json says what there is")
        return refusal(problem, path="", status=error.status_code, headers=dict(error.headers or {}))


def _names(listen: str) -> list[str]:
    """The host that it listens on, unless it is an IPv6 address."""
    host = listen.rpartition(":")[0]
    return [host] if host and not host.startswith("[") else []


def _decoded(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}


def _adding(headers: list[tuple[bytes, bytes]], send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *headers]
        await send(message)

    return sending


def _peer(request: Request) -> str:
    return "" if request.client is None else request.client.host


async def _first(pieces: AsyncGenerator[bytes]) -> bytes | None:
    return await anext(pieces, None)


async def _all(first: bytes | None, pieces: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(pieces):
        if first is not None:
            yield first
            async for piece in pieces:
                yield piece


PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>casque</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 52rem; padding: 0 1rem }}
td {{ padding: .1rem .8rem .1rem 0; vertical-align: top }}</style>
<h1>casque {version}</h1>
<p>A durable job queue. <a href="openapi.json">openapi.json</a> describes everything below;
<a href="healthz">healthz</a>, <a href="readyz">readyz</a> and <a href="metrics">metrics</a> are for operators.</p>
<table>
{rows}
</table>
</html>
"""


def _release() -> str:
    try:
        return version("casque")
    except PackageNotFoundError:
        return "unknown"  # running from source, not installed
