"""Convert errors to gRPC statuses and back. Any client can use the code; casque's own read the metadata."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc
import msgspec

from casque.errors import CasqueError, UnknownOutcomeError
from casque.telemetry import logger
from casque.transport.errors import WireError, from_wire, grpc_code, to_wire

log = logger("transport.grpc")

TRAILER = "casque-error-bin"
_DETAILS_BYTES = 1000
_TRAILER_BYTES = 3000
"""Clients accept 8 KiB of metadata by default, and may lose the whole answer if there is more. In transit each byte of
the details may become three, and three bytes of the trailer four."""


def as_refusal(error: Exception) -> CasqueError:
    """An unexpected exception is a bug: log it here, and answer with an unknown outcome."""
    if isinstance(error, CasqueError):
        return error
    if isinstance(error, grpc.aio.InternalError):
        # gRPC cannot send or receive any more: the connection broke, or the server's grace period has ended.
        log.info("the connection to a caller broke off before its answer was sent: %s", error)
        return cut_off()
    log.error("a call failed unexpectedly", exc_info=error)
    return UnknownOutcomeError(f"the broker failed on this call ({type(error).__name__}); its log says more")


def cut_off() -> UnknownOutcomeError:
    """The answer to a call that was cancelled on the way, by its caller or by the server."""
    return UnknownOutcomeError(
        "the call was cut off before its answer was known; it may have been carried out, so repeat it with the same "
        "request_id, or look first"
    )


async def abort(context: Any, error: CasqueError, *, code: str | None = None) -> NoReturn:
    """End the call with this error."""
    wire = to_wire(error)
    details = _cut(wire.message, _DETAILS_BYTES)
    packed = msgspec.json.encode(wire)
    if len(packed) > _TRAILER_BYTES:
        # JSON may escape one byte as six.
        packed = msgspec.json.encode(WireError(wire.error, _cut(details, _TRAILER_BYTES // 6 - len(wire.error))))
    await context.abort(grpc.StatusCode[code or grpc_code(error)], details, ((TRAILER, packed),))
    raise AssertionError("abort does not return")


def _cut(text: str, most: int) -> str:
    return text.encode(errors="replace")[:most].decode(errors="ignore")


def typed(error: grpc.aio.AioRpcError) -> CasqueError | None:
    """The casque error that the server sent, if it sent one."""
    for key, value in error.trailing_metadata() or ():
        if key == TRAILER:
            try:
                return from_wire(msgspec.json.decode(value, type=WireError))
            except msgspec.MsgspecError:
                return None
    return None
