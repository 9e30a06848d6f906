"""Tells a forked child from the process that opened a queue, whose event loop and threads do not survive a fork.

Without this check, a call in the child waits forever for a thread that only its parent has, or writes in its parent's
name.
"""

from __future__ import annotations

import os

from casque.errors import QueueClosedError

_forks = 0


def _count() -> None:
    global _forks  # noqa: PLW0603
    _forks += 1


os.register_at_fork(after_in_child=_count)


class Origin:
    """The process in which this object was made. Comparing two numbers costs less than asking for the process's id."""

    __slots__ = ("_forks",)

    def __init__(self) -> None:
        self._forks = _forks

    def is_elsewhere(self) -> bool:
        return self._forks != _forks

    def check(self) -> None:
        """
        Raises:
            QueueClosedError: this process was forked from the one that opened the queue.
        """
        if self._forks != _forks:
            raise QueueClosedError(
                "this process was forked from the one that opened the queue, and has neither its event loop nor its "
                "threads: open the queue after the fork, or start processes with 'spawn' or 'forkserver'"
            )
