"""A caller's request on its way through a commit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from casque.errors import CasqueError
from casque.state import Command, State
from casque.types import Reach

Look = Callable[[State, int], Any]
"""Reads the state and changes nothing."""


class UnexpectedError(Exception):
    """An operation raised an unexpected error, and may have left the state half changed. Undo the batch, and decide it
    again: the operation keeps its error and is left out."""


class Executor(Protocol):
    """Carries out commands and reads durably: in groups, or one by one."""

    def execute(self, command: Command, reach: Reach | None = None) -> Awaitable[Any]:
        """`reach`: what the caller may name, if limited."""
        ...

    def look(self, look: Look) -> Awaitable[Any]: ...


class Operation:
    """A command or a read, its result, and the future of its caller."""

    __slots__ = ("answer", "broken", "command", "error", "future", "look", "reach")

    def __init__(
        self,
        future: asyncio.Future[Any] | None,
        command: Command | None,
        look: Look | None = None,
        reach: Reach | None = None,
    ) -> None:
        self.future = future
        self.command = command
        self.look = look
        self.reach = reach
        self.answer: Any = None
        self.error: Exception | None = None
        self.broken = False
        """True after an unexpected error. It is not carried out again."""

    def decide(self, state: State, now_ms: int) -> None:
        """Run on the state. A refusal affects this caller only, and leaves the rest of the batch as it is.

        Raises:
            UnexpectedError: the batch must be undone and decided again.
        """
        if self.broken:
            return
        self.error = None
        try:
            if self.command is not None:
                self.answer = state.execute(self.command, now_ms, self.reach)
            elif self.look is not None:
                self.answer = self.look(state, now_ms)
        except CasqueError as error:
            self.error = error
        except Exception as error:
            # Input that slipped through the checks, or a bug. It affects this caller only: whatever the command has
            # changed so far, with or without an event, is undone with the batch, and the others are decided again.
            self.error, self.answer, self.broken = error, None, True
            if self.command is not None:
                raise UnexpectedError from error

    @property
    def abandoned(self) -> bool:
        return self.future is not None and self.future.done()

    @property
    def succeeded(self) -> bool:
        """True if there is an answer that is not an error."""
        future = self.future
        return future is not None and future.done() and not future.cancelled() and future.exception() is None

    def settle(self) -> bool:
        """Pass the result to the caller; False if the caller is gone."""
        future = self.future
        if future is None:
            return True
        if future.done():
            return False
        if self.error is not None:
            future.set_exception(self.error)
        else:
            future.set_result(self.answer)
        return True

    def fail(self, error: BaseException) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)
