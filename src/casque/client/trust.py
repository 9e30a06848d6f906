"""Decides which brokers receive a token.

A token is sent with every call, so a party that controls where a client connects could collect it: with a `casque.toml`
in a working directory, with a head in a bucket, or by listening on the network. An address that the user gave (an
argument, CASQUE_URL, the file in the home directory) gets the token over TLS; this machine gets it in any case; every
other address only if CASQUE_TOKEN_HOSTS names its host.
"""

from __future__ import annotations

import os
from enum import StrEnum
from fnmatch import fnmatchcase
from ipaddress import ip_address, ip_network

from casque.errors import InvalidInputError

VARIABLE = "CASQUE_TOKEN_HOSTS"


class UntrustedAddressError(InvalidInputError):
    """The token is not sent there, so the call is not made."""


class Origin(StrEnum):
    """Where a broker's address comes from."""

    GIVEN = "given"
    """The user who started this program."""
    HINT = "hint"
    """A broker that has the token already."""
    BUCKET = "bucket"
    """The bucket, and so anyone who can write to it."""
    HERE = "here"
    """A file in the current directory."""


_found_here: set[object] = set()
"""URLs and certificate files named by a file in the current directory."""


def found_here(value: object) -> None:
    _found_here.add(value)


def is_from_here(value: object) -> bool:
    return value in _found_here


def check_address(address: str, *, origin: Origin, encrypted: bool, pinned: bool) -> None:
    """Check that a token may be sent to this broker. `pinned`: its certificate is verified against an authority or a
    name that the user gave, and not against everything that the machine trusts.

    Raises:
        UntrustedAddressError: it may not.
    """
    host = _host(address)
    if is_loopback(host) or _is_listed(host):
        return
    if origin is Origin.HERE:
        raise UntrustedAddressError(
            f"casque.toml in this directory names the broker {address}, and a token is only sent to brokers that you "
            f"name yourself. If you trust it, set {VARIABLE}={host}, or put the URL into CASQUE_URL or "
            "~/.config/casque/config.toml"
        )
    if not encrypted:
        raise UntrustedAddressError(
            f"the token would be sent to {address} without encryption. Use TLS (grpcs:// or https://, or tls=...), or "
            f"set {VARIABLE}={host} if the network between is private"
        )
    if origin is Origin.BUCKET and not pinned:
        raise UntrustedAddressError(
            f"the bucket names the broker {address}, and everyone who can write to the bucket can change that. Give "
            f"the authority of your brokers (tls with ca), or set {VARIABLE}={host}"
        )


def is_loopback(host: str) -> bool:
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        ip = ip_address(host)
    except ValueError:
        return False
    mapped = getattr(ip, "ipv4_mapped", None)
    return (mapped or ip).is_loopback


def _host(address: str) -> str:
    """
    >>> _host("broker:7700"), _host("[::1]:7700"), _host("broker")
    ('broker', '::1', 'broker')
    """
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.rpartition(":")[0] or address


def _is_listed(host: str) -> bool:
    """CASQUE_TOKEN_HOSTS has names, patterns such as *.internal, and networks such as 10.0.0.0/8, separated by
    commas."""
    for one in os.environ.get(VARIABLE, "").split(","):
        listed = one.strip()
        if not listed:
            continue
        if fnmatchcase(host.lower().rstrip("."), listed.lower()):
            return True
        try:
            if ip_address(host) in ip_network(listed, strict=False):
                return True
        except ValueError:
            continue
    return False
