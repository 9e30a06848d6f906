"""gRPC and processes: programs that are started from one that has calls under way."""

from __future__ import annotations

import subprocess
import sys

START_OTHERS = """
import asyncio, subprocess
from casque.transport.grpc.client import GrpcService
import grpc


async def main():
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")

    over = asyncio.Event()

    async def talk():
        while not over.is_set():
            try:
                await channel.unary_unary("/nobody/answers")(b"")
            except grpc.RpcError:
                pass

    def start():
        # With something to be done in the child first, Python forks, as it does for Spark's Java.
        return [subprocess.run(["true"], preexec_fn=lambda: None).returncode for _ in range(60)]

    talking = [asyncio.create_task(talk()) for _ in range(4)]
    print(set(await asyncio.to_thread(start)))
    over.set()
    await asyncio.gather(*talking)
    await channel.close()
    await server.stop(5)


asyncio.run(main())
"""


def test_programs_that_are_started_beside_calls_do_start() -> None:
    done = subprocess.run([sys.executable, "-c", START_OTHERS], capture_output=True, text=True, timeout=120, check=True)
    assert (done.stdout, done.stderr) == ("{0}\n", "")
