"""What the server serves and the OpenAPI document describes: one thing that can be asked."""

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
    """One thing that can be asked."""

    method: str
    path: str
    verb: str
    summary: str
    answer: Any = None
    """The type of the answer; None: nothing but a status."""
    media: str = JSON
    body: Any = None
    body_optional: bool = False
    body_max: int | None = 4 * 1024 * 1024
    """Bytes that are read of it; None: as many as the server reads of any. Only payloads and results need so many."""
    query: Any = None
    repeatable: bool = False
    """Whether an `Idempotency-Key` makes it safe to repeat."""
    resumable: bool = False
    """Whether a `Last-Event-ID` says where to go on."""
    refusals: tuple[type[CasqueError], ...] = ()
    """Errors beyond those that every call may meet."""
    decoder: msgspec.json.Decoder[Any] | None = None
    query_lists: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.body is not None:
            msgspec.structs.force_setattr(self, "decoder", msgspec.json.Decoder(self.body))
        if self.query is not None:
            lists = [field.name for field in msgspec.structs.fields(self.query) if _is_list(field.type)]
            msgspec.structs.force_setattr(self, "query_lists", frozenset(lists))
