"""Packets on `Exchange` that no client of casque would send.

Every entry that can be told apart has one answer: what became of it, or one of casque's errors. Bytes that are no
packet end the stream with `InvalidInputError`. An answer that says that the broker failed is a bug, and so is a queue
that does not work afterwards. `make fuzz` looks for longer.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import grpc
import msgspec
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from casque.clock import SystemClock, system_random
from casque.errors import InvalidInputError
from casque.service.requests import EVERY, verb_of
from casque.storage.memory import MemoryStore
from casque.testing.hosting import leading
from casque.testing.service_suite.jobs import a_job
from casque.transport.border import admit
from casque.transport.grpc import packets
from casque.transport.grpc.casque_v1_pb2 import Packet
from casque.transport.grpc.door import Door, GrpcLimits
from casque.transport.grpc.session import Session

EXAMPLES = int(os.environ.get("CASQUE_FUZZ", "40"))
fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="CASQUE_FUZZ" not in os.environ,  # the normal run tries the same cases every time
    suppress_health_check=list(HealthCheck),
)

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.sampled_from([0, -1, 1, 2, 2**31, 2**63 - 1, 2**64 - 1, -(2**63), 0.5, 1e308, float("nan"), float("inf")]),
        st.sampled_from(["", "send", "job", "x" * 300, "\x00", "é", "\n", "paused", "open"]),
        st.binary(max_size=8),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "entrypoint", "x"]), inner),
    max_leaves=6,
)
NAMES = st.sampled_from(
    [
        *(verb_of(kind) for kind in EVERY), "within", "leave", "done", "farewell", "nonsense",
    ]
)  # fmt: skip
SPECS = st.lists(
    st.fixed_dictionaries(
        {"id": st.sampled_from(["a", "b", "é", ""]), "entrypoint": st.sampled_from(["send", "\x00"])},
        optional={
            "payload": st.binary(max_size=4),
            "priority": VALUES,
            "zone": VALUES,
            "key": VALUES,
            "headers": VALUES,
        },
    ),
    max_size=3,
)


def asked(requests: st.SearchStrategy[tuple[Any, ...]]) -> st.SearchStrategy[list[Any]]:
    return st.tuples(st.integers(1, 9), requests.map(list)).map(list)


ENTRIES = st.one_of(
    asked(st.tuples(NAMES).flatmap(lambda begun: st.lists(VALUES, max_size=6).map(lambda rest: (*begun, *rest)))),
    asked(st.tuples(st.just("enqueue"), SPECS, st.none() | st.sampled_from(["r-1", ""]))),
    asked(st.tuples(st.just("dequeue"), st.none(), st.sampled_from([1, 0, 10**9]))),
    asked(st.tuples(st.sampled_from(["ack", "nack", "heartbeat", "cancel", "find"]), st.just("job"))),
    VALUES,
)
PACKETS = st.one_of(
    st.binary(max_size=60),
    st.lists(ENTRIES, max_size=5).map(msgspec.msgpack.encode),
    st.tuples(
        st.lists(ENTRIES, min_size=1, max_size=5).map(msgspec.msgpack.encode),
        st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=4),
    ).map(lambda pair: damaged(*pair)),
)


def damaged(body: bytes, changes: list[tuple[int, int]]) -> bytes:
    changed = bytearray(body)
    for place, value in changes:
        changed[place % len(changed)] = value
    return bytes(changed)


def numbers_in(body: bytes) -> list[int]:
    """Of the entries that are no `leave`, as far as they can be told apart; nothing if they cannot."""
    try:
        entries = packets.decode_calls(body)
    except packets.NO_PACKET:
        return []
    return [entry.number for entry in entries if not is_leave(entry) and entry.number is not None]


def is_leave(entry: packets.Call | packets.Unreadable) -> bool:
    return isinstance(entry, packets.Call) and isinstance(entry.request, packets.Leave)


class Stream:
    """gRPC's context: packets come in, and what goes out is kept."""

    def __init__(self, bodies: list[bytes]) -> None:
        self._bodies = bodies[::-1]
        self.answers: list[packets.Answer] = []

    async def send_initial_metadata(self, _metadata: Any) -> None:
        pass

    async def read(self) -> Any:
        return Packet(body=self._bodies.pop()) if self._bodies else grpc.aio.EOF

    async def write(self, packet: Packet) -> None:
        self.answers += packets.decode_answers(packet.body)


async def exchanged(bodies: list[bytes]) -> None:
    async with leading(MemoryStore(), layout="log") as host:
        await host.queue.enqueue([msgspec.structs.replace(a_job(b"1"), id="job")])
        door = Door(host, admit(None), GrpcLimits(), clock=SystemClock(), rng=system_random())
        stream, whole = Stream(bodies), True
        async with asyncio.timeout(20):
            try:
                await Session(door, admit(None)(None), stream).run()
            except InvalidInputError:
                whole = False
        said = [answer.error.message for answer in stream.answers if isinstance(answer, packets.Failed)]
        assert not [message for message in said if "the broker failed" in message], said
        asked = [number for body in bodies for number in numbers_in(body)]
        answered = sorted({answer.number for answer in stream.answers})
        if whole:
            assert answered == sorted(set(asked)), (asked, answered)
        else:
            assert set(answered) <= set(asked)
        await door.settled()
        assert await host.queue.find("job") or (await host.queue.stats()).totals.enqueued


def run(bodies: list[bytes]) -> None:
    asyncio.run(exchanged(bodies))


INVALID_TEXT = b"\x92\x01\x92\xa4find\xa1\xff"
"""[1, ["find", a text that is no UTF-8]]"""


@fuzz
@given(st.lists(PACKETS, min_size=1, max_size=3))
@example([msgspec.msgpack.encode([[1, ["enqueue", []]]])])
@example([b"\x91" + INVALID_TEXT])
@example([b"\x92" + INVALID_TEXT + msgspec.msgpack.encode([2, ["stats"]])])
@example([b"\x91\x92\xa1\xff\x01"])
@example([b"\x91" * 2_000 + b"\x90"])
@example([msgspec.msgpack.encode([[1, ["set_schedule", {"name": "n", "cron": "* * * * *", "job": {}}]]])])
def test_whatever_comes_on_exchange_is_answered_or_refused(bodies: list[bytes]) -> None:
    run(bodies)


async def test_text_that_is_none_harms_no_other_entry_of_its_packet() -> None:
    async with leading(MemoryStore(), layout="log") as host:
        door = Door(host, admit(None), GrpcLimits(), clock=SystemClock(), rng=system_random())
        empty = msgspec.msgpack.encode([2, ["enqueue", []]])
        stream = Stream([b"\x93" + INVALID_TEXT + empty + msgspec.msgpack.encode([3, ["stats"]])])

        await Session(door, admit(None)(None), stream).run()

        answers = {answer.number: answer for answer in stream.answers}
        failed = answers[1]
        assert isinstance(failed, packets.Failed)
        assert failed.error.error == "InvalidInputError"
        assert answers[2] == packets.Added(2, [])
        assert isinstance(answers[3], packets.Counted)
