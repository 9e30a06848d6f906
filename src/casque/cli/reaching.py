"""Find out why brokers do not answer, while a command waits for them.

A client repeats its calls for half a minute, because a broker that is gone has a successor soon. That does not mend a
certificate that is not trusted, or a port that speaks another protocol: a command that has no answer after a second
looks at the ports itself, and ends at once if waiting cannot help.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from casque.cli.output import say
from casque.client.connecting import ClientTlsFiles
from casque.client.probing import PROBE_S, problem_at
from casque.errors import InvalidInputError
from casque.storage.url import is_address

R = TypeVar("R")

PATIENCE_S = 1.0


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
                return await problem_at(
                    address, scheme=brokers.scheme, tls=brokers.tls, from_bucket=brokers.from_bucket
                )
        except (OSError, TimeoutError) as error:
            silent.append(f"{address} ({_reason(error)})")
    if silent:
        note(f"no broker answers at {', '.join(silent)}; trying again for half a minute", err=True)
    return None


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not error.args:
        return "no answer"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return getattr(error, "strerror", None) or str(error)
