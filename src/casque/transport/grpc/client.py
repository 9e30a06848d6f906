"""A `QueueService` that calls the broker at one address over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar, Unpack, cast

import grpc
import msgspec

from casque.clock import Clock, SystemClock
from casque.errors import BrokerUnreachableError, CasqueError, InvalidInputError, QueueClosedError
from casque.service import ArchivedJob, ArchiveFilter, QueueEvent, QueueService
from casque.service.requests import Dequeue, ListJobs, Request, is_empty
from casque.tasks import is_cancelled
from casque.transport.grpc import casque_v1_pb2 as pb
from casque.transport.grpc import messages, unpacking
from casque.transport.grpc.credentials import ClientTls
from casque.transport.grpc.door import GrpcLimits
from casque.transport.grpc.exchange import ExchangeClient
from casque.transport.grpc.packets import value_of
from casque.transport.grpc.refusals import typed
from casque.types import JobRecord, to_ms

__all__ = ["ClientTls", "GrpcService"]

A = TypeVar("A")
T = TypeVar("T")

WAIT_AT_ONCE_S = 60.0
"""Longest wait of one call, because brokers do not hold calls for ever. A longer wait is made of several calls."""


class GrpcService(QueueService):
    """Satisfies `QueueService` through the broker at one address. Connects on first use, and reconnects after the
    connection broke; calls under way at that moment fail and are not repeated.

    Concurrent calls share messages: a thousand callers need no more connections than one.

    Raises, besides what the queue itself refuses:
        BrokerUnreachableError: no answer from the address; nothing was sent.
        UnknownOutcomeError: the connection broke, or no answer came in time; the call may have been carried out.
        QueueLedError: another broker leads; nothing was done. `address` says which.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        tls: ClientTls | None = None,
        connect_s: float = 5.0,
        call_s: float = 60.0,
        silence_s: float = 8.0,
        message_bytes: int = GrpcLimits().message_bytes,
        clock: Clock | None = None,
    ) -> None:
        """`call_s`: timeout of a call, after which it raises UnknownOutcomeError; a waiting dequeue has its wait on
        top. `silence_s`: the broker gets a ping after this long without data, and the connection counts as broken if
        the answer takes as long again."""
        if not address or "://" in address:
            raise InvalidInputError(f"address must be host:port, not {address!r}")
        self.address = address
        self._tls = tls
        self._metadata: tuple[tuple[str, str], ...] = () if token is None else (("authorization", f"Bearer {token}"),)
        self._connect_s = connect_s
        self._call_s = call_s
        self._silence_s = silence_s
        self._message_bytes = message_bytes
        self._clock = clock or SystemClock()
        self._exchange: ExchangeClient | None = None
        self._side: grpc.aio.Channel | None = None
        """A second channel for streams, so that their flow control does not slow down calls."""
        self._closed = False

    async def close(self) -> None:
        """Close the connection; calls under way raise an error."""
        self._closed = True
        if self._exchange is not None:
            await self._exchange.close()
        if self._side is not None:
            await self._side.close()

    def call(self, request: Request[A]) -> Awaitable[A]:
        if type(request) is Dequeue:
            return cast("Awaitable[A]", self._dequeue(request))
        if type(request) is ListJobs:
            return cast("Awaitable[A]", self._list_jobs(request))
        return self._ask(request)

    async def _ask(self, request: Request[A]) -> A:
        if is_empty(request):
            return cast(A, [])
        return value_of(request, await self._open_exchange().ask(request))

    async def _dequeue(self, request: Dequeue) -> list[JobRecord]:
        if request.wait_s <= WAIT_AT_ONCE_S:
            return await self._open_exchange().claim(request)
        until_ms = self._clock.monotonic_ms() + request.wait_s * 1000
        while True:
            wait_s = (until_ms - self._clock.monotonic_ms()) / 1000
            at_once = msgspec.structs.replace(request, wait_s=min(max(wait_s, 0.0), WAIT_AT_ONCE_S))
            jobs = await self._open_exchange().claim(at_once)
            if jobs or wait_s <= WAIT_AT_ONCE_S:
                return jobs
            request = msgspec.structs.replace(request, first=False)

    # --- Long answers ---

    async def _list_jobs(self, request: ListJobs) -> list[JobRecord]:
        if request.states is not None and not request.states:
            return []  # on the wire, an empty list means all states
        asked = pb.ListRequest(
            states=messages.state_numbers(request.states),
            entrypoint=request.entrypoint,
            limit=request.limit,
            after=request.after,
            packed=True,
        )
        found: list[JobRecord] = []
        async for jobs in self._stream("List", asked, pb.ListResponse, unpacking.jobs, self._call_s):
            found += jobs
        return found

    async def events(self, *, from_position: int | None = None, follow: bool = True) -> AsyncGenerator[QueueEvent]:
        request = pb.WatchRequest(from_position=from_position, until_now=not follow, packed=True)
        patience_s = None if follow else self._call_s
        async for events in self._stream("Watch", request, pb.WatchResponse, unpacking.events, patience_s):
            for event in events:
                yield event

    async def archive(self, **asked: Unpack[ArchiveFilter]) -> AsyncGenerator[ArchivedJob]:
        states = asked.get("states")
        if states is not None and not states:
            return
        request = pb.ArchiveRequest(
            since_ms=_ms_from(asked.get("since")),
            until_ms=_ms_from(asked.get("until")),
            entrypoint=asked.get("entrypoint"),
            states=messages.state_numbers(states),
            packed=True,
        )
        async for jobs in self._stream("Archive", request, pb.ArchiveResponse, unpacking.archive, self._call_s):
            for job in jobs:
                yield job

    async def _stream(
        self, method: str, request: Any, response: Any, unpack: Callable[[bytes], T], patience_s: float | None
    ) -> AsyncGenerator[T]:
        """Yield messages as they come; the next is fetched when this one has been taken."""
        self._check_open()
        channel: grpc.aio.Channel = self._side or self._channel()
        self._side = channel
        stream = channel.unary_stream(
            f"/casque.v1.Queue/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )(request, metadata=self._metadata)
        try:
            async with asyncio.timeout(self._connect_s):
                await stream.wait_for_connection()
            while True:
                async with asyncio.timeout(patience_s):
                    message = await stream.read()
                if message is grpc.aio.EOF:
                    break
                yield unpack(message.packed)
        except TimeoutError:
            raise BrokerUnreachableError(self.address, "it does not answer in time") from None
        except grpc.aio.AioRpcError as error:
            raise await self._stream_broke(channel, error) from None
        except asyncio.CancelledError:
            # gRPC raises the same when the server ends the call as cancelled, but then this task was not cancelled.
            if is_cancelled():
                raise
            raise BrokerUnreachableError(self.address, "it ended the call") from None
        finally:
            stream.cancel()

    async def _stream_broke(self, channel: grpc.aio.Channel, error: grpc.aio.AioRpcError) -> CasqueError:
        if (sent := typed(error)) is not None:
            return sent
        # A channel that failed once waits before it tries again; a new one does not.
        if self._side is channel:
            self._side = None
        await channel.close()
        return BrokerUnreachableError(self.address, error.details() or error.code().name)

    # --- Connecting ---

    def _open_exchange(self) -> ExchangeClient:
        exchange = self._exchange
        if exchange is None or exchange.broken:
            self._check_open()
            exchange = self._exchange = ExchangeClient(
                self._channel(),
                self.address,
                metadata=self._metadata,
                connect_s=self._connect_s,
                call_s=self._call_s,
                message_bytes=self._message_bytes,
                clock=self._clock,
            )
        return exchange

    def _check_open(self) -> None:
        if self._closed:
            raise QueueClosedError("this connection was closed; nothing was sent")

    def _channel(self) -> grpc.aio.Channel:
        options = _options(self._message_bytes, self._silence_s)
        if self._tls is None:
            return grpc.aio.insecure_channel(self.address, options)
        if self._tls.server_name is not None:
            options.append(("grpc.ssl_target_name_override", self._tls.server_name))
        return grpc.aio.secure_channel(self.address, self._tls.credentials(), options)


def _ms_from(moment: datetime | None) -> int | None:
    """The first whole millisecond at or after the moment."""
    return None if moment is None else to_ms(moment + timedelta(microseconds=999))


def _options(message_bytes: int, silence_s: float) -> list[tuple[str, Any]]:
    return [
        # Answers come in parts, but one job may be as large as a message.
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", message_bytes),
        ("grpc.max_metadata_size", 64 * 1024),
        # Do not share connections: a shared one remembers failures of other channels, and backs off.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        ("grpc.keepalive_time_ms", int(silence_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(silence_s * 1000)),
        ("grpc.http2.ping_timeout_ms", int(silence_s * 1000)),
    ]
