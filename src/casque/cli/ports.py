"""Find out before a broker starts whether its ports are free, and say what to do if they are not."""

from __future__ import annotations

import errno
import socket
from contextlib import closing

from casque.errors import InvalidInputError
from casque.transport.listening import Address

NEXT_MAX = 100
"""Ports that are tried after a default one that is in use."""


def check_port(address: Address, option: str) -> None:
    """Raises InvalidInputError if nothing can listen there."""
    if (why := _refusal(address)) is None:
        return
    match why.errno:
        case errno.EADDRINUSE:
            problem = f"{address} is in use; choose another address"
        case errno.EADDRNOTAVAIL:
            problem = f"{address.host} is not an address of this machine; choose one that is"
        case errno.EACCES:
            problem = f"port {address.port} needs more rights than this user has; choose one above 1023"
        case _:
            problem = f"nothing can listen on {address}: {why.strerror or why}; choose another address"
    raise InvalidInputError(f"{problem} with {option} HOST:PORT (port 0 takes a free one)")


def next_free(address: Address) -> Address:
    """The address itself, or the next port after it that is free."""
    for port in range(address.port, min(address.port + NEXT_MAX, 65_536)):
        refused = _refusal(address.at(port))
        if refused is None or refused.errno != errno.EADDRINUSE:
            return address.at(port)
    return address.at(0)


def _refusal(address: Address) -> OSError | None:
    """Why nothing can listen there. Another process may still be faster: then the server itself says so."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, where = found[0]
        with closing(socket.socket(family, kind, protocol)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
            probe.listen()
    except OSError as error:
        return error
    return None
