"""A route: one endpoint, as the server serves it and the OpenAPI document describes it."""

from __future__ import annotations

from typing import Any, get_args, get_origin

import msgspec
from msgspec import UnsetType

from casque import errors
from casque.errors import CasqueError

JSON = "application/json"
EVENTS = "text/event-stream"
LINES = "application/jsonl"

LEASE = (errors.JobNotFoundError, errors.LeaseLostError)
HISTORY = (errors.NoHistoryError, errors.HistoryGoneError)


def _is_list(kind: Any) -> bool:
    return any(get_origin(one) is list for one in (get_args(kind) or (kind,)) if one is not UnsetType)


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint."""

    method: str
    path: str
    verb: str
    summary: str
    answer: Any = None
    """The type of the answer; None: only a status."""
    media: str = JSON
    body: Any = None
    body_optional: bool = False
    body_max: int | None = 4 * 1024 * 1024
    """Bytes read of the body; None: the server's limit. Only bodies with payloads and results need that much."""
    query: Any = None
    repeatable: bool = False
    """True if an `Idempotency-Key` makes it safe to repeat."""
    resumable: bool = False
    """True if a `Last-Event-ID` says where to resume."""
    refusals: tuple[type[CasqueError], ...] = ()
    """Errors besides those that every call can raise."""
    decoder: msgspec.json.Decoder[Any] | None = None
    query_lists: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.body is not None:
            msgspec.structs.force_setattr(self, "decoder", msgspec.json.Decoder(self.body))
        if self.query is not None:
            lists = [field.name for field in msgspec.structs.fields(self.query) if _is_list(field.type)]
            msgspec.structs.force_setattr(self, "query_lists", frozenset(lists))
