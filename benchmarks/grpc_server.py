"""The broker of the gRPC section, in a process of its own: it serves, and answers questions on its standard input."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvloop

from benchmarks.load import Result
from benchmarks.metered import MeteredStore
from casque.broker.broker import Broker
from casque.client.opening import Parts
from casque.client.queue import DEFAULTS
from casque.service import Role
from casque.settings import BrokerSettings
from casque.storage.memory import MemoryStore
from casque.storage.port import Outcome
from casque.transport.grpc.server import GrpcServer


class StampedStore(MeteredStore):
    """Remembers when the last commit landed, by a clock that all processes of this machine share."""

    landed_s = 0.0

    async def create(self, key: str, body: bytes) -> Outcome:
        outcome = await super().create(key, body)
        if "log/" in key:
            self.landed_s = time.perf_counter()
        return outcome


@asynccontextmanager
async def a_broker(store: MeteredStore) -> AsyncIterator[Broker]:
    """A broker that leads the queue on this store."""
    parts = Parts(store, DEFAULTS)
    broker = Broker(parts.committer(), parts, parts.history(), address="127.0.0.1:1", settings=BrokerSettings())
    running = asyncio.create_task(broker.run())
    try:
        while broker.standing().role is not Role.LEADER:
            await broker.changed()
        yield broker
    finally:
        broker.stop()
        await running


async def main() -> None:
    store = StampedStore(MemoryStore())
    questions = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(questions), sys.stdin)
    async with a_broker(store) as broker:
        server = GrpcServer(broker, listen="127.0.0.1:0")
        await server.start()
        _say(server.port)
        while question := (await questions.readline()).decode().strip():
            if question == "landed":
                _say(store.landed_s)
            elif question == "cpu":
                _say(time.process_time())
            elif question == "reset":
                store.reset()
                _say(None)
            elif question == "requests":
                result = Result(calls=0, failed=0, seconds=0, median_ms=0, p99_ms=0)
                store.add_to(result)
                _say(result.requests)
        await server.stop(1)


def _say(value: object) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
