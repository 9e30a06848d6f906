"""One commit per call: no background task, no batch. The simplest way to a durable change."""

from __future__ import annotations

import asyncio
from typing import Any

from casque.engine.committer import Committer
from casque.engine.operation import Look, Operation
from casque.state import Command


class DirectCommit:
    """Carries out each call by itself, one after the other."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._turn = asyncio.Lock()

    async def execute(self, command: Command) -> Any:
        return await self._run(Operation(None, command))

    async def look(self, look: Look) -> Any:
        return await self._run(Operation(None, None, look))

    async def _run(self, operation: Operation) -> Any:
        async with self._turn:
            await self._committer.commit(operation.decide)
        if operation.error is not None:
            raise operation.error
        return operation.answer
