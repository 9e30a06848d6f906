"""One commit per call: no background task and no batches. The simplest way to a durable change."""

from __future__ import annotations

import asyncio
from typing import Any

from casque.engine.committer import Committer
from casque.engine.operation import Look, Operation
from casque.errors import CasqueError
from casque.service.requests import Dequeue, GiveBack
from casque.state import Command
from casque.tasks import Background
from casque.telemetry import logger
from casque.types import Reach

log = logger("direct")


class DirectCommit:
    """Carries out each call by itself, one after the other."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._turn = asyncio.Lock()
        self._giving = Background()

    async def execute(self, command: Command, reach: Reach | None = None) -> Any:
        if type(command) is not Dequeue:
            return await self._run(Operation(None, command, reach=reach))
        claim = asyncio.ensure_future(self._run(Operation(None, command)))
        try:
            return await asyncio.shield(claim)
        except asyncio.CancelledError:
            # The claim may still land although its caller is gone: wait for it, and give it back. A caller that is
            # cancelled again does not wait, but the jobs still go back.
            await asyncio.shield(self._giving.start(self._give_back(claim, command)))
            raise

    async def _give_back(self, claim: asyncio.Future[Any], command: Dequeue) -> None:
        await asyncio.wait({claim})
        if claim.cancelled() or claim.exception() is not None:
            return
        if command.request_id is not None:
            return  # a repeated request gets these jobs; otherwise the leases run out
        for job in claim.result():
            try:
                await self._run(Operation(None, GiveBack(job.spec.id, job.token)))
            except CasqueError as error:
                log.warning("job %s could not be given back; its lease runs out: %s", job.spec.id, error)

    async def close(self) -> None:
        """Archive finished jobs now: this process has no later chance."""
        async with self._turn:
            try:
                await self._committer.wind_up()
            except CasqueError as error:
                log.warning(
                    "finished jobs could not be archived; the next process to open the queue will do it: %s", error
                )

    async def look(self, look: Look) -> Any:
        return await self._run(Operation(None, None, look))

    async def _run(self, operation: Operation) -> Any:
        async with self._turn:
            await self._committer.commit(operation.decide)
            self._committer.news()  # leases are not watched here
            if (work := self._committer.maintenance()) is not None:
                await work
            await self._committer.hold()
        if operation.error is not None:
            raise operation.error
        return operation.answer
