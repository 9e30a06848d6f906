"""Decoders of stored JSON that read only the fields a table needs.

A struct with fewer fields decodes faster: msgspec skips the text of the others. Times and enumerations stay text,
because Arrow parses a column of times faster than msgspec makes datetimes of them.
"""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from functools import lru_cache, reduce
from operator import or_
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

UNFIT = (ValueError, OverflowError, RecursionError)
"""Errors of decoding bytes that are no JSON of this form, and of values that do not fit into a column."""


@lru_cache(maxsize=256)
def decoder_of(stored: type[msgspec.Struct], fields: frozenset[str]) -> msgspec.json.Decoder[Any]:
    """Decodes these fields of `stored`. Names that it does not have are ignored."""
    return msgspec.json.Decoder(_part_of(stored, fields))


def _part_of(stored: type[msgspec.Struct], fields: frozenset[str] | None = None) -> type[msgspec.Struct]:
    chosen = [
        (one.name, _as_text(one.type), *(() if one.default is msgspec.NODEFAULT else (one.default,)))
        for one in msgspec.structs.fields(stored)
        if fields is None or one.name in fields
    ]
    array_like = bool(stored.__struct_config__.array_like)
    return msgspec.defstruct(stored.__name__, chosen, array_like=array_like, gc=False)


def _as_text(kind: Any) -> Any:
    if get_origin(kind) in (Union, UnionType):
        return reduce(or_, map(_as_text, get_args(kind)))
    if get_origin(kind) is tuple:
        return tuple[tuple(map(_as_text, get_args(kind)))]  # type: ignore[misc]
    if not isinstance(kind, type):
        return kind
    if issubclass(kind, msgspec.Struct):
        return _part_of(kind)
    return str if issubclass(kind, datetime | Enum) else kind
