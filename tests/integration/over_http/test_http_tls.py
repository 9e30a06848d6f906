"""HTTP over TLS: who is let in is tested with the border; here, that everything else works there as well."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme

from casque.errors import BrokerUnreachableError, InvalidInputError, UnknownOutcomeError
from casque.service import QueueService
from casque.testing.service_suite.jobs import LONG_S
from casque.transport.http.client import HttpService
from casque.transport.http.server import HttpServer
from casque.transport.measured import Numbers
from casque.transport.tls import TlsFiles
from casque.types import JobSpec
from tests.integration.over_http.hosts import Leading, embedded, serving

CA = trustme.CA()


@pytest.fixture
async def queue() -> AsyncIterator[QueueService]:
    async with embedded() as service:
        yield service


@pytest.fixture
async def server(queue: QueueService, tmp_path: Path) -> AsyncIterator[HttpServer]:
    cert = CA.issue_cert("broker.example")
    cert.private_key_pem.write_to_path(tmp_path / "key.pem")
    cert.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    async with serving(Leading(queue), tls=TlsFiles(tmp_path / "cert.pem", tmp_path / "key.pem").load()) as server:
        yield server


@pytest.fixture
def trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    CA.configure_trust(context)
    return context


async def test_a_broker_may_be_called_by_another_name_than_its_certificate_has(
    server: HttpServer, trusting: ssl.SSLContext
) -> None:
    address = f"127.0.0.1:{server.port}"
    async with HttpService(address, tls=trusting, server_name="broker.example") as remote:
        await remote.enqueue([JobSpec("a", "send", b"x" * 200_000)])
        [event] = [event async for event in remote.events(from_position=0, follow=False)]
        assert len(event.fields["payload"]) == 200_000

    async with HttpService(f"https://{address}", tls=trusting) as remote:
        with pytest.raises(BrokerUnreachableError, match="certificate"):
            await remote.stats()


async def test_a_client_that_leaves_is_noticed_under_tls_too(
    server: HttpServer, queue: QueueService, trusting: ssl.SSLContext
) -> None:
    waiting = Numbers(server.metrics).waiting
    address = f"127.0.0.1:{server.port}"
    async with HttpService(address, tls=trusting, server_name="broker.example") as remote:
        leaver = asyncio.create_task(remote.dequeue(entrypoints=None, limit=1, wait_s=LONG_S))
        while not waiting.value:
            await remote.stats()
        leaver.cancel()
        while waiting.value:
            await remote.stats()
        await queue.enqueue([JobSpec("a", "send", b"")])

        assert [job.id for job in await remote.dequeue(entrypoints=None, limit=1)] == ["a"]


async def test_a_server_with_tls_does_not_answer_without(server: HttpServer) -> None:
    async with HttpService(f"127.0.0.1:{server.port}") as remote:
        with pytest.raises(UnknownOutcomeError):
            await remote.stats()


def test_tls_and_an_address_without_it_contradict_each_other(trusting: ssl.SSLContext) -> None:
    with pytest.raises(InvalidInputError, match="https"):
        HttpService("http://broker.example:7701", tls=trusting)
