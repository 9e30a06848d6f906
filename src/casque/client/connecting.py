"""Connect to brokers: at given addresses, or through the bucket that names the leader."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from casque.client.leading import look_up
from casque.client.opening import Parts
from casque.client.probing import Prober
from casque.client.remote import RemoteQueue, RemoteService
from casque.client.remote_shard import LedShard, RemoteShard
from casque.client.trust import Origin, check_address, is_from_here
from casque.clock import Random, system_random
from casque.environment import Environment
from casque.errors import InvalidInputError, NoLeaderError
from casque.ring.members import addresses
from casque.ring.shards import Shard
from casque.storage.port import Store

if TYPE_CHECKING:
    import ssl

    from casque.transport.grpc.credentials import ClientTls

CONNECT_S = 2.0
"""A frozen broker accepts connections and never answers. Without an answer in this time it is tried again later."""
SILENCE_S = 3.0
"""A connection is given up after twice this long without data. That is less than the lease of a leader: callers of a
frozen one look for its successor as soon as there is one."""
TOKEN_VARIABLE = "CASQUE_TOKEN"  # noqa: S105  the name of a variable, not a token
PEER_TOKEN_VARIABLE = "CASQUE_PEER_TOKEN"  # noqa: S105
"""For calls between the brokers of a ring, and for tools that change the ring while they run."""


class ClientTlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The client's side of TLS. Without `ca`, the machine's own authorities verify the broker; `cert` and `key` are for
    brokers that require a certificate (mutual TLS).

    >>> ClientTlsFiles(ca="/etc/casque/ca.pem").ca
    '/etc/casque/ca.pem'
    """

    ca: str | Path | None = None
    cert: str | Path | None = None
    key: str | Path | None = None
    server_name: str | None = None
    """The name in the broker's certificate, if it differs from the address."""


class AddressFinder:
    """Returns the given addresses in turn, for ever."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = cycle(addresses)

    async def find(self) -> str:
        return next(self._addresses)

    async def close(self) -> None:
        """Nothing to close."""


class BucketFinder:
    """Finds the leader in `queue.json`; for a ring, any of its brokers."""

    def __init__(self, store: Store, *, owns_store: bool, rng: Random | None = None) -> None:
        self._store = store
        self._owns_store = owns_store
        self._rng = rng or system_random()

    async def find(self) -> str:
        found = await look_up(self._store)
        if found.ring:
            return await self._any_broker()
        if found.leader is None:
            raise NoLeaderError("queue.json names none: start one with `casque serve`, or open the queue without via")
        return found.leader

    async def _any_broker(self) -> str:
        """Any broker of the ring can answer. If it is dead, the caller notices and asks for another one."""
        brokers = await addresses(self._store)
        if not brokers:
            raise NoLeaderError(
                "no broker of this ring is known: start one with `casque serve`, or open the queue without via"
            )
        return self._rng.choice(brokers)

    async def close(self) -> None:
        if self._owns_store:
            await self._store.close()


def by_address(url: str, *, token: str | None, tls: ClientTlsFiles | None, env: Environment) -> RemoteQueue:
    """`grpc://host:port`, or several brokers: `grpc://a:7700,b:7700`; `grpcs://` and `https://` with TLS."""
    parts = urlsplit(url)
    addresses = [address for address in parts.netloc.split(",") if address]
    if not addresses or parts.path.strip("/") or parts.query or parts.fragment:
        raise InvalidInputError(f"{url!r}: write {parts.scheme}://host:port, or several with commas between them")
    if tls is not None and parts.scheme in ("grpc", "http"):
        raise InvalidInputError(f"{url!r} is without TLS, and tls was given: write {parts.scheme}s:// instead")
    if parts.scheme in ("grpcs", "https"):
        tls = tls or ClientTlsFiles()
    origin = Origin.HERE if is_from_here(url) else Origin.GIVEN
    trusted = _Trusted(origin, tls, frozenset(addresses))
    connect = _grpc(token, tls, trusted) if parts.scheme.startswith("grpc") else _http(token, tls, trusted)
    prober = Prober(parts.scheme.removesuffix("s"), tls, frozenset(addresses), env.clock)
    return RemoteQueue(AddressFinder(addresses), connect, env, prober)


def by_bucket(
    store: Store, *, owns_store: bool, token: str | None, tls: ClientTlsFiles | None, env: Environment
) -> RemoteQueue:
    """Follow the leader that the bucket names, over gRPC."""
    finder = BucketFinder(store, owns_store=owns_store, rng=env.rng)
    prober = Prober("grpc", tls, frozenset(), env.clock)
    return RemoteQueue(finder, _grpc(token, tls, _Trusted(Origin.BUCKET, tls)), env, prober)


def through_brokers(parts: Parts, *, tls: ClientTlsFiles | None = None) -> Callable[[int], Shard]:
    """How to reach the shards of a ring that brokers lead, with the token of the environment. If the optional packages
    are missing, a shard that is led is refused as before.

    Raises:
        InvalidInputError: a file of `tls` cannot be read.
    """

    def shard(token: int) -> Shard:
        store = parts.shard(token).store
        finder = BucketFinder(store, owns_store=False, rng=parts.rng)
        connect = peer_connect(token, peer_token(), _client_tls(tls), is_from_here(tls))
        remote = RemoteShard(finder, connect, parts)
        return LedShard(token, remote)

    return shard


def peer_token() -> str | None:
    """The token for the brokers of a ring, from the environment."""
    return os.environ.get(PEER_TOKEN_VARIABLE) or os.environ.get(TOKEN_VARIABLE)


def peer_connect(
    shard: int, token: str | None, tls: ClientTls | None, doubtful: bool = False
) -> Callable[[str], RemoteService]:
    """Connect to a shard through a broker of its ring, whose address the bucket names. `doubtful`: the trusted
    certificates come from a file in the current directory.

    Raises, when it is called:
        UntrustedAddressError: the token is not for that broker.
    """
    with _extra("grpc"):
        from casque.transport.grpc.peer import GrpcShard
    pinned = tls is not None and not doubtful and (tls.roots is not None or tls.server_name is not None)

    def connect(address: str) -> RemoteService:
        if token is not None:
            check_address(address, origin=Origin.BUCKET, encrypted=tls is not None, pinned=pinned)
        return GrpcShard(address, shard, token=token, tls=tls, connect_s=CONNECT_S, silence_s=SILENCE_S)

    return connect


class _Trusted:
    """Decides which addresses may receive the token of one client."""

    def __init__(self, origin: Origin, tls: ClientTlsFiles | None, given: frozenset[str] = frozenset()) -> None:
        self._origin = origin
        self._given = given
        self._encrypted = tls is not None
        named = tls is not None and (tls.ca is not None or tls.server_name is not None)
        self._pinned = named and not is_from_here(tls)

    def check(self, address: str, token: str | None) -> None:
        if token is None:
            return
        hinted = self._origin is Origin.GIVEN and address not in self._given
        origin = Origin.HINT if hinted else self._origin
        check_address(address, origin=origin, encrypted=self._encrypted, pinned=self._pinned)


def _grpc(token: str | None, tls: ClientTlsFiles | None, trusted: _Trusted) -> Callable[[str], RemoteService]:
    with _extra("grpc"):
        from casque.transport.grpc.client import GrpcService
    token = token or os.environ.get(TOKEN_VARIABLE)
    credentials = _client_tls(tls)

    def connect(address: str) -> RemoteService:
        trusted.check(address, token)
        return GrpcService(address, token=token, tls=credentials, connect_s=CONNECT_S, silence_s=SILENCE_S)

    return connect


def _client_tls(tls: ClientTlsFiles | None) -> ClientTls | None:
    if tls is None:
        return None
    with _extra("grpc"):
        from casque.transport.grpc.credentials import ClientTls
    return ClientTls(roots=_pem(tls.ca), key=_pem(tls.key), chain=_pem(tls.cert), server_name=tls.server_name)


def _http(token: str | None, tls: ClientTlsFiles | None, trusted: _Trusted) -> Callable[[str], RemoteService]:
    with _extra("http"):
        from casque.transport.http.client import HttpService
    token = token or os.environ.get(TOKEN_VARIABLE)
    context = None if tls is None else _context(tls)
    name = None if tls is None else tls.server_name

    def connect(address: str) -> RemoteService:
        trusted.check(address, token)
        return HttpService(address, token=token, tls=context, server_name=name)

    return connect


def _context(tls: ClientTlsFiles) -> ssl.SSLContext:
    import ssl

    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidInputError(f"tls: {error}") from error
    return context


def _pem(path: str | Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidInputError(f"tls: {error}") from error


class _extra:  # noqa: N801  reads as a statement
    """Turns a missing optional package into an error that says how to install it."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, ImportError):
            raise InvalidInputError(
                f'to speak {self._what}, casque needs more packages: pip install "casque[server]" ({error})'
            ) from error
