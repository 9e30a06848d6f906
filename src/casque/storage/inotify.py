"""Tells a process which names appear in a directory, as they do: Linux's inotify, and nothing elsewhere.

A help and no more: whoever is told nothing, because the system cannot, or because it has no watches left, looks for
itself now and then.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

_CREATED = 0x100
_MOVED_HERE = 0x80
_EVENT = struct.Struct("iIII")
_READ_AT_ONCE = 64 * 1024


def watch(directory: str, appeared: Callable[[str], None]) -> Callable[[], None] | None:
    """Call `appeared` with every name that appears in the directory, on the running loop, until what comes back is
    called. None if that cannot be had, because the directory is not there, for one."""
    libc = _libc()
    if libc is None:
        return None
    fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        return None
    if libc.inotify_add_watch(fd, os.fsencode(directory), _CREATED | _MOVED_HERE) < 0:
        os.close(fd)
        return None
    loop = asyncio.get_running_loop()

    def tell() -> None:
        for name in _names(fd):
            appeared(name)

    def stop() -> None:
        loop.remove_reader(fd)
        os.close(fd)

    try:
        loop.add_reader(fd, tell)
    except NotImplementedError:  # a loop that watches no descriptors
        os.close(fd)
        return None
    return stop


def _names(fd: int) -> list[str]:
    try:
        body = os.read(fd, _READ_AT_ONCE)
    except OSError:
        return []
    names: list[str] = []
    place = 0
    while place < len(body):
        _watch, _mask, _cookie, size = _EVENT.unpack_from(body, place)
        place += _EVENT.size
        names.append(os.fsdecode(body[place : place + size].rstrip(b"\0")))
        place += size
    return names


@cache
def _libc() -> Any:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    return libc if hasattr(libc, "inotify_init1") else None
