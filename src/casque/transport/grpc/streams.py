"""List, Watch and Archive: long answers, many values per message, sent at the pace of the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Generic, Self, TypeVar

import msgspec
from google.protobuf.message import Message

from casque.errors import NoLeaderError
from casque.service import ArchivedJob, QueueEvent, QueueService
from casque.transport.grpc import casque_v1_pb2 as pb
from casque.transport.grpc import messages, packets
from casque.transport.grpc.door import Door
from casque.transport.grpc.messages import given
from casque.transport.grpc.open_calls import STOPPING

T = TypeVar("T")

BUFFERED = 1000
"""Values read ahead of a client."""
AHEAD_BYTES = 256 * 1024
"""Size of the values read ahead of a client."""

_encoder = msgspec.msgpack.Encoder()


class Streams:
    """The server's half; casque's own client asks for values in one piece (`packed`) instead of messages.

    Each takes a service, a request, gRPC's context and the name of the caller; `one_request` puts the wire around it.
    """

    def __init__(self, door: Door) -> None:
        self._door = door

    async def list(self, service: QueueService, request: pb.ListRequest, context: Any, name: str) -> None:
        await context.send_initial_metadata(())
        found = await service.jobs(
            states=messages.states(request.states),
            entrypoint=given(request, "entrypoint"),
            limit=request.limit or None,
            after=request.after,
        )
        with Outlet(self._door, context, name) as outlet:
            for jobs in _cut(found, packets.weight, self._door.limits.packet_bytes):
                weight = sum(map(packets.weight, jobs))
                await outlet.hold(weight)
                if request.packed:
                    await outlet.write(pb.ListResponse(packed=_encoder.encode(jobs)), weight)
                else:
                    await outlet.write(pb.ListResponse(jobs=map(messages.job, jobs)), weight)

    async def watch(self, service: QueueService, request: pb.WatchRequest, context: Any, name: str) -> None:
        await context.send_initial_metadata(())
        feed = service.events(from_position=given(request, "from_position"), follow=not request.until_now)

        def message(events: Sequence[QueueEvent]) -> pb.WatchResponse:
            if request.packed:
                return pb.WatchResponse(packed=_encoder.encode(events))
            return pb.WatchResponse(events=map(messages.event, events))

        await self._send(feed, _event_weight, message, Outlet(self._door, context, name))

    async def archive(self, service: QueueService, request: pb.ArchiveRequest, context: Any, name: str) -> None:
        await context.send_initial_metadata(())
        found = service.archive(
            since=messages.moment(request, "since_ms"),
            until=messages.moment(request, "until_ms"),
            entrypoint=given(request, "entrypoint"),
            states=messages.states(request.states),
        )

        def message(jobs: Sequence[ArchivedJob]) -> pb.ArchiveResponse:
            if request.packed:
                return pb.ArchiveResponse(packed=_encoder.encode(jobs))
            return pb.ArchiveResponse(jobs=map(messages.archived, jobs))

        await self._send(found, _archived_weight, message, Outlet(self._door, context, name))

    async def _send(
        self,
        values: AsyncGenerator[T],
        weigh: Callable[[T], int],
        message: Callable[[Sequence[T]], Message],
        outlet: Outlet,
    ) -> None:
        with outlet:
            async with aclosing(_together(values, weigh, outlet)) as batches:
                async for batch in batches:
                    for some in _cut(batch, weigh, self._door.limits.packet_bytes):
                        await outlet.write(message(some), sum(map(weigh, some)))


class Outlet:
    """Sends the values of one stream. They count against the caller's quota from when they are read until written."""

    def __init__(self, door: Door, context: Any, name: str) -> None:
        self._context = context
        self._name = name
        self._unsent = door.quotas.unsent
        self._stall_s = door.limits.stall_s
        self._held = 0
        self._written = asyncio.Event()
        self.closing = door.closing

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._let_go(self._held)

    async def hold(self, weight: int) -> None:
        """
        Raises:
            LimitReachedError: other streams of this caller, or of all, have held all there is for too long.
        """
        while self._held and not self._unsent.has_room(self._name):
            # Waiting for this stream's own reader has no time limit, and it is not asked to make way for itself.
            self._written.clear()
            await self._written.wait()
        await self._unsent.room_in_time(self._name, 2 * self._stall_s)
        self._unsent.take(self._name, weight)
        self._held += weight

    def _let_go(self, weight: int) -> None:
        self._held -= weight
        self._unsent.give(self._name, weight)
        self._written.set()

    async def write(self, message: Message, weight: int) -> None:
        """Write a message. A reader may be slow until another one needs the room.

        Raises:
            LimitReachedError: another reader needs the room, and this one has taken nothing for a while.
        """
        writing = asyncio.ensure_future(self._context.write(message))
        try:
            while not writing.done():
                await asyncio.wait({writing}, timeout=self._stall_s)
                if not writing.done() and self._unsent.are_wanted:
                    raise self._unsent.refusal()
            writing.result()
        finally:
            self._let_go(weight)
            if not writing.done():
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)


async def _together(source: AsyncGenerator[T], weigh: Callable[[T], int], outlet: Outlet) -> AsyncGenerator[list[T]]:
    """Group values that arrive together, and read ahead within the bounds. Raises NoLeaderError when the server closes,
    always between two messages: after a write cancelled half-way no error could be sent."""
    ahead = _Ahead[T]()

    async def fill() -> None:
        async with aclosing(source):
            async for value in source:
                weight = weigh(value)
                if not ahead.has_room:
                    await ahead.taken()
                await outlet.hold(weight)
                ahead.add(value, weight)

    filling = asyncio.create_task(fill())
    ending = asyncio.create_task(outlet.closing.wait())
    taking: asyncio.Task[None] | None = None
    try:
        while True:
            if ending.done():
                raise NoLeaderError(STOPPING)
            if not ahead.values:
                taking = asyncio.create_task(ahead.added())
                await asyncio.wait({filling, taking, ending}, return_when=asyncio.FIRST_COMPLETED)
                taking.cancel()
                if not ahead.values:
                    if not filling.done():
                        continue
                    filling.result()
                    return
            yield ahead.take()
    finally:
        begun = [task for task in (filling, taking, ending) if task is not None]
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)


class _Ahead(Generic[T]):
    """Values read but not handed on, bounded in number and bytes."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self.weight = 0
        self._some = asyncio.Event()
        self._room = asyncio.Event()

    @property
    def has_room(self) -> bool:
        return len(self.values) < BUFFERED and self.weight < AHEAD_BYTES

    def add(self, value: T, weight: int) -> None:
        self.values.append(value)
        self.weight += weight
        self._some.set()

    def take(self) -> list[T]:
        values, self.values, self.weight = self.values, [], 0
        self._some.clear()
        self._room.set()
        return values

    async def added(self) -> None:
        await self._some.wait()

    async def taken(self) -> None:
        self._room.clear()
        await self._room.wait()


def _cut(values: Iterable[T], weigh: Callable[[T], int], bytes_max: int) -> Iterable[list[T]]:
    piece: list[T] = []
    size = 0
    for value in values:
        weight = weigh(value)
        if piece and (size + weight > bytes_max or len(piece) >= BUFFERED):
            yield piece
            piece, size = [], 0
        piece.append(value)
        size += weight
    if piece:
        yield piece


def _event_weight(event: QueueEvent) -> int:
    return 512 + len(event.fields.get("payload") or b"") + len(event.fields.get("result") or b"")


def _archived_weight(job: ArchivedJob) -> int:
    tries = sum([128 + len(tried.error or "") for tried in job.tries]) if job.tries else 0
    return 512 + len(job.payload) + len(job.result or b"") + tries
