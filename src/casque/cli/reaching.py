"""Find out why brokers do not answer, while a command waits for them.

A client repeats its calls for half a minute, because a broker that is gone has a successor soon. That does not mend a
certificate that is not trusted, or a port that speaks another protocol: a command that has no answer after a second
looks at the ports itself, and ends at once if waiting cannot help.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from casque.cli.output import say
from casque.client.connecting import ClientTlsFiles
from casque.errors import InvalidInputError
from casque.storage.url import is_address

R = TypeVar("R")

PATIENCE_S = 1.0
PROBE_S = 2.0
CA_HINT = "name the authority with --ca FILE, or as ca under tls in casque.toml"
_OTHER_NAME = 62
"""OpenSSL's code for a certificate of another host."""


class Brokers(msgspec.Struct, frozen=True):
    """Where a command looks for brokers, and how."""

    addresses: tuple[str, ...]
    scheme: str = "grpc"
    tls: ClientTlsFiles | None = None
    from_bucket: bool = False

    @classmethod
    def of(cls, url: str, tls: ClientTlsFiles | None) -> Brokers | None:
        """The brokers that a URL names; None for a bucket."""
        if not is_address(url):
            return None
        parts = urlsplit(url)
        addresses = tuple(one for one in parts.netloc.split(",") if one)
        secure = parts.scheme.endswith("s")
        return cls(addresses, parts.scheme.removesuffix("s"), tls or (ClientTlsFiles() if secure else None))


async def watch(work: Coroutine[Any, Any, R], brokers: Brokers | None) -> R:
    """Await the work, and end it if the brokers cannot be reached in this way.

    Raises:
        InvalidInputError: they never can. Says what to write instead.
    """
    if brokers is None:
        return await work
    working = asyncio.ensure_future(work)
    try:
        await asyncio.wait({working}, timeout=PATIENCE_S)
        if not working.done() and (problem := await find_problem(brokers)) is not None and not working.done():
            raise InvalidInputError(problem)
        return await working
    finally:
        if not working.done():
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


async def find_problem(brokers: Brokers, *, note: Callable[..., object] = say) -> str | None:
    """What is wrong with the way to reach these brokers; None if nothing is, or if waiting may help."""
    silent: list[str] = []
    for address in brokers.addresses:
        try:
            async with asyncio.timeout(PROBE_S):
                return await _problem_at(address, brokers)
        except (OSError, TimeoutError) as error:
            silent.append(f"{address} ({_reason(error)})")
    if silent:
        note(f"no broker answers at {', '.join(silent)}; trying again for half a minute", err=True)
    return None


async def _problem_at(address: str, brokers: Brokers) -> str | None:
    """Raises OSError if nothing listens there."""
    host, port = _split(address)
    _, writer = await asyncio.open_connection(host, port)
    await _close(writer)
    if brokers.tls is not None:
        return await _tls_problem(address, host, port, brokers, brokers.tls)
    if await _speaks_tls(host, port):
        if brokers.from_bucket:
            return f"the broker at {address}, which leads this queue, requires TLS: {CA_HINT}"
        return f"the broker at {address} requires TLS: write {brokers.scheme}s://{address}, and {CA_HINT}"
    spoken = await _protocol(host, port)
    if spoken is not None and spoken != brokers.scheme:
        wanted = "gRPC" if brokers.scheme == "grpc" else "HTTP"
        other = "HTTP" if spoken == "http" else "gRPC"
        return f"port {port} of {host} speaks {other}, not {wanted}: write {spoken}://{address}, or the other port"
    return None


async def _tls_problem(address: str, host: str, port: int, brokers: Brokers, tls: ClientTlsFiles) -> str | None:
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
    except (OSError, ssl.SSLError):
        return None  # the client itself says which file is wrong
    context.set_alpn_protocols(["h2"] if brokers.scheme == "grpc" else ["http/1.1"])
    try:
        reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=tls.server_name or host)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == _OTHER_NAME or "mismatch" in error.verify_message.lower():
            return (
                f"the certificate of {address} is for another name ({error.verify_message.rstrip('.')}): use a name "
                "that is in it, or set server_name under tls in casque.toml"
            )
        return f"the certificate of {address} is not trusted ({error.verify_message}): {CA_HINT}"
    except ssl.SSLError as error:
        if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"):
            return f"the broker at {address} has no TLS: write {brokers.scheme}://{address}, without a certificate"
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


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not error.args:
        return "no answer"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return getattr(error, "strerror", None) or str(error)
