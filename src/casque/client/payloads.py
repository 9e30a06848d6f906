"""Typed payloads: values are stored as JSON bytes, and validated on the way in and out."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar, cast

import msgspec

from casque import checks
from casque.errors import InvalidInputError

T = TypeVar("T")


class PayloadCodec(Protocol[T]):
    def encode(self, value: T) -> bytes: ...

    def decode(self, payload: bytes) -> T: ...


class BytesCodec:
    """Bytes, unchanged."""

    def encode(self, value: bytes) -> bytes:
        return value if type(value) is bytes else checks.payload(value)

    def decode(self, payload: bytes) -> bytes:
        return payload


class JsonCodec(Generic[T]):
    """msgspec structs, dataclasses, typed dicts and plain annotations such as `list[int]`."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    def encode(self, value: T) -> bytes:
        try:
            payload = msgspec.json.encode(value)
            self._decoder.decode(payload)  # creating a dataclass or a struct checks nothing
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
            raise InvalidInputError(f"payload does not fit {_name(self._kind)}: {error}") from error
        return payload

    def decode(self, payload: bytes) -> T:
        try:
            return self._decoder.decode(payload)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidInputError(f"payload does not fit {_name(self._kind)}: {error}") from error


class PydanticCodec(Generic[T]):
    """Pydantic models, in their own JSON form."""

    def __init__(self, model: type[T]) -> None:
        self._model = cast(Any, model)

    def encode(self, value: T) -> bytes:
        if not isinstance(value, self._model):
            raise InvalidInputError(f"payload must be a {_name(self._model)}, not {type(value).__name__}")
        try:
            payload: bytes = cast(Any, value).model_dump_json(by_alias=True).encode()
        except ValueError as error:
            raise InvalidInputError(f"payload of type {_name(self._model)} has no JSON form: {error}") from error
        self.decode(payload)  # an instance may have been built without validation, or changed since
        return payload

    def decode(self, payload: bytes) -> T:
        try:
            return cast(T, self._model.model_validate_json(payload))
        except ValueError as error:
            raise InvalidInputError(f"payload does not fit {_name(self._model)}: {error}") from error


def codec_for(kind: Any) -> PayloadCodec[Any]:
    """The codec for a type. Raises InvalidInputError for one that has no JSON form."""
    if kind is None or kind is bytes:
        return BytesCodec()
    if hasattr(kind, "model_validate_json"):
        return PydanticCodec(kind)
    try:
        return JsonCodec(kind)
    except TypeError as error:
        raise InvalidInputError(f"{_name(kind)} cannot be a payload type: {error}") from error


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))
