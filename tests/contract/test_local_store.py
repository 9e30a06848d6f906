"""Local files: the suite, and what only a file system can do to a store."""

# ruff: noqa: ASYNC240 (small files, and nothing else runs)

from __future__ import annotations

import asyncio
import errno
import os
import pickle
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from casque.errors import InvalidInputError, StorageError, StoreAccessError
from casque.storage import files
from casque.storage.files import locked
from casque.storage.local import LocalStore
from casque.storage.port import LOST, MISSING, UNCHANGED, Stored, Unknown, Won
from casque.testing import StoreSuite
from casque.testing.contender import contend, read_tally
from casque.testing.store_suite import BreakSyncs, MakeStore, created, keys, replaced


class TestLocalStore(StoreSuite):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> MakeStore:
        return lambda: LocalStore(tmp_path)

    @pytest.fixture
    def spawn_url(self, tmp_path: Path) -> str:
        return tmp_path.as_uri()

    @pytest.fixture
    def break_syncs(self, monkeypatch: pytest.MonkeyPatch) -> BreakSyncs:
        @contextmanager
        def broken() -> Iterator[None]:
            with monkeypatch.context() as patch:
                _fail_fsync_of("directory", errno.EIO, patch)
                yield

        return broken


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "root")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


async def test_tasks_that_share_one_store_lose_no_count(store: LocalStore) -> None:
    acknowledged = await asyncio.gather(*(contend(store, "tally", 15) for _ in range(8)))

    assert (await read_tally(store, "tally")).total == sum(acknowledged) == 8 * 15


# --- Names ---


@pytest.mark.parametrize(
    "key",
    [
        "", "/", "/etc/passwd", "../up", "a/../../up", "a//b", "a/", "./a", "a/.", "a\0b",
        ".casque/locks/00", "a/.casque-x",
    ],
)  # fmt: skip
async def test_a_name_that_could_leave_the_root_or_hide_in_it_is_refused(store: LocalStore, key: str) -> None:
    for call in (
        store.get(key), store.create(key, b""), store.replace(key, b"", expected="x"), store.delete(key),
    ):  # fmt: skip
        with pytest.raises(InvalidInputError, match="is not a key"):
            await call


@pytest.mark.parametrize("prefix", ["../", "../root/", "/", "a//", "./", ".casque/", ".casque/locks/"])
async def test_no_listing_leaves_the_root_or_shows_what_is_hidden(store: LocalStore, root: Path, prefix: str) -> None:
    await replaced(store, "a/key", b"second", expected=await created(store, "a/key", b"first"))
    (root / "a" / ".casque-0123").write_bytes(b"left by a killed process")

    assert await keys(store, prefix) == []
    assert await keys(store, "") == ["a/key"]


async def test_a_listing_longer_than_a_page_is_complete(store: LocalStore, root: Path) -> None:
    _touch(root, [f"{n:05d}" for n in range(2500)])

    assert await keys(store, "") == [f"{n:05d}" for n in range(2500)]


async def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(InvalidInputError, match="is a file; a store needs a directory"):
        LocalStore(tmp_path / "file")


async def test_reading_creates_nothing(store: LocalStore, root: Path) -> None:
    assert await store.get("a/key") == MISSING
    assert await store.replace("a/key", b"body", expected="x") == LOST
    await store.delete("a/key")
    assert await keys(store, "") == []

    assert not _exists(root)


async def test_a_directory_is_no_object_and_a_file_no_directory(store: LocalStore) -> None:
    etag = await created(store, "a/b", b"body")

    assert await store.get("a") == MISSING
    assert await store.get("a/b/c") == MISSING
    assert await store.replace("a", b"body", expected=etag) == LOST
    assert await store.replace("a/b/c", b"body", expected=etag) == LOST
    with pytest.raises(StorageError, match="is a directory"):
        await store.create("a", b"body")
    with pytest.raises(StorageError):
        await store.create("a/b/c", b"body")
    await store.delete("a")
    await store.delete("a/b/c")
    assert await store.get("a/b") == Stored(b"body", etag)


async def test_a_root_removed_meanwhile_is_made_again(store: LocalStore, root: Path) -> None:
    await replaced(store, "a/key", b"second", expected=await created(store, "a/key", b"first"))
    shutil.rmtree(root)

    etag = await created(store, "a/key", b"third")

    await replaced(store, "a/key", b"fourth", expected=etag)


# --- The version that is kept open ---


@pytest.fixture
def no_reading(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def refuse(fd: int) -> bytes:
        raise AssertionError("the file was read again")

    return lambda: monkeypatch.setattr("casque.storage.local.read_all", refuse)


async def test_a_version_in_use_is_recognised_without_reading_it(
    store: LocalStore, no_reading: Callable[[], None]
) -> None:
    etag = await replaced(store, "key", b"second", expected=await created(store, "key", b"first"))
    no_reading()

    assert await store.get("key", unless=etag) == UNCHANGED
    newer = await replaced(store, "key", b"third", expected=etag)
    assert await store.replace("key", b"fourth", expected=etag) == LOST
    await replaced(store, "key", b"fourth", expected=newer)


async def test_an_edit_in_place_is_noticed(store: LocalStore, root: Path) -> None:
    etag = await replaced(store, "key", b"second", expected=await created(store, "key", b"first"))
    before = (root / "key").stat()

    (root / "key").write_bytes(b"edited")  # as long as before, and the same inode
    os.utime(root / "key", ns=(before.st_atime_ns, before.st_mtime_ns + 1))

    assert (root / "key").stat().st_ino == before.st_ino
    assert await store.replace("key", b"third", expected=etag) == LOST
    found = await store.get("key", unless=etag)
    assert isinstance(found, Stored)
    assert found.body == b"edited"
    await replaced(store, "key", b"third", expected=found.etag)


async def test_others_writing_twice_in_one_tick_of_the_clock_are_noticed(store: LocalStore, root: Path) -> None:
    other = LocalStore(root)
    etag = await created(store, "key", b"version 0000")
    for n in range(1, 50):
        etag = await replaced(store, "key", b"version %04d" % n, expected=etag)
        before = (root / "key").stat()
        # The second of these files would get the inode number of ours, were ours not still open.
        newer = await replaced(other, "key", b"vers-a- %04d" % n, expected=etag)
        newest = await replaced(other, "key", b"vers-b- %04d" % n, expected=newer)
        os.utime(root / "key", ns=(before.st_atime_ns, before.st_mtime_ns))

        assert await store.replace("key", b"wrong", expected=etag) == LOST
        assert await store.get("key", unless=etag) == Stored(b"vers-b- %04d" % n, newest)
        etag = newest


async def test_few_descriptors_are_kept_open_and_closing_frees_them(store: LocalStore) -> None:
    await created(store, "first", b"first")
    before = _open_descriptors()
    for n in range(40):
        etag = await created(store, f"key-{n}", b"first")
        await replaced(store, f"key-{n}", b"second", expected=etag)
    assert _open_descriptors() <= before + 16 + 1  # versions last seen, and a file made ahead

    await store.close()

    assert _open_descriptors() <= before


async def test_a_closed_store_starts_anew(store: LocalStore) -> None:
    etag = await created(store, "key", b"body")
    await store.close()

    assert await store.get("key") == Stored(b"body", etag)


async def test_a_store_can_be_sent_to_another_process(store: LocalStore) -> None:
    etag = await created(store, "key", b"body")

    assert await pickle.loads(pickle.dumps(store)).get("key") == Stored(b"body", etag)


# --- Durability: what is synced, and in which order ---


async def test_a_file_is_synced_before_it_gets_its_name_and_the_directory_after(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await created(store, "a/key", b"first")
    steps = _spy(monkeypatch)

    etag = await created(store, "a/other", b"body")
    assert steps == ["fsync file", "link", "fsync directory"]

    steps.clear()
    await replaced(store, "a/other", b"body, again", expected=etag)
    assert steps == ["fsync file", "link", "rename", "fsync directory"]

    steps.clear()
    await store.delete("a/key")
    assert steps == ["fsync directory"]
    assert await store.replace("a/key", b"second", expected=first) == LOST


async def test_new_directories_are_synced_up_to_one_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    monkeypatch.setattr("casque.storage.files.sync_directory", synced.add)

    await created(LocalStore(tmp_path / "new" / "root"), "a/b/key", b"body")

    names = ("", "new", "new/root", "new/root/a")
    assert synced == {str(tmp_path / name) for name in names}


def _spy(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    steps: list[str] = []
    fsync, link, rename = os.fsync, os.link, os.rename

    def spy_fsync(fd: int) -> None:
        fsync(fd)
        steps.append(f"fsync {_kind(fd)}")

    def spy_link(source: str, target: str) -> None:
        steps.append("link")
        link(source, target)

    def spy_rename(source: str, target: str) -> None:
        steps.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "link", spy_link)
    monkeypatch.setattr(os, "rename", spy_rename)
    return steps


def _fail_fsync_of(kind: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync

    def fail(fd: int) -> None:
        if _kind(fd) == kind:
            raise OSError(number, os.strerror(number))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", fail)


def _kind(fd: int) -> str:
    return "directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file"


# --- Failures ---


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
async def test_a_sync_that_fails_before_the_name_is_given_changes_nothing(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    etag = await created(store, "key", b"first")
    with monkeypatch.context() as patch:
        _fail_fsync_of("file", number, patch)

        with pytest.raises(StorageError, match=os.strerror(number)) as raised:
            await store.replace("key", b"second", expected=etag)
        with pytest.raises(StorageError):
            await store.create("other", b"body")

    assert isinstance(raised.value.cause, OSError)
    assert await store.get("key") == Stored(b"first", etag)
    assert await store.get("other") == MISSING
    assert _names(root) == [".casque", "key"]
    await replaced(store, "key", b"second", expected=etag)


async def test_a_sync_that_fails_after_the_name_is_given_leaves_the_outcome_open(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    etag = await created(store, "key", b"first")
    with monkeypatch.context() as patch:
        _fail_fsync_of("directory", errno.EIO, patch)

        replacing = await store.replace("key", b"second", expected=etag)
        creating = await store.create("other", b"body")

    assert isinstance(replacing, Unknown)
    assert isinstance(creating, Unknown)
    assert await store.replace("key", b"third", expected=etag) == LOST
    found = await store.get("other")
    assert isinstance(found, Stored)
    assert found.body == b"body"
    await store.get("key")
    assert _names(root) == [".casque", "key", "other"]


async def test_a_directory_is_changed_before_it_is_synced_again(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync that has nothing to write succeeds, whatever became of what the one before could not write."""
    await created(store, "key", b"first")
    with monkeypatch.context() as patch:
        _fail_fsync_of("directory", errno.EIO, patch)
        await store.create("other", b"body")
    os.utime(root, (1, 1))

    await store.get("other")

    assert _modified_s(root) > 1


async def test_a_name_that_another_process_has_not_synced_yet_is_synced_before_it_is_read(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await created(store, "log/1", b"first")
    os.link(
        root / "log" / "1", root / "log" / ".casque-killed"
    )  # as a process leaves it that is killed before its sync
    steps = _spy(monkeypatch)

    found = await LocalStore(root).get("log/1")

    assert isinstance(found, Stored)
    assert steps == ["fsync directory"]


@pytest.mark.parametrize("verb", ["create", "replace"])
async def test_what_a_process_could_not_sync_before_it_ended_is_not_believed_by_the_next(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    await created(store, "key", b"first")
    assert _run_script(UNSYNCED, str(root), verb) == "Unknown\n"
    key = "new" if verb == "create" else "key"
    with monkeypatch.context() as patch:
        _fail_fsync_of("directory", errno.EIO, patch)
        with pytest.raises(StorageError):
            await store.get(key)
        assert isinstance(await store.create(key, b"mine"), Unknown)
    files._failures.clear()  # as in a process that has seen no failure
    steps = _spy(monkeypatch)

    found = await store.get(key)

    assert isinstance(found, Stored)
    assert found.body == b"second"
    assert steps == ["fsync directory"]


UNSYNCED = """
import asyncio, errno, os, stat, sys
from casque.storage.local import LocalStore

fsync = os.fsync

def fail(fd):
    if stat.S_ISDIR(os.fstat(fd).st_mode) and failing:
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    fsync(fd)

async def main(root, verb):
    global failing
    store = LocalStore(root)
    etag = (await store.get("key")).etag
    await store.create(f"other-{verb}", b"")  # the directory is prepared
    failing = True
    if verb == "create":
        print(type(await store.create("new", b"second")).__name__)
    else:
        print(type(await store.replace("key", b"second", expected=etag)).__name__)

failing = False
os.fsync = fail
asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_mark_is_removed_when_it_is_old_and_only_after_a_sync(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await created(store, "log/1", b"first")
    os.link(root / "log" / "1", root / "log" / ".casque-killed")
    os.utime(root / "log" / "1", (1, 1))
    with monkeypatch.context() as patch:
        _fail_fsync_of("directory", errno.EIO, patch)
        with pytest.raises(StorageError):
            await LocalStore(root).create("log/2", b"second")
    assert _names(root / "log") == [".casque-killed", "1"]

    await created(LocalStore(root), "log/2", b"second")

    assert _names(root / "log") == ["1", "2"]


async def test_a_lock_that_is_never_released_fails_the_write_and_changes_nothing(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    etag = await replaced(store, "key", b"second", expected=await created(store, "key", b"first"))
    monkeypatch.setattr("casque.storage.files._LOCK_WAIT_MS", 20)
    [lock] = _names(root / ".casque" / "locks")

    with locked(str(root / ".casque" / "locks" / lock)), pytest.raises(StorageError, match="has held"):
        await store.replace("key", b"third", expected=etag)
    with locked(str(root / ".casque" / "locks" / lock)), pytest.raises(StorageError, match="has held"):
        await store.delete("key")

    assert await store.get("key") == Stored(b"second", etag)
    await replaced(store, "key", b"third", expected=etag)


async def test_a_process_that_is_stopped_within_a_delete_holds_up_no_other_delete(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    etag = await replaced(store, "key", b"second", expected=await created(store, "key", b"first"))
    monkeypatch.setattr("casque.storage.files._LOCK_WAIT_MS", 20)
    [lock] = _names(root / ".casque" / "locks")

    with locked(str(root / ".casque" / "locks" / lock), shared=True):
        with pytest.raises(StorageError, match="has held"):
            await store.replace("key", b"third", expected=etag)
        await store.delete("key")

    assert await store.get("key") is MISSING


async def test_what_killed_processes_left_is_removed_once_it_is_old(store: LocalStore, root: Path) -> None:
    (root / "a").mkdir(parents=True)
    for name, hours in (("old", 2), ("young", 0)):
        path = root / "a" / f".casque-{name}"
        path.write_bytes(b"half a bo")
        os.utime(path, ns=(0, path.stat().st_mtime_ns - hours * 3600 * 10**9))

    await created(store, "a/key", b"body")

    assert _names(root / "a") == [".casque-young", "key"]


async def test_a_file_made_ahead_is_gone_after_closing(store: LocalStore, root: Path) -> None:
    for n in range(3):
        await created(store, f"a/{n}", b"body")
    assert (await _made_ahead(store, root / "a")).exists()

    await store.close()

    assert _names(root / "a") == ["0", "1", "2"]


async def test_a_file_made_ahead_may_be_cleared_away_by_others(store: LocalStore, root: Path) -> None:
    for n in range(3):
        await created(store, f"a/{n}", b"body")
    (await _made_ahead(store, root / "a")).unlink()

    etag = await created(store, "a/3", b"body")

    assert await store.get("a/3") == Stored(b"body", etag)


async def test_a_file_made_ahead_may_vanish_with_its_directory(store: LocalStore, root: Path) -> None:
    for n in range(3):
        await created(store, f"a/{n}", b"body")
    await _made_ahead(store, root / "a")
    shutil.rmtree(root / "a")

    etag = await created(store, "a/3", b"body")

    assert await store.get("a/3") == Stored(b"body", etag)


async def test_files_are_made_ahead_where_objects_are_being_created(store: LocalStore, root: Path) -> None:
    folders = [f"folder-{n}" for n in range(10)]
    for folder in folders:
        for n in range(2):
            await created(store, f"{folder}/{n}", b"body")
            await created(store, f"log/{folder}-{n}", b"body")
        await _made_ahead(store, root / "log")
        await _made_ahead(store, root / folder)

    with_one = [folder for folder in (*folders, "log") if any(".casque" in name for name in _names(root / folder))]
    assert with_one == ["folder-7", "folder-8", "folder-9", "log"]


async def _made_ahead(store: LocalStore, directory: Path) -> Path:
    promised = store._own_parts().spares._made[str(directory)]
    return Path((await asyncio.wrap_future(promised)).path)


def test_a_killed_writer_never_leaves_half_an_object(tmp_path: Path) -> None:
    output = _run_script(KILLED, str(tmp_path))

    kills, versions, leftovers = (int(word) for word in output.split())
    assert kills == 60
    assert versions > 5  # writes did happen between the kills
    assert leftovers > 0  # and some were killed in the middle of writing


KILLED = """
import asyncio, hashlib, os, random, signal, sys, threading
from casque.storage.local import LocalStore
from casque.storage.port import Won

def body(rng):
    content = rng.randbytes(rng.randrange(1, 2_000_000))
    return hashlib.sha256(content).digest() + content

async def write(root, seed):
    rng = random.Random(seed)
    store = LocalStore(root)
    found = await store.get("key")
    etag = getattr(found, "etag", None)
    bodies = [body(rng) for _ in range(4)]
    kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
    threading.Timer(rng.uniform(0, 0.03), kill).start()
    for n in range(10**9):
        new = bodies[n % 4] + b"%d-%d" % (seed, n)
        new = hashlib.sha256(new[32:]).digest() + new[32:]
        won = await (store.create("key", new) if etag is None else store.replace("key", new, expected=etag))
        assert isinstance(won, Won), won
        etag = won.etag
        assert isinstance(await store.create(f"log/{seed:03d}-{n:06d}", new[:200_000]), Won)

def check(path):
    content = open(path, "rb").read()
    whole = hashlib.sha256(content[32:]).digest() == content[:32]
    assert whole or len(content) == 200_000, f"{path}: {len(content)} bytes"
    return content[:32]

root = sys.argv[1]
versions = set()
for seed in range(60):
    pid = os.fork()  # this process has no threads, so its children are as good as new ones
    if pid == 0:
        asyncio.run(write(root, seed))
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, status
    if os.path.exists(f"{root}/key"):
        versions.add(check(f"{root}/key"))
names = [f"{folder}/{name}" for folder in (root, f"{root}/log") for name in os.listdir(folder)]
for name in names:
    if "/log/" in name and "/.casque-" not in name:
        check(name)
print(60, len(versions), sum("/.casque-" in name for name in names))
"""


def test_a_limit_on_file_size_fails_the_write_and_changes_nothing(tmp_path: Path) -> None:
    _run_script(LIMITED, str(tmp_path))

    assert _names(tmp_path) == [".casque", "key"]


LIMITED = """
import asyncio, errno, resource, sys
from casque.errors import StorageError
from casque.storage.local import LocalStore
from casque.storage.port import MISSING, Stored, Won

async def main(root):
    store = LocalStore(root)
    etag = (await store.create("key", b"first")).etag
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
    big = bytes(4_000_000)
    for attempt in (store.replace("key", big, expected=etag), store.create("other", big)):
        try:
            await attempt
        except StorageError as error:
            assert error.cause.errno == errno.EFBIG
        else:
            raise AssertionError("it was written")
    assert await store.get("key") == Stored(b"first", etag)
    assert await store.get("other") == MISSING
    assert isinstance(await store.replace("key", b"second", expected=etag), Won)

asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> object:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small disk can be mounted by root only")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


async def test_a_full_disk_fails_the_write_and_changes_nothing(small_disk: Path) -> None:
    store = LocalStore(small_disk)
    etag = await created(store, "key", b"first")

    with pytest.raises(StorageError, match="No space left"):
        await store.replace("key", bytes(4_000_000), expected=etag)
    with pytest.raises(StorageError, match="No space left"):
        await store.create("other", bytes(4_000_000))

    assert await store.get("key") == Stored(b"first", etag)
    assert await store.get("other") == MISSING
    assert isinstance(await store.replace("key", b"second", expected=etag), Won)
    await store.close()


def test_a_directory_that_may_not_be_written_is_a_refusal() -> None:
    _run_script(FORBIDDEN)


FORBIDDEN = """
import asyncio, os, tempfile
from casque.errors import StoreAccessError
from casque.storage.local import LocalStore

async def main(root):
    store = LocalStore(root)
    etag = (await store.create("key", b"first")).etag
    os.chmod(f"{root}/key", 0)
    os.chmod(root, 0o555)
    if os.getuid() == 0:
        os.seteuid(65534)  # to root nothing is forbidden
    forbidden = LocalStore(root)
    replacing = forbidden.replace("key", b"second", expected=etag)
    attempts = forbidden.get("key"), forbidden.create("new", b""), replacing
    for attempt in attempts:
        try:
            await attempt
        except StoreAccessError as error:
            assert isinstance(error.cause, PermissionError)
        else:
            raise AssertionError("it was allowed")

# Not below pytest's directory, which nobody else may enter.
with tempfile.TemporaryDirectory() as directory:
    os.chmod(directory, 0o755)
    try:
        asyncio.run(main(f"{directory}/root"))
    finally:
        os.seteuid(os.getuid())
        os.chmod(f"{directory}/root", 0o755)
"""


def test_a_forked_child_goes_on_with_its_parents_store(tmp_path: Path) -> None:
    assert _run_script(FORKED, str(tmp_path)) == "child wrote\n"


FORKED = """
import asyncio, os, sys
from casque.storage.local import LocalStore
from casque.storage.port import UNCHANGED, Stored, Won

store = LocalStore(sys.argv[1])

async def replace(body):
    found = await store.get("key")
    won = await store.replace("key", body, expected=found.etag)
    assert isinstance(won, Won), won
    assert await store.get("key", unless=won.etag) == UNCHANGED
    return won.etag

async def read_at_once():
    await asyncio.gather(*(store.get("key") for _ in range(50)))

asyncio.run(store.create("key", b"first"))
asyncio.run(read_at_once())
etag = asyncio.run(replace(b"parent"))  # now it has all its threads, and a version held open
pid = os.fork()
if pid == 0:
    asyncio.run(replace(b"child wrote"))
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
found = asyncio.run(store.get("key", unless=etag))
print(found.body.decode())
"""


def _run_script(script: str, *arguments: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def _touch(directory: Path, names: list[str]) -> None:
    directory.mkdir()
    for name in names:
        (directory / name).touch()


def _exists(path: Path) -> bool:
    return path.exists()


def _modified_s(path: Path) -> float:
    return path.stat().st_mtime


# --- Who may use the files, and what is no file ---


async def test_files_and_directories_belong_to_their_owner_alone(store: LocalStore, root: Path) -> None:
    before = os.umask(0)
    try:
        etag = await created(store, "a/b/key", b"first")
        await replaced(store, "a/b/key", b"second", expected=etag)
        await created(store, "a/b/other", b"first")
    finally:
        os.umask(before)

    modes = {str(path.relative_to(root)): oct(path.stat().st_mode & 0o7777) for path in _below(root)}
    assert {mode for name, mode in modes.items() if (root / name).is_dir()} == {"0o700"}
    assert {mode for name, mode in modes.items() if not (root / name).is_dir()} == {"0o600"}
    assert root.stat().st_mode & 0o7777 == 0o700


async def test_a_root_that_its_group_may_write_to_is_shared_with_it(store: LocalStore, root: Path) -> None:
    root.mkdir()
    root.chmod(0o2770)

    etag = await created(store, "a/key", b"first")
    await replaced(store, "a/key", b"second", expected=etag)

    assert (root / "a").stat().st_mode & 0o7777 == 0o2770
    assert (root / "a" / "key").stat().st_mode & 0o7777 == 0o660
    [lock] = (root / ".casque" / "locks").iterdir()
    assert lock.stat().st_mode & 0o7777 == 0o660


async def test_files_with_wider_modes_are_still_read_and_keep_them(store: LocalStore, root: Path) -> None:
    etag = await created(store, "a/key", b"first")
    for path in (root, root / "a"):
        path.chmod(0o755)
    (root / "a" / "key").chmod(0o644)

    await replaced(LocalStore(root), "a/key", b"second", expected=etag)

    assert (root / "a" / "key").stat().st_mode & 0o7777 == 0o644


async def test_no_symbolic_link_below_the_root_is_followed(store: LocalStore, root: Path, tmp_path: Path) -> None:
    await created(store, "a/key", b"body")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "key").write_bytes(b"secret")
    (root / "key").symlink_to(outside / "key")
    (root / "dangling").symlink_to(outside / "new")
    (root / "folder").symlink_to(outside)

    for key in ("key", "folder/key", "dangling"):
        for call in (store.get(key), store.create(key, b"mine"), store.replace(key, b"mine", expected="x")):
            with pytest.raises(StoreAccessError, match="is a symbolic link, not a regular file; remove it"):
                await call
    with pytest.raises(StoreAccessError, match="is a symbolic link"):
        await store.delete("folder/key")
    with pytest.raises(StoreAccessError, match="is a symbolic link"):
        await keys(store, "folder/")

    assert await keys(store, "") == ["a/key"]
    assert sorted(path.name for path in outside.iterdir()) == ["key"]
    assert (outside / "key").read_bytes() == b"secret"


async def test_a_root_may_itself_be_reached_through_a_link(store: LocalStore, root: Path, tmp_path: Path) -> None:
    etag = await created(store, "a/key", b"body")
    (tmp_path / "link").symlink_to(root)

    assert await LocalStore(tmp_path / "link").get("a/key") == Stored(b"body", etag)


@pytest.mark.parametrize("kind", ["FIFO", "device", "socket"])
async def test_what_is_no_regular_file_is_refused_at_once(store: LocalStore, root: Path, kind: str) -> None:
    root.mkdir()
    try:
        os.mknod(root / "key", {"FIFO": stat.S_IFIFO, "device": stat.S_IFCHR, "socket": stat.S_IFSOCK}[kind] | 0o600)
    except PermissionError:
        pytest.skip("only root makes devices")

    async with asyncio.timeout(30):
        for call in (
            store.get("key"), store.get("key", unless="x"), store.create("key", b""),
            store.replace("key", b"", expected="x"),
        ):  # fmt: skip
            with pytest.raises(StoreAccessError, match=f"is a {kind}, not a regular file; remove it"):
                await call


def _below(root: Path) -> list[Path]:
    return list(root.rglob("*"))


def _open_descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell of new files, or in other ways")
async def test_new_objects_are_told_of_as_they_appear(store: LocalStore, root: Path) -> None:
    assert store.watch("log", lambda _key: None) is None  # there is no such directory yet
    await store.create("log/1", b"1")
    told: asyncio.Queue[str] = asyncio.Queue()
    stop = store.watch("log", told.put_nowait)
    assert stop is not None
    another = LocalStore(root)
    await another.create("log/2", b"2")
    await another.create("log/3", b"3")
    await another.create("log/3", b"taken")
    await another.create("head", b"elsewhere")
    async with asyncio.timeout(30):
        assert [await told.get(), await told.get()] == ["log/2", "log/3"]
    stop()
    await another.create("log/4", b"4")
    await another.close()
    assert told.empty()
