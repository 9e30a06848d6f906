"""TLS credentials for gRPC."""

from __future__ import annotations

import grpc
import msgspec

from casque.transport.tls import ServerTls, Tls


class ClientTls(msgspec.Struct, frozen=True, kw_only=True):
    """The client's side, as PEM bytes; callers read the files."""

    roots: bytes | None = None
    """Authorities that may sign the server's certificate; None for those that the machine trusts."""
    key: bytes | None = None
    chain: bytes | None = None
    """The client's own certificate chain, for mutual TLS."""
    server_name: str | None = None
    """The name in the server's certificate, if it differs from the address."""

    def credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.roots, self.key, self.chain)

    def __repr__(self) -> str:
        """Without the key: values like this end up in logs."""
        return f"ClientTls(mutual={self.key is not None})"


def server_credentials(tls: ServerTls) -> grpc.ServerCredentials:
    """gRPC asks before each handshake whether there is another certificate by now."""
    used = tls.current()

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal used
        latest = tls.current()
        if latest is used:
            return None
        used = latest
        return _configuration(latest)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(used), renewed, require_client_authentication=used.client_ca is not None
    )


def _configuration(tls: Tls) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(tls.key, tls.cert)], root_certificates=tls.client_ca)
