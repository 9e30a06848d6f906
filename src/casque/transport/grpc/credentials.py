"""TLS as gRPC wants it."""

from __future__ import annotations

import grpc
import msgspec

from casque.transport.tls import Tls


class ClientTls(msgspec.Struct, frozen=True, kw_only=True):
    """The client's side, as PEM bytes; whoever reads them from files does that elsewhere."""

    roots: bytes | None = None
    """Who may vouch for the server; None for what the machine trusts."""
    key: bytes | None = None
    chain: bytes | None = None
    """The client's own, for mutual TLS."""
    server_name: str | None = None
    """What the server's certificate says, if that is not the name in the address."""

    def credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.roots, self.key, self.chain)

    def __repr__(self) -> str:
        """Without the key: values like this end up in logs."""
        return f"ClientTls(mutual={self.key is not None})"


def server_credentials(tls: Tls) -> grpc.ServerCredentials:
    return grpc.ssl_server_credentials(
        [(tls.key, tls.cert)], root_certificates=tls.client_ca, require_client_auth=tls.client_ca is not None
    )
