"""Parse listen addresses, and refuse to expose an unprotected port to a network unless asked to."""

from __future__ import annotations

import ipaddress
import re

import msgspec

from casque.errors import InvalidInputError

_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.(?!-)[A-Za-z0-9_-]{1,63})*\.?")


class Address(msgspec.Struct, frozen=True):
    """A host and a port.

    >>> str(Address.parse("[::1]:7700")), Address.parse("localhost:0").is_loopback
    ('[::1]:7700', True)
    """

    host: str
    """A name or an IP address, without brackets."""
    port: int
    """0: any free port."""

    @classmethod
    def parse(cls, text: str, *, option: str = "address") -> Address:
        """Raises InvalidInputError that names the option and the right form."""
        host, colon, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
            if not _is_ip(host, 6):
                raise InvalidInputError(f"{option}: {host!r} is no IPv6 address")
        elif ":" in host or (not colon and _is_ip(port, 6)):
            raise InvalidInputError(f"{option}: an IPv6 address goes into brackets, as in [::1]:7700, not {text!r}")
        elif not colon or not (_is_ip(host, 4) or (_NAME.fullmatch(host) and not _looks_numeric(host))):
            raise InvalidInputError(f"{option} must be HOST:PORT, for example 127.0.0.1:7700, not {text!r}")
        if not port.isascii() or not port.isdecimal() or len(port) > 5 or int(port) > 65_535:
            raise InvalidInputError(f"{option}: the port must be from 0 to 65535, not {port!r}")
        return cls(host, int(port))

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach it."""
        ip = self._ip
        if ip is None:
            return self.host.rstrip(".").lower() == "localhost"
        mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
        return (mapped or ip).is_loopback

    @property
    def is_wildcard(self) -> bool:
        """True for 0.0.0.0 and ::, which a server can listen on but no client can call."""
        ip = self._ip
        if ip is None:
            return False
        mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
        return (mapped or ip).is_unspecified

    def at(self, port: int) -> Address:
        """The same host with the port that the system chose."""
        return Address(self.host, port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def _ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None


def check_exposure(address: Address, *, tls: bool, tokens: bool, insecure: bool, option: str = "--listen") -> None:
    """Raises InvalidInputError for an unprotected port that a network can reach, unless `insecure` is set."""
    if address.is_loopback or insecure or (tls and tokens):
        return
    missing = " and ".join(
        name for name, there in (("TLS (--tls-cert, --tls-key)", tls), ("tokens (--tokens)", tokens)) if not there
    )
    raise InvalidInputError(
        f"{option} {address} can be reached from other machines, and {missing} are missing: anybody there could read "
        "and change the queue. Add them, listen on 127.0.0.1, or say --insecure if the network itself is safe"
    )


def advertised(listen: Address, advertise: str | None) -> Address:
    """The address that other processes use to reach the broker listening on `listen`.

    Raises:
        InvalidInputError: the address is not reachable. Two brokers that both advertised 0.0.0.0 would each take the
            other for themselves.
    """
    if advertise is None:
        if listen.is_wildcard:
            raise InvalidInputError(
                f"--listen {listen} is every address of this machine, and clients need one that they can reach: add "
                f"--advertise NAME:{listen.port or 'PORT'} with a name or an address of it"
            )
        return listen
    address = Address.parse(advertise, option="--advertise")
    if address.is_wildcard:
        raise InvalidInputError(
            f"--advertise {address} is no address that anybody could call: give the name or the address of this "
            "machine as clients reach it"
        )
    if address.port == 0 and listen.port != 0:
        raise InvalidInputError(f"--advertise {address}: the port must be the one that clients call, not 0")
    return address


def _is_ip(text: str, version: int) -> bool:
    try:
        return ipaddress.ip_address(text).version == version
    except ValueError:
        return False


def _looks_numeric(host: str) -> bool:
    """True for 127.1 and 0, which are addresses to a resolver only: do not guess whether they are loopback."""
    last = host.rstrip(".").rpartition(".")[2]
    return last.isdecimal() or last.lower().startswith("0x")
