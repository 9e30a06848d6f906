"""`casque serve`: run a broker in front of a queue."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from casque import __version__
from casque.cli.command import command
from casque.cli.exits import EXIT_CANNOT_TELL, EXIT_FAILED, print_error
from casque.cli.logs import LogFormat, log_to_stderr
from casque.cli.options import Layout, LogFormatOption, Settings
from casque.cli.ports import check_port, next_free
from casque.cli.process import collect_rarely, fast_loop, on_stop_signal
from casque.cli.target import BucketTarget
from casque.client.connecting import peer_token
from casque.client.head import find_head
from casque.client.queue import DEFAULTS
from casque.client.settings_text import parse_settings
from casque.clock import SystemClock
from casque.errors import CasqueError, CorruptQueueError, InvalidInputError
from casque.printable import printable, printable_json
from casque.service import Role, Standing
from casque.settings import BrokerSettings, QueueSettings, SettingsChanges
from casque.storage.url import open_store
from casque.transport.access import TokenBook
from casque.transport.limits import Limits, changed, split
from casque.transport.listening import Address
from casque.transport.tls import ServerTls, TlsFiles
from casque.transport.tls_renewal import RenewedTls

if TYPE_CHECKING:
    # Servers need packages that the other commands do without.
    from casque.app import BrokerServer, Peers, ServeOptions
    from casque.transport.grpc.server import GrpcLimits

SECONDS_MAX = 86_400.0
HTTP_DEFAULT = Address("127.0.0.1", 7701)


@command(
    "serve",
    examples=[
        "casque serve file:///var/lib/orders",
        (
            "casque serve s3://bucket/orders --listen 10.0.0.7:7700 --tls-cert cert.pem --tls-key key.pem "
            "--tokens tokens.json"
        ),
    ],
)
def serve(
    target: BucketTarget,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where gRPC listens; port 0 takes a free one.")
    ] = "127.0.0.1:7700",
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            help="Where HTTP listens; port 0 takes a free one.",
            show_default="127.0.0.1:7701, or the next free port",
        ),
    ] = None,
    no_http: Annotated[bool, typer.Option("--no-http", help="Serve no HTTP: no health checks, no metrics.")] = False,
    advertise: Annotated[
        str | None,
        typer.Option("--advertise", metavar="HOST:PORT", help="Where others reach the gRPC port, if not at --listen."),
    ] = None,
    tokens: Annotated[
        Path | None, typer.Option("--tokens", metavar="FILE", help="Require a token from this file.")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="The certificate and its chain, PEM.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Its key, PEM.")] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(
            "--tls-client-ca", metavar="FILE", help="Accept only clients with a certificate of this authority, PEM."
        ),
    ] = None,
    peer_ca: Annotated[
        Path | None,
        typer.Option(
            "--peer-ca",
            metavar="FILE",
            help="For a ring: the authority that signs the other brokers' certificates, PEM.",
        ),
    ] = None,
    guarded: Annotated[bool, typer.Option("--guarded", help="Require a token for /metrics and /readyz too.")] = False,
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
        bool, typer.Option("--insecure", help="Allow a network to reach it without TLS or tokens.")
    ] = False,
    layout: Annotated[Layout, typer.Option("--layout", help="Layout of the queue, if it is created.")] = Layout.LOG,
    heartbeat: Annotated[
        float, typer.Option("--heartbeat", metavar="SECONDS", help="Seconds between two heartbeats of the leader.")
    ] = 2,
    lease: Annotated[
        float,
        typer.Option(
            "--leader-lease",
            "--lease",
            metavar="SECONDS",
            help="The leader's lease: how long it may be silent before another broker takes over.",
        ),
    ] = 8,
    drain: Annotated[float, typer.Option("--drain", metavar="SECONDS", help="How long a clean stop may take.")] = 30,
    osqueue_timeout: Annotated[
        float | None,
        typer.Option(
            "--osqueue-timeout",
            metavar="SECONDS",
            help="How long a client of osqueue may send no heartbeat before its job goes to another one.",
            show_default="30",
        ),
    ] = None,
    setting: Settings = None,
    limit: Annotated[
        list[str] | None,
        typer.Option("--limit", metavar="NAME=VALUE", help="A limit for callers; may be repeated."),
    ] = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="Log more; twice for everything.")] = 0,
) -> None:
    """Run a broker: it leads the queue, or stands by and takes over when the leader is gone. On a ring it leads its
    share of the shards, and answers for all of them.

    Any number may run on one queue, on any machines; only the bucket connects them. Clients find the leader by
    themselves. The brokers of a ring also call each other, with the token in CASQUE_PEER_TOKEN where tokens are
    asked for.

    SIGTERM and Ctrl-C stop it cleanly: it takes no more calls, finishes those it has, and resigns, so that another
    takes over at once. A second signal stops it on the spot.

    Exit code 0: stopped cleanly. 1: it failed while it ran, or the queue is damaged. 2: it could not start.
    """
    status = StatusLines(log_format)

    def options() -> ServeOptions:
        from casque.app import ServeOptions
        from casque.transport.http.limits import HttpLimits

        place = target.resolve()
        limits, grpc_limits = _limits(limit or [])
        if guarded and tokens is None:
            raise InvalidInputError("--guarded requires tokens: add --tokens FILE")
        tls = _tls(tls_cert, tls_key, tls_client_ca)
        return ServeOptions(
            url=place.url,
            listen=Address.parse(listen, option="--listen"),
            http=None if no_http else _http_address(http),
            advertise=advertise,
            tls=tls,
            tokens=None if tokens is None else TokenBook(tokens),
            insecure=insecure,
            guarded=guarded,
            allow_hosts=tuple(allow_host or ()),
            allow_origins=tuple(allow_origin or ()),
            http_limits=HttpLimits.parse(http_limit or []),
            layout=layout.value,
            store_options=place.options,
            queue=_queue_settings(setting or [], place.changes(), osqueue_timeout),
            broker=BrokerSettings(heartbeat=_span("--heartbeat", heartbeat), lease=_span("--leader-lease", lease)),
            drain=_span("--drain", drain),
            limits=limits,
            grpc_limits=grpc_limits,
            peers=_peers(tls, peer_ca or tls_client_ca),
        )

    try:
        with log_to_stderr(log_format, verbose), asyncio.Runner(loop_factory=fast_loop()) as runner:
            collect_rarely()
            runner.run(_run(options, status, http_by_default=http is None))
    except CorruptQueueError as error:
        status.failed(f"the queue is damaged: {error}")
        raise typer.Exit(EXIT_FAILED) from None
    except CasqueError as error:
        status.failed(str(error))
        raise typer.Exit(EXIT_FAILED if status.started else EXIT_CANNOT_TELL) from None
    except ImportError as error:
        if status.started:
            raise
        status.failed(str(error))  # which package is missing, and how to get it
        raise typer.Exit(EXIT_CANNOT_TELL) from None


class StatusLines:
    """What a broker writes to standard output: where it listens, and each change of its role."""

    def __init__(self, form: LogFormat) -> None:
        self._json = form is LogFormat.JSON
        self._last: tuple[Any, ...] = ()
        self._clock = SystemClock()
        self.started = False

    def banner(self, server: BrokerServer, options: ServeOptions, layout: str, *, http_moved: bool = False) -> None:
        """`http_moved`: another port than the default one was taken, because that is in use."""
        self.started = True
        notes = {"http": f" ({HTTP_DEFAULT.port} is in use)"} if http_moved else {}
        standing = server.standing()
        self._last = _significant(standing)
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
            self._write("serving", **facts, **_fields(standing))
            return
        print(printable(f"casque {__version__} serves {options.url}"))
        for name, value in facts.items():
            if name != "url":
                print(printable(f"  {name:<10} {value if value is not None else 'off'}{notes.get(name, '')}"))
        print(printable(f"  {'role':<10} {_describe(standing)}"), flush=True)

    def changed(self, standing: Standing) -> None:
        """Write a line if the role changed."""
        if _significant(standing) == self._last:
            return
        self._last = _significant(standing)
        self._write(_describe(standing), **_fields(standing))

    def stopping(self, by: str, drain: timedelta) -> None:
        self._write(f"{by}: stopping, within {drain.total_seconds():g} s; again to stop at once")

    def stopped(self) -> None:
        self._write("stopped")

    def failed(self, why: str) -> None:
        if self._json:
            self._write(why, to=sys.stderr, level="error")
        else:
            print_error(why)

    def _write(self, message: str, *, to: Any = None, level: str = "info", **facts: Any) -> None:
        moment = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        if self._json:
            line: dict[str, Any] = {"time": moment, "level": level, "logger": "casque.serve", "message": message}
            print(printable_json(msgspec.json.encode(line | facts)), file=to or sys.stdout, flush=True)
        else:
            print(printable(f"{moment[11:19]} {message}"), flush=True)


async def _run(make: Callable[[], ServeOptions], status: StatusLines, *, http_by_default: bool) -> None:
    from casque.app import BrokerServer

    stop = asyncio.Event()
    received: list[signal.Signals] = []

    def stopping(number: signal.Signals) -> None:
        received.append(number)
        stop.set()

    on_stop_signal(stopping)
    options = make()
    server = BrokerServer(options)
    check_port(options.listen, "--listen")
    if options.http is not None:
        check_port(options.http, "--http")
    if not await _unless(stop, server.start()):
        status.stopped()
        return
    moved = http_by_default and server.http_port not in (None, HTTP_DEFAULT.port)
    status.banner(server, options, await _layout(options), http_moved=moved)
    watching = asyncio.create_task(_watch(server, status))
    try:
        await _unless(stop, server.wait())
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        if received:
            status.stopping(received[0].name, options.drain)
        await server.stop()
    status.stopped()


async def _layout(options: ServeOptions) -> str:
    """The layout of the queue; an existing one may have another than --layout."""
    store = open_store(options.url, options=options.store_options)
    try:
        head = await find_head(store)
        return str(options.layout) if head is None else head.layout
    except CasqueError:
        return "unknown"
    finally:
        await store.close()


async def _watch(server: BrokerServer, status: StatusLines) -> None:
    while True:
        status.changed(await server.changed())


async def _unless(stop: asyncio.Event, work: Awaitable[None]) -> bool:
    """Await the work, unless `stop` is set first. Returns whether it was done."""
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


def _http_address(given: str | None) -> Address:
    """The address for HTTP. The default port of a second broker on one machine is the next that is free."""
    return next_free(HTTP_DEFAULT) if given is None else Address.parse(given, option="--http")


def _tls(cert: Path | None, key: Path | None, client_ca: Path | None) -> ServerTls | None:
    if cert is None and key is None and client_ca is None:
        return None
    if cert is None or key is None:
        missing = "--tls-cert" if cert is None else "--tls-key"
        raise InvalidInputError(f"TLS needs a certificate and its key: {missing} is missing")
    return RenewedTls(TlsFiles(cert, key, client_ca))


def _limits(pairs: list[str]) -> tuple[Limits, GrpcLimits]:
    from casque.transport.grpc.server import GrpcLimits

    of_calls, of_server = changed(split(pairs), Limits(), GrpcLimits())
    assert isinstance(of_calls, Limits)
    assert isinstance(of_server, GrpcLimits)
    return of_calls, of_server


def _peers(own: ServerTls | None, ca: Path | None) -> Peers:
    """How this broker calls others of its ring: as they call this one, with its own certificate."""
    from casque.app import Peers
    from casque.transport.grpc.credentials import ClientTls

    token = peer_token()
    if own is None:
        return Peers(token=token)
    try:
        return Peers(token=token, tls=ClientTls(roots=None if ca is None else ca.read_bytes()), own=own)
    except OSError as error:
        raise InvalidInputError(f"--peer-ca: {error}") from error


def settings_from(pairs: list[str], others: SettingsChanges | None = None) -> QueueSettings:
    """`["retention=3600", "archive=false"]` as settings; they win over others. Raises InvalidInputError."""
    return DEFAULTS.with_changes({**(others or {}), **parse_settings(pairs)})


def _queue_settings(pairs: list[str], others: SettingsChanges, osqueue_timeout: float | None) -> QueueSettings:
    if osqueue_timeout is not None:
        others = {**others, "osqueue_timeout": _span("--osqueue-timeout", osqueue_timeout)}
    return settings_from(pairs, others)


def _span(option: str, seconds: float) -> timedelta:
    if not 0 < seconds <= SECONDS_MAX:
        raise InvalidInputError(f"{option} must be more than 0 and at most {SECONDS_MAX:g} seconds, not {seconds:g}")
    return timedelta(seconds=seconds)


def _security(options: ServeOptions) -> str:
    tls = "no TLS" if options.tls is None else "mutual TLS" if options.tls.client_ca is not None else "TLS"
    return f"{tls}, {'no tokens' if options.tokens is None else 'tokens'}"


def _significant(standing: Standing) -> tuple[Any, ...]:
    """The parts of the status whose change is worth a line; commits are not."""
    ring = (standing.shards, standing.led, standing.members)
    return standing.role, standing.epoch, standing.leader, standing.problem, ring


def _fields(standing: Standing) -> dict[str, Any]:
    fields = {
        "role": standing.role.value,
        "epoch": standing.epoch,
        "leader": standing.leader,
        "position": standing.position,
        "problem": standing.problem,
    }
    if standing.shards:
        fields |= {"shards": standing.shards, "led": standing.led, "brokers": standing.members}
    return fields


def _describe(standing: Standing) -> str:
    match standing.role:
        case Role.LEADER if standing.shards:
            others = "alone" if standing.members == 1 else f"one of {standing.members} brokers"
            role = f"leads {standing.led} of {standing.shards} shards, {others}"
        case Role.LEADER:
            role = f"leader, epoch {standing.epoch}"
        case Role.STANDBY if standing.leader is not None:
            role = f"standby: {standing.leader} leads, epoch {standing.epoch}"
        case Role.STANDBY:
            role = "standby: no broker leads yet"
        case _:
            role = standing.role.value
    return f"{role} (trouble: {standing.problem})" if standing.problem else role
