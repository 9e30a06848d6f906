"""Objects as files below one directory: durable, and safe between processes on one machine.

A new object is written and synced under a hidden name, then linked to its own, which fails if that is taken. A new
version is written the same way and renamed over the old one under a lock. So after a crash, a full disk or an error at
any point, a key holds a whole version or none. Reads return only data that is on disk: if a writer has not synced a
name, or could not, the reader syncs it and fails if that fails. Not for network file systems, whose locks and links
promise less.

Files and directories belong to their owner alone (0600 and 0700) unless the root is shared with a group on purpose.
Below the root no symbolic link is followed and only regular files are read.
"""

# Paths are joined once and stay text: pathlib costs more than the calls it wraps.
# ruff: noqa: PTH108, PTH113, PTH116, PTH120

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import stat
import threading
import zlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from casque.errors import InvalidInputError, StorageError, StoreAccessError
from casque.storage import inotify
from casque.storage.files import (
    HIDDEN,
    NOT_DONE,
    REFUSED,
    Identity,
    Modes,
    NotRegularError,
    Spares,
    Temp,
    check_regular,
    is_in_doubt,
    is_reserved,
    locked,
    make,
    make_directory,
    make_durable,
    open_regular,
    read_all,
    read_from_memory,
    read_mark,
    remove_stale,
    settle,
    sync_directory,
    walk,
    write_mark,
)
from casque.storage.port import LOST, MISSING, UNCHANGED, UNMARKED, Outcome, Read, Stored, Unknown, Won

_LOCKS = 64
_THREADS = 8
_HELD_MAX = 16
_HOLD_FROM = 64 * 1024
"""Hashing less than this again costs no more than keeping a descriptor would."""
_HASH_BESIDE_FROM = 1024 * 1024
_AT_ONCE_MAX = 16 * 1024
"""A thread reads anything larger, even from memory: hashing it would hold up the event loop."""
_LIST_PAGE = 1000

T = TypeVar("T")


class LocalStore:
    """Objects as files below `root`, which is created with the first write.

    >>> import asyncio, tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     store = LocalStore(directory)
    ...     asyncio.run(store.create("notes/first", b"hello"))
    Won(etag='2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824')

    Raises:
        InvalidInputError: `root` is a file.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        # Absolute from the start: the process may change its working directory later.
        self._root = Path(root).absolute()
        # os.path, because it reports nothing about a root without access: the first operation does.
        if os.path.isfile(self._root):
            raise InvalidInputError(f"{self._root} is a file; a store needs a directory")
        self._parts: _Parts | None = None

    async def get(self, key: str, *, unless: str | None = None) -> Read:
        path = self._path(key)
        parts = self._own_parts()
        if is_in_doubt(os.path.dirname(path)):
            return await self._run(parts, lambda: self._get(parts, key, path, unless))
        # One stat is cheaper than a thread, and nothing is read.
        if unless is not None and parts.held.etag_of(path) == unless:
            return UNCHANGED
        found = self._get_at_once(parts, path, unless)
        if found is not None:
            return found
        return await self._run(parts, lambda: self._get(parts, key, path, unless))

    async def create(self, key: str, body: bytes) -> Outcome:
        path = self._path(key)
        parts = self._own_parts()
        if _is_durable(path):
            return LOST  # visible without a thread
        answer: Future[Outcome] = Future()
        parts.threads.submit(self._answer_create, answer, parts, key, path, body)
        return await asyncio.wrap_future(answer)

    async def replace(self, key: str, body: bytes, *, expected: str) -> Outcome:
        path = self._path(key)
        parts = self._own_parts()
        # Hashed while the body is written, which saves a third of the time at 8 MB. Submitted first, so that the thread
        # that waits for the hash cannot block the one that computes it.
        hashing = parts.threads.submit(_etag, body) if len(body) >= _HASH_BESIDE_FROM else None
        etag = hashing.result if hashing else lambda: _etag(body)
        return await self._run(parts, lambda: self._replace(parts, key, path, body, expected, etag))

    async def delete(self, key: str) -> None:
        path = self._path(key)
        parts = self._own_parts()
        await self._run(parts, lambda: self._delete(parts, key, path))

    async def list(self, prefix: str = "", *, after: str | None = None) -> AsyncIterator[str]:
        self._check_folders(prefix)
        keys = walk(str(self._root), prefix, after)
        while page := await self._run(self._own_parts(), lambda: _page(prefix, keys)):
            for key in page:
                yield key

    def watch(self, folder: str, appeared: Callable[[str], None]) -> Callable[[], None] | None:
        return inotify.watch(
            self._path(folder), lambda name: None if name.startswith(HIDDEN) else appeared(f"{folder}/{name}")
        )

    async def place(self, *, make: bool) -> str:
        parts = self._own_parts()
        return await self._run(parts, lambda: self._place(parts, make))

    def locate(self, key: str) -> str:
        return f"{self._root}/{key}"

    async def close(self) -> None:
        """Close threads and descriptors; writes under way finish by themselves. The next call opens new ones."""
        if self._parts is not None:
            self._parts.threads.shutdown(wait=False)
            self._parts.held.drop_all()
            self._parts.spares.close()
            self._parts = None

    def __reduce__(self) -> tuple[type[LocalStore], tuple[str]]:
        return type(self), (str(self._root),)

    def _get_at_once(self, parts: _Parts, path: str, unless: str | None) -> Read | None:
        """Read an object that is small and in memory, or missing, at a tenth of the cost of a thread. None if the read
        would have to wait, or anything is unusual."""
        try:
            file = _Open(open_regular(path))
        except (FileNotFoundError, NotADirectoryError):
            return MISSING
        except OSError:
            return None
        if not file.settled:
            return None
        body = read_from_memory(file.fd, file.identity.size) if file.identity.size <= _AT_ONCE_MAX else None
        if body is None or Identity.of(os.fstat(file.fd)) != file.identity:
            return None
        etag = parts.held.etag_of(path, file.identity) or _etag(body)
        if unless is not None:
            parts.held.hold(path, file, etag)
        return UNCHANGED if etag == unless else Stored(body, etag)

    # --- Blocking work, run by the store's own threads ---

    def _get(self, parts: _Parts, key: str, path: str, unless: str | None) -> Read:
        try:
            if is_in_doubt(os.path.dirname(path)):
                self._sync(parts, path)
            file = _Open(open_regular(path))
            if not file.settled:
                self._sync(parts, path)
            body, etag = self._read(parts, path, file)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return MISSING
        except OSError as error:
            raise _failed("read", key, error) from error
        if unless is not None or len(body) >= _HOLD_FROM:
            parts.held.hold(path, file, etag)
        return UNCHANGED if etag == unless else Stored(body, etag)

    def _read(self, parts: _Parts, path: str, file: _Open) -> tuple[bytes, str]:
        known = parts.held.etag_of(path, file.identity)
        body = read_all(file.fd)
        # Checked again after reading: an edit in place meanwhile would not belong to the known etag.
        unchanged = Identity.of(os.fstat(file.fd)) == file.identity
        return body, known if known is not None and unchanged else _etag(body)

    def _answer_create(self, answer: Future[Outcome], parts: _Parts, key: str, path: str, body: bytes) -> None:
        """Answer first, then prepare the temporary file of the next create, which delays no one that way."""
        if not answer.set_running_or_notify_cancel():
            return
        directory = os.path.dirname(path)
        # The first object of a directory may be the only one.
        more = directory in parts.prepared
        try:
            outcome = self._create(parts, key, path, directory, body)
        except BaseException as error:  # noqa: BLE001  any error goes to the caller
            answer.set_exception(error)
            return
        spare = parts.spares.promise(directory) if more and isinstance(outcome, Won) else None
        answer.set_result(outcome)
        if spare is not None:
            make(spare, directory, parts.modes.file)

    def _create(self, parts: _Parts, key: str, path: str, directory: str, body: bytes) -> Outcome:
        try:
            # Losing needs no temporary file, and most losers return here.
            if os.path.lexists(path):
                return self._lost(parts, path)
            with parts.spares.take(directory) or self._temp(parts, path) as temp:
                temp.write(body)
                try:
                    temp.link_to(path)
                except FileExistsError:
                    return self._lost(parts, path)
                except OSError as error:
                    return self._naming_failed(parts, "create", key, path, temp, error)
                return self._settled(parts, path, temp) or Won(_etag(body))
        except IsADirectoryError as error:
            raise StoreAccessError(f"{key!r} cannot be created: {path} is a directory", error) from error
        except OSError as error:
            raise _failed("create", key, error) from error

    def _lost(self, parts: _Parts, path: str) -> Outcome:
        """Lost if another version has the name and is durable; unknown if that cannot be ensured."""
        try:
            status = os.lstat(path)
            check_regular(path, status)
            if status.st_nlink > 1 or is_in_doubt(os.path.dirname(path)):
                self._sync(parts, path)
        except (FileNotFoundError, NotADirectoryError):
            pass  # deleted meanwhile
        except (IsADirectoryError, NotRegularError):
            raise
        except OSError as error:
            return Unknown(error)
        return LOST

    def _settled(self, parts: _Parts, path: str, temp: Temp) -> Unknown | None:
        """Make the new name of the file durable. None if that worked."""
        parts.marks[path] = temp.path
        try:
            self._sync(parts, path)
        except OSError as error:
            # Readers already see the new version; it may not survive a crash.
            return Unknown(error)
        return None

    def _sync(self, parts: _Parts, path: str) -> None:
        """Sync the directory of `path`, and remove the mark that this process may have left there."""
        mark = parts.marks.get(path)
        sync_directory(os.path.dirname(path))
        if mark is not None:
            settle(mark)
            if parts.marks.get(path) == mark:
                parts.marks.pop(path, None)

    def _naming_failed(self, parts: _Parts, verb: str, key: str, path: str, temp: Temp, error: OSError) -> Outcome:
        if error.errno in NOT_DONE:
            raise _failed(verb, key, error) from error
        parts.marks[path] = temp.path
        return Unknown(error)

    def _replace(
        self, parts: _Parts, key: str, path: str, body: bytes, expected: str, etag: Callable[[], str]
    ) -> Outcome:
        try:
            # Most losers return here and leave the lock to those who can still win.
            if self._current(parts, path) != expected:
                return self._lost(parts, path)
            with locked(self._lock_file(parts, key), parts.modes.file):
                if self._current(parts, path) != expected:
                    return self._lost(parts, path)
                return self._swap(parts, key, path, body, etag)
        except IsADirectoryError:
            return LOST
        except OSError as error:
            raise _failed("replace", key, error) from error

    def _swap(self, parts: _Parts, key: str, path: str, body: bytes, etag: Callable[[], str]) -> Outcome:
        mode = os.stat(path).st_mode & 0o7777
        with self._temp(parts, path) as temp:
            temp.write(body, mode=mode)
            new = etag()
            try:
                temp.rename_to(path)
            except OSError as error:
                return self._naming_failed(parts, "replace", key, path, temp, error)
            # Before the sync, which leaves time to close the version before; until then the mark keeps readers from it.
            parts.held.hold(path, _Open(temp.take_fd()), new)
            return self._settled(parts, path, temp) or Won(new)

    def _delete(self, parts: _Parts, key: str, path: str) -> None:
        # Locked: otherwise a replace could check its version, have it deleted, and bring the key back. Shared, because
        # many keys have the same lock: a process that is stopped within a delete must not hold up everyone's cleaning.
        try:
            if os.path.lexists(path):
                with (
                    locked(self._lock_file(parts, key), parts.modes.file, shared=True),
                    suppress(FileNotFoundError),
                ):
                    os.unlink(path)
            # Also if there is none: the sync of the process that deleted it may have failed.
            self._sync(parts, path)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return
        except OSError as error:
            raise _failed("delete", key, error) from error

    def _current(self, parts: _Parts, path: str) -> str | None:
        """The etag of the version at `path`: remembered if the file is surely the same, else hashed."""
        known = parts.held.etag_of(path)
        if known is not None:
            return known
        try:
            file = _Open(open_regular(path))
            etag = _etag(read_all(file.fd))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        parts.held.hold(path, file, etag)
        return etag

    # --- The mark of the place ---

    def _place(self, parts: _Parts, make: bool) -> str:
        """A random id in a hidden file that also records its own identity, so that a copy is recognised."""
        path = f"{self._root}/{HIDDEN}/place"
        try:
            found = read_mark(path)
            if found is not None or not make:
                return found or UNMARKED
            self._prepare(parts, str(self._root))
            with locked(self._lock_file(parts, path), parts.modes.file):
                return read_mark(path) or write_mark(path, parts.modes.file)
        except OSError as error:
            raise _failed("read" if not make else "write", f"{HIDDEN}/place", error) from error

    # --- Paths, locks and threads ---

    def _path(self, key: str) -> str:
        check_key(key)
        self._check_folders(key)
        return f"{self._root}/{key}"

    def _check_folders(self, key: str) -> None:
        """Refuse a path through a symbolic link: it may leave the root, or form a cycle.

        Raises:
            StoreAccessError: one of the directories above `key` is a link.
        """
        end = key.find("/")
        while end >= 0:
            path = f"{self._root}/{key[:end]}"
            try:
                mode = os.lstat(path).st_mode
            except OSError:
                return  # not there yet, or an error that the operation itself reports
            if stat.S_ISLNK(mode):
                error = NotRegularError(path, "a symbolic link")
                raise StoreAccessError(f"could not use {key!r}: {error}", error)
            end = key.find("/", end + 1)

    def _temp(self, parts: _Parts, path: str) -> Temp:
        directory = os.path.dirname(path)
        self._prepare(parts, directory)
        try:
            return Temp(directory, parts.modes.file)
        except FileNotFoundError:
            # The directory was removed since this process made it.
            parts.prepared.discard(directory)
            self._prepare(parts, directory)
            return Temp(directory, parts.modes.file)

    def _prepare(self, parts: _Parts, directory: str) -> None:
        if directory not in parts.prepared:
            parts.modes = Modes.of(str(self._root))
            make_durable(Path(directory), root=self._root, modes=parts.modes)
            remove_stale(directory)
            parts.prepared.add(directory)

    def _lock_file(self, parts: _Parts, key: str) -> str:
        directory = self._root / HIDDEN / "locks"
        if parts.lock_directory is None or not directory.is_dir():
            parts.modes = Modes.of(str(self._root))
            make_directory(directory.parent, parts.modes)
            make_directory(directory, parts.modes)
            self._check_folders(f"{HIDDEN}/locks/")
            parts.lock_directory = str(directory)
        # crc32, because every process has to choose the same file; hash() differs between them.
        return f"{parts.lock_directory}/{zlib.crc32(key.encode(errors='surrogateescape')) % _LOCKS:02d}"

    def _own_parts(self) -> _Parts:
        # A forked child has none of its parent's threads, and may inherit a lock that is never released.
        parts = self._parts
        if parts is None or parts.pid != os.getpid():
            parts = self._parts = _Parts()
        return parts

    async def _run(self, parts: _Parts, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(parts.threads, work)


class _Open:
    """An open version of an object. The descriptor stays open as long as this object is referenced.

    Meanwhile the inode number stays taken, so a comparison of a path with `identity` cannot mistake a newer file for
    this one.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        status = os.fstat(fd)
        self.identity = Identity.of(status)
        self.settled = status.st_nlink <= 1
        """Whether the name is known to be on disk."""
        self.etag = ""

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.fd)


class _Held:
    """The last seen versions of the keys in use, kept open so that a stat shows whether they are current."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads
        self._files: OrderedDict[str, _Open] = OrderedDict()
        self._lock = threading.Lock()

    def etag_of(self, path: str, identity: Identity | None = None) -> str | None:
        """The etag of the file at `path` (or of the open one with `identity`), if it is the held version."""
        file = self._files.get(path)
        if file is None:
            return None
        if (identity or _identity_at(path)) == file.identity:
            return file.etag
        # Replaced. Closing it also lets the file system free the old version.
        self.drop(path, file)
        return None

    def hold(self, path: str, file: _Open, etag: str) -> None:
        if Identity.of(os.fstat(file.fd)) != file.identity:
            return  # edited in place while it was read: the etag may belong to neither version
        file.etag = etag
        with self._lock:
            before = self._files.get(path)
            self._files[path] = file
            self._files.move_to_end(path)
            if len(self._files) > _HELD_MAX:
                self._files.popitem(last=False)
        if before is not None:
            # Closing the last descriptor of a replaced version frees its blocks, which takes a while: a thread does it
            # after the caller has its answer.
            self._threads.submit(_let_go, before)

    def drop(self, path: str, file: _Open) -> None:
        with self._lock:
            if self._files.get(path) is file:
                del self._files[path]

    def drop_all(self) -> None:
        with self._lock:
            self._files.clear()


def _let_go(_file: _Open) -> None:
    """Drop the last reference, which closes the file."""


class _Parts:
    """The parts that belong to one process and are built again after a fork."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="casque-files")
        self.held = _Held(self.threads)
        self.spares = Spares()
        self.prepared: set[str] = set()
        self.modes = Modes()
        self.marks: dict[str, str] = {}
        """Hidden names by path, of versions that this process has named but could not sync."""
        self.lock_directory: str | None = None


def check_key(key: str) -> None:
    """Refuse keys that could leave the root or collide with casque's own files.

    Raises:
        InvalidInputError: not a valid key.
    """
    for segment in key.split("/"):
        if is_reserved(segment):
            raise InvalidInputError(
                f"{key!r} is not a key: segments between slashes must not be empty, '.', '..', contain a NUL "
                f"byte or start with {HIDDEN!r}"
            )


def _identity_at(path: str) -> Identity | None:
    """None if there is no file, or its name is not known to be on disk."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return Identity.of(status) if status.st_nlink <= 1 else None


def _is_durable(path: str) -> bool:
    """Whether an object surely exists, also after a crash. False if that takes more than a stat."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_nlink <= 1 and not is_in_doubt(os.path.dirname(path))


def _etag(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _page(prefix: str, keys: Iterator[str]) -> list[str]:
    try:
        return list(itertools.islice(keys, _LIST_PAGE))
    except OSError as error:
        raise _failed("list", prefix, error) from error


def _failed(verb: str, key: str, error: OSError) -> StorageError:
    kind = StoreAccessError if error.errno in REFUSED else StorageError
    return kind(f"could not {verb} {key!r}: {error}", error)
