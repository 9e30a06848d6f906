"""Load an app by the name that a command line gives: `package.module:app`."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

from casque.cli.process import add_current_directory
from casque.errors import InvalidInputError
from casque.worker.handlers import Handlers
from casque.worker.importing import check_app

PACKAGE, LIBRARY = str(Path(__file__).parents[1]), str(Path(traceback.__file__).parent / "importlib")
"""Code that is not the user's own."""


def load_app(name: str) -> Handlers:
    """Import an app. Modules in the current directory are found too.

    Raises:
        InvalidInputError: the name is malformed, there is no such module or app, or the module fails. Names the file
            and the line of a mistake inside the module.
    """
    module, _, attribute = name.partition(":")
    if module.endswith(".py") or "/" in module or "\\" in module:
        raise InvalidInputError(f"{name!r} is a file, and an app is named by its module: write {_as_module(name)}")
    if not module or not attribute:
        raise InvalidInputError(f"an app is written module:app, for example shop.jobs:app, not {name!r}")
    here = add_current_directory()
    found: Any = _import(module, here)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InvalidInputError(f"the module {module!r} has no {attribute!r}: {_apps_in(sys.modules[module])}")
        found = getattr(found, part)
    return check_app(found, repr(name))


def _as_module(name: str) -> str:
    """What to write instead of a path, seen from the current directory."""
    path, _, attribute = name.partition(":")
    inside = PurePath(path.replace("\\", "/"))
    if inside.is_absolute() and inside.is_relative_to(Path.cwd()):
        inside = inside.relative_to(Path.cwd())
    parts = [part for part in inside.with_suffix("").parts if part not in ("/", ".", "..")]
    return f"{'.'.join(parts) or 'module'}:{attribute or 'app'}"


def _import(module: str, here: str) -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise InvalidInputError(
                f"there is no module {error.name!r} in {here} or among the installed packages. Start this in the "
                "directory that has it, or install it"
            ) from error
        missing = f"the module {error.name!r} is not installed here" if error.name else str(error)
        raise InvalidInputError(f"the module {module!r} cannot be imported: {missing} ({_place(error)})") from error
    except Exception as error:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        said = text if isinstance(error, InvalidInputError) else f"{type(error).__name__}: {text}"
        raise InvalidInputError(f"the module {module!r} cannot be imported: {said} ({_place(error)})") from error


def _place(error: Exception) -> str:
    """File and line of a mistake in the user's own code."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if not one.filename.startswith((PACKAGE, LIBRARY, "<frozen"))]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else "no place is known"


def _apps_in(module: ModuleType) -> str:
    from casque.functions.app import App

    names = [name for name, value in vars(module).items() if isinstance(value, App)]
    return f"its apps are {', '.join(names)}" if names else "it has no casque.App"
