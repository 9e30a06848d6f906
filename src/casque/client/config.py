"""Resolve the default queue URL from CASQUE_URL or casque.toml."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from casque.client.connecting import ClientTlsFiles
from casque.client.settings_text import parse_settings
from casque.client.trust import found_here
from casque.errors import InvalidInputError
from casque.settings import SettingsChanges

VARIABLE = "CASQUE_URL"
HERE = "casque.toml"


class QueueConfig(msgspec.Struct, frozen=True):
    """A queue's URL, and how to open it."""

    url: str
    options: dict[str, str] = {}
    settings: dict[str, float | bool | str] = {}
    tls: ClientTlsFiles | None = None

    def changes(self) -> SettingsChanges:
        """Its settings, as `Queue.open` takes them."""
        return parse_settings([f"{name}={_spelled(value)}" for name, value in self.settings.items()])

    def opening(self) -> dict[str, Any]:
        """The keyword arguments for `Queue.open`."""
        given = {"options": self.options or None, "tls": self.tls}
        return {**self.changes(), **{name: value for name, value in given.items() if value is not None}}


class ConfigEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A queue as described in a file."""

    url: str | None = None
    options: dict[str, str] = {}
    settings: dict[str, float | bool | str] = {}
    tls: dict[str, str] = {}

    def with_url(self, url: str) -> QueueConfig:
        known = ClientTlsFiles.__struct_fields__
        if unknown := sorted(self.tls.keys() - set(known)):
            raise InvalidInputError(f"tls has no {unknown[0]!r}: there are {', '.join(known)}")
        return QueueConfig(url, self.options, self.settings, ClientTlsFiles(**self.tls) if self.tls else None)


class ConfigFile(ConfigEntry, frozen=True, forbid_unknown_fields=True):
    """A whole file: one queue without a name, and any number of named ones."""

    queues: dict[str, ConfigEntry] = {}


def config_files() -> list[Path]:
    """The files that are read, in this order, whether they exist or not."""
    home = os.environ.get("XDG_CONFIG_HOME")
    return [Path(HERE), (Path(home) if home else Path.home() / ".config") / "casque" / "config.toml"]


def default_queue() -> QueueConfig | None:
    """The queue of CASQUE_URL, or of the first file that names one.

    Raises:
        InvalidInputError: a file is malformed.
    """
    if url := os.environ.get(VARIABLE):
        return QueueConfig(url)
    for path, config in _configs():
        if config.url is not None:
            return _found(path, config.with_url(config.url))
    return None


def default_queue_hint() -> str:
    """A hint for a user who gave no queue."""
    return f'set the variable {VARIABLE}, or write url = "..." into {" or ".join(map(str, config_files()))}'


def named_queue(name: str) -> QueueConfig:
    """The queue with this name in a file.

    Raises:
        InvalidInputError: no file names it.
    """
    known: list[str] = []
    for path, config in _configs():
        known += config.queues
        if (named := config.queues.get(name)) is not None:
            if named.url is None:
                raise InvalidInputError(f"{path}: the queue {name!r} has no url")
            return _found(path, named.with_url(named.url))
    there = f"there are {', '.join(sorted(set(known)))}" if known else "there are none"
    raise InvalidInputError(
        f"no queue is called {name!r}: {there}. Write [queues.{name}] with a url into "
        f"{' or '.join(map(str, config_files()))}"
    )


def queue_names() -> list[str]:
    """The names of queues in the files."""
    return sorted({name for _, config in _configs() for name in config.queues})


def _found(path: Path, queue: QueueConfig) -> QueueConfig:
    """A file in the current directory may come from an unpacked archive: alone, it does not make a broker trusted with
    a token."""
    if path == Path(HERE):
        found_here(queue.url)
        if queue.tls is not None:
            found_here(queue.tls)
    return queue


def _configs() -> list[tuple[Path, ConfigFile]]:
    return [(path, config) for path in config_files() if (config := _read(path)) is not None]


def _read(path: Path) -> ConfigFile | None:
    try:
        parsed: Any = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInputError(f"{path}: {error}") from error
    try:
        return msgspec.convert(parsed, ConfigFile)
    except msgspec.ValidationError as error:
        raise InvalidInputError(
            f"{path}: {error}. It may have url, options, settings and tls, and the same for each of [queues.NAME]"
        ) from error


def _spelled(value: float | bool | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
