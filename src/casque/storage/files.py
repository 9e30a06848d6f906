"""Files that survive a crash: written beside their name, synced, and only then given that name.

A file keeps a second, hidden name until the directory is synced. So the link count shows every process, without a
further call, whether a name is known to be on disk: if a file has more than one link, the reader syncs the directory
itself before it relies on the name (docs/decisions/0044).

Everything here blocks and knows nothing of etags or event loops. An `OSError` means that a step failed; the steps
before it decide what the caller may conclude.
"""

# Paths are joined once and stay text: pathlib costs more than the calls it wraps.
# ruff: noqa: PTH104, PTH108, PTH110, PTH116, PTH120

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Self

from casque.clock import SystemClock, new_nonce, system_random
from casque.errors import StorageError

HIDDEN = ".casque"
"""Prefix of our own file names, which are not objects."""
_TEMP = f"{HIDDEN}-"
_STALE_MS = 60 * 60 * 1000
_LOCK_WAIT_MS = 30_000
_SPARES_MAX = 4
_CLOCK = SystemClock()


def is_reserved(segment: str) -> bool:
    """Whether a segment of a key could leave the root, or collide with our own files."""
    return segment in ("", ".", "..") or segment.startswith(HIDDEN) or "\0" in segment


class Identity(NamedTuple):
    """Distinguishes versions of a file while the first one is held open.

    The inode number of an open file is not reused; size and time reveal an edit in place.
    """

    device: int
    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Identity:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class Modes(NamedTuple):
    """Permissions of a store's files: for the owner alone, unless its root was shared on purpose."""

    directory: int = 0o700
    file: int = 0o600

    @classmethod
    def of(cls, root: str) -> Modes:
        """A root that its group (or everyone) may write to is shared, and so are new files and directories in it.

        A sticky directory like /tmp is open to everyone for another reason and does not count.
        """
        try:
            mode = os.stat(root).st_mode
        except OSError:
            return cls()
        if mode & stat.S_ISVTX or not mode & 0o022:
            return cls()
        shared = mode & (0o070 if mode & 0o020 else 0) | mode & (0o007 if mode & 0o002 else 0)
        return cls(0o700 | shared | mode & stat.S_ISGID, 0o600 | shared & 0o066)


def check_regular(path: str, status: os.stat_result) -> None:
    """
    Raises:
        IsADirectoryError: a directory, which is not an object.
        NotRegularError: a symbolic link, a FIFO, a device or a socket. Nothing was read.
    """
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise NotRegularError(path, _kind(status.st_mode))


class NotRegularError(OSError):
    """A queue consists of regular files and directories. Anything else was put there by another program."""

    def __init__(self, path: str, kind: str) -> None:
        super().__init__(
            errno.EPERM, f"{path} is {kind}, not a regular file; remove it, or keep the queue in another directory"
        )

    def __str__(self) -> str:
        return str(self.args[1])


def _kind(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    if stat.S_ISFIFO(mode):
        return "a FIFO"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"


def open_regular(path: str) -> int:
    """Open a file for reading; never a link, and never a file whose opening could block."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EMLINK):
            check_regular(path, os.lstat(path))
        raise
    try:
        check_regular(path, os.fstat(fd))
    except BaseException:
        os.close(fd)
        raise
    return fd


class Temp:
    """A file under a hidden, unique name that is removed after the `with`, unless it was given a real one.

    A killed process leaves it behind, complete or not. That is harmless: it is never read, and `remove_stale` deletes
    it.
    """

    def __init__(self, directory: str, mode: int = Modes().file) -> None:
        self.path = f"{directory}/{_TEMP}{new_nonce(system_random())}"
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        self._named = True
        if mode & 0o077:
            # The root is shared on purpose; a umask must not undo that.
            os.fchmod(self.fd, mode)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def discard(self) -> None:
        if self._named:
            with suppress(OSError):
                os.unlink(self.path)
        if self.fd >= 0:
            # The content was synced before; an error here would say nothing about it.
            with suppress(OSError):
                os.close(self.fd)

    def write(self, body: bytes, *, mode: int | None = None) -> None:
        """Write and sync everything. Do not use the file after an error: a second fsync may wrongly succeed."""
        if mode is not None:
            os.fchmod(self.fd, mode)
        rest = memoryview(body)
        while rest:
            rest = rest[os.write(self.fd, rest) :]
        os.fsync(self.fd)

    def link_to(self, path: str) -> None:
        """Give the file its name. The hidden name remains and marks that the new one is not synced yet."""
        try:
            os.link(self.path, path)
        except FileExistsError:
            raise
        except OSError as error:
            self._named = error.errno in NOT_DONE
            raise
        self._named = False

    def rename_to(self, path: str) -> None:
        """Replace the file that has the name; the hidden name stays as after `link_to`."""
        second = f"{self.path}+"
        os.link(self.path, second)
        try:
            os.rename(second, path)
        except OSError as error:
            if error.errno in NOT_DONE:
                with suppress(OSError):
                    os.unlink(second)
            else:
                self._named = False
            raise
        self._named = False

    def settle(self) -> None:
        """Remove the mark: the directory is synced."""
        settle(self.path)

    def take_fd(self) -> int:
        """Hand over the descriptor, which the caller then closes."""
        fd, self.fd = self.fd, -1
        return fd


class Spares:
    """Temporary files made in advance, one in each directory that is being written to.

    A new inode can take as long as the sync of its content, above all after many deletions, and no write should wait
    for that. Like every temporary file a spare may be left behind; `remove_stale` deletes it.
    """

    def __init__(self) -> None:
        self._made: dict[str, Future[Temp]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def promise(self, directory: str) -> Future[Temp] | None:
        """A spare for the next write, to be fulfilled with `make` at once; None if none is needed."""
        with self._lock:
            if self._closed or directory in self._made:
                return None
            promised = self._made[directory] = Future[Temp]()
            if len(self._made) > _SPARES_MAX:
                # Drop the spare that has waited longest: its directory is probably idle.
                self._made.pop(next(iter(self._made))).add_done_callback(_discard)
            return promised

    def take(self, directory: str) -> Temp | None:
        """The spare of this directory, if there is one and it was not deleted meanwhile."""
        with self._lock:
            made = self._made.pop(directory, None)
        # Wait for one that is being made: the directory is locked meanwhile anyway.
        if made is None or made.exception() is not None:
            return None
        temp = made.result()
        if os.path.exists(temp.path):
            return temp
        temp.discard()
        return None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            while self._made:
                self._made.popitem()[1].add_done_callback(_discard)


def settle(mark: str) -> None:
    # If this fails, readers sync once more than they need to.
    with suppress(OSError):
        os.unlink(mark)


def make(promised: Future[Temp], directory: str, mode: int) -> None:
    try:
        promised.set_result(Temp(directory, mode))
    except BaseException as error:  # noqa: BLE001  the caller of `take` then makes one itself and sees the error
        promised.set_exception(error)


def _discard(made: Future[Temp]) -> None:
    if made.exception() is None:
        made.result().discard()


def read_mark(path: str) -> str | None:
    """The id in this file, if it is the original file and not a copy."""
    try:
        fd = open_regular(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    try:
        words = os.pread(fd, 256, 0).decode("ascii", "replace").split()
        status = os.fstat(fd)
    finally:
        os.close(fd)
    match words:
        case [mark, device, inode] if (device, inode) == (str(status.st_dev), str(status.st_ino)):
            return mark
    return None


def write_mark(path: str, mode: int) -> str:
    """Write a new id to a new file."""
    directory = os.path.dirname(path)
    mark = new_nonce(system_random())
    with Temp(directory, mode) as temp:
        status = os.fstat(temp.fd)
        temp.write(f"{mark} {status.st_dev} {status.st_ino}\n".encode())
        temp.rename_to(path)
        sync_directory(directory)
        temp.settle()
    return mark


def read_all(fd: int) -> bytes:
    """The whole content, without moving the descriptor's position: others may be reading through it."""
    size = os.fstat(fd).st_size
    parts: list[bytes] = []
    offset = 0
    # Ask for one byte more than expected, to read a file that is being appended to up to its real end.
    while part := os.pread(fd, max(size - offset, 0) + 1, offset):
        parts.append(part)
        offset += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_from_memory(fd: int, size: int) -> bytes | None:
    """The whole content of a file of this size if it is in the page cache; None if the disk would have to be read."""
    if not hasattr(os, "RWF_NOWAIT"):
        return None
    body = bytearray(size + 1)
    try:
        length = os.preadv(fd, [body], 0, os.RWF_NOWAIT)
    except OSError:  # not in the page cache, or the file system does not support the flag
        return None
    return bytes(body[:size]) if length == size else None


@contextmanager
def locked(path: str, mode: int = Modes().file, *, shared: bool = False) -> Iterator[None]:
    """Hold a lock between processes and between threads: alone, or together with others that share it.

    The file is opened anew each time, because a flock belongs to the open file description. It is never removed: a lock
    on a removed file protects nothing.

    Raises:
        StorageError: another process has held it for half a minute; most likely it is stopped.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
    try:
        if mode & 0o077:
            with suppress(PermissionError):  # another user made it, and gave it this mode
                os.fchmod(fd, mode)
        _lock(fd, path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _lock(fd: int, path: str, kind: int) -> None:
    # Polled, because a blocking flock in a thread cannot have a deadline.
    deadline = _CLOCK.monotonic_ms() + _LOCK_WAIT_MS
    pause = 0.0002
    while True:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError as busy:
            if _CLOCK.monotonic_ms() > deadline:
                raise StorageError(f"another process has held {path} for {_LOCK_WAIT_MS} ms", busy) from busy
        else:
            return
        threading.Event().wait(pause * (0.5 + system_random().random()))
        pause = min(pause * 2, 0.004)


_failures: dict[str, int] = {}
"""Failed syncs of a directory since the last that worked, in this process."""
_failures_lock = threading.Lock()


def is_in_doubt(directory: str) -> bool:
    """Whether the last sync of this directory failed in this process: its names may not be on disk."""
    return directory in _failures


def sync_directory(path: str) -> None:
    """Make names durable: those added and those removed, by any process.

    Raises:
        OSError: the sync failed. No name in this directory is reliable until one works, see `is_in_doubt`.
        FileNotFoundError: there is no such directory.
    """
    before = _failures.get(path, 0)
    if before:
        # The kernel may have marked as clean the pages that it could not write, and a sync with nothing to do succeeds.
        # A change gives it something to do: if the journal of the file system still takes it, nothing before is lost.
        with suppress(PermissionError):
            os.utime(path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError:
        with _failures_lock:
            _failures[path] = _failures.get(path, 0) + 1
        raise
    if before:
        with _failures_lock:
            # Keep a failure that another thread counted meanwhile.
            if _failures.get(path) == before:
                del _failures[path]


def make_durable(directory: Path, *, root: Path, modes: Modes) -> None:
    """Create a directory below (or at) `root` so that it survives a crash.

    Existing parents are synced, too: the process that made them a moment ago may not have done so yet.
    """
    oldest = _nearest_existing(root)
    root.parent.mkdir(parents=True, exist_ok=True)
    for step in (*reversed(directory.parents), directory):
        if step.is_relative_to(root):
            make_directory(step, modes)
    top = root.parent if oldest == root else oldest
    for parent in directory.parents:
        try:
            sync_directory(str(parent))
        except PermissionError:
            # Above the root we may lack read permission, and have changed nothing there.
            if parent.is_relative_to(root):
                raise
        if parent == top:
            return


def make_directory(path: Path, modes: Modes) -> None:
    try:
        path.mkdir(modes.directory)
    except FileExistsError:
        return  # if it is a file or a link, the operation that uses it reports that
    if modes.directory & 0o077:
        path.chmod(modes.directory)


def _nearest_existing(path: Path) -> Path:
    return next(step for step in (path, *path.parents) if step.exists())


def remove_stale(directory: str) -> None:
    """Delete temporary files that killed processes left in a directory.

    If one of those processes is still alive, and an hour late, its link or rename finds no file and fails cleanly.
    """
    born_before_ns = (_CLOCK.wall_ms() - _STALE_MS) * 1_000_000
    synced = False
    with os.scandir(directory) as entries:
        for entry in entries:
            if not entry.name.startswith(_TEMP):
                continue
            with suppress(OSError):  # another process deletes it too, or it belongs to another user
                status = entry.stat(follow_symlinks=False)
                if status.st_mtime_ns >= born_before_ns:
                    continue
                if status.st_nlink > 1 and not synced:
                    # The mark of a name that its writer may not have synced. If this sync fails, the mark stays.
                    sync_directory(directory)
                    synced = True
                os.unlink(entry.path)


def walk(root: str, prefix: str, after: str | None) -> Iterator[str]:
    """Keys below `root` in sorted order; enters only directories that can hold any."""
    folder = prefix[: prefix.rfind("/") + 1]
    # No key starts with such a prefix, and a directory of that name may be outside the root.
    if any(is_reserved(segment) for segment in folder.split("/")[:-1]):
        return
    yield from _walk(root, folder, prefix, after or "")


def _walk(root: str, folder: str, prefix: str, after: str) -> Iterator[str]:
    try:
        with os.scandir(f"{root}/{folder}") as entries:
            # A directory sorts with its slash, as its keys do: "a.b" comes before "a/b".
            keys = sorted(
                f"{folder}{entry.name}/" if entry.is_dir(follow_symlinks=False) else folder + entry.name
                for entry in entries
                if not entry.name.startswith(HIDDEN)
                and (entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False))
            )
    except (FileNotFoundError, NotADirectoryError):
        return
    for key in keys:
        if key.endswith("/"):
            if (key.startswith(prefix) or prefix.startswith(key)) and (key > after or after.startswith(key)):
                yield from _walk(root, key, prefix, after)
        elif key.startswith(prefix) and key > after:
            yield key


REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
"""Errors that mean refusal: a retry gets the same answer."""
NOT_DONE = REFUSED | {
    errno.ENOSPC, errno.EDQUOT, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EXDEV, errno.EMLINK,
    errno.ENAMETOOLONG,
}  # fmt: skip
"""After one of these errors a link or rename was surely not carried out."""
