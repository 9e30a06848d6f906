"""Keeps web pages from driving a broker: which `Host` a request may name, and which `Origin` it may come from.

A browser sends any request that a page asks for, also to 127.0.0.1. Three checks stop that. `Host` must be an address
or a name of this broker: a page whose own name was rebound to 127.0.0.1 still sends its own name. `Origin` and
`Sec-Fetch-Site`, which pages cannot set, must not name another site. And every change needs a `Content-Type` that a
browser sends to another site only after a preflight (see `reading`).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final

from starlette.types import Scope

from casque.errors import InvalidInputError

ANY: Final = "*"
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::[0-9]{1,5})?")
_ORIGIN = re.compile(r"https?://(?P<authority>(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::[0-9]{1,5})?)")
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")
_ASKED_HEADERS = "authorization, content-type, idempotency-key, last-event-id"
_WITHOUT_HOST_CHECK = frozenset({b"/healthz"})
"""Load balancers request it under names of their own, and it reveals only that the process lives."""


class BrowserRules:
    """Decides whether a request may have been sent by a web page.

    `hosts` are names of this broker besides `localhost` and IP addresses, or `*` for any. `origins` are sites whose
    pages may call, such as `https://admin.example.com`. With `tls` the certificate has verified the name already: a
    rebound name has no certificate here.

    Raises:
        InvalidInputError: a host or an origin is malformed.

    >>> rules = BrowserRules(["broker-1"], [], tls=False)
    >>> rules.problem_with_host("broker-1:7701") is None, rules.problem_with_host("evil.example:7701") is None
    (True, False)
    """

    def __init__(self, hosts: Iterable[str], origins: Iterable[str], *, tls: bool) -> None:
        self._hosts = frozenset(_checked_host(host) for host in hosts)
        self._origins = frozenset(_checked_origin(origin) for origin in origins)
        self._tls = tls

    def problem_with(self, scope: Scope) -> str | None:
        """Why this request is refused; None if it is allowed."""
        host = _header(scope, b"host")
        if (
            host is not None  # optional in HTTP/1.0, which no browser speaks
            and not self._tls
            and scope["raw_path"] not in _WITHOUT_HOST_CHECK
            and (problem := self.problem_with_host(host)) is not None
        ):
            return problem
        return self._problem_with_site(scope, host or "")

    def problem_with_host(self, host: str) -> str | None:
        found = _HOST.fullmatch(host)
        if found is None:
            return f"the header Host must be a name or an address of this broker, not {host!r}"
        name = found["host"].lower().rstrip(".")
        if ANY in self._hosts or name in self._hosts or _is_local(name):
            return None
        return (
            f"{name!r} is not known as a name of this broker, and a web page could have made it one; call the broker "
            f"by its address, or start it with --allow-host {name}"
        )

    def _problem_with_site(self, scope: Scope, host: str) -> str | None:
        origin = _header(scope, b"origin")
        if origin is not None:
            if self.allows_origin(origin) or _is_same_site(origin, host):
                return None
            return (
                f"a page of {origin!r} asks, and it is not one that may; if it should, start the broker with "
                "--allow-origin ORIGIN"
            )
        if _header(scope, b"sec-fetch-site") not in ("cross-site", "same-site"):
            return None
        if _header(scope, b"sec-fetch-mode") == "navigate" and scope["method"] in ("GET", "HEAD"):
            return None  # a user followed a link and sees the answer; the linking page does not
        return "a page of another site asks, and it is not one that may"

    # --- Pages that may call ---

    def allows_origin(self, origin: str) -> bool:
        return origin.lower() in self._origins

    def cross_origin_headers(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        """The headers without which a browser hides the answer from an allowed page."""
        origin = _header(scope, b"origin")
        if origin is None or not self.allows_origin(origin):
            return []
        headers = [
            ("access-control-allow-origin", origin),
            ("access-control-expose-headers", "location, retry-after"),
            ("vary", "Origin"),
        ]
        if is_preflight(scope):
            headers += [
                ("access-control-allow-methods", "GET, POST"),
                ("access-control-allow-headers", _ASKED_HEADERS),
                ("access-control-allow-private-network", "true"),
                ("access-control-max-age", "600"),
            ]
        return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]


def is_preflight(scope: Scope) -> bool:
    """True if a browser asks for permission to send a page's cross-site request."""
    return scope["method"] == "OPTIONS" and _header(scope, b"access-control-request-method") is not None


def _is_local(name: str) -> bool:
    """True for names that no name server can point elsewhere: addresses, and names of this machine."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _is_same_site(origin: str, host: str) -> bool:
    """True if the page came from this broker: same name and port."""
    found = _ORIGIN.fullmatch(origin)
    return found is not None and host != "" and found["authority"].lower() == host.lower()


def _header(scope: Scope, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)


def _checked_host(host: str) -> str:
    if host == ANY or _is_local(host.lower()):
        return host.lower()
    if _NAME.fullmatch(host) is None:
        raise InvalidInputError(f"--allow-host must be a name without a port, such as broker-1, or *; not {host!r}")
    return host.lower().rstrip(".")


def _checked_origin(origin: str) -> str:
    if _ORIGIN.fullmatch(origin) is None:
        raise InvalidInputError(
            f"--allow-origin must be a scheme and a host, such as https://admin.example.com, not {origin!r}"
        )
    scheme, _, authority = origin.lower().partition("://")
    default = ":443" if scheme == "https" else ":80"
    return f"{scheme}://{authority.removesuffix(default)}"
