"""Readers of streams that stop reading: what a broker holds for them is bounded, and others are served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from casque.clock import yield_once
from casque.testing.hosting import leading
from casque.testing.service_suite.jobs import a_job
from casque.transport.border import admit
from casque.transport.grpc.door import GrpcLimits
from casque.transport.grpc.server import GrpcServer
from tests.integration.test_grpc_calls import calls_to
from tests.integration.test_grpc_limits import door_of, two_tokens, until_nothing_is_under_way
from tests.support.over_grpc import serving

KIB = 1024
LARGE = bytes(200 * KIB)
JOBS = 60
READERS = 12


async def stalled(stub: Any) -> list[Any]:
    """Readers that take nothing: gRPC's own windows are full soon, and then the broker has to wait."""
    readers = [stub.Watch(from_position=0, timeout=120) for _ in range(READERS)]
    for reader in readers:
        await reader.initial_metadata()
    return readers


async def read_in_turns(readers: list[Any]) -> None:
    while True:
        for reader in readers:
            await reader.read()


async def held_stays(server: GrpcServer) -> int:
    """What is held when no stream reads on any more."""
    counts = door_of(server).quotas.unsent.counts
    before, turns = -1, 0
    while turns < 2_000:
        turns = turns + 1 if counts.total == before else 0
        before = counts.total
        await yield_once()
    return counts.total


async def test_readers_that_never_read_hold_no_more_than_their_principals_share(tmp_path: Path) -> None:
    book, one, other = two_tokens(tmp_path)
    limits = GrpcLimits(unsent_bytes_per_principal=1024 * KIB)
    async with (
        leading("memory://stalled-share", layout="log") as host,
        serving(host, admit=admit(book), limits=limits) as server,
        calls_to(server, one) as slow,
        calls_to(server, other) as quick,
    ):
        for _ in range(JOBS // 20):
            await host.queue.enqueue([a_job(LARGE) for _ in range(20)])
        readers = await stalled(slow)

        held = await held_stays(server)

        assert 0 < held <= limits.unsent_bytes_per_principal + READERS * (len(LARGE) + KIB)
        added = 0
        async for answer in quick.Watch(from_position=0, until_now=True):
            added += len(answer.events)
        assert added >= JOBS
        for reader in readers:
            reader.cancel()
        await until_nothing_is_under_way(server)
        assert door_of(server).quotas.unsent.counts.total == 0


async def test_a_reader_that_takes_nothing_is_ended_when_another_of_its_principal_needs_the_room() -> None:
    limits = GrpcLimits(unsent_bytes_per_principal=300 * KIB, stall_s=0.2)
    async with (
        leading("memory://stalled-ended", layout="log") as host,
        serving(host, limits=limits) as server,
        calls_to(server) as stub,
    ):
        for _ in range(JOBS // 20):
            await host.queue.enqueue([a_job(LARGE) for _ in range(20)])
        readers = await stalled(stub)

        added = 0
        async for answer in stub.Watch(from_position=0, until_now=True, timeout=60):
            added += len(answer.events)

        assert added >= JOBS
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await read_in_turns(readers)
        assert ended.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for reader in readers:
            reader.cancel()
        await until_nothing_is_under_way(server)
        assert door_of(server).quotas.unsent.counts.total == 0


async def test_a_slow_reader_alone_may_take_its_time() -> None:
    limits = GrpcLimits(unsent_bytes_per_principal=300 * KIB, stall_s=0.01)
    async with (
        leading("memory://stalled-alone", layout="log") as host,
        serving(host, limits=limits) as server,
        calls_to(server) as stub,
    ):
        await host.queue.enqueue([a_job(LARGE) for _ in range(JOBS)])
        reader = stub.Watch(from_position=0, until_now=True, timeout=60)
        await reader.initial_metadata()
        await held_stays(server)

        added = 0
        async for answer in reader:
            added += len(answer.events)
            await held_stays(server)

        assert added >= JOBS


@pytest.mark.parametrize("packed", [False, True])
async def test_lists_and_archives_count_too(packed: bool) -> None:
    limits = GrpcLimits(unsent_bytes_per_principal=512 * KIB)
    async with (
        leading("memory://stalled-lists", layout="log") as host,
        serving(host, limits=limits) as server,
        calls_to(server) as stub,
    ):
        await host.queue.enqueue([a_job(LARGE) for _ in range(JOBS)])
        lists = [stub.List(packed=packed, timeout=120) for _ in range(READERS)]
        for one in lists:
            await one.initial_metadata()

        held = await held_stays(server)

        assert 0 < held <= limits.unsent_bytes_per_principal + limits.packet_bytes
        for one in lists:
            one.cancel()
        await until_nothing_is_under_way(server)
        assert door_of(server).quotas.unsent.counts.total == 0
