"""Find out why a broker does not answer: a certificate that is not trusted, or a port that speaks something else.

A client repeats its calls for half a minute, because a broker that is gone has a successor soon. That does not mend a
certificate or a scheme, so a client that cannot connect looks at the port itself, and fails at once if waiting cannot
help. Nothing is sent but handshakes, and to a port without TLS a request for its health.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from casque.clock import Clock

if TYPE_CHECKING:
    from casque.client.connecting import ClientTlsFiles

PROBE_S = 2.0
FRESH_MS = 2_000
"""All callers that fail within this time share one look."""
CA_HINT = (
    "name the authority with --ca FILE in a command, tls=ClientTlsFiles(ca=FILE) in Python, or ca under tls in "
    "casque.toml"
)
_OTHER_NAME = 62
"""OpenSSL's code for a certificate of another host."""


class Prober:
    """Looks at the brokers of one client. `addresses`: all that it may try; empty if the bucket names the leader."""

    def __init__(self, scheme: str, tls: ClientTlsFiles | None, addresses: frozenset[str], clock: Clock) -> None:
        self._scheme = scheme
        self._tls = tls
        self._addresses = addresses
        self._clock = clock
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._found: dict[str, tuple[int, str | None]] = {}

    async def hopeless(self, address: str) -> str | None:
        """Why no broker can be reached in this way; None if waiting, or another broker, may help."""
        problem = await self._problem(address)
        known = [self._found.get(other, (0, None))[1] for other in self._addresses]
        return problem if all(other is not None for other in known) else None

    async def _problem(self, address: str) -> str | None:
        async with self._turns[address]:
            now_ms = self._clock.monotonic_ms()
            at_ms, problem = self._found.get(address, (-FRESH_MS, None))
            if now_ms - at_ms < FRESH_MS:
                return problem
            problem = None
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(PROBE_S):
                    problem = await problem_at(
                        address, scheme=self._scheme, tls=self._tls, from_bucket=not self._addresses
                    )
            self._found[address] = (self._clock.monotonic_ms(), problem)
            return problem


async def problem_at(address: str, *, scheme: str, tls: ClientTlsFiles | None, from_bucket: bool = False) -> str | None:
    """What is wrong with the way to reach a broker by `grpc` or `http`; None if nothing is, or if waiting may help.

    Raises:
        OSError: nothing listens there.
    """
    host, port = _split(address)
    _, writer = await asyncio.open_connection(host, port)
    await _close(writer)
    if tls is not None:
        return await _tls_problem(address, host, port, scheme, tls)
    if await _speaks_tls(host, port):
        if from_bucket:
            return f"the broker at {address}, which leads this queue, requires TLS: {CA_HINT}"
        return f"the broker at {address} requires TLS: write {scheme}s://{address}, and {CA_HINT}"
    spoken = await _protocol(host, port)
    if spoken is not None and spoken != scheme:
        wanted = "gRPC" if scheme == "grpc" else "HTTP"
        other = "HTTP" if spoken == "http" else "gRPC"
        return f"port {port} of {host} speaks {other}, not {wanted}: write {spoken}://{address}, or the other port"
    return None


async def _tls_problem(address: str, host: str, port: int, scheme: str, tls: ClientTlsFiles) -> str | None:
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
    except (OSError, ssl.SSLError):
        return None  # the client itself says which file is wrong
    context.set_alpn_protocols(["h2"] if scheme == "grpc" else ["http/1.1"])
    try:
        reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=tls.server_name or host)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == _OTHER_NAME or "mismatch" in error.verify_message.lower():
            return (
                f"the certificate of {address} is for another name ({error.verify_message.rstrip('.')}): use a name "
                "that is in it, or set server_name in ClientTlsFiles, or under tls in casque.toml"
            )
        return f"the certificate of {address} is not trusted ({error.verify_message}): {CA_HINT}"
    except ssl.SSLError as error:
        if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"):
            return f"the broker at {address} has no TLS: write {scheme}://{address}, without a certificate"
        return None
    try:
        # A server that asks for a certificate says so after the handshake.
        async with asyncio.timeout(PROBE_S / 4):
            await reader.read(1)
    except ssl.SSLError as error:
        if "CERTIFICATE_REQUIRED" in (error.reason or ""):
            return f"the broker at {address} requires a client certificate: set cert and key under tls in casque.toml"
    except (OSError, TimeoutError):
        pass
    finally:
        await _close(writer)
    return None


async def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent: only whether there is TLS
    context.set_alpn_protocols(["h2", "http/1.1"])
    try:
        _, writer = await asyncio.open_connection(host, port, ssl=context)
    except (ssl.SSLError, OSError):
        return False
    await _close(writer)
    return True


async def _protocol(host: str, port: int) -> str | None:
    """`http` or `grpc`, by the answer to a request of HTTP/1.1; None if that is neither."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET /healthz HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        first = await reader.read(9)
    finally:
        await _close(writer)
    if first.startswith(b"HTTP/1."):
        return "http"
    return "grpc" if len(first) > 3 and first[3] == 4 else None  # HTTP/2 begins with a frame of settings


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(PROBE_S / 4):
            await writer.wait_closed()


def _split(address: str) -> tuple[str, int]:
    parts = urlsplit(f"//{address}")
    if parts.hostname is None or parts.port is None:
        raise OSError(f"{address} has no port")
    return parts.hostname, parts.port
