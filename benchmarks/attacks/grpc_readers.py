"""Readers of `Watch` that never read: 30 streams from the beginning of a log of large jobs."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc

from benchmarks.attacks.grpc_victim import Bystander, victim
from casque.transport.grpc import casque_v1_pb2 as pb
from casque.transport.grpc.client import GrpcService
from casque.types import JobSpec

READERS = 30
JOBS = 400
PAYLOAD = 180 * 1024
WATCHED_S = 20.0


async def run(seconds: float) -> None:
    with victim() as attacked:
        service = GrpcService(attacked.address, token=attacked.token)
        for first in range(0, JOBS, 20):
            await service.enqueue([JobSpec(str(n), "a", bytes(PAYLOAD)) for n in range(first, first + 20)])
        await service.close()
        before = attacked.rss_mb()
        bystander = Bystander(attacked)
        channels: list[grpc.aio.Channel] = []
        readers: list[Any] = []
        try:
            with bystander.watching():
                for _ in range(READERS):
                    channels.append(
                        grpc.aio.insecure_channel(attacked.address, [("grpc.use_local_subchannel_pool", 1)])
                    )
                    watch = channels[-1].unary_stream("/casque.v1.Queue/Watch")
                    request = pb.WatchRequest(from_position=0).SerializeToString()
                    readers.append(watch(request, metadata=(("authorization", f"Bearer {attacked.token}"),)))
                    await readers[-1].initial_metadata()
                await asyncio.sleep(seconds)
        finally:
            for reader in readers:
                reader.cancel()
            for channel in channels:
                await channel.close()
        print(f"readers: {READERS} that never read, {before:.0f} MB before; {bystander.noticed()}")


def main(seconds: float = WATCHED_S) -> None:
    asyncio.run(run(seconds))


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]))
