"""Files that commands write."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO
from urllib.parse import unquote, urlsplit

from casque.clock import new_nonce, system_random
from casque.errors import InvalidInputError


@contextmanager
def write_whole(path: Path) -> Iterator[TextIO]:
    """A file that appears when all of it is written, or not at all. Raises InvalidInputError if it cannot."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("w", encoding="utf-8") as file:
            yield file
        beside.replace(path)
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def local_directory(url: str) -> Path | None:
    """The directory of a store on local files; None for other stores, and for a URL that is none."""
    parts = urlsplit(url)
    whole = parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/")
    return Path(unquote(parts.path)) if whole else None


@contextmanager
def scratch_directory(parent: Path, name: str) -> Iterator[Path]:
    """A new directory below `parent`. It is removed with everything in it, and so are parents that had to be made.

    Raises:
        InvalidInputError: it cannot be made.
    """
    missing = [one for one in (parent, *parent.parents) if not one.exists()]
    path = parent / f"{name}-{new_nonce(system_random())}"
    try:
        path.mkdir(parents=True)
    except OSError as error:
        raise InvalidInputError(f"{parent} cannot be written: {error.strerror or error}") from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        for made in missing:
            with suppress(OSError):  # another process put something there meanwhile
                made.rmdir()
