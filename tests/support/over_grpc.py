"""A gRPC server in front of a host, for a test; and a client that reaches it, and nobody else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from casque.service import Host
from casque.transport.grpc.client import GrpcService
from casque.transport.grpc.server import GrpcServer


@asynccontextmanager
async def serving(host: Host, *, grace_s: float = 5.0, **options: Any) -> AsyncIterator[GrpcServer]:
    """On a free port of this machine. Options are those of `GrpcServer`."""
    server = GrpcServer(host, listen="127.0.0.1:0", **options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(grace_s)


@asynccontextmanager
async def calling(server: GrpcServer, **options: Any) -> AsyncIterator[GrpcService]:
    """Options are those of `GrpcService`."""
    client = GrpcService(f"127.0.0.1:{server.port}", **options)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def over_grpc(host: Host, **options: Any) -> AsyncIterator[GrpcService]:
    """What `ServiceSuite.reach` takes."""
    async with serving(host, **options) as server, calling(server) as client:
        yield client
