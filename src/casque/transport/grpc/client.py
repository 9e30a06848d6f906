"""A queue behind a broker, as a `QueueService`: against one address, over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import grpc
import msgspec

from casque.clock import Clock, SystemClock
from casque.codec.stored import to_ms
from casque.errors import BrokerUnreachableError, CasqueError, InvalidInputError, QueueClosedError
from casque.service import ArchivedJob, Lease, Outcome, QueueEvent, Stats
from casque.tasks import is_cancelled
from casque.transport.errors import from_wire
from casque.transport.grpc import casque_v1_pb2 as pb
from casque.transport.grpc import messages, unpacking
from casque.transport.grpc.credentials import ClientTls
from casque.transport.grpc.door import GrpcLimits
from casque.transport.grpc.line import Line
from casque.transport.grpc.packets import (
    AckCall,
    Added,
    AddedRun,
    AdmitCall,
    Beats,
    CancelCall,
    Count,
    Counted,
    DequeueCall,
    Done,
    DropScheduleCall,
    EnqueueCall,
    FindCall,
    GateCall,
    GiveBackCall,
    HeartbeatCall,
    HeartbeatsCall,
    HeartbeatZoneCall,
    Job,
    Jobs,
    LeaseZoneCall,
    NackCall,
    OutcomeOf,
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
    ZoneCall,
    ZoneHeld,
    Zones,
    ZonesCall,
    expect,
)
from casque.transport.grpc.refusals import typed
from casque.transport.settling import answers_to
from casque.types import (
    Admission,
    Backoff,
    Gate,
    JobRecord,
    JobSpec,
    JobState,
    PeekedZone,
    Schedule,
    ScheduleSpec,
    StagedPart,
    ZoneLease,
    ZoneRules,
    ZoneStanding,
)

__all__ = ["ClientTls", "GrpcService"]

T = TypeVar("T")

WAIT_AT_ONCE_S = 60.0
"""Whoever wants to wait longer asks again: brokers do not keep a call for ever."""


class GrpcService:
    """Satisfies `QueueService` through the broker at one address. Connects when it is first used, and again after the
    connection broke; what was under way then is told so and not repeated.

    Concurrent calls share messages: a thousand callers need no more connections than one.

    Raises, besides what the queue itself refuses:
        BrokerUnreachableError: nobody answers there; nothing was sent.
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
        """`call_s`: how long a call may take before its caller is told that nobody knows; a dequeue that waits may take
        that much longer than it waits. `silence_s`: after so long without a word the broker is sent a ping, and if that
        is not answered as soon, the connection counts as broken."""
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
        self._line: Line | None = None
        self._side: grpc.aio.Channel | None = None
        """For streams: their flow control is not to be that of the calls."""
        self._closed = False

    async def close(self) -> None:
        """Calls that are under way end with an error."""
        self._closed = True
        if self._line is not None:
            await self._line.close()
        if self._side is not None:
            await self._side.close()

    # --- Verbs ---

    async def enqueue(
        self, specs: Sequence[JobSpec], *, request_id: str | None = None, generation: int = 0
    ) -> Sequence[JobRecord]:
        """`generation` is for the brokers of a ring among themselves."""
        if not specs:
            return ()
        line = self._open_line()
        answer = await line.ask(EnqueueCall(line.next_number(), tuple(specs), request_id, generation))
        if type(answer) is AddedRun:
            created_ms, state, due_ms = answer.created_ms, answer.state, answer.due_ms
            numbered = enumerate(specs, answer.sequence)
            return tuple([JobRecord(spec, sequence, created_ms, state, due_ms) for sequence, spec in numbered])
        if type(answer) is Added:
            paired = zip(specs, answer.jobs, strict=True)
            return tuple([JobRecord(s, new.sequence, new.created_ms, new.state, new.due_ms) for s, new in paired])
        return tuple(expect(answer, Jobs).jobs)

    async def admit(
        self,
        source: str,
        batch: int,
        parts: Sequence[StagedPart],
        *,
        skip_known: bool = False,
        generation: int = 0,
    ) -> Admission:
        """`generation` is for the brokers of a ring among themselves."""
        line = self._open_line()
        answer = expect(
            await line.ask(AdmitCall(line.next_number(), source, batch, tuple(parts), skip_known, generation)), Taken
        )
        return answer.admission

    async def dequeue(
        self,
        *,
        entrypoints: tuple[str, ...] | None,
        limit: int,
        first: bool = False,
        lease_ms: int | None = None,
        worker: str | None = None,
        wait_s: float = 0.0,
        request_id: str | None = None,
        zones: tuple[str, ...] | None = None,
        zone_lease: ZoneLease | None = None,
    ) -> list[JobRecord]:
        until_ms = self._clock.monotonic_ms() + wait_s * 1000
        shown = None if zone_lease is None else (zone_lease.zone, zone_lease.token)
        while True:
            line = self._open_line()
            at_once_s = min(wait_s, WAIT_AT_ONCE_S)
            call = DequeueCall(
                line.next_number(), entrypoints, limit, lease_ms, worker, at_once_s, request_id, zones, first, shown
            )
            jobs = await line.claim(call)
            first = False
            if jobs or wait_s <= WAIT_AT_ONCE_S:
                return jobs
            wait_s = (until_ms - self._clock.monotonic_ms()) / 1000
            if wait_s <= 0:
                return jobs

    async def ack(
        self, job_id: str, *, token: int | None = None, result: bytes | None = None, request_id: str | None = None
    ) -> None:
        line = self._open_line()
        expect(await line.ask(AckCall(line.next_number(), job_id, token, result, request_id)), Done)

    async def nack(
        self,
        job_id: str,
        *,
        token: int | None = None,
        delay_ms: int | None = None,
        backoff: Backoff | None = None,
        error: str | None = None,
        request_id: str | None = None,
    ) -> JobRecord | None:
        line = self._open_line()
        answer = expect(
            await line.ask(NackCall(line.next_number(), job_id, token, delay_ms, backoff, error, request_id)), Job
        )
        return answer.job

    async def settle(self, outcomes: Sequence[Outcome], *, request_id: str | None = None) -> list[CasqueError | None]:
        if not outcomes:
            return []
        line = self._open_line()
        sent = tuple([OutcomeOf(*msgspec.structs.astuple(outcome)) for outcome in outcomes])
        answer = expect(await line.ask(SettleCall(line.next_number(), sent, request_id)), Settled)
        return answers_to(outcomes, answer.refused)

    async def heartbeat(self, job_id: str, *, token: int | None = None) -> JobRecord:
        line = self._open_line()
        answer = expect(await line.ask(HeartbeatCall(line.next_number(), job_id, token)), Job)
        return expect(answer.job, JobRecord)

    async def heartbeats(self, leases: Sequence[Lease]) -> list[JobRecord | CasqueError]:
        if not leases:
            return []
        line = self._open_line()
        answer = expect(await line.ask(HeartbeatsCall(line.next_number(), tuple(leases))), Beats)
        return [expect(beat.job, JobRecord) if beat.error is None else from_wire(beat.error) for beat in answer.beats]

    async def give_back(self, job_id: str, *, token: int) -> None:
        line = self._open_line()
        expect(await line.ask(GiveBackCall(line.next_number(), job_id, token)), Done)

    async def cancel(self, job_id: str, *, request_id: str | None = None) -> None:
        line = self._open_line()
        expect(await line.ask(CancelCall(line.next_number(), job_id, request_id)), Done)

    async def retry(self, job_id: str, *, request_id: str | None = None) -> JobRecord | None:
        line = self._open_line()
        answer = expect(await line.ask(RetryCall(line.next_number(), job_id, request_id)), Job)
        return answer.job

    async def purge(
        self, *, entrypoint: str | None = None, request_id: str | None = None, zone: str | None = None
    ) -> int:
        line = self._open_line()
        answer = expect(await line.ask(PurgeCall(line.next_number(), entrypoint, request_id, zone)), Count)
        return answer.count

    async def requeue_stale(
        self,
        older_ms: int,
        *,
        entrypoint: str | None = None,
        request_id: str | None = None,
        zone: str | None = None,
    ) -> int:
        line = self._open_line()
        answer = await line.ask(RequeueCall(line.next_number(), older_ms, entrypoint, request_id, zone))
        count: int = answer.count
        return count

    async def set_gate(self, gate: Gate, *, entrypoint: str | None = None, request_id: str | None = None) -> None:
        line = self._open_line()
        expect(await line.ask(GateCall(line.next_number(), gate, entrypoint, request_id)), Done)

    async def set_zone(self, zone: str, rules: ZoneRules, *, request_id: str | None = None) -> None:
        line = self._open_line()
        expect(await line.ask(ZoneCall(line.next_number(), zone, rules, request_id)), Done)

    async def zones(self, *, names: frozenset[str] | None = None, limit: int = 100) -> list[ZoneStanding]:
        if names is not None and not names:
            return []
        line = self._open_line()
        answer = expect(await line.ask(ZonesCall(line.next_number(), names, limit)), Zones)
        return answer.zones

    async def peek_zones(
        self,
        *,
        entrypoints: tuple[str, ...] | None = None,
        names: frozenset[str] | None = None,
        limit: int = 100,
    ) -> list[PeekedZone]:
        if names is not None and not names:
            return []
        line = self._open_line()
        answer = expect(await line.ask(PeekCall(line.next_number(), entrypoints, names, limit)), Peeked)
        return answer.zones

    async def lease_zone(
        self, zone: str, *, lease_ms: int | None = None, worker: str | None = None, request_id: str | None = None
    ) -> ZoneLease | None:
        line = self._open_line()
        answer = expect(await line.ask(LeaseZoneCall(line.next_number(), zone, lease_ms, worker, request_id)), ZoneHeld)
        return answer.lease

    async def heartbeat_zone(self, zone: str, *, token: int) -> ZoneLease:
        line = self._open_line()
        answer = expect(await line.ask(HeartbeatZoneCall(line.next_number(), zone, token)), ZoneHeld)
        return expect(answer.lease, ZoneLease)

    async def release_zone(self, zone: str, *, token: int) -> None:
        line = self._open_line()
        expect(await line.ask(ReleaseZoneCall(line.next_number(), zone, token)), Done)

    async def find(self, job_id: str) -> JobRecord | None:
        line = self._open_line()
        answer = expect(await line.ask(FindCall(line.next_number(), job_id)), Job)
        return answer.job

    async def stats(self) -> Stats:
        line = self._open_line()
        answer = expect(await line.ask(StatsCall(line.next_number())), Counted)
        return answer.stats

    async def set_schedule(self, spec: ScheduleSpec) -> Schedule:
        line = self._open_line()
        answer = expect(await line.ask(SetScheduleCall(line.next_number(), spec)), Planned)
        return answer.schedules[0]

    async def schedules(self) -> list[Schedule]:
        line = self._open_line()
        answer = expect(await line.ask(SchedulesCall(line.next_number())), Planned)
        return answer.schedules

    async def pause_schedule(self, name: str, *, paused: bool) -> Schedule:
        line = self._open_line()
        answer = expect(await line.ask(PauseScheduleCall(line.next_number(), name, paused)), Planned)
        return answer.schedules[0]

    async def drop_schedule(self, name: str) -> None:
        line = self._open_line()
        expect(await line.ask(DropScheduleCall(line.next_number(), name)), Done)

    # --- Long answers ---

    async def jobs(
        self,
        *,
        states: frozenset[JobState] | None = None,
        entrypoint: str | None = None,
        limit: int | None = None,
        after: int = 0,
    ) -> list[JobRecord]:
        if states is not None and not states:
            return []  # on the wire, no states are all of them
        request = pb.ListRequest(
            states=messages.state_numbers(states), entrypoint=entrypoint, limit=limit, after=after, packed=True
        )
        found: list[JobRecord] = []
        async for jobs in self._stream("List", request, pb.ListResponse, unpacking.jobs, self._call_s):
            found += jobs
        return found

    async def events(self, *, from_position: int | None = None, follow: bool = True) -> AsyncGenerator[QueueEvent]:
        request = pb.WatchRequest(from_position=from_position, until_now=not follow, packed=True)
        patience_s = None if follow else self._call_s
        async for events in self._stream("Watch", request, pb.WatchResponse, unpacking.events, patience_s):
            for event in events:
                yield event

    async def archive(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        entrypoint: str | None = None,
        states: frozenset[JobState] | None = None,
    ) -> AsyncGenerator[ArchivedJob]:
        if states is not None and not states:
            return
        request = pb.ArchiveRequest(
            since_ms=_ms_from(since),
            until_ms=_ms_from(until),
            entrypoint=entrypoint,
            states=messages.state_numbers(states),
            packed=True,
        )
        async for jobs in self._stream("Archive", request, pb.ArchiveResponse, unpacking.archive, self._call_s):
            for job in jobs:
                yield job

    async def _stream(
        self, method: str, request: Any, response: Any, unpack: Callable[[bytes], T], patience_s: float | None
    ) -> AsyncGenerator[T]:
        """Messages as they come; the next is fetched when this one has been taken."""
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
            # gRPC says the same when the server ends the call as cancelled; whoever iterates here was not.
            if is_cancelled():
                raise
            raise BrokerUnreachableError(self.address, "it ended the call") from None
        finally:
            stream.cancel()

    async def _stream_broke(self, channel: grpc.aio.Channel, error: grpc.aio.AioRpcError) -> CasqueError:
        if (said := typed(error)) is not None:
            return said
        # A channel that failed once waits before it tries again; a new one does not.
        if self._side is channel:
            self._side = None
        await channel.close()
        return BrokerUnreachableError(self.address, error.details() or error.code().name)

    # --- Connecting ---

    def _open_line(self) -> Line:
        line = self._line
        if line is None or line.broken:
            self._check_open()
            line = self._line = Line(
                self._channel(),
                self.address,
                metadata=self._metadata,
                connect_s=self._connect_s,
                call_s=self._call_s,
                message_bytes=self._message_bytes,
                clock=self._clock,
            )
        return line

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
    """The first whole millisecond that is not before it."""
    return None if moment is None else to_ms(moment + timedelta(microseconds=999))


def _options(message_bytes: int, silence_s: float) -> list[tuple[str, Any]]:
    return [
        # Answers come in parts, but one job may be as large as a message.
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", message_bytes),
        ("grpc.max_metadata_size", 64 * 1024),
        # Connections of its own: a shared one would remember others' failures, and wait.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        ("grpc.keepalive_time_ms", int(silence_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(silence_s * 1000)),
        ("grpc.http2.ping_timeout_ms", int(silence_s * 1000)),
    ]
