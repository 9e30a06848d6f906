"""The server's side of one `Exchange`: unpacks calls, runs each in its own task, and packs the answers as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import grpc

from casque.errors import CasqueError, InvalidInputError
from casque.service import QueueService, ShardService
from casque.service.requests import Dequeue, Request
from casque.transport.border import Wrapper
from casque.transport.errors import WireError, to_wire
from casque.transport.grpc import packets
from casque.transport.grpc.casque_v1_pb2 import Packet
from casque.transport.grpc.door import AtShard, Door
from casque.transport.grpc.packets import Answer, Call, Failed, Farewell, Jobs, Leave, Unreadable, Within
from casque.transport.grpc.refusals import as_refusal, cut_off
from casque.transport.grpc.requests import sound
from casque.types import JobRecord

LARGE_BYTES = 64 * 1024
"""Larger packets count against the byte limits; small ones are bounded by the number of calls in flight."""


class _Load:
    """A large packet, and the number of its calls that are not answered."""

    __slots__ = ("calls", "size")

    def __init__(self, size: int, calls: int) -> None:
        self.size = size
        self.calls = calls


class Session:
    """The server's side of one stream."""

    def __init__(self, door: Door, admitted: Wrapper, context: Any, name: str = "") -> None:
        """`name`: the caller's name in the quotas."""
        self._door = door
        self._name = name
        self._loads: dict[int, _Load] = {}
        """The large packets of calls in flight; each counts until its calls are answered."""
        self._admitted = admitted
        self._context = context
        # The loop's own method: asyncio's also names the task, which was 6 % of a broker's time in a profile.
        self._create_task = asyncio.get_running_loop().create_task
        self._running: dict[int, asyncio.Task[None]] = {}
        self._waiting = 0
        self._answers: list[Answer] = []
        self._unsent: dict[int, list[JobRecord]] = {}
        """Claims that the client cannot have received yet: they are given back if the stream ends now."""
        self._something_to_say = asyncio.Event()
        self._room = asyncio.Event()
        self._last = 0
        self._over = False

    async def run(self) -> None:
        """Serve until the client has sent everything, or the server closes.

        Raises:
            InvalidInputError: bytes that are not a packet.
        """
        await self._context.send_initial_metadata((packets.HELLO,))
        reading = asyncio.create_task(self._read())
        writing = asyncio.create_task(self._write())
        closing = asyncio.create_task(self._door.closing.wait())
        try:
            await asyncio.wait({reading, writing, closing}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                if reading.cancelled():
                    raise cut_off()
                reading.result()
            reading.cancel()
            while self._running and not writing.done():
                await asyncio.wait({*self._running.values(), writing}, return_when=asyncio.FIRST_COMPLETED)
            if self._door.closing.is_set():
                self._say(Farewell(self._last))
            self._over = True
            self._something_to_say.set()
            await writing
        finally:
            self._over = True
            # The client is gone. The engine gives back jobs of claims that are still under way.
            ending = [reading, writing, closing, *self._running.values()]
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)
            for number in list(self._loads):
                self._uncount(number)
            self._return_unsent()

    # --- Calls ---

    async def _read(self) -> None:
        limit, quotas = self._door.limits.calls_per_stream, self._door.quotas
        while True:
            if not quotas.bytes.has_room(self._name):
                await quotas.bytes.room_for_bytes(self._name)
            packet = sound(await self._context.read())
            if packet is grpc.aio.EOF:
                return
            try:
                calls = packets.decode_calls(packet.body)
            except packets.NO_PACKET as error:
                raise InvalidInputError(f"these bytes are no packet of calls: {error}") from error
            if len(packet.body) > LARGE_BYTES:
                self._count(calls, len(packet.body))
            self._begin(calls)
            if quotas.rate.limits and (pause_s := quotas.rate.spend(self._name, len(calls))) > 0:
                await self._door.clock.sleep(pause_s)
            while len(self._running) - self._waiting + len(self._answers) >= limit:
                self._room.clear()
                await self._room.wait()

    def _count(self, calls: Sequence[Call | Unreadable], size: int) -> None:
        """Count a large packet until the last of its calls is answered."""
        asked = {call.number for call in calls if isinstance(call, Call) and type(call.request) is not Leave}
        numbers = asked - self._loads.keys() - self._running.keys()
        if numbers:
            load = _Load(size, len(numbers))
            self._door.quotas.bytes.take(self._name, size)
            self._loads |= dict.fromkeys(numbers, load)

    def _uncount(self, number: int) -> None:
        load = self._loads.pop(number, None)
        if load is not None:
            load.calls -= 1
            if not load.calls:
                self._door.quotas.bytes.give(self._name, load.size)

    def _begin(self, calls: Sequence[Call | Unreadable]) -> None:
        if self._door.closing.is_set():
            return  # the farewell says that these were not looked at
        service: QueueService | None = None
        refused: WireError | None = None
        try:
            service = self._door.service(self._admitted)
        except CasqueError as error:
            refused = to_wire(error)
        for call in calls:
            if isinstance(call, Unreadable):
                self._refuse(call)
            elif type(call.request) is Leave:
                self._leave(call.number)
            else:
                if call.number in self._running:
                    raise InvalidInputError(f"the call number {call.number} is in use; numbers only rise")
                self._last = call.number
                if service is None:
                    assert refused is not None
                    self._say(Failed(call.number, refused))
                elif type(call.request) is Dequeue and call.request.wait_s > 0:
                    self._begin_waiting(service, call)
                else:
                    self._running[call.number] = self._create_task(self._serve(service, call))

    def _begin_waiting(self, service: QueueService, call: Call) -> None:
        limit = self._door.limits.waiting_per_stream
        if self._waiting >= limit:
            error = InvalidInputError(
                f"{limit} dequeues wait on this connection already: claim more jobs per call, or connect once more"
            )
            self._say(Failed(call.number, to_wire(error)))
            return
        self._waiting += 1
        task = self._running[call.number] = self._create_task(self._serve(service, call))
        task.add_done_callback(self._waited)

    def _waited(self, task: asyncio.Task[None]) -> None:  # noqa: ARG002
        self._waiting -= 1

    def _leave(self, number: int) -> None:
        task = self._running.get(number)
        if task is not None:
            # Not at once: a task cancelled before its first step would end without an answer.
            asyncio.get_running_loop().call_soon(task.cancel)

    def _refuse(self, entry: Unreadable) -> None:
        why = f"this broker does not understand the call: {entry.why}"
        if entry.number is None:
            raise InvalidInputError(why)
        self._say(Failed(entry.number, to_wire(InvalidInputError(why))))

    async def _serve(self, service: QueueService, call: Call) -> None:
        answer: Answer
        try:
            request = call.request
            if type(request) is Dequeue:
                answer = await self._claim(service, call.number, request)
            elif type(request) is Within:
                answer = await self._within(service, call.number, request)
            else:
                assert isinstance(request, Request)
                answer = await self._carry_out(service, call.number, request)
        except asyncio.CancelledError:
            if self._over:
                raise
            # The caller left, or its wait was cancelled. Only the verb knows whether it was carried out.
            answer = Failed(call.number, to_wire(cut_off()))
        except Exception as error:  # noqa: BLE001  every call has an answer
            answer = Failed(call.number, to_wire(as_refusal(error)))
        del self._running[call.number]
        self._say(answer)

    async def _carry_out(self, service: QueueService, number: int, request: Request[Any]) -> Answer:
        return packets.answer_to(number, request, await service.call(request))

    async def _within(self, service: QueueService, number: int, asked: Within) -> Answer:
        if not isinstance(self._admitted, AtShard):
            raise InvalidInputError("this call is for the brokers of a ring among themselves")
        scoped = cast(ShardService, service).within(asked.reach)
        return await self._carry_out(scoped, number, asked.request)

    async def _claim(self, service: QueueService, number: int, request: Dequeue) -> Answer:
        jobs = await self._door.wait_for_jobs(service, request)
        if jobs and request.request_id is None:
            self._unsent[number] = jobs
        return Jobs(number, jobs)

    # --- Answers ---

    def _say(self, answer: Answer) -> None:
        if self._loads:
            self._uncount(answer.number)
        self._answers.append(answer)
        self._something_to_say.set()

    async def _write(self) -> None:
        while True:
            await self._something_to_say.wait()
            self._something_to_say.clear()
            while self._answers:
                batch, self._answers = self._answers, []
                for packet in self._packed(batch):
                    body = packets.encode(packet)
                    if self._unsent:
                        # From here on the client may have the claims: if not, their leases run out.
                        for answer in packet:
                            self._unsent.pop(answer.number, None)
                    await self._context.write(Packet(body=body))
                self._room.set()
            if self._over:
                return

    def _packed(self, answers: list[Answer]) -> list[list[Answer]]:
        """Group answers into packets of a sensible size; a large answer is split."""
        limit = self._door.limits.packet_bytes
        whole: list[list[Answer]] = [[]]
        size = 0
        for answer in answers:
            weight = packets.answer_weight(answer)
            if size + weight > limit and whole[-1]:
                whole.append([])
                size = 0
            if weight <= limit:
                whole[-1].append(answer)
                size += weight
            else:
                # It gets its own packets; treat the last of them as full.
                whole[-1:] = [[part] for part in packets.parts(answer, limit)]
                size = limit
        return whole

    def _return_unsent(self) -> None:
        jobs = [job for claimed in self._unsent.values() for job in claimed]
        if not jobs:
            return
        try:
            service = self._door.behind(self._admitted)  # not as the caller: its token may have been revoked by now
        except CasqueError:
            return  # led elsewhere by now: the leases run out there
        self._door.give_back(service, jobs)
