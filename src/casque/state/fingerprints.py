"""What a request asks for, in sixteen characters: the same id with another fingerprint is another request.

Only what a caller says counts. What a broker adds or works out anew when a request is repeated does not: ids and blobs
of jobs, the moment that a delay comes to, defaults from its settings, headers for tracing.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import msgspec

from casque.service.requests import (
    Ack,
    Cancel,
    Dequeue,
    Enqueue,
    LeaseZone,
    Nack,
    Purge,
    RequeueStale,
    Retry,
    SetGate,
    Settle,
    SetZone,
)

_encode = msgspec.msgpack.Encoder().encode


def fingerprint(command: Any) -> str:
    """Of a command that can have a request id."""
    return blake2b(_encode(_ASKED[type(command)](command)), digest_size=8).hexdigest()


def _enqueue(c: Enqueue) -> object:
    return [(s.entrypoint, s.payload, s.priority, s.key, s.zone, s.fifo, s.blob_bytes) for s in c.specs]


def _settle(c: Settle) -> object:
    # Without tokens: a border gives those that are not its caller's another one, while they are there to be looked at.
    return [(o.job_id, o.error is None, o.crashed, o.snoozed, o.cancelled, o.declined) for o in c.outcomes]


def _on_lease(c: Ack | Nack) -> object:
    return c.job_id, c.token


def _on_job(c: Cancel | Retry) -> object:
    return c.job_id


_ASKED: dict[type, Callable[[Any], object]] = {
    Enqueue: _enqueue,
    Dequeue: lambda c: (c.entrypoints, c.zone_lease),
    Ack: _on_lease,
    Nack: _on_lease,
    Settle: _settle,
    Cancel: _on_job,
    Retry: _on_job,
    Purge: lambda c: (c.entrypoint, c.zone),
    RequeueStale: lambda c: (c.entrypoint, c.zone),
    SetGate: lambda c: (c.gate, c.entrypoint),
    SetZone: lambda c: (c.zone, c.rules),
    LeaseZone: lambda c: c.zone,
}
