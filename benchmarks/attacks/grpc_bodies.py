"""Callers without a token send requests of 60 MiB: how much of them the broker takes, and what others notice."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter

import grpc

from benchmarks.attacks.grpc_victim import Bystander, victim

CALLERS = 8
SECONDS = 10.0
BODY = bytes(60 * 1024 * 1024)


async def attack(address: str, until: float, codes: Counter[str]) -> None:
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address, options) as channel:
        enqueue = channel.unary_unary("/casque.v1.Queue/Enqueue")
        while time.monotonic() < until:
            try:
                await enqueue(BODY, timeout=20)
            except grpc.aio.AioRpcError as error:
                codes[error.code().name] += 1


async def run(seconds: float) -> None:
    with victim() as attacked:
        bystander, codes = Bystander(attacked), Counter[str]()
        with bystander.watching():
            until = time.monotonic() + seconds
            await asyncio.gather(*(attack(attacked.address, until, codes) for _ in range(CALLERS)))
        print(f"bodies: {CALLERS} callers, {seconds:.0f} s, answers {dict(codes)}; {bystander.noticed()}")


def main(seconds: float = SECONDS) -> None:
    asyncio.run(run(seconds))


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]))
