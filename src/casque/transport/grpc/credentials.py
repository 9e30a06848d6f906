"""TLS for a server and for its clients, as PEM bytes; whoever reads them from files does that elsewhere."""

from __future__ import annotations

import grpc
import msgspec


class ServerTls(msgspec.Struct, frozen=True, kw_only=True):
    key: bytes
    chain: bytes
    """The server's certificate, and those that lead to its root."""
    client_roots: bytes | None = None
    """Mutual TLS: only clients with a certificate under one of these roots get in."""

    def credentials(self) -> grpc.ServerCredentials:
        mutual = self.client_roots is not None
        return grpc.ssl_server_credentials(
            [(self.key, self.chain)], root_certificates=self.client_roots, require_client_auth=mutual
        )


class ClientTls(msgspec.Struct, frozen=True, kw_only=True):
    roots: bytes | None = None
    """Who may vouch for the server; None for what the machine trusts."""
    key: bytes | None = None
    chain: bytes | None = None
    """The client's own, for mutual TLS."""
    server_name: str | None = None
    """What the server's certificate says, if that is not the name in the address."""

    def credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.roots, self.key, self.chain)
