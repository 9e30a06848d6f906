"""Reports names as they appear in a directory: inotify on Linux, nothing elsewhere.

An optimisation only: without reports, because the system has no inotify or no watches left, callers poll now and then.
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
    """Call `appeared` on the running loop with every name that appears in the directory, until the returned function is
    called. None if the directory cannot be watched, for example because it does not exist."""
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

    def report() -> None:
        for name in _names(fd):
            appeared(name)

    def stop() -> None:
        loop.remove_reader(fd)
        os.close(fd)

    try:
        loop.add_reader(fd, report)
    except NotImplementedError:  # this loop cannot watch descriptors
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
