"""List, Watch and Archive: long answers, many values per message, no faster than the client takes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec

from casque.errors import NoLeaderError
from casque.service import ArchivedJob, QueueEvent, QueueService
from casque.transport.grpc import casque_v1_pb2 as pb
from casque.transport.grpc import messages, packets
from casque.transport.grpc.door import STOPPING, Door
from casque.transport.grpc.messages import given

T = TypeVar("T")

BUFFERED = 1000
"""Values that are read ahead of a client."""

_encoder = msgspec.msgpack.Encoder()


class Streams:
    """The server's half; casque's own client asks for values in one piece (`packed`) instead of messages.

    Each takes a service, a request and gRPC's context; `one_request` puts the wire around it."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def list(self, service: QueueService, request: pb.ListRequest, context: Any) -> None:
        await context.send_initial_metadata(())
        found = await service.jobs(
            states=messages.states(request.states),
            entrypoint=given(request, "entrypoint"),
            limit=request.limit or None,
            after=request.after,
        )
        for jobs in _cut(found, packets.weight, self._door.limits.packet_bytes):
            if request.packed:
                await context.write(pb.ListResponse(packed=_encoder.encode(jobs)))
            else:
                await context.write(pb.ListResponse(jobs=map(messages.job, jobs)))

    async def watch(self, service: QueueService, request: pb.WatchRequest, context: Any) -> None:
        await context.send_initial_metadata(())
        feed = service.events(from_position=given(request, "from_position"), follow=not request.until_now)
        async with aclosing(_together(feed, self._door.closing)) as batches:
            async for batch in batches:
                for events in _cut(batch, _event_weight, self._door.limits.packet_bytes):
                    if request.packed:
                        await context.write(pb.WatchResponse(packed=_encoder.encode(events)))
                    else:
                        await context.write(pb.WatchResponse(events=map(messages.event, events)))

    async def archive(self, service: QueueService, request: pb.ArchiveRequest, context: Any) -> None:
        await context.send_initial_metadata(())
        found = service.archive(
            since=messages.moment(request, "since_ms"),
            until=messages.moment(request, "until_ms"),
            entrypoint=given(request, "entrypoint"),
            states=messages.states(request.states),
        )
        async with aclosing(_together(found, self._door.closing)) as batches:
            async for batch in batches:
                for jobs in _cut(batch, _archived_weight, self._door.limits.packet_bytes):
                    if request.packed:
                        await context.write(pb.ArchiveResponse(packed=_encoder.encode(jobs)))
                    else:
                        await context.write(pb.ArchiveResponse(jobs=map(messages.archived, jobs)))


async def _together(source: AsyncGenerator[T], closing: asyncio.Event) -> AsyncGenerator[list[T]]:
    """What comes together is handed on together, and read ahead only so far. Raises NoLeaderError at the end of the
    server, between two messages: a write that is cancelled half-way would leave no way to say anything more."""
    ahead: asyncio.Queue[T] = asyncio.Queue(BUFFERED)

    async def fill() -> None:
        async with aclosing(source):
            async for value in source:
                if ahead.full():
                    await ahead.put(value)
                else:
                    ahead.put_nowait(value)

    filling = asyncio.create_task(fill())
    ending = asyncio.create_task(closing.wait())
    taking: asyncio.Task[T] | None = None
    try:
        while True:
            if ending.done():
                raise NoLeaderError(STOPPING)
            if ahead.empty():
                taking = asyncio.create_task(ahead.get())
                await asyncio.wait({filling, taking, ending}, return_when=asyncio.FIRST_COMPLETED)
                if not taking.done():
                    taking.cancel()
                    if not filling.done():
                        continue
                    filling.result()
                    return
                batch = [taking.result()]
            else:
                batch = []
            while not ahead.empty() and len(batch) < BUFFERED:
                batch.append(ahead.get_nowait())
            yield batch
    finally:
        begun = [task for task in (filling, taking, ending) if task is not None]
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)


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
