"""Files that commands write."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

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
