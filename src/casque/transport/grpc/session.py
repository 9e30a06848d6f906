"""One `Exchange`: calls come in packets, each is carried out on its own, answers go out in packets as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import msgspec

from casque.errors import CasqueError, InvalidInputError
from casque.service import Outcome, QueueService, ShardService
from casque.transport.border import Wrapper
from casque.transport.errors import WireError, to_wire
from casque.transport.grpc import packets
from casque.transport.grpc.casque_v1_pb2 import Packet
from casque.transport.grpc.door import AtShard, Door
from casque.transport.grpc.packets import (
    AckCall,
    AdmitCall,
    AdoptCall,
    Answer,
    Beat,
    Beats,
    Call,
    CancelCall,
    CopyGateCall,
    CopyZoneCall,
    Count,
    Counted,
    DequeueCall,
    Done,
    DropScheduleCall,
    DueCall,
    EnqueueCall,
    Failed,
    Farewell,
    FindCall,
    GateCall,
    GiveBackCall,
    HeartbeatCall,
    HeartbeatsCall,
    HeartbeatZoneCall,
    Job,
    Jobs,
    KnownCall,
    Knows,
    LeaseZoneCall,
    Leave,
    NackCall,
    PauseScheduleCall,
    PeekCall,
    Peeked,
    Planned,
    PurgeCall,
    ReleaseZoneCall,
    RequeueCall,
    RetryCall,
    SchedulesCall,
    SetScheduleCall,
    SettleCall,
    Settled,
    StatsCall,
    Taken,
    Unreadable,
    Verb,
    WithinCall,
    ZoneCall,
    ZoneHeld,
    Zones,
    ZonesCall,
)
from casque.transport.grpc.refusals import as_refusal, cut_off
from casque.transport.grpc.requests import sound
from casque.transport.settling import refused_among
from casque.types import JobRecord

LARGE_BYTES = 64 * 1024
"""Packets of more bytes than this are counted; of smaller ones there are no more than calls in flight."""


class _Load:
    """A large packet, and how many of its calls are not answered."""

    __slots__ = ("calls", "size")

    def __init__(self, size: int, calls: int) -> None:
        self.size = size
        self.calls = calls


class Session:
    """The server's side of one stream."""

    def __init__(self, door: Door, admitted: Wrapper, context: Any, name: str = "") -> None:
        """`name`: what the caller's share of the server is counted by."""
        self._door = door
        self._name = name
        self._loads: dict[int, _Load] = {}
        """Of calls that came in a large packet: it is counted until they are answered."""
        self._admitted = admitted
        self._context = context
        # The loop's own: asyncio's also names the task, which was 6 % of a broker's time in a profile.
        self._create_task = asyncio.get_running_loop().create_task
        self._running: dict[int, asyncio.Task[None]] = {}
        self._waiting = 0
        self._answers: list[Answer] = []
        self._unsent: dict[int, list[JobRecord]] = {}
        """Claims that nobody can have heard of yet: they go back if the stream ends now."""
        self._something_to_say = asyncio.Event()
        self._room = asyncio.Event()
        self._last = 0
        self._over = False

    async def run(self) -> None:
        """Until the client has said all, or the server closes.

        Raises:
            InvalidInputError: bytes that are no packet.
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
            # Whoever asked is gone. What had been claimed for them and was on its way, the engine gives back.
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
        """A large packet counts until the last of its calls is answered."""
        numbers = {call.number for call in calls if isinstance(call, Verb)} - self._loads.keys() - self._running.keys()
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
            return  # the farewell says that nobody looked at these
        service: QueueService | None = None
        refused: WireError | None = None
        try:
            service = self._door.service(self._admitted)
        except CasqueError as error:
            refused = to_wire(error)
        for call in calls:
            if isinstance(call, Leave):
                self._leave(call.number)
            elif isinstance(call, Unreadable):
                self._refuse(call)
            else:
                if call.number in self._running:
                    raise InvalidInputError(f"the call number {call.number} is in use; numbers only rise")
                self._last = call.number
                if service is None:
                    assert refused is not None
                    self._say(Failed(call.number, refused))
                elif type(call) is DequeueCall and call.wait_s > 0:
                    self._begin_waiting(service, call)
                else:
                    self._running[call.number] = self._create_task(self._serve(service, call))

    def _begin_waiting(self, service: QueueService, call: DequeueCall) -> None:
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
            # Not at once: a task that is cancelled before its first step would end without an answer.
            asyncio.get_running_loop().call_soon(task.cancel)

    def _refuse(self, entry: Unreadable) -> None:
        why = f"this broker does not understand the call: {entry.why}"
        if entry.number is None:
            raise InvalidInputError(why)
        self._say(Failed(entry.number, to_wire(InvalidInputError(why))))

    async def _serve(self, service: QueueService, call: Verb) -> None:
        answer: Answer
        try:
            if type(call) is DequeueCall:
                answer = await self._claim(service, call)
            else:
                answer = await self._verb(call)(service, call)
        except asyncio.CancelledError:
            if self._over:
                raise
            # Its caller left, or what it waited for was called off. Only a verb knows that it was carried out.
            answer = Failed(call.number, to_wire(cut_off()))
        except Exception as error:  # noqa: BLE001  every call has an answer
            answer = Failed(call.number, to_wire(as_refusal(error)))
        del self._running[call.number]
        self._say(answer)

    def _verb(self, call: Verb) -> Callable[[Any, Any], Awaitable[Answer]]:
        if isinstance(self._admitted, AtShard) and (verb := _SHARD_VERBS.get(type(call))) is not None:
            return verb
        if type(call) not in _VERBS:
            raise InvalidInputError("this call is for the brokers of a ring among themselves")
        return _VERBS[type(call)]

    async def _claim(self, service: QueueService, call: DequeueCall) -> Answer:
        jobs = await self._door.wait_for_jobs(service, call)
        if jobs and call.request_id is None:
            self._unsent[call.number] = jobs
        return Jobs(call.number, jobs)

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
                        # From here on the client may have it: what was sent in vain is for the lease to settle.
                        for answer in packet:
                            self._unsent.pop(answer.number, None)
                    await self._context.write(Packet(body=body))
                self._room.set()
            if self._over:
                return

    def _packed(self, answers: list[Answer]) -> list[list[Answer]]:
        """Answers in packets of a decent size; a large one is cut into parts."""
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
                # It has packets to itself; the last of them is as good as full.
                whole[-1:] = [[part] for part in packets.parts(answer, limit)]
                size = limit
        return whole

    def _return_unsent(self) -> None:
        jobs = [job for claimed in self._unsent.values() for job in claimed]
        if not jobs:
            return
        try:
            service = self._door.behind(self._admitted)  # not as the caller: its token may have been revoked since
        except CasqueError:
            return  # led elsewhere by now: the leases run out there
        self._door.give_back(service, jobs)


async def _enqueue(service: QueueService, c: EnqueueCall) -> Answer:
    return packets.added(c.number, c.specs, await service.enqueue(c.specs, request_id=c.request_id))


async def _admit(service: QueueService, c: AdmitCall) -> Answer:
    return Taken(c.number, await service.admit(c.source, c.batch, c.parts, skip_known=c.skip_known))


async def _ack(service: QueueService, c: AckCall) -> Answer:
    await service.ack(c.job_id, token=c.token, result=c.result, request_id=c.request_id)
    return Done(c.number)


async def _nack(service: QueueService, c: NackCall) -> Answer:
    job = await service.nack(
        c.job_id, token=c.token, delay_ms=c.delay_ms, backoff=c.backoff, error=c.error, request_id=c.request_id
    )
    return Job(c.number, job)


async def _settle(service: QueueService, c: SettleCall) -> Answer:
    outcomes = [Outcome(*msgspec.structs.astuple(outcome)) for outcome in c.outcomes]
    return Settled(c.number, refused_among(await service.settle(outcomes, request_id=c.request_id)))


async def _heartbeat(service: QueueService, c: HeartbeatCall) -> Answer:
    return Job(c.number, await service.heartbeat(c.job_id, token=c.token))


async def _heartbeats(service: QueueService, c: HeartbeatsCall) -> Answer:
    answers = await service.heartbeats(c.leases)
    return Beats(c.number, [Beat(a) if isinstance(a, JobRecord) else Beat(None, to_wire(a)) for a in answers])


async def _give_back(service: QueueService, c: GiveBackCall) -> Answer:
    await service.give_back(c.job_id, token=c.token)
    return Done(c.number)


async def _cancel(service: QueueService, c: CancelCall) -> Answer:
    await service.cancel(c.job_id, request_id=c.request_id)
    return Done(c.number)


async def _retry(service: QueueService, c: RetryCall) -> Answer:
    return Job(c.number, await service.retry(c.job_id, request_id=c.request_id))


async def _purge(service: QueueService, c: PurgeCall) -> Answer:
    return Count(c.number, await service.purge(entrypoint=c.entrypoint, request_id=c.request_id, zone=c.zone))


async def _requeue_stale(service: QueueService, c: RequeueCall) -> Answer:
    count = await service.requeue_stale(c.older_ms, entrypoint=c.entrypoint, request_id=c.request_id, zone=c.zone)
    return Count(c.number, count)


async def _set_gate(service: QueueService, c: GateCall) -> Answer:
    await service.set_gate(c.gate, entrypoint=c.entrypoint, request_id=c.request_id)
    return Done(c.number)


async def _set_zone(service: QueueService, c: ZoneCall) -> Answer:
    await service.set_zone(c.zone, c.rules, request_id=c.request_id)
    return Done(c.number)


async def _zones(service: QueueService, c: ZonesCall) -> Answer:
    return Zones(c.number, await service.zones(names=c.names, limit=c.limit))


async def _peek(service: QueueService, c: PeekCall) -> Answer:
    return Peeked(c.number, await service.peek_zones(entrypoints=c.entrypoints, names=c.names, limit=c.limit))


async def _lease_zone(service: QueueService, c: LeaseZoneCall) -> Answer:
    lease = await service.lease_zone(c.zone, lease_ms=c.lease_ms, worker=c.worker, request_id=c.request_id)
    return ZoneHeld(c.number, lease)


async def _heartbeat_zone(service: QueueService, c: HeartbeatZoneCall) -> Answer:
    return ZoneHeld(c.number, await service.heartbeat_zone(c.zone, token=c.token))


async def _release_zone(service: QueueService, c: ReleaseZoneCall) -> Answer:
    await service.release_zone(c.zone, token=c.token)
    return Done(c.number)


async def _find(service: QueueService, c: FindCall) -> Answer:
    return Job(c.number, await service.find(c.job_id))


async def _stats(service: QueueService, c: StatsCall) -> Answer:
    return Counted(c.number, await service.stats())


async def _set_schedule(service: QueueService, c: SetScheduleCall) -> Answer:
    return Planned(c.number, [await service.set_schedule(c.spec)])


async def _schedules(service: QueueService, c: SchedulesCall) -> Answer:
    return Planned(c.number, await service.schedules())


async def _pause_schedule(service: QueueService, c: PauseScheduleCall) -> Answer:
    return Planned(c.number, [await service.pause_schedule(c.name, paused=c.paused)])


async def _drop_schedule(service: QueueService, c: DropScheduleCall) -> Answer:
    await service.drop_schedule(c.name)
    return Done(c.number)


_VERBS: dict[type, Callable[[QueueService, Any], Awaitable[Answer]]] = {
    EnqueueCall: _enqueue,
    AdmitCall: _admit,
    AckCall: _ack,
    NackCall: _nack,
    SettleCall: _settle,
    HeartbeatCall: _heartbeat,
    HeartbeatsCall: _heartbeats,
    GiveBackCall: _give_back,
    CancelCall: _cancel,
    RetryCall: _retry,
    PurgeCall: _purge,
    RequeueCall: _requeue_stale,
    GateCall: _set_gate,
    ZoneCall: _set_zone,
    ZonesCall: _zones,
    PeekCall: _peek,
    LeaseZoneCall: _lease_zone,
    HeartbeatZoneCall: _heartbeat_zone,
    ReleaseZoneCall: _release_zone,
    FindCall: _find,
    StatsCall: _stats,
    SetScheduleCall: _set_schedule,
    SchedulesCall: _schedules,
    PauseScheduleCall: _pause_schedule,
    DropScheduleCall: _drop_schedule,
}


# --- Between the brokers of a ring ---


async def _enqueue_at_shard(shard: ShardService, c: EnqueueCall) -> Answer:
    added = await shard.enqueue(c.specs, request_id=c.request_id, generation=c.generation)
    return packets.added(c.number, c.specs, added)


async def _adopt(shard: ShardService, c: AdoptCall) -> Answer:
    return Count(c.number, await shard.adopt(c.generation, c.size))


async def _admit_at_shard(shard: ShardService, c: AdmitCall) -> Answer:
    admission = await shard.admit(c.source, c.batch, c.parts, skip_known=c.skip_known, generation=c.generation)
    return Taken(c.number, admission)


async def _known(shard: ShardService, c: KnownCall) -> Answer:
    known = await shard.known(c.job_ids, request_id=c.request_id, places=c.places, admission=c.admission)
    return Knows(c.number, known)


async def _copy_gate(shard: ShardService, c: CopyGateCall) -> Answer:
    await shard.copy_gate(c.gate, entrypoint=c.entrypoint, expected=c.expected)
    return Done(c.number)


async def _copy_zone(shard: ShardService, c: CopyZoneCall) -> Answer:
    await shard.copy_zone(c.zone, c.rules, expected=c.expected)
    return Done(c.number)


async def _has_due(shard: ShardService, c: DueCall) -> Answer:
    return Count(c.number, int(await shard.has_due(c.entrypoints, c.zones)))


async def _within(shard: ShardService, c: WithinCall) -> Answer:
    return await _VERBS[type(c.call)](shard.within(c.reach), c.call)


_SHARD_VERBS: dict[type, Callable[[ShardService, Any], Awaitable[Answer]]] = {
    EnqueueCall: _enqueue_at_shard,
    AdmitCall: _admit_at_shard,
    AdoptCall: _adopt,
    KnownCall: _known,
    CopyGateCall: _copy_gate,
    CopyZoneCall: _copy_zone,
    DueCall: _has_due,
    WithinCall: _within,
}
