"""Request ids belong to their callers: two callers who both say `order-17` mean two requests.

A broker with tokens puts the name of the caller before the id, once, where the call comes in. From there on it is one
text: it goes to other brokers, into the log and into the memory of requests as it is. Callers without a name (embedded
ones, and those of a broker without tokens) share one scope.
"""

from __future__ import annotations

MARK = "@"


def scoped_id(scope: str, request_id: str) -> str:
    """The id as the queue knows it.

    >>> scoped_id("shop", "order-17")
    '@shop@order-17'
    """
    # The first two marks are ours whatever the name holds, so that no two callers can say the same.
    return f"{MARK}{scope.replace('%', '%25').replace(MARK, '%40')}{MARK}{request_id}"


def scope_of(request_id: str) -> str:
    """Whose it is: as `scoped_id` wrote it, or empty.

    >>> scope_of("@shop@order-17"), scope_of("order-17"), scope_of("@")
    ('shop', '', '')
    """
    if not request_id.startswith(MARK):
        return ""
    scope, found, _ = request_id[1:].partition(MARK)
    return scope if found else ""


def shown_id(request_id: str | None) -> str:
    """For messages: what the caller said.

    >>> shown_id("@shop@order-17"), shown_id("order-17")
    ('order-17', 'order-17')
    """
    said = request_id or ""
    return said.split(MARK, 2)[2] if said.startswith(MARK) and said.count(MARK) > 1 else said
