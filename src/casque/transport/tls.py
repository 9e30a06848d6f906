"""TLS from files: a certificate, its key and, for mutual TLS, the authority of the clients' certificates.

A broker finds problems with them when it starts, by a handshake with itself, and not when the first client calls.
"""

from __future__ import annotations

import ssl
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import msgspec

from casque.clock import Clock, SystemClock
from casque.errors import InvalidInputError
from casque.telemetry import logger

SOON = timedelta(days=14)
EXPIRED = 10
"""OpenSSL's error code for an expired certificate."""

_log = logger("transport.tls")


class TlsFiles(msgspec.Struct, frozen=True):
    """Paths of a server's files, all of them PEM."""

    cert: Path
    """The server's certificate, followed by the intermediate ones up to its authority."""
    key: Path
    client_ca: Path | None = None
    """If set, only clients with a certificate of this authority may connect."""

    def load(self, *, clock: Clock | None = None) -> Tls:
        """Read and test the files. An expired certificate, or one about to expire, is logged.

        Raises:
            InvalidInputError: names the file and what is wrong with it.
        """
        cert = _read(self.cert, "certificate")
        key = _read(self.key, "key")
        client_ca = None if self.client_ca is None else _read(self.client_ca, "client authority")
        tls = Tls(cert, key, client_ca, self._context())
        problem = _rehearse(self._bare_context(), self.cert, clock or SystemClock())
        if problem is not None:
            _log.warning("the certificate %s %s", self.cert, problem)
        return tls

    def _context(self) -> ssl.SSLContext:
        context = self._bare_context()
        if self.client_ca is not None:
            try:
                context.load_verify_locations(cafile=self.client_ca)
            except ssl.SSLError as error:
                raise InvalidInputError(
                    f"{self.client_ca} has no certificates in PEM form: {_reason(error)}"
                ) from error
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _bare_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.cert, self.key, password=self._refuse_password)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise InvalidInputError(f"the key {self.key} does not belong to the certificate {self.cert}") from error
            raise InvalidInputError(
                f"{self.cert} and {self.key} are not a certificate and its key in PEM form: {_reason(error)}"
            ) from error
        return context

    def _refuse_password(self) -> str:
        # Without this, OpenSSL would prompt for it on the terminal, and a service has none.
        raise InvalidInputError(
            f"the key {self.key} is encrypted; a broker needs it plain: `openssl pkey -in {self.key} -out plain.pem`"
        )


class ServerTls(Protocol):
    """TLS of a server: files that were read once, or that may be renewed."""

    @property
    def client_ca(self) -> bytes | None: ...

    @property
    def context(self) -> ssl.SSLContext: ...

    def current(self) -> Tls:
        """For a connection that begins now."""
        ...


class Tls(msgspec.Struct, frozen=True):
    """TLS settings for servers: PEM for gRPC, a context for HTTP."""

    cert: bytes
    key: bytes
    client_ca: bytes | None
    context: ssl.SSLContext

    def current(self) -> Tls:
        return self

    def __repr__(self) -> str:
        """Without the key: values like this end up in logs."""
        return f"Tls(mutual={self.client_ca is not None})"


def _rehearse(server: ssl.SSLContext, cert: Path, clock: Clock) -> str | None:
    """Perform a handshake in memory with a client that trusts this certificate; returns the problem, or None."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(cafile=cert)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server)
    try:
        for side in (theirs, ours, theirs, ours):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
    except ssl.SSLCertVerificationError as error:
        return "has expired" if error.verify_code == EXPIRED else f"is not good: {error.verify_message}"
    except ssl.SSLError as error:
        return f"is not good: {_reason(error)}"
    certificate = theirs.getpeercert()
    assert certificate is not None
    left = timedelta(milliseconds=ssl.cert_time_to_seconds(str(certificate["notAfter"])) * 1000 - clock.wall_ms())
    if left <= timedelta(0):
        return "has expired"
    return f"expires in {left.days} days" if left < SOON else None


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InvalidInputError(f"there is no TLS {what} at {path}") from None
    except OSError as error:
        raise InvalidInputError(f"the TLS {what} at {path} cannot be read: {error.strerror or error}") from error


def _reason(error: ssl.SSLError) -> str:
    return error.reason or str(error)
