"""A queue on a store that casque does not know: any object with `read` and `write` will do. Here, an SQLite table."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from casque import BrokerQueue, CASConflictError


class SqliteStorage:
    """One row that holds the whole queue. The row's version is its token."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(self._connect()) as db:
            db.execute("CREATE TABLE IF NOT EXISTS queue (id INTEGER PRIMARY KEY, content BLOB, version INTEGER)")

    async def read(self) -> tuple[bytes, str | None]:
        """The content and its token; `(b"", None)` if nothing was written yet."""
        return await asyncio.to_thread(self._read)

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        """Write only if the token is still `if_match`, or, for None, if there is nothing yet."""
        return await asyncio.to_thread(self._write, content, if_match)

    def _read(self) -> tuple[bytes, str | None]:
        with closing(self._connect()) as db:
            row = db.execute("SELECT content, version FROM queue").fetchone()
        return (bytes(row[0]), str(row[1])) if row else (b"", None)

    def _write(self, content: bytes, if_match: str | None) -> str:
        version = int(if_match or 0) + 1
        if if_match is None:
            # Not INSERT OR REPLACE: two processes that start together must not overwrite each other.
            change = ("INSERT OR IGNORE INTO queue VALUES (1, ?, ?)", (content, version))
        else:
            # One statement compares and changes, so nobody comes between the two.
            change = ("UPDATE queue SET content = ?, version = version + 1 WHERE version = ?", (content, version - 1))
        with closing(self._connect()) as db:
            changed = db.execute(*change).rowcount
        if not changed:
            raise CASConflictError("another writer was first")
        return str(version)

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, isolation_level=None)


async def main(path: Path) -> None:
    async with BrokerQueue(SqliteStorage(path)) as queue:
        await asyncio.gather(*(queue.enqueue("task", b"%d" % n) for n in range(20)))
        state = await queue.read_state()
        print(f"{len(state.jobs)} jobs, commits: {state.version}")

    # Another queue on the same table finds them.
    async with BrokerQueue(SqliteStorage(path)) as queue:
        jobs = await queue.dequeue("task", batch_size=20)
        await asyncio.gather(*(job.ack() for job in jobs))
        print(f"{len(jobs)} done, {len((await queue.read_state()).jobs)} left")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(Path(temporary, "queue.db")))
