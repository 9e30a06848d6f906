"""Certificates that are renewed on disk while a broker runs: new connections get them, on both ports."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509

from casque import ClientTlsFiles, InvalidInputError, Queue
from casque.app.ring import Peers
from casque.testing.clock import ManualClock
from casque.testing.hosting import leading
from casque.transport.grpc.client import ClientTls, GrpcService
from casque.transport.grpc.server import GrpcServer
from casque.transport.http.server import HttpServer
from casque.transport.tls import TlsFiles
from casque.transport.tls_renewal import RenewedTls

CA = trustme.CA()
SERVERS = pytest.mark.parametrize("kind", [GrpcServer, HttpServer])


def write(folder: Path, cert: trustme.LeafCert) -> None:
    cert.private_key_pem.write_to_path(str(folder / "key.pem"))
    cert.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))


def issue(folder: Path) -> int:
    """Write a new certificate and its key; the serial number."""
    cert = CA.issue_cert("localhost", "127.0.0.1")
    write(folder, cert)
    return x509.load_pem_x509_certificate(cert.cert_chain_pems[0].bytes()).serial_number


def files(folder: Path, *, mutual: bool = False) -> TlsFiles:
    return TlsFiles(folder / "cert.pem", folder / "key.pem", folder / "clients.pem" if mutual else None)


async def shown(port: int) -> int:
    """The serial number of the certificate that a new connection is shown."""

    def connect() -> int:
        context = ssl.create_default_context(cadata=CA.cert_pem.bytes().decode())
        context.set_alpn_protocols(["h2", "http/1.1"])
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            found = secure.getpeercert(binary_form=True)
            assert found is not None
            return x509.load_der_x509_certificate(found).serial_number

    return await asyncio.to_thread(connect)


@asynccontextmanager
async def serving(kind: Any, tls: RenewedTls) -> AsyncIterator[int]:
    async with leading("memory://") as host:
        server = kind(host, listen="127.0.0.1:0", tls=tls)
        await server.start()
        try:
            yield server.port
        finally:
            await server.stop(1)


@SERVERS
async def test_new_connections_get_the_new_certificate(tmp_path: Path, kind: Any) -> None:
    first, clock = issue(tmp_path), ManualClock()
    async with serving(kind, RenewedTls(files(tmp_path), clock=clock)) as port:
        assert await shown(port) == first
        second = issue(tmp_path)
        assert await shown(port) == first, "the files are looked at once a second"
        await clock.advance(1)
        assert await shown(port) == second
        third = issue(tmp_path)
        await clock.advance(1)
        assert await shown(port) == third


@SERVERS
async def test_files_that_cannot_be_used_leave_the_old_certificate_and_are_logged_once(
    tmp_path: Path, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    first, clock = issue(tmp_path), ManualClock()
    async with serving(kind, RenewedTls(files(tmp_path), clock=clock)) as port:
        for spoil in (_key_of_another, _no_certificate, _not_there):
            caplog.clear()
            spoil(tmp_path)
            for _ in range(3):
                await clock.advance(1)
                assert await shown(port) == first
            errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
            assert [str(tmp_path) in record.getMessage() for record in errors] == [True], spoil.__name__
        second = issue(tmp_path)
        await clock.advance(1)
        assert await shown(port) == second


def _key_of_another(folder: Path) -> None:
    CA.issue_cert("localhost").private_key_pem.write_to_path(str(folder / "key.pem"))


def _no_certificate(folder: Path) -> None:
    (folder / "cert.pem").write_text("soon")


def _not_there(folder: Path) -> None:
    (folder / "cert.pem").unlink()


async def test_a_connection_outlives_the_certificate_that_it_began_with(tmp_path: Path) -> None:
    issue(tmp_path)
    clock = ManualClock()
    async with serving(GrpcServer, RenewedTls(files(tmp_path), clock=clock)) as port:
        client = GrpcService(f"127.0.0.1:{port}", tls=ClientTls(roots=CA.cert_pem.bytes()))
        await client.stats()
        second = issue(tmp_path)
        await clock.advance(1)
        assert await shown(port) == second
        assert (await client.stats()).totals.enqueued == 0
        await client.close()


@SERVERS
async def test_clients_of_a_renewed_authority_are_let_in(tmp_path: Path, kind: Any) -> None:
    issue(tmp_path)
    old, new, clock = trustme.CA(), trustme.CA(), ManualClock()
    old.cert_pem.write_to_path(str(tmp_path / "clients.pem"))
    client = new.issue_cert("client")
    client.private_key_pem.write_to_path(str(tmp_path / "client-key.pem"))
    client.cert_chain_pems[0].write_to_path(str(tmp_path / "client.pem"))
    CA.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    scheme = "grpcs" if kind is GrpcServer else "https"
    mine = ClientTlsFiles(ca=tmp_path / "ca.pem", cert=tmp_path / "client.pem", key=tmp_path / "client-key.pem")
    async with serving(kind, RenewedTls(files(tmp_path, mutual=True), clock=clock)) as port:
        new.cert_pem.write_to_path(str(tmp_path / "clients.pem"))
        await clock.advance(1)
        async with Queue.open(f"{scheme}://localhost:{port}", tls=mine) as queue:
            assert (await queue.stats()).totals.enqueued == 0


def test_a_broker_does_not_start_with_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no TLS certificate"):
        RenewedTls(files(tmp_path))


async def test_a_broker_of_a_ring_shows_the_others_its_new_certificate(tmp_path: Path) -> None:
    issue(tmp_path)
    clock = ManualClock()
    peers = Peers(tls=ClientTls(roots=CA.cert_pem.bytes()), own=RenewedTls(files(tmp_path), clock=clock))
    issue(tmp_path)
    await clock.advance(1)
    connection: Any = peers.connect(0, "127.0.0.1:1")
    assert connection._tls.chain == (tmp_path / "cert.pem").read_bytes()
    await connection.close()


async def test_a_broker_process_takes_up_a_renewed_certificate(tmp_path: Path) -> None:
    first = issue(tmp_path)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "casque.cli", "serve", (tmp_path / "queue").as_uri()),
        *("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"),
        *("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        ports: list[int] = []
        while "role" not in (line := (await process.stdout.readline()).decode()):
            assert line, "it ended"
            if found := re.search(r"(?:grpc|http) +127\.0\.0\.1:(\d+)$", line.rstrip()):
                ports.append(int(found[1]))
        assert [await shown(port) for port in ports] == [first, first]
        second = issue(tmp_path)
        for port in ports:
            while await shown(port) != second:
                pass  # within a second
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
