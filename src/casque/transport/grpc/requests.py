"""Requests as they come: bytes that are no message are refused like any other bad input."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from casque.errors import InvalidInputError

T = TypeVar("T")


class Garbled:
    """Stands where a request should be. gRPC would make an unknown error of an exception in a parser."""

    def __init__(self, kind: str, why: str) -> None:
        self.why = f"these bytes are no {kind}: {why}"


def parser(kind: type[Message]) -> Callable[[bytes], Message | Garbled]:
    def parse(body: bytes) -> Message | Garbled:
        try:
            return kind.FromString(body)
        except DecodeError as error:
            return Garbled(kind.DESCRIPTOR.full_name, str(error))

    return parse


def sound(request: T) -> T:
    """The request, if it is one. Raises InvalidInputError."""
    if isinstance(request, Garbled):
        raise InvalidInputError(request.why)
    return request
