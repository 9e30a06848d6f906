"""Where the queue is that a command works on: its argument, `--queue`, CASQUE_URL, or a file that names it."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from casque.cli.changes import changes_from
from casque.cli.doctor import parse_options
from casque.client.reaching import ClientTlsFiles
from casque.errors import InvalidInputError
from casque.settings import SettingsChanges

VARIABLE = "CASQUE_URL"
HERE = "casque.toml"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")

QueueName = Annotated[
    str | None, typer.Option("--queue", "-q", metavar="NAME", help="A queue that casque.toml names, instead of a URL.")
]


class Place(msgspec.Struct, frozen=True):
    """A queue, and how to open it."""

    url: str
    options: dict[str, str] = {}
    settings: dict[str, float | bool | str] = {}
    tls: ClientTlsFiles | None = None

    def changes(self) -> SettingsChanges:
        """Its settings, as `Queue.open` takes them."""
        return changes_from([f"{name}={_spelled(value)}" for name, value in self.settings.items()])


class Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A queue as a file describes it."""

    url: str | None = None
    options: dict[str, str] = {}
    settings: dict[str, float | bool | str] = {}
    tls: dict[str, str] = {}

    def place(self, url: str) -> Place:
        tls = msgspec.convert(self.tls, ClientTlsFiles, strict=True) if self.tls else None
        return Place(url, self.options, self.settings, tls)


class Config(Named, frozen=True, forbid_unknown_fields=True):
    """A whole file: one queue without a name, and any number with one."""

    queues: dict[str, Named] = {}


def find_place(url: str | None, queue: str | None, option: Sequence[str] | None) -> Place:
    """The queue that was meant. Store options of the command line win over those of a file.

    Raises:
        InvalidInputError: none was named, or a file is not as it must be.
    """
    place = _named(url, queue)
    return msgspec.structs.replace(place, options=place.options | parse_options(list(option or [])))


def apart(*given: str | None) -> tuple[str | None, list[str]]:
    """The URL, if the first argument is one, and the others: whoever has named the queue elsewhere leaves it out."""
    there = [one for one in given if one is not None]
    if there and _SCHEME.match(there[0]):
        return there[0], there[1:]
    return None, there


def config_files() -> list[Path]:
    """Those that are looked at, in this order, whether they are there or not."""
    home = os.environ.get("XDG_CONFIG_HOME")
    return [Path(HERE), (Path(home) if home else Path.home() / ".config") / "casque" / "config.toml"]


def _named(url: str | None, queue: str | None) -> Place:
    if url is not None and queue is not None:
        raise InvalidInputError("give a URL or --queue, not both")
    if url is not None:
        return Place(url)
    if queue is not None:
        return _by_name(queue)
    if told := os.environ.get(VARIABLE):
        return Place(told)
    for _, config in _configs():
        if config.url is not None:
            return config.place(config.url)
    raise InvalidInputError(
        f'which queue? Give its URL as the first argument, set the variable {VARIABLE}, or write url = "..." into '
        f"{' or '.join(map(str, config_files()))}"
    )


def _by_name(name: str) -> Place:
    known: list[str] = []
    for path, config in _configs():
        known += config.queues
        if (named := config.queues.get(name)) is not None:
            if named.url is None:
                raise InvalidInputError(f"{path}: the queue {name!r} has no url")
            return named.place(named.url)
    there = f"there are {', '.join(sorted(set(known)))}" if known else "there are none"
    raise InvalidInputError(
        f"no queue is called {name!r}: {there}. Write [queues.{name}] with a url into "
        f"{' or '.join(map(str, config_files()))}"
    )


def _configs() -> list[tuple[Path, Config]]:
    return [(path, config) for path in config_files() if (config := _read(path)) is not None]


def _read(path: Path) -> Config | None:
    try:
        told: Any = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInputError(f"{path}: {error}") from error
    try:
        return msgspec.convert(told, Config)
    except msgspec.ValidationError as error:
        raise InvalidInputError(
            f"{path}: {error}. It may have url, options, settings and tls, and the same for each of [queues.NAME]"
        ) from error


def _spelled(value: float | bool | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
