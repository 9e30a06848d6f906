"""One open queue in each process and for each backend, whichever thread asks for it.

Django makes a backend for every thread. A queue that is opened on a bucket holds its state in memory and has an event
loop, so that all threads share one. It is opened by the first call, and closed when the process ends.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from casque.client.loop_thread import LoopThread, result_of
from casque.client.queue import Queue

R = TypeVar("R")


class Connection:
    """An open queue, for callers that block."""

    def __init__(self, url: Any, opening: Mapping[str, Any]) -> None:
        self._thread = LoopThread("casque-django")
        self.queue: Queue[bytes] = Queue.open(url, **opening)
        try:
            self._thread.wait(self.queue.__aenter__())
        except BaseException:
            self._thread.end()
            raise

    def wait(self, call: Coroutine[Any, Any, R]) -> R:
        return self._thread.wait(call)

    def close(self) -> None:
        try:
            self._thread.wait(self.queue.__aexit__(None, None, None))
        finally:
            self._thread.end()


class LentConnection:
    """The queue of a worker, for the tasks that it runs in threads."""

    def __init__(self, queue: Queue[bytes], loop: asyncio.AbstractEventLoop) -> None:
        self.queue = queue
        self._loop = loop

    def wait(self, call: Coroutine[Any, Any, R]) -> R:
        return result_of(asyncio.run_coroutine_threadsafe(call, self._loop))


_lock = threading.Lock()
_opened: dict[tuple[int, str, str], Connection] = {}
"""By process: a child that was forked has neither the threads nor the event loop of its parent, and opens its own."""
_lent: dict[str, LentConnection] = {}


def connect(alias: str, url: Any, opening: Mapping[str, Any]) -> Connection | LentConnection:
    if (lent := _lent.get(alias)) is not None:
        return lent
    key = os.getpid(), alias, repr((url, sorted(opening.items())))
    with _lock:
        if (known := _opened.get(key)) is None:
            known = _opened[key] = Connection(url, opening)
        return known


@contextmanager
def lend(alias: str, queue: Queue[bytes]) -> Iterator[None]:
    """Have this process use a worker's queue for a backend. Call it on the queue's event loop."""
    _lent[alias] = LentConnection(queue, asyncio.get_running_loop())
    try:
        yield
    finally:
        del _lent[alias]


def close_all() -> None:
    """Close what this process has opened; for its end, and for tests that change settings."""
    with _lock:
        own = [key for key in _opened if key[0] == os.getpid()]
        closing = [_opened.pop(key) for key in own]
    for connection in closing:
        connection.close()


def _forget_parents_lock() -> None:
    """A fork may happen while another thread of the parent holds the lock, which no thread of the child releases."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()


atexit.register(close_all)
os.register_at_fork(after_in_child=_forget_parents_lock)
