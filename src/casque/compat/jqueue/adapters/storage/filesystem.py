"""One file, safe between the processes of one machine."""

from __future__ import annotations

import os
from pathlib import Path

from casque.compat.jqueue.domain.errors import translated
from casque.storage import single


class LocalFileSystemStorage(single.LocalFileSystemStorage):
    """casque's storage of one file: synced, never half written, with an etag that no other process can repeat.

    `path` may be a `str` or a `Path`; its directory is created.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self.path = Path(path)

    async def read(self) -> tuple[bytes, str | None]:
        with translated():
            return await super().read()

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        with translated():
            return await super().write(content, if_match)

    def __repr__(self) -> str:
        return f"LocalFileSystemStorage(path={self.path!r})"
