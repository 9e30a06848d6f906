"""A table of a warehouse, whatever its format: which files belong to it, and which run wrote them.

A run commits at most once to each table: the commit carries the run's number, and goes only on top of the version that
it was made for. So a run that died is completed by the next one without anything twice, and of two that complete the
same run one wins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from casque.errors import CASConflictError, InvalidInputError
from casque.spark.files import File

COMMIT_TRIES = 10
APPEND_TRIES = 100


class Known(msgspec.Struct, frozen=True):
    """A file of one version of a table."""

    path: str
    bytes: int
    rows: int
    first: str
    """The least date in it."""
    last: str

    def holds(self, dates: Collection[str] | None) -> bool:
        """Whether rows of any of these dates may be in it; None for all dates."""
        return dates is None or any(self.first <= date <= self.last for date in dates)


class TableLog(ABC):
    """One table. `DeltaLog` and `IcebergLog` keep it."""

    def __init__(self, name: str, uri: str, columns: Mapping[str, str], rows: str) -> None:
        """`rows` says what a row is."""
        self.name = name
        self.uri = uri
        self._columns = dict(columns)
        self._rows = rows

    @property
    @abstractmethod
    def version(self) -> int:
        """The latest; -1 for none."""

    @property
    @abstractmethod
    def run(self) -> int:
        """The last run that committed; 0 for none."""

    @abstractmethod
    def files(self, version: int | None = None) -> list[Known]:
        """The files of a version, or of the latest.

        Raises:
            CorruptQueueError: that version is gone.
        """

    @abstractmethod
    def arrow(self, version: int, columns: Sequence[str] | None = None) -> Any:
        """A version as a `pyarrow.Table`, in this process: for small tables."""

    @abstractmethod
    def columns(self) -> dict[str, str]:
        """The columns that the table has, and their types in Spark.

        Raises:
            InvalidInputError: there is no such table.
        """

    @abstractmethod
    def sweep(self, keep: timedelta) -> None:
        """Delete files that no version has used for `keep`, and those of runs that died before that."""

    @abstractmethod
    def _write(self, added: Sequence[File], removed: Sequence[Known], at_ms: int, *, run: int | None = None) -> bool:
        """Commit on top of the version that was opened; False if there is another by now. A commit without a run that
        removes files adds their rows again."""

    @abstractmethod
    def _opened(self) -> Any:
        """The table of the library; None if there is none yet."""

    @property
    def exists(self) -> bool:
        return self._opened() is not None

    def commit(self, run: int, added: Sequence[File], removed: Sequence[Known], at_ms: int) -> bool:
        """Add and remove files, as this run; False if it has done so already.

        Raises:
            CASConflictError: another writer changed the table meanwhile; nothing was changed.
        """
        # Files that were merged meanwhile change nothing for a run that only adds some.
        for _ in range(1 if removed else COMMIT_TRIES):
            if self.run >= run:
                return False
            if self._write(added, removed, at_ms, run=run):
                return True
        if self.run >= run:
            return False
        raise CASConflictError(f"another writer changed {self.name} meanwhile: run the pipeline again")

    def append(self, added: Sequence[File], at_ms: int) -> None:
        """Add files, beside whatever others add.

        Raises:
            CASConflictError: other writers kept changing the table; nothing was changed.
        """
        if not any(self._write(added, [], at_ms) for _ in range(APPEND_TRIES)):
            raise CASConflictError(f"other writers kept changing {self.name}: try again")

    def rewrite(self, added: Sequence[File], removed: Sequence[Known], at_ms: int) -> bool:
        """Replace files by others with the same rows; False if another writer was faster."""
        return self._write(added, removed, at_ms)

    def check_columns(self) -> None:
        """
        Raises:
            InvalidInputError: the table has other columns. It may only gain some.
        """
        if not self.exists:
            return
        known = self.columns()
        if missing := [name for name in known if name not in self._columns]:
            raise InvalidInputError(
                f"{self.name} has columns that are missing here: {', '.join(missing)}. A table only ever gains columns"
            )
        if other := [f"{n} ({kind}, here {self._columns[n]})" for n, kind in known.items() if self._columns[n] != kind]:
            raise InvalidInputError(f"{self.name} has columns of another type: {', '.join(other)}. Cast them")
