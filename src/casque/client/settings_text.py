"""Parse queue settings from text: `retention=3600`, `archive=false`."""

from __future__ import annotations

from datetime import timedelta
from types import NoneType
from typing import Any, cast, get_args, get_type_hints

from casque.errors import InvalidInputError
from casque.settings import QueueSettings, SettingsChanges

LARGEST = 86_400.0 * 366 * 100
"""A hundred years in seconds, as a sanity limit."""


def parse_settings(pairs: list[str]) -> SettingsChanges:
    """Parse the pairs; names are not checked yet."""
    kinds = get_type_hints(QueueSettings)
    changes: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise InvalidInputError(f"--setting is written NAME=VALUE, for example stale_timeout=60, not {pair!r}")
        kind = kinds.get(name)
        changes[name] = _value(name, {kind, *get_args(kind)}, text)
    return cast(SettingsChanges, changes)


def _value(name: str, kinds: set[Any], text: str) -> Any:
    if NoneType in kinds and text == "none":
        return None
    if choices := sorted(kind for kind in kinds if isinstance(kind, str)):
        if text not in choices:
            raise InvalidInputError(f"--setting {name} takes {', '.join(choices)}, not {text!r}")
        return text
    if bool in kinds:
        if text not in ("true", "false"):
            raise InvalidInputError(f"--setting {name} takes true or false, not {text!r}")
        return text == "true"
    try:
        number = float(text)
    except ValueError:
        raise InvalidInputError(f"--setting {name} takes a number, of seconds if it is a time, not {text!r}") from None
    if not 0 <= number <= LARGEST:
        raise InvalidInputError(f"--setting {name}: {text} is out of all proportion")
    if timedelta in kinds:
        return timedelta(seconds=number)
    return int(number) if number.is_integer() else number
