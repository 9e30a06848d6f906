"""Calls to payloads and back: one JSON object, with an entry for each given argument.

Defaults are not stored. They are filled in where the function runs, so a changed default also applies to jobs that are
already waiting.
"""

from __future__ import annotations

import inspect
import math
import pickle
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cached_property
from importlib import import_module
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec
import msgspec.inspect

from casque import checks
from casque.errors import CasqueError, InvalidInputError, InvalidPayloadError, NotUnderstoodError
from casque.worker.handlers import Cancel, JobContext, Snooze

_OWN_TYPES = (bytes, bytearray, memoryview, datetime, date, time, timedelta, Decimal, UUID)
"""Types that JSON stores as text. A text is never accepted in place of such a value."""
_AS_IT_IS = frozenset({str, int, bool})
"""Values of exactly these types need no conversion."""
_LEFT_OUT: Any = object()
_PLACE = re.compile(r"^(?P<problem>.*) - at `\$\.(?P<argument>\w+)(?P<rest>[^`]*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(\w+)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(.*)`$")


class Parameters(NamedTuple):
    """A function's signature with its types resolved."""

    signature: inspect.Signature
    """Without the context, which callers do not pass."""
    kinds: Mapping[str, Any]
    context: str | None
    decoder: msgspec.json.Decoder[Any]
    by_position: tuple[str, ...]
    """Parameters that may be passed by position, in order."""
    by_name: frozenset[str]
    required: frozenset[str]
    positional_only: tuple[str, ...]
    """Positional-only parameters, the context included."""
    plain: tuple[tuple[str, type], ...] | None
    """All parameters, if each has a type without conversion and may be passed by position; else None."""


class Arguments:
    """The parameters of one function."""

    def __init__(self, function: Callable[..., Any], entrypoint: str) -> None:
        self.function = function
        self.entrypoint = entrypoint
        try:
            self._parameters  # noqa: B018  report a bad signature where it is written
        except NameError:
            pass  # an annotation may name something that the module defines further down: resolve it on first use

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by name: the other process imports the module, where the job replaces the function."""
        module, name = self.function.__module__, self.function.__qualname__
        try:
            found = _function_named(module, name)
        except (ImportError, AttributeError) as error:
            raise pickle.PicklingError(str(error)) from error
        if found is not self.function:
            raise pickle.PicklingError(f"{module}:{name} is something else")
        return _arguments_named, (module, name, self.entrypoint)

    def names(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self.function).parameters)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name, checked and converted, without defaults.

        Raises:
            InvalidInputError: one is missing, unknown, or not of its type.
        """
        parameters = self._resolved()
        if parameters.plain is not None and not kwargs and len(args) == len(parameters.plain):
            plain: dict[str, Any] = {}
            for (name, kind), value in zip(parameters.plain, args):  # noqa: B905  `strict` would take half of the time
                if type(value) is not kind:
                    break
                plain[name] = value
            else:
                return plain
        given = _given(parameters, args, kwargs)
        if given is None:
            try:
                given = parameters.signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise InvalidInputError(f"{self.entrypoint}: {error}; {self._takes(parameters)}") from None
        kinds = parameters.kinds
        return {
            name: value if type(value) is kinds[name] in _AS_IT_IS else self._converted(name, value, kinds[name])
            for name, value in given.items()
        }

    def with_defaults(self, given: Mapping[str, Any]) -> inspect.BoundArguments:
        """The arguments as the function sees them, without the context."""
        bound = inspect.BoundArguments(self._resolved().signature, dict(given))
        bound.apply_defaults()
        return bound

    def encode(self, given: Mapping[str, Any]) -> bytes:
        """The payload of a call. It is decoded at once as a check: dataclasses and structs do not validate
        themselves."""
        try:
            payload = _ENCODER.encode(given)
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
            culprit = next((name for name, value in given.items() if not _has_json(value)), "?")
            problem = f"{self.entrypoint}: argument {culprit!r} has no JSON form: {error}"
            raise InvalidInputError(problem) from error
        if b"null" in payload and (number := _not_finite(given)) is not None:
            # msgspec writes NaN as null, which would be another value where the job runs.
            raise InvalidInputError(
                f"{self.entrypoint}: argument {number.partition('.')[0].partition('[')[0]!r} has no JSON form: "
                f"{number} is not a finite number. Send None or a text instead of NaN and infinity"
            )
        try:
            self._resolved().decoder.decode(payload)
        except (msgspec.MsgspecError, ValueError) as error:
            raise InvalidInputError(f"{self.entrypoint}: {self._problem(error)}") from error
        return payload

    def call(self, payload: bytes, context: JobContext) -> Any:
        """Call the function with the arguments in a payload.

        Raises:
            NotUnderstoodError: the payload does not fit the function.
        """
        kwargs = self.decode(payload)
        parameters = self._parameters
        if parameters.context is not None:
            kwargs[parameters.context] = context
        if not parameters.positional_only:
            return self.function(**kwargs)
        args = [kwargs.pop(name) for name in parameters.positional_only if name in kwargs]
        return self.function(*args, **kwargs)

    def decode(self, payload: bytes) -> dict[str, Any]:
        parameters = self._resolved()
        try:
            decoded = parameters.decoder.decode(payload)
        except (msgspec.MsgspecError, ValueError) as error:
            raise NotUnderstoodError(self.entrypoint, self._problem(error)) from error
        found = msgspec.structs.asdict(decoded)
        if len(parameters.required) == len(found):
            return found
        return {name: value for name, value in found.items() if value is not _LEFT_OUT}

    # --- Inside ---

    @cached_property
    def _parameters(self) -> Parameters:
        whole = inspect.signature(self.function)
        hints = get_type_hints(self.function, include_extras=True)
        for name, parameter in whole.parameters.items():
            if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
                raise InvalidInputError(
                    f"{self.entrypoint}: *args and **kwargs cannot be stored by name: name each argument, "
                    f"or take a list or a dict instead of {parameter}"
                )
            if name.startswith("__"):
                raise InvalidInputError(f"{self.entrypoint}: {name!r} cannot be the name of a job's argument")
        context = self._context(whole, hints)
        rest = [one for one in whole.parameters.values() if one.name != context]
        kinds = {one.name: hints.get(one.name, Any) for one in rest}
        only_by_place, only_by_name = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.KEYWORD_ONLY
        plain = all(_is_plain(kinds[one.name]) and one.kind is not only_by_name for one in rest)
        return Parameters(
            whole.replace(parameters=rest),
            kinds,
            context,
            self._decoder(rest, kinds),
            by_position=tuple(one.name for one in rest if one.kind is not only_by_name),
            by_name=frozenset(one.name for one in rest if one.kind is not only_by_place),
            required=frozenset(one.name for one in rest if one.default is inspect.Parameter.empty),
            positional_only=tuple(one.name for one in whole.parameters.values() if one.kind is only_by_place),
            plain=tuple(kinds.items()) if plain else None,
        )

    def _resolved(self) -> Parameters:
        try:
            return self._parameters
        except NameError as error:
            raise InvalidInputError(
                f"{self.entrypoint}: an annotation cannot be resolved: {error}. Types of a job's arguments must be "
                "defined in its module, not inside a function or under TYPE_CHECKING"
            ) from error

    def _context(self, whole: inspect.Signature, hints: Mapping[str, Any]) -> str | None:
        """The parameter for the context. It must come first or have a default: otherwise type checkers could not know
        that callers omit it."""
        found = [name for name in whole.parameters if _is_context(hints.get(name))]
        if not found:
            return None
        if len(found) > 1:
            raise InvalidInputError(f"{self.entrypoint}: one JobContext is enough, not {' and '.join(found)}")
        [name] = found
        if name != next(iter(whole.parameters)) and whole.parameters[name].default is inspect.Parameter.empty:
            raise InvalidInputError(
                f"{self.entrypoint}: {name!r}, the JobContext, must be the first parameter, "
                "or be `JobContext | None = None`"
            )
        return name

    def _decoder(self, parameters: list[inspect.Parameter], kinds: Mapping[str, Any]) -> msgspec.json.Decoder[Any]:
        fields: list[Any] = []
        for one in parameters:
            required = one.default is inspect.Parameter.empty
            fields.append((one.name, kinds[one.name]) if required else (one.name, kinds[one.name], _LEFT_OUT))
            try:
                _check_kind(kinds[one.name])
            except TypeError as error:
                raise InvalidInputError(
                    f"{self.entrypoint}: argument {one.name!r} cannot be stored: {error}"
                ) from error
        shape = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        return msgspec.json.Decoder(shape, dec_hook=_decode_hook)

    def _converted(self, name: str, value: Any, kind: Any) -> Any:
        try:
            return msgspec.convert(value, kind, builtin_types=_OWN_TYPES, dec_hook=_decode_hook)
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            raise InvalidInputError(f"{self.entrypoint}: argument {name!r}: {error}") from error

    def _problem(self, error: Exception) -> str:
        """An error of msgspec about a field, reworded to name the argument."""
        said = str(error)
        if found := _PLACE.match(said):
            inside = f" at {found['rest']}" if found["rest"] else ""
            return f"argument {found['argument']!r}{inside}: {found['problem']}"
        if found := _MISSING.match(said):
            return f"argument {found[1]!r} is missing; {self._takes(self._parameters)}"
        if found := _UNKNOWN.match(said):
            return f"there is no argument {found[1]!r}; {self._takes(self._parameters)}"
        return f"{said}; a payload is a JSON object with an entry for each argument"

    def _takes(self, parameters: Parameters) -> str:
        return f"it takes {', '.join(parameters.kinds) or 'no arguments'}"


def _function_named(module: str, name: str) -> Any:
    found: Any = import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    definition = getattr(found, "definition", None)
    return found if definition is None else definition.function


def _arguments_named(module: str, name: str, entrypoint: str) -> Arguments:
    return Arguments(_function_named(module, name), entrypoint)


def _given(parameters: Parameters, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments of a call by name, in order; None if they do not fit, for `inspect` to explain. A shortcut:
    `inspect` alone would take half of the time of a bulk enqueue."""
    if len(args) > len(parameters.by_position):
        return None
    given = dict(zip(parameters.by_position, args, strict=False))
    if kwargs:
        if not kwargs.keys() <= parameters.by_name or not kwargs.keys().isdisjoint(given):
            return None
        given.update(kwargs)
        given = {name: given[name] for name in parameters.kinds if name in given}
    return given if given.keys() >= parameters.required else None


def _is_plain(kind: Any) -> bool:
    return isinstance(kind, type) and kind in _AS_IT_IS  # a kind that is not a type may be unhashable


def result_decoder(function: Callable[..., Any]) -> msgspec.json.Decoder[Any]:
    """Decodes a result to the function's return type; to plain JSON values if that is missing or has no JSON form."""
    try:
        kind = get_type_hints(function, include_extras=True).get("return", Any)
        if get_origin(kind) in (Union, UnionType):
            kind = Union[tuple(one for one in get_args(kind) if one not in (Snooze, Cancel))]  # noqa: UP007
        return msgspec.json.Decoder(kind, dec_hook=_decode_hook)
    except (NameError, TypeError):
        return msgspec.json.Decoder(Any)


class InvalidResultError(InvalidPayloadError):
    """A result that cannot be stored. Running the function again would not help, so the job is dead at once."""

    def __init__(self, problem: str) -> None:
        CasqueError.__init__(
            self,
            f"the function ran, but its result cannot be stored: {problem}. Return something else, or keep no results "
            "with @app.job(result_ttl=0)",
        )
        self.entrypoint, self.problem = "", problem


def encode_result(returned: object) -> bytes | None:
    """JSON for the archive; None for a function that returns None.

    Raises:
        InvalidResultError: it has no JSON form, or is too large.
    """
    if returned is None:
        return None
    try:
        result = _ENCODER.encode(returned)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise InvalidResultError(f"it has no JSON form: {error}") from error
    if b"null" in result and (culprit := _not_finite(returned)) is not None:
        raise InvalidResultError(f"it has no JSON form: {culprit or 'it'} is not a finite number")
    if len(result) > checks.RESULT_MAX:
        raise InvalidResultError(f"it has {len(result):,} bytes, and a result at most {checks.RESULT_MAX:,}")
    return result


def discard_result(_returned: object) -> bytes | None:
    """For `result_ttl=0`: the result is not written."""
    return None


def _is_context(kind: Any) -> bool:
    if get_origin(kind) in (Union, UnionType):
        return any(one is JobContext for one in get_args(kind))
    return kind is JobContext


def _check_kind(kind: Any) -> None:
    """Raises TypeError for a type that has no JSON form, at any depth of it."""
    if isinstance(info := msgspec.inspect.type_info(kind), msgspec.inspect.CustomType) and not _is_model(info.cls):
        raise TypeError(f"{_name(info.cls)} is not a type that JSON, msgspec or pydantic can store")
    msgspec.json.Decoder(kind, dec_hook=_decode_hook)
    for part in get_args(kind):
        if isinstance(part, type):
            _check_kind(part)


def _is_model(kind: Any) -> bool:
    """Recognises Pydantic models by their methods, so that Pydantic need not be installed."""
    return hasattr(kind, "model_validate_json")


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))


def _not_finite(value: Any, path: str = "") -> str | None:
    """Where in a value there is NaN or an infinity; None if all numbers are finite."""
    if isinstance(value, float):
        return None if math.isfinite(value) else path
    if _is_model(type(value)):
        value = value.model_dump()
    elif isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    elif is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name, None) for field in fields(value)}
    parts: Iterable[tuple[str, Any]] = ()
    if isinstance(value, Mapping):
        parts = ((f"{path}.{name}" if path else f"{name}", part) for name, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        parts = ((f"{path}[{at}]", part) for at, part in enumerate(value))
    return next((found for where, part in parts if (found := _not_finite(part, where)) is not None), None)


def _has_json(value: Any) -> bool:
    try:
        _ENCODER.encode(value)
    except Exception:  # noqa: BLE001  any error means that the argument has no JSON form
        return False
    return True


def _encode_hook(value: Any) -> Any:
    if _is_model(type(value)):
        return msgspec.Raw(value.model_dump_json(by_alias=True).encode())
    raise TypeError(f"{_name(type(value))} is not a type that JSON, msgspec or pydantic can store")


def _decode_hook(kind: Any, value: Any) -> Any:
    if isinstance(value, kind):
        return value
    if not _is_model(kind):
        raise TypeError(f"{_name(kind)} is not a type that JSON, msgspec or pydantic can store")
    return kind.model_validate_json(_ENCODER.encode(value))


_ENCODER = msgspec.json.Encoder(enc_hook=_encode_hook)
