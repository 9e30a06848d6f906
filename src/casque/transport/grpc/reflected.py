"""Reflection: lists the services. Needs no token, so its callers get few places and little time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from casque.errors import CasqueError, LimitReachedError, NoLeaderError
from casque.transport.grpc.door import ClosingError, Door
from casque.transport.grpc.open_calls import STOPPING
from casque.transport.grpc.refusals import abort

METHOD = "ServerReflectionInfo"


class Reflection:
    def __init__(self, door: Door, names: Sequence[str]) -> None:
        self._door = door
        self._servicer = reflection.aio.ReflectionServicer(names)

    def handler(self) -> grpc.GenericRpcHandler:
        handler = grpc.stream_stream_rpc_method_handler(
            self._door.open_calls.watched(self._info),
            reflection_pb2.ServerReflectionRequest.FromString,
            reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(reflection.SERVICE_NAME, {METHOD: handler})

    async def _info(self, requests: Any, context: Any) -> None:
        refusal: CasqueError
        try:
            with self._door.quotas.reflection(context):
                try:
                    async with asyncio.timeout(self._door.limits.reflection_s):
                        await self._door.staying(self._answer(requests, context))
                    return
                except TimeoutError:
                    await context.abort(
                        grpc.StatusCode.DEADLINE_EXCEEDED, "reflection is for short questions; connect again"
                    )
        except LimitReachedError as error:
            refusal = error
        except ClosingError:
            refusal = NoLeaderError(STOPPING)
        await abort(context, refusal)

    async def _answer(self, requests: Any, context: Any) -> None:
        async for answer in self._servicer.ServerReflectionInfo(requests, context):
            await context.write(answer)
