"""Outcomes on their way to the driver while their task still runs.

Spark hands over the results of a job's tasks when the last task has ended, so one slow handler would hold up the
outcomes of all others. Tasks therefore send outcomes to a port of the driver as well. A report is an early copy:
outcomes that the driver did not confirm are part of the task's own result, so a lost connection loses nothing.

A port accepts reports only from the tasks of this run: a connection starts with the run's secret, and what follows is
data, never code.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Self

import msgspec

from casque.service import Outcome
from casque.telemetry import logger

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logger("spark.work")

LOOPBACK = "127.0.0.1"
SECRET_BYTES = 32
LENGTH_BYTES = 4
FRAME_MAX = 64 * 1024 * 1024
REPORT_MAX = 5_000
"""Most outcomes per report."""
REPORT_BYTES = 4 * 1024 * 1024
"""A report with more results and errors than this is cut."""
PATIENCE_S = 10.0
"""How long either side waits for the other."""
TAKEN, REFUSED = b"\x01", b"\x00"
ENCRYPTED = ("spark.network.crypto.enabled", "spark.ssl.enabled", "spark.ssl.rpc.enabled")
"""Clusters with one of these do not expect data in the clear between their machines."""

Range = tuple[int, int]
WHOLE: Range = (0, 2**31)
"""All jobs of a parcel."""


class Destination(msgspec.Struct, frozen=True):
    """Where the tasks of one trip send their reports."""

    host: str
    port: int
    secret: bytes
    trip: str


class Report(msgspec.Struct, frozen=True, array_like=True):
    trip: str
    number: int
    """The number of the parcel."""
    done: list[Range]
    """Jobs of the parcel that are done without a result: from which to before which."""
    outcomes: list[Outcome]
    """Outcomes of other jobs."""
    handed_over: list[Range] = []
    """Jobs that this task will not start: they wait behind a slow one, and the driver sends them elsewhere."""


Take = Callable[[Report], None]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Report)


class Reporter:
    """On an executor: sends reports, for as long as the driver can be reached."""

    def __init__(self, destination: Destination) -> None:
        self._to = destination
        self._socket: socket.socket | None = None
        self._guard = threading.Lock()
        self.works = True

    def report(
        self, number: int, done: list[Range], outcomes: list[Outcome], handed_over: list[Range] | None = None
    ) -> bool:
        """Whether the driver has confirmed it. After the first failure nothing is sent any more."""
        body = _encoder.encode(Report(self._to.trip, number, done, outcomes, handed_over or []))
        with self._guard:
            self.works = self.works and self._sent(body)
            return self.works

    def _sent(self, body: bytes) -> bool:
        try:
            if self._socket is None:
                self._socket = socket.create_connection((self._to.host, self._to.port), PATIENCE_S)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._socket.sendall(self._to.secret)
            self._socket.sendall(len(body).to_bytes(LENGTH_BYTES, "big") + body)
            return self._socket.recv(1) == TAKEN
        except OSError:
            return False

    def close(self) -> None:
        with self._guard:
            self.works = False
            if self._socket is not None:
                self._socket.close()


class ReportServer:
    """On the driver: `async with` it, and `expect` the reports of a trip."""

    def __init__(self, *, bind: str, host: str) -> None:
        """`bind` is the address to listen on, `host` the one that executors know."""
        self._bind = bind
        self._host = host
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._expected: dict[str, Take] = {}
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        try:
            self._server = await asyncio.start_server(self._serve, self._bind, 0)
        except OSError as error:
            log.warning("cannot listen on %s: outcomes are settled when their batch ends: %s", self._bind, error)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    @contextmanager
    def expect(self, trip: str, take: Take) -> Iterator[Destination | None]:
        """Reports of this trip go to `take`, on the event loop. May be called from any thread."""
        if self._server is None:
            yield None
            return
        self._expected[trip] = take
        try:
            yield Destination(self._host, self._server.sockets[0].getsockname()[1], self._secret, trip)
        finally:
            del self._expected[trip]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            # A task that stops here, or is killed, closes its connection: ordinary.
            with suppress(OSError, asyncio.IncompleteReadError, TimeoutError, msgspec.MsgspecError, ValueError):
                async with asyncio.timeout(PATIENCE_S):
                    secret = await reader.readexactly(SECRET_BYTES)
                while hmac.compare_digest(secret, self._secret):
                    size = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
                    if size > FRAME_MAX:
                        break
                    async with asyncio.timeout(PATIENCE_S):
                        report = _decoder.decode(await reader.readexactly(size))
                    writer.write(TAKEN if self._took(report) else REFUSED)
                    await writer.drain()
        except asyncio.CancelledError:
            pass  # the run has ended
        finally:
            self._connections.discard(task)
            writer.close()

    def _took(self, report: Report) -> bool:
        take = self._expected.get(report.trip)
        if take is None:
            return False
        take(report)
        return True


def server_for(context: SparkContext | None) -> ReportServer | None:
    """The server for this session's executors; None if they may not be able to reach the driver, as over Connect, or
    if the cluster encrypts its traffic."""
    if context is None or any(context.getConf().get(name, "false") == "true" for name in ENCRYPTED):
        return None
    conf = context.getConf()
    master = conf.get("spark.master", "") or ""
    if master.startswith("local") and not master.startswith("local-cluster"):
        return ReportServer(bind=LOOPBACK, host=LOOPBACK)
    host = conf.get("spark.driver.host")
    bind = conf.get("spark.driver.bindAddress", host)
    return None if host is None or bind is None else ReportServer(bind=bind, host=host)
