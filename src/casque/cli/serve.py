"""`casque serve URL`: a broker in front of a queue."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from casque import __version__
from casque.cli.logs import LogFormat, telling
from casque.cli.place import QueueName, find_place
from casque.cli.running import (
    EXIT_CANNOT_TELL,
    EXIT_FAILED,
    OptionalBucket,
    StoreOptions,
    collect_rarely,
    fast_loop,
)
from casque.cli.terminal import Terminal
from casque.client.changes import changes_from
from casque.client.queue import DEFAULTS
from casque.client.reaching import peer_token
from casque.clock import SystemClock
from casque.codec.head import KEY, read_layout
from casque.errors import CasqueError, CorruptQueueError, InvalidInputError
from casque.printable import printable, printable_json
from casque.service import Role, Standing
from casque.settings import BrokerSettings, QueueSettings, SettingsChanges
from casque.storage.port import Stored
from casque.storage.url import open_store
from casque.transport.access import TokenBook
from casque.transport.border import Limits
from casque.transport.limits import changed, split
from casque.transport.listening import Address
from casque.transport.tls import Tls, TlsFiles

if TYPE_CHECKING:
    # Servers need packages that the other commands do without.
    from casque.app import BrokerServer, Peers, ServeOptions
    from casque.transport.grpc.server import GrpcLimits

EXAMPLES = """
[bold]Examples[/]

  casque serve file:///var/lib/orders

  casque serve s3://bucket/orders --listen 10.0.0.7:7700 --tls-cert cert.pem --tls-key key.pem --tokens tokens.json
"""
LONGEST_S = 86_400.0


class Layout(StrEnum):
    """What a queue that is not there yet can be."""

    LOG = "log"
    DOCUMENT = "document"


def serve(
    url: OptionalBucket = None,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where gRPC listens; port 0 takes a free one.")
    ] = "127.0.0.1:7700",
    http: Annotated[
        str, typer.Option("--http", metavar="HOST:PORT", help="Where HTTP listens; port 0 takes a free one.")
    ] = "127.0.0.1:7701",
    no_http: Annotated[bool, typer.Option("--no-http", help="No HTTP at all: no health checks, no metrics.")] = False,
    advertise: Annotated[
        str | None,
        typer.Option("--advertise", metavar="HOST:PORT", help="Where others reach the gRPC port, if not at --listen."),
    ] = None,
    tokens: Annotated[
        Path | None, typer.Option("--tokens", metavar="FILE", help="Ask callers for a token of this file.")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="The certificate and its chain, PEM.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Its key, PEM.")] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option("--tls-client-ca", metavar="FILE", help="Only clients with a certificate of this authority."),
    ] = None,
    peer_ca: Annotated[
        Path | None,
        typer.Option("--peer-ca", metavar="FILE", help="Of a ring: who vouches for the other brokers, PEM."),
    ] = None,
    guarded: Annotated[bool, typer.Option("--guarded", help="Ask for a token for /metrics and /readyz too.")] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            metavar="NAME",
            help="A name by which clients call the HTTP port, besides its own; * for any; may be repeated.",
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-origin",
            metavar="ORIGIN",
            help="A site whose web pages may call the HTTP port, such as https://admin.example.com; may be repeated.",
        ),
    ] = None,
    http_limit: Annotated[
        list[str] | None,
        typer.Option(
            "--http-limit", metavar="NAME=NUMBER", help="A limit of the HTTP port, such as streams=10; may be repeated."
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen to a network without TLS or without tokens.")
    ] = False,
    layout: Annotated[
        Layout, typer.Option("--layout", help="The layout of a queue that is not there yet.")
    ] = Layout.LOG,
    heartbeat: Annotated[
        float, typer.Option("--heartbeat", metavar="SECONDS", help="How often a leader shows that it lives.")
    ] = 2,
    lease: Annotated[
        float, typer.Option("--lease", metavar="SECONDS", help="How long it may be silent before another takes over.")
    ] = 8,
    drain: Annotated[float, typer.Option("--drain", metavar="SECONDS", help="How long a clean stop may take.")] = 30,
    setting: Annotated[
        list[str] | None,
        typer.Option("--setting", "-s", metavar="NAME=VALUE", help="A setting of the queue; may be repeated."),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option("--limit", metavar="NAME=VALUE", help="A limit of what callers may have; may be repeated."),
    ] = None,
    queue: QueueName = None,
    option: StoreOptions = None,
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="For people, or for programs.")
    ] = LogFormat.TEXT,
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="Say more; twice for everything.")] = 0,
) -> None:
    """Run a broker: it leads the queue, or stands by and takes over when the leader is gone. Of a ring it leads its
    share of the shards, and answers for all of them.

    Any number may run on one queue, on any machines; only the bucket connects them. Clients find the leader by
    themselves. The brokers of a ring also call each other, with the token in CASQUE_PEER_TOKEN where tokens are
    asked for.

    SIGTERM and Ctrl-C stop it cleanly: it takes no more calls, finishes what it has, and resigns, so that another takes
    over at once. A second one stops it on the spot.

    Exit code 0: stopped cleanly. 1: it failed while it ran, or the queue is damaged. 2: it could not start.
    """
    voice = Voice(log_format)

    def options() -> ServeOptions:
        from casque.app import ServeOptions
        from casque.transport.http.limits import HttpLimits

        place = find_place(url, queue, option)
        limits, grpc_limits = _limits(limit or [])
        if guarded and tokens is None:
            raise InvalidInputError("--guarded asks for tokens, and there are none: add --tokens FILE")
        return ServeOptions(
            url=place.url,
            listen=Address.parse(listen, option="--listen"),
            http=None if no_http else Address.parse(http, option="--http"),
            advertise=advertise,
            tls=_tls(tls_cert, tls_key, tls_client_ca),
            tokens=None if tokens is None else TokenBook(tokens),
            insecure=insecure,
            guarded=guarded,
            allow_hosts=tuple(allow_host or ()),
            allow_origins=tuple(allow_origin or ()),
            http_limits=HttpLimits.parse(http_limit or []),
            layout=layout.value,
            store_options=place.options,
            queue=settings_from(setting or [], place.changes()),
            broker=BrokerSettings(heartbeat=_span("--heartbeat", heartbeat), lease=_span("--lease", lease)),
            drain=_span("--drain", drain),
            limits=limits,
            grpc_limits=grpc_limits,
            peers=_peers(tls_cert, tls_key, peer_ca or tls_client_ca),
        )

    try:
        with telling(log_format, verbose), asyncio.Runner(loop_factory=fast_loop()) as runner:
            collect_rarely()
            runner.run(_run(options, voice))
    except CorruptQueueError as error:
        voice.failed(f"the queue is damaged: {error}")
        raise typer.Exit(EXIT_FAILED) from None
    except CasqueError as error:
        voice.failed(str(error))
        raise typer.Exit(EXIT_FAILED if voice.started else EXIT_CANNOT_TELL) from None
    except ImportError as error:
        if voice.started:
            raise
        voice.failed(str(error))  # which package is missing, and how to get it
        raise typer.Exit(EXIT_CANNOT_TELL) from None


class Voice:
    """What a broker says about itself on standard output: where it is, and each change of its role."""

    def __init__(self, form: LogFormat) -> None:
        self._json = form is LogFormat.JSON
        self._last: tuple[Any, ...] = ()
        self._clock = SystemClock()
        self.started = False

    def banner(self, server: BrokerServer, options: ServeOptions, layout: str) -> None:
        self.started = True
        standing = server.standing()
        self._last = _essence(standing)
        facts: dict[str, Any] = {
            "url": options.url,
            "grpc": str(options.listen.at(server.grpc_port)),
            "http": None
            if options.http is None or server.http_port is None
            else str(options.http.at(server.http_port)),
            "advertise": server.address,
            "layout": layout,
            "security": _security(options),
        }
        if self._json:
            self._say("serving", **facts, **_told(standing))
            return
        print(printable(f"casque {__version__} serves {options.url}"))
        for name, value in facts.items():
            if name != "url":
                print(printable(f"  {name:<10} {value if value is not None else 'off'}"))
        print(printable(f"  {'role':<10} {_words(standing)}"), flush=True)

    def changed(self, standing: Standing) -> None:
        """One line, if there is anything new in it."""
        if _essence(standing) == self._last:
            return
        self._last = _essence(standing)
        self._say(_words(standing), **_told(standing))

    def stopping(self, by: str, drain: timedelta) -> None:
        self._say(f"{by}: stopping, within {drain.total_seconds():g} s; again to stop at once")

    def stopped(self) -> None:
        self._say("stopped")

    def failed(self, why: str) -> None:
        if self._json:
            self._say(why, to=sys.stderr, level="error")
        else:
            Terminal(stderr=True).print(why, markup=False, style="red", highlight=False, soft_wrap=True)

    def _say(self, message: str, *, to: Any = None, level: str = "info", **facts: Any) -> None:
        moment = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        if self._json:
            line: dict[str, Any] = {"time": moment, "level": level, "logger": "casque.serve", "message": message}
            print(printable_json(msgspec.json.encode(line | facts)), file=to or sys.stdout, flush=True)
        else:
            print(printable(f"{moment[11:19]} {message}"), flush=True)


async def _run(make: Callable[[], ServeOptions], voice: Voice) -> None:
    from casque.app import BrokerServer

    signals = _Signals()
    options = make()
    server = BrokerServer(options)
    if not await _unless(signals.stop, server.start()):
        voice.stopped()
        return
    voice.banner(server, options, await _layout(options))
    watching = asyncio.create_task(_watch(server, voice))
    try:
        await _unless(signals.stop, server.wait())
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        if signals.stop.is_set():
            voice.stopping(signals.name, options.drain)
        await server.stop()
    voice.stopped()


async def _layout(options: ServeOptions) -> str:
    """That of the queue, which may have been there before and have another than was asked for."""
    store = open_store(options.url, options=options.store_options)
    try:
        read = await store.get(KEY)
        return read_layout(KEY, read.body).layout if isinstance(read, Stored) else str(options.layout)
    except CasqueError:
        return "unknown"
    finally:
        await store.close()


async def _watch(server: BrokerServer, voice: Voice) -> None:
    while True:
        voice.changed(await server.changed())


async def _unless(stop: asyncio.Event, work: Awaitable[None]) -> bool:
    """Do it, unless told to stop first; True if it was done."""
    working, stopping = asyncio.ensure_future(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
            return True
        return False
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


class _Signals:
    """The first one asks for a clean stop; the second does not ask."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.name = ""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._received, number)

    def _received(self, number: signal.Signals) -> None:
        if self.stop.is_set():
            os._exit(EXIT_FAILED)
        self.name = number.name
        self.stop.set()


def _tls(cert: Path | None, key: Path | None, client_ca: Path | None) -> Tls | None:
    if cert is None and key is None and client_ca is None:
        return None
    if cert is None or key is None:
        missing = "--tls-cert" if cert is None else "--tls-key"
        raise InvalidInputError(f"TLS needs a certificate and its key: {missing} is missing")
    return TlsFiles(cert, key, client_ca).load()


def _limits(pairs: list[str]) -> tuple[Limits, GrpcLimits]:
    from casque.transport.grpc.server import GrpcLimits

    of_calls, of_server = changed(split(pairs), Limits(), GrpcLimits())
    assert isinstance(of_calls, Limits)
    assert isinstance(of_server, GrpcLimits)
    return of_calls, of_server


def _peers(cert: Path | None, key: Path | None, ca: Path | None) -> Peers:
    """How other brokers of a ring are called: as they call this one, with its own certificate."""
    from casque.app import Peers
    from casque.transport.grpc.credentials import ClientTls

    token = peer_token()
    if cert is None or key is None:
        return Peers(token=token)
    try:
        roots = None if ca is None else ca.read_bytes()
        return Peers(token=token, tls=ClientTls(roots=roots, key=key.read_bytes(), chain=cert.read_bytes()))
    except OSError as error:
        raise InvalidInputError(f"--peer-ca: {error}") from error


def settings_from(pairs: list[str], others: SettingsChanges | None = None) -> QueueSettings:
    """`["retention=3600", "archive=false"]` as settings; they win over others. Raises InvalidInputError."""
    return DEFAULTS.with_changes({**(others or {}), **changes_from(pairs)})


def _span(option: str, seconds: float) -> timedelta:
    if not 0 < seconds <= LONGEST_S:
        raise InvalidInputError(f"{option} must be more than 0 and at most {LONGEST_S:g} seconds, not {seconds:g}")
    return timedelta(seconds=seconds)


def _security(options: ServeOptions) -> str:
    tls = "no TLS" if options.tls is None else "mutual TLS" if options.tls.client_ca is not None else "TLS"
    return f"{tls}, {'no tokens' if options.tokens is None else 'tokens'}"


def _essence(standing: Standing) -> tuple[Any, ...]:
    """What makes a change worth a line; commits do not."""
    ring = (standing.shards, standing.led, standing.members)
    return standing.role, standing.epoch, standing.leader, standing.problem, ring


def _told(standing: Standing) -> dict[str, Any]:
    told = {
        "role": standing.role.value,
        "epoch": standing.epoch,
        "leader": standing.leader,
        "position": standing.position,
        "problem": standing.problem,
    }
    if standing.shards:
        told |= {"shards": standing.shards, "led": standing.led, "brokers": standing.members}
    return told


def _words(standing: Standing) -> str:
    match standing.role:
        case Role.LEADER if standing.shards:
            others = "alone" if standing.members == 1 else f"one of {standing.members} brokers"
            said = f"leads {standing.led} of {standing.shards} shards, {others}"
        case Role.LEADER:
            said = f"leader, epoch {standing.epoch}"
        case Role.STANDBY if standing.leader is not None:
            said = f"standby: {standing.leader} leads, epoch {standing.epoch}"
        case Role.STANDBY:
            said = "standby: nobody leads yet"
        case _:
            said = standing.role.value
    return f"{said} (trouble: {standing.problem})" if standing.problem else said
