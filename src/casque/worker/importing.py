"""Imports an object by name: `package.module:attribute`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from casque.errors import InvalidInputError
from casque.worker.handlers import Handlers


def import_object(name: str, *, what: str, form: str, example: str) -> Any:
    """Import the object. `what`, `form` and `example` are for the message about a wrong name.

    >>> import_object("os.path:join", what="a function", form="module:function", example="mail.jobs:send").__name__
    'join'

    Raises:
        InvalidInputError: the name is malformed, or nothing has it.
    """
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise InvalidInputError(f"{what} is written {form}, for example {example}, not {name!r}")
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise InvalidInputError(
            f"there is no {what.partition(' ')[2]} {name!r}: {error}. Is its module installed here?"
        ) from error
    return found


def import_app(name: str) -> Handlers:
    """Import `package.module:app`. Raises InvalidInputError, which says what is wrong with the name."""
    return check_app(import_object(name, what="an app", form="module:app", example="shop.jobs:app"), repr(name))


def check_app(found: Any, said: str) -> Handlers:
    """Check that `found` is an app. Raises InvalidInputError if it is not."""
    if not all(hasattr(type(found), needed) or hasattr(found, needed) for needed in ("url", "opening", "handlers")):
        raise InvalidInputError(f"{said} is a {type(found).__name__}, not an app: give a casque.App, or its name")
    return found  # type: ignore[no-any-return]
