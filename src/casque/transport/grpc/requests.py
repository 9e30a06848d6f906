"""Parse requests; malformed bytes are refused like any other invalid input."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from casque.errors import InvalidInputError

M = TypeVar("M", bound=Message)
T = TypeVar("T")


class Garbled:
    """Takes the place of a malformed message in a stream: gRPC would turn an exception in a parser into UNKNOWN."""

    def __init__(self, why: str) -> None:
        self.why = why


def parser(kind: type[Message]) -> Callable[[bytes], Message | Garbled]:
    def parse(body: bytes) -> Message | Garbled:
        try:
            return parsed(kind, body)
        except InvalidInputError as error:
            return Garbled(str(error))

    return parse


def sound(message: T) -> T:
    """The message, unless it is garbled. Raises InvalidInputError."""
    if isinstance(message, Garbled):
        raise InvalidInputError(message.why)
    return message


def parsed(kind: type[M], body: bytes) -> M:
    """Raises InvalidInputError for bytes that are not such a message."""
    try:
        return kind.FromString(body)
    except DecodeError as error:
        raise InvalidInputError(f"these bytes are no {kind.DESCRIPTOR.full_name}: {error}") from error
