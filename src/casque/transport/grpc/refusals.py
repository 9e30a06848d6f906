"""Errors as gRPC statuses and back. The code is for everybody; the trailing metadata is for those who know casque."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc
import msgspec

from casque.errors import CasqueError, UnknownOutcomeError
from casque.telemetry import logger
from casque.transport.errors import WireError, from_wire, grpc_code, to_wire

log = logger("transport.grpc")

TRAILER = "casque-error-bin"
_DETAILS_MAX = 1000
_TRAILER_MAX = 4000
"""Clients take 8 KiB of metadata unless told otherwise, and lose the whole answer if there is more."""


def as_refusal(error: Exception) -> CasqueError:
    """Anything that a queue did not mean to raise is a bug: logged here, unknown to the caller."""
    if isinstance(error, CasqueError):
        return error
    log.error("a call failed in a way that nobody thought of", exc_info=error)
    return UnknownOutcomeError(f"the broker failed on this call ({type(error).__name__}); its log says more")


async def abort(context: Any, error: CasqueError, *, code: str | None = None) -> NoReturn:
    """End the call with this error."""
    wire = to_wire(error)
    packed = msgspec.json.encode(wire)
    if len(packed) > _TRAILER_MAX:
        packed = msgspec.json.encode(WireError(wire.error, wire.message[:_DETAILS_MAX]))
    details = wire.message[:_DETAILS_MAX]
    await context.abort(grpc.StatusCode[code or grpc_code(error)], details, ((TRAILER, packed),))
    raise AssertionError("abort does not return")


def typed(error: grpc.aio.AioRpcError) -> CasqueError | None:
    """What the server meant, if it was one of ours that said it."""
    for key, value in error.trailing_metadata() or ():
        if key == TRAILER:
            try:
                return from_wire(msgspec.json.decode(value, type=WireError))
            except msgspec.MsgspecError:
                return None
    return None
