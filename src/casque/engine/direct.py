"""One commit per call: no background task, no batch. The simplest way to a durable change."""

from __future__ import annotations

import asyncio
from typing import Any

from casque.engine.committer import Committer
from casque.engine.operation import Look, Operation
from casque.state import Command, Dequeue, GiveBack


class DirectCommit:
    """Carries out each call by itself, one after the other."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._turn = asyncio.Lock()

    async def execute(self, command: Command) -> Any:
        if type(command) is not Dequeue:
            return await self._run(Operation(None, command))
        claim = asyncio.ensure_future(self._run(Operation(None, command)))
        try:
            return await asyncio.shield(claim)
        except asyncio.CancelledError:
            # The claim may land although nobody wants it any more: wait for it, and give it back.
            await asyncio.wait({claim})
            # With a request id, whoever repeats the request gets them, or has them already.
            if command.request_id is None and not claim.cancelled() and claim.exception() is None:
                for job in claim.result():
                    await self._run(Operation(None, GiveBack(job.spec.id, job.token)))
            raise

    async def look(self, look: Look) -> Any:
        return await self._run(Operation(None, None, look))

    async def _run(self, operation: Operation) -> Any:
        async with self._turn:
            await self._committer.commit(operation.decide)
            self._committer.news()  # nobody here watches leases
            if (maintenance := self._committer.maintenance()) is not None:
                await maintenance
        if operation.error is not None:
            raise operation.error
        return operation.answer
