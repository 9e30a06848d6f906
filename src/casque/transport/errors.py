"""Errors on a wire: sent as name and arguments, and rebuilt as the same error on the other side.

One table maps each error to its gRPC code and HTTP status. A casque client uses the name; any other client uses the
code.
"""

from __future__ import annotations

from typing import Any

import msgspec

from casque import errors
from casque.errors import CasqueError

TABLE: dict[type[CasqueError], tuple[str, int]] = {
    errors.InvalidInputError: ("INVALID_ARGUMENT", 400),
    errors.InvalidPayloadError: ("INVALID_ARGUMENT", 400),
    errors.NotUnderstoodError: ("INVALID_ARGUMENT", 400),
    errors.NotAuthenticatedError: ("UNAUTHENTICATED", 401),
    errors.NotAllowedError: ("PERMISSION_DENIED", 403),
    errors.JobNotFoundError: ("NOT_FOUND", 404),
    errors.ScheduleNotFoundError: ("NOT_FOUND", 404),
    errors.LeaseLostError: ("FAILED_PRECONDITION", 409),
    errors.ZoneLeaseLostError: ("FAILED_PRECONDITION", 409),
    errors.JobStateError: ("FAILED_PRECONDITION", 409),
    errors.DuplicateKeyError: ("ALREADY_EXISTS", 409),
    errors.ReadOnlyError: ("FAILED_PRECONDITION", 409),
    errors.QueueDrainingError: ("FAILED_PRECONDITION", 409),
    errors.ZoneMovedError: ("FAILED_PRECONDITION", 409),
    errors.RingError: ("FAILED_PRECONDITION", 409),
    errors.NoHistoryError: ("FAILED_PRECONDITION", 409),
    errors.HistoryGoneError: ("OUT_OF_RANGE", 410),
    errors.QueueLedError: ("FAILED_PRECONDITION", 421),
    errors.LimitReachedError: ("RESOURCE_EXHAUSTED", 429),
    errors.QueueCopiedError: ("FAILED_PRECONDITION", 409),
    errors.CASConflictError: ("ABORTED", 503),
    errors.NoLeaderError: ("UNAVAILABLE", 503),
    errors.BrokerUnreachableError: ("UNAVAILABLE", 503),
    errors.QueueClosedError: ("UNAVAILABLE", 503),
    errors.StorageError: ("UNAVAILABLE", 503),
    errors.StoreAccessError: ("UNAVAILABLE", 503),
    errors.UnsafeStoreError: ("INTERNAL", 500),
    errors.NotInstalledError: ("UNIMPLEMENTED", 501),
    errors.WorkFailedError: ("INTERNAL", 500),
    errors.JobFailedError: ("FAILED_PRECONDITION", 409),
    errors.NoResultError: ("NOT_FOUND", 404),
    errors.CheckpointError: ("FAILED_PRECONDITION", 409),
    errors.CorruptQueueError: ("DATA_LOSS", 500),
    errors.UnknownOutcomeError: ("UNKNOWN", 500),
    errors.LeadershipLostError: ("UNKNOWN", 500),
    errors.QueueReplacedError: ("UNKNOWN", 500),
    errors.CasqueError: ("INTERNAL", 500),
}
"""Error to gRPC code and HTTP status. Clients that follow leaders retry elsewhere on 421 (misdirected) and `UNKNOWN`;
after `UNKNOWN` the call may have been carried out, so they repeat it with its request id."""

_BY_NAME = {kind.__name__: kind for kind in TABLE}


class WireError(msgspec.Struct, frozen=True):
    """The wire form of an error."""

    error: str
    message: str
    arguments: list[Any] = []


def grpc_code(error: CasqueError) -> str:
    return _row(type(error))[0]


def code_of(name: str) -> str:
    """The gRPC code for an error's name."""
    return TABLE[_BY_NAME[name]][0]


def http_status(error: CasqueError) -> int:
    return _row(type(error))[1]


def name_of(error: CasqueError) -> str:
    """The error's name on the wire and in metrics: always one from the table, never an application's own."""
    return _known(type(error)).__name__


def to_wire(error: CasqueError) -> WireError:
    arguments = list(error.__reduce__()[1])
    if isinstance(error, errors.StorageError):
        arguments = [str(error)]  # its cause is an exception of this process
    return WireError(name_of(error), str(error), arguments)


def from_wire(wire: WireError) -> CasqueError:
    """Rebuild the error. One of a newer release becomes the closest general error."""
    kind = _BY_NAME.get(wire.error)
    if kind is None:
        return errors.UnknownOutcomeError(f"{wire.error}: {wire.message}")
    try:
        return kind(*wire.arguments)
    except TypeError:
        return errors.UnknownOutcomeError(f"{wire.error}: {wire.message}")


def _row(kind: type[CasqueError]) -> tuple[str, int]:
    return TABLE[_known(kind)]


def _known(kind: type[BaseException]) -> type[CasqueError]:
    """The nearest class in the table: applications may define subclasses."""
    return next(base for base in kind.__mro__ if base in TABLE)
