"""Reflection: lists the services. Needs no token, so its callers get few places and little time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection

from casque.errors import LimitReachedError
from casque.transport.grpc.door import Door
from casque.transport.grpc.refusals import abort


class Reflection(reflection.aio.ReflectionServicer):  # type: ignore[misc]
    def __init__(self, door: Door, names: Sequence[str]) -> None:
        super().__init__(names)
        self._door = door

    async def ServerReflectionInfo(  # noqa: N802
        self, request_iterator: Any, context: Any
    ) -> AsyncGenerator[Any]:
        try:
            with self._door.quotas.reflection(context):
                try:
                    async with asyncio.timeout(self._door.limits.reflection_s):
                        async for answer in super().ServerReflectionInfo(request_iterator, context):
                            yield answer
                    return
                except TimeoutError:
                    pass
        except LimitReachedError as error:
            await abort(context, error)
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "reflection is for short questions; connect again")
