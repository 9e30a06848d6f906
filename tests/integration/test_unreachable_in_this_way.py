"""Certificates that are not trusted, and ports of another protocol: a client says so at once, and names the fix."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from casque import BrokerUnreachableError, ClientTlsFiles, InvalidInputError, Queue, SyncQueue
from casque.app import BrokerServer, ServeOptions
from casque.client import probing
from casque.client.probing import Prober
from casque.testing.clock import ManualClock
from casque.transport.listening import Address
from casque.transport.tls import TlsFiles

CA = trustme.CA()
FREE = Address("127.0.0.1", 0)
HOUR: Any = {"storage_patience": timedelta(hours=1)}
"""A client that waits would outlast the test's own time limit."""


@asynccontextmanager
async def a_broker(folder: Path, *, tls: bool, names: tuple[str, ...] = ("127.0.0.1",)) -> AsyncIterator[BrokerServer]:
    secured = None
    if tls:
        cert = CA.issue_cert(*names)
        cert.private_key_pem.write_to_path(str(folder / "key.pem"))
        cert.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
        CA.cert_pem.write_to_path(str(folder / "ca.pem"))
        secured = TlsFiles(folder / "cert.pem", folder / "key.pem").load()
    url = (folder / "queue").as_uri()
    server = BrokerServer(ServeOptions(url=url, listen=FREE, http=FREE, tls=secured))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def ports(server: BrokerServer) -> dict[str, str]:
    grpc, http = f"127.0.0.1:{server.grpc_port}", f"127.0.0.1:{server.http_port}"
    return {"grpc": grpc, "grpcs": grpc, "http": http, "https": http}


async def refusal(url: str, **options: Any) -> str:
    async with Queue.open(url, **options, **HOUR) as queue:
        with pytest.raises(InvalidInputError) as raised:
            await queue.stats()
    return str(raised.value)


@pytest.mark.parametrize("scheme", ["grpcs", "https"])
async def test_a_certificate_that_is_not_trusted_is_said_at_once(tmp_path: Path, scheme: str) -> None:
    async with a_broker(tmp_path, tls=True) as server:
        address = ports(server)[scheme]
        said = await refusal(f"{scheme}://{address}")
        assert f"the certificate of {address} is not trusted" in said
        assert "ClientTlsFiles(ca=" in said
        mine = ClientTlsFiles(ca=tmp_path / "ca.pem")
        async with Queue.open(f"{scheme}://{address}", tls=mine) as queue:
            assert (await queue.stats()).totals.enqueued == 0


@pytest.mark.parametrize("scheme", ["grpcs", "https"])
async def test_a_certificate_of_another_name_is_said_at_once(tmp_path: Path, scheme: str) -> None:
    async with a_broker(tmp_path, tls=True, names=("elsewhere.example",)) as server:
        said = await refusal(f"{scheme}://{ports(server)[scheme]}", tls=ClientTlsFiles(ca=tmp_path / "ca.pem"))
    assert "is for another name" in said
    assert "server_name" in said


@pytest.mark.parametrize("scheme", ["grpc", "http"])
async def test_a_port_with_tls_is_said_at_once_to_a_client_without(tmp_path: Path, scheme: str) -> None:
    async with a_broker(tmp_path, tls=True) as server:
        address = ports(server)[scheme]
        assert f"requires TLS: write {scheme}s://{address}" in await refusal(f"{scheme}://{address}")


@pytest.mark.parametrize("scheme", ["grpcs", "https"])
async def test_a_port_without_tls_is_said_at_once_to_a_client_with(tmp_path: Path, scheme: str) -> None:
    async with a_broker(tmp_path, tls=False) as server:
        address = ports(server)[scheme]
        assert f"has no TLS: write {scheme.removesuffix('s')}://{address}" in await refusal(f"{scheme}://{address}")


async def test_the_leader_that_a_bucket_names_is_looked_at_too(tmp_path: Path) -> None:
    async with a_broker(tmp_path, tls=True):
        said = await refusal((tmp_path / "queue").as_uri(), via="broker")
    assert "which leads this queue, requires TLS" in said


async def test_a_stream_of_events_fails_at_once_too(tmp_path: Path) -> None:
    async with a_broker(tmp_path, tls=True) as server, Queue.open(f"grpcs://{server.address}", **HOUR) as queue:
        with pytest.raises(InvalidInputError, match="is not trusted"):
            async for _ in queue.events(from_position=0):
                pass


async def test_a_blocking_queue_fails_at_once_too(tmp_path: Path) -> None:
    def enqueue(url: str) -> None:
        with SyncQueue.open(url, **HOUR) as queue:
            queue.enqueue("send", b"")

    async with a_broker(tmp_path, tls=True) as server:
        with pytest.raises(InvalidInputError, match="is not trusted"):
            await asyncio.to_thread(enqueue, f"grpcs://{server.address}")


async def test_one_of_several_brokers_that_is_set_up_wrong_does_not_stop_a_client(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    async with (
        a_broker(tmp_path, tls=True) as wrong,
        a_broker(tmp_path / "other", tls=False) as right,
        Queue.open(f"grpc://{wrong.address},{right.address}") as queue,
    ):
        assert (await queue.stats()).totals.enqueued == 0


async def test_a_broker_that_is_not_there_is_waited_for_as_before() -> None:
    async with Queue.open("grpcs://127.0.0.1:1", storage_patience=timedelta(milliseconds=100)) as queue:
        with pytest.raises(BrokerUnreachableError):
            await queue.stats()


async def test_many_callers_share_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []

    async def look(address: str, **_: Any) -> str | None:
        looks.append(address)
        return "it is not trusted"

    monkeypatch.setattr(probing, "problem_at", look)
    clock = ManualClock()
    prober = Prober("grpc", None, frozenset({"a:1", "b:1"}), clock)
    assert await asyncio.gather(*(prober.hopeless("a:1") for _ in range(50))) == [None] * 50
    assert await prober.hopeless("b:1") == "it is not trusted"
    assert looks == ["a:1", "b:1"]
    await clock.advance(2)
    await prober.hopeless("a:1")
    assert looks == ["a:1", "b:1", "a:1"]
