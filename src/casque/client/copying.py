"""Back up, restore and clone a queue, also while it is in use."""

from __future__ import annotations

from collections.abc import Mapping
from os.path import realpath

from casque.client.opening import as_store
from casque.environment import Environment
from casque.errors import InvalidInputError
from casque.journal.copying import LIFT, Copied, Copier, Progress
from casque.journal.verify import Verifier
from casque.storage.local import LocalStore


async def clone_queue(
    source: str,
    target: str,
    *,
    options: Mapping[str, str] | None = None,
    target_options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Copied:
    """Copy a queue to an empty location, as of one moment. The queue may be in use meanwhile.

    Both are URLs of stores. The copy has all jobs with their payloads, leases, counters, remembered requests,
    schedules, zones and the archive; for a ring, all shards. It gets a new id and has no leader. The history of the log
    is not copied.

    >>> import asyncio
    >>> from casque import Queue, clone_queue
    >>> async def main():
    ...     async with Queue.open("memory://clone-source") as queue:
    ...         await queue.enqueue("send", b"hello")
    ...     print((await clone_queue("memory://clone-source", "memory://clone-target")).jobs)
    >>> asyncio.run(main())
    1

    Raises:
        InvalidInputError: there is no queue at `source`, or something at `target`, or one is inside the other.
        CorruptQueueError: the source is damaged.
        StorageError: a store failed. What is at the target then is no queue.
    """
    return await _copy(source, target, options, target_options, progress)


async def backup_queue(
    source: str,
    target: str,
    *,
    options: Mapping[str, str] | None = None,
    target_options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Copied:
    """As `clone_queue`, and every object of the backup is read again and checked.

    >>> import asyncio
    >>> from casque import Queue, backup_queue, restore_queue
    >>> async def main():
    ...     async with Queue.open("memory://backup-source") as queue:
    ...         await queue.enqueue("send", b"hello")
    ...     await backup_queue("memory://backup-source", "memory://backup-of-today")
    ...     print((await restore_queue("memory://backup-of-today", "memory://backup-restored")).jobs)
    >>> asyncio.run(main())
    1
    """
    copied = await clone_queue(source, target, options=options, target_options=target_options, progress=progress)
    await _verify(target, target_options, progress)
    return copied


async def restore_queue(
    backup: str,
    target: str,
    *,
    options: Mapping[str, str] | None = None,
    target_options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Copied:
    """As `clone_queue`, after reading and checking every object of the backup. The backup stays unchanged."""
    await _verify(backup, options, progress)
    return await _copy(backup, target, options, target_options, progress, lift=LIFT)


async def _verify(url: str, options: Mapping[str, str] | None, progress: Progress | None) -> None:
    store = as_store(url, options)
    try:
        await Verifier(store, Environment(), progress=progress).verify()
    finally:
        await store.close()


async def _copy(
    source: str,
    target: str,
    options: Mapping[str, str] | None,
    target_options: Mapping[str, str] | None,
    progress: Progress | None,
    *,
    lift: int = 0,
) -> Copied:
    _check_apart(source, target)
    one, other = as_store(source, options), as_store(target, target_options)
    if isinstance(one, LocalStore) and isinstance(other, LocalStore):
        _check_apart(_real(one), _real(other))
    try:
        return await Copier(one, other, Environment(), progress=progress, lift=lift).copy()
    finally:
        await one.close()
        await other.close()


def _check_apart(source: str, target: str) -> None:
    one, other = (url.rstrip("/") + "/" for url in (source, target))
    if one == other:
        raise InvalidInputError("source and target are the same place")
    if one.startswith(other) or other.startswith(one):
        raise InvalidInputError(
            "source and target lie inside each other: who lists or removes one would meet the other. Name a place "
            "beside the queue"
        )


def _real(store: LocalStore) -> str:
    """The path without dots and symbolic links: one directory has many spellings."""
    return realpath(store.locate(""))
