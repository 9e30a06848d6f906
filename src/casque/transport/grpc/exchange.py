"""The client's side of one `Exchange`: packs the calls of all callers into few packets and distributes the answers.

An instance is used once. It connects when it is created. When it breaks, every pending call fails with what is known
about it: never sent, or perhaps carried out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import grpc

from casque.clock import Clock, Timer
from casque.errors import BrokerUnreachableError, CasqueError, InvalidInputError, UnknownOutcomeError
from casque.service.requests import Ack, Dequeue, Enqueue, GiveBack, Settle
from casque.telemetry import logger
from casque.transport.errors import from_wire, to_wire
from casque.transport.grpc import packets
from casque.transport.grpc.casque_v1_pb2 import Packet
from casque.transport.grpc.packets import (
    Answer,
    Asked,
    Beats,
    Call,
    Failed,
    Farewell,
    Jobs,
    Leave,
    Peeked,
    Planned,
    Within,
    Zones,
)
from casque.transport.grpc.refusals import typed
from casque.types import JobRecord

log = logger("transport.grpc")

METHOD = "/casque.v1.Queue/Exchange"
PACKET_BYTES = 1024 * 1024
"""Approximate size at which a packet ends and the next begins."""
PACKET_CALLS = 4096
SWEEP_S = 1.0


class ExchangeClient:
    """One stream to one broker."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        address: str,
        *,
        metadata: tuple[tuple[str, str], ...],
        connect_s: float,
        call_s: float,
        message_bytes: int,
        clock: Clock,
    ) -> None:
        self._channel = channel
        self._address = address
        self._metadata = metadata
        self._connect_s = connect_s
        self._call_ms = call_s * 1000
        self._message_bytes = message_bytes
        self._packet_bytes = min(PACKET_BYTES, message_bytes // 2)
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self._sent = 0
        """The last call that may have left this process."""
        self._looked_at: int | None = None
        """The last call that the server has looked at, if it said farewell."""
        self._outbox: list[Call] = []
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._collected: dict[int, list[Jobs | Beats | Planned | Zones | Peeked]] = {}
        """The first parts of answers that come in several."""
        self._patient: dict[int, float] = {}
        """Deadlines of calls that wait on purpose."""
        self._returnable: set[int] = set()
        """Dequeues that cannot be repeated: jobs that they claim for a caller that is gone are given back."""
        self._marks: deque[tuple[float, int]] = deque()
        self._sweeper: Timer | None = None
        self._something_to_say = asyncio.Event()
        self._broken = False
        self._task = asyncio.create_task(self._run(), name="casque exchange")

    @property
    def broken(self) -> bool:
        """True if further calls need a new one."""
        return self._broken

    # --- Calls ---

    def ask(self, request: Asked | Within) -> asyncio.Future[Any]:
        """Queue a request for the next packet. The future resolves to the answer."""
        return self._ask(self._numbered(request))

    def _numbered(self, request: Asked | Within | Leave) -> Call:
        self._number += 1
        return Call(self._number, request)

    def _ask(self, call: Call) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._pending[call.number] = future
        self._outbox.append(call)
        self._something_to_say.set()
        if self._sweeper is None:
            self._sweeper = self._clock.call_later(SWEEP_S, self._sweep)
        return future

    async def claim(self, request: Dequeue) -> list[JobRecord]:
        """Dequeue. If the caller is cancelled, the broker is notified and claimed jobs are given back."""
        call = self._numbered(request)
        future = self._ask(call)
        if request.request_id is None:
            self._returnable.add(call.number)
        if request.wait_s > 0:
            self._patient[call.number] = self._clock.monotonic_ms() + request.wait_s * 1000 + self._call_ms
        try:
            answer = await future
        except asyncio.CancelledError:
            if call.number in self._pending:
                self._say(Call(call.number, Leave()))
            elif request.request_id is None and (answered := _result_of(future)) is not None:
                self._give_back(answered.jobs)  # answered, but cancelled before the caller could take it
            raise
        return packets.expect(answer, Jobs).jobs

    def _give_back(self, jobs: list[JobRecord]) -> None:
        for job in jobs:
            # The outcome does not matter: without an answer the lease runs out.
            self._say(self._numbered(GiveBack(job.id, job.token)))

    def _say(self, call: Call) -> None:
        self._outbox.append(call)
        self._something_to_say.set()

    # --- Life ---

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        ending: CasqueError | None = None
        stream: Any = None
        try:
            stream = self._channel.stream_stream(
                METHOD, request_serializer=Packet.SerializeToString, response_deserializer=Packet.FromString
            )(metadata=self._metadata)
            # Send nothing before the server has admitted us: whatever fails until then has certainly not been carried
            # out.
            async with asyncio.timeout(self._connect_s):
                await self._enter(stream)
            await self._talk(stream)
        except grpc.aio.AioRpcError as error:
            ending = self._reason(error)
        except BrokerUnreachableError as error:
            ending = error
        except TimeoutError:
            ending = BrokerUnreachableError(self._address, f"no answer within {self._connect_s:g} s")
        except packets.NO_PACKET as error:
            ending = UnknownOutcomeError(f"the broker at {self._address} sent bytes that are no answers: {error}")
        except Exception as error:
            log.exception("the connection to %s failed unexpectedly", self._address)
            ending = UnknownOutcomeError(f"the connection to {self._address} failed: {error!r}")
        finally:
            # Refuse calls from here on: they would wait for ever.
            self._broken = True
            if stream is not None:
                stream.cancel()
            if self._sweeper is not None:
                self._sweeper.cancel()
            self._end_all(ending)
            await self._channel.close()

    async def _enter(self, stream: Any) -> None:
        await stream.wait_for_connection()
        metadata = list(await stream.initial_metadata())
        if packets.HELLO in metadata:
            return
        name, own = packets.HELLO
        if (other := dict(metadata).get(name)) is not None:
            raise BrokerUnreachableError(
                self._address,
                f"it is of another release of casque (Exchange {other}, and this client speaks {own}): use the same "
                "release on both sides",
            )
        raise await _status_of(stream)

    async def _talk(self, stream: Any) -> None:
        reading = asyncio.create_task(self._read(stream))
        writing = asyncio.create_task(self._write(stream))
        try:
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
            if writing.done() and not isinstance(writing.exception(), grpc.aio.AioRpcError | asyncio.InvalidStateError):
                writing.result()
            # The stream ended during a write; the reader raises the reason.
            await reading
        finally:
            for task in (reading, writing):
                task.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)

    async def _write(self, stream: Any) -> None:
        while True:
            await self._something_to_say.wait()
            self._something_to_say.clear()
            while self._outbox:
                outbox, self._outbox = self._outbox, []
                for calls in self._cut(outbox):
                    body = self._encoded(calls)
                    if body is None:
                        continue
                    if len(body) > self._message_bytes:
                        self._refuse(calls, len(body))
                        continue
                    # Take the maximum: a `Leave` has the number of an earlier call.
                    self._sent = max(self._sent, *[call.number for call in calls])
                    await stream.write(Packet(body=body))

    def _cut(self, outbox: list[Call]) -> list[list[Call]]:
        """Split calls into packets of a sensible size. A large call gets its own packet, so that only it can fail."""
        cut: list[list[Call]] = [[]]
        size = 0
        for call in outbox:
            weight = _weight(call)
            if cut[-1] and (size + weight > self._packet_bytes or len(cut[-1]) >= PACKET_CALLS):
                cut.append([])
                size = 0
            cut[-1].append(call)
            size += weight
        return cut

    def _encoded(self, calls: list[Call]) -> bytes | None:
        """Encode a packet, without the calls that no packet can hold: those are refused alone."""
        try:
            return packets.encode(calls)
        except (OverflowError, TypeError, ValueError):
            pass
        for call in list(calls):
            try:
                packets.encode([call])
            except (OverflowError, TypeError, ValueError) as error:
                calls.remove(call)
                self._settle(call.number, InvalidInputError(f"this cannot be sent to a broker: {error}"))
        return packets.encode(calls) if calls else None

    def _refuse(self, calls: list[Call], size: int) -> None:
        error = InvalidInputError(
            f"{size:,} bytes are too many for one call to a broker, which takes {self._message_bytes:,}: "
            "send fewer jobs at a time, or smaller ones"
        )
        for call in calls:
            self._settle(call.number, error)

    async def _read(self, stream: Any) -> None:
        while (packet := await stream.read()) is not grpc.aio.EOF:
            for answer in packets.decode_answers(packet.body):
                self._answered(answer)
        if await stream.code() is not grpc.StatusCode.OK:
            raise await _status_of(stream)

    # --- Answers ---

    def _answered(self, answer: Answer) -> None:
        kind = type(answer)
        if kind is Jobs or kind is Beats or kind is Planned or kind is Zones or kind is Peeked:
            assert isinstance(answer, Jobs | Beats | Planned | Zones | Peeked)
            if answer.more:
                self._collected.setdefault(answer.number, []).append(answer)
                return
            if answer.number in self._collected:
                answer = _joined([*self._collected.pop(answer.number), answer])
        elif kind is Farewell:
            self._looked_at = answer.number
            self._broken = True
            return
        if self._patient:
            self._patient.pop(answer.number, None)
        future = self._pending.pop(answer.number, None)
        if future is None or future.done():
            if isinstance(answer, Jobs) and answer.number in self._returnable:
                self._give_back(answer.jobs)
            self._returnable.discard(answer.number)
            return
        self._returnable.discard(answer.number)
        if kind is Failed:
            assert isinstance(answer, Failed)
            future.set_exception(from_wire(answer.error))
        else:
            future.set_result(answer)

    def _settle(self, number: int, error: CasqueError) -> None:
        self._patient.pop(number, None)
        future = self._pending.pop(number, None)
        if future is not None and not future.done():
            future.set_exception(error)

    # --- Deadlines ---

    def _sweep(self) -> None:
        """Calls are numbered in order, so noting the latest number now and then is enough to find expired ones."""
        now_ms = self._clock.monotonic_ms()
        self._marks.append((now_ms, self._number))
        overdue_to = 0
        while self._marks and now_ms - self._marks[0][0] >= self._call_ms:
            overdue_to = self._marks.popleft()[1]
        overdue = [number for number, until_ms in self._patient.items() if until_ms <= now_ms]
        if overdue_to:
            overdue += [n for n in self._pending if n <= overdue_to and n not in self._patient]
        for number in overdue:
            self._say(Call(number, Leave()))
            self._settle(
                number,
                UnknownOutcomeError(
                    f"the broker at {self._address} did not answer in time; the call may have been carried out, so "
                    "repeat it with the same request_id, or look first"
                ),
            )
        self._sweeper = self._clock.call_later(SWEEP_S, self._sweep) if self._pending else None
        if self._sweeper is None:
            self._marks.clear()

    # --- The end ---

    def _reason(self, error: grpc.aio.AioRpcError) -> CasqueError:
        """The casque error for the reason that the stream ended."""
        if (sent := typed(error)) is not None:
            return sent
        code, details = error.code(), error.details() or ""
        if code is grpc.StatusCode.UNIMPLEMENTED:
            details = f"what answers there is no casque broker: {details}"
        return BrokerUnreachableError(self._address, details or code.name)

    def _end_all(self, ending: CasqueError | None) -> None:
        """Fail every pending call with what is known about it. `ending` is None for an orderly end."""
        seen = self._sent if self._looked_at is None else self._looked_at
        pending, self._pending = self._pending, {}
        for number, future in pending.items():
            if future.done():
                continue
            if number > seen:
                future.set_exception(self._never_sent(ending))
            else:
                future.set_exception(self._perhaps_done(ending))

    def _never_sent(self, ending: CasqueError | None) -> CasqueError:
        if ending is None or isinstance(ending, UnknownOutcomeError):
            why = "the connection was closed" if self._looked_at is None else "it is stopping"
            return BrokerUnreachableError(self._address, why)
        return _another(ending)

    def _perhaps_done(self, ending: CasqueError | None) -> CasqueError:
        if isinstance(ending, UnknownOutcomeError):
            return _another(ending)
        why = ending.why if isinstance(ending, BrokerUnreachableError) else str(ending or "closed")
        return UnknownOutcomeError(
            f"the connection to the broker at {self._address} ended before the answer came ({why}); the call may have "
            "been carried out, so repeat it with the same request_id, or look first"
        )


def _another(error: CasqueError) -> CasqueError:
    """A copy for the next caller: one exception raised several times would collect all their tracebacks."""
    return from_wire(to_wire(error))


def _joined(parts: list[Jobs | Beats | Planned | Zones | Peeked]) -> Jobs | Beats | Planned | Zones | Peeked:
    number = parts[0].number
    if isinstance(parts[0], Zones):
        return Zones(number, [one for part in parts if isinstance(part, Zones) for one in part.zones])
    if isinstance(parts[0], Peeked):
        return Peeked(number, [one for part in parts if isinstance(part, Peeked) for one in part.zones])
    if isinstance(parts[0], Planned):
        return Planned(number, [one for part in parts if isinstance(part, Planned) for one in part.schedules])
    if isinstance(parts[0], Beats):
        return Beats(number, [beat for part in parts if isinstance(part, Beats) for beat in part.beats])
    return Jobs(number, [job for part in parts if isinstance(part, Jobs) for job in part.jobs])


async def _status_of(stream: Any) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        await stream.code(), await stream.initial_metadata(), await stream.trailing_metadata(), await stream.details()
    )


def _result_of(future: asyncio.Future[Any]) -> Jobs | None:
    if future.cancelled() or future.exception() is not None:
        return None
    answer = future.result()
    return answer if isinstance(answer, Jobs) else None


def _weight(call: Call) -> int:
    request = call.request
    if type(request) is Enqueue:
        return sum([len(spec.payload) + 256 for spec in request.specs])
    if type(request) is Ack and request.result is not None:
        return len(request.result) + 128
    if type(request) is Settle:
        return sum([64 + len(o.result or b"") + len(o.error or "") for o in request.outcomes])
    return 128
