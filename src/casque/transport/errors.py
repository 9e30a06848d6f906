"""How an error crosses a wire: by name and arguments, so that it is the same error on the other side.

One table says which gRPC code and which HTTP status each error has. A client that knows casque goes by the name; any
other client goes by the code.
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
"""Error to gRPC code and HTTP status. 421 (misdirected) and `UNKNOWN` are for those who follow leaders: ask elsewhere;
the second may have been done and is asked again with its request id."""

_BY_NAME = {kind.__name__: kind for kind in TABLE}


class WireError(msgspec.Struct, frozen=True):
    """An error on its way."""

    error: str
    message: str
    arguments: list[Any] = []


def grpc_code(error: CasqueError) -> str:
    return _row(type(error))[0]


def code_of(name: str) -> str:
    """The gRPC code of an error that only its name is known of."""
    return TABLE[_BY_NAME[name]][0]


def http_status(error: CasqueError) -> int:
    return _row(type(error))[1]


def name_of(error: CasqueError) -> str:
    """Its name on the wire and in metrics: one of the table's, never one that an application made up."""
    return _known(type(error)).__name__


def to_wire(error: CasqueError) -> WireError:
    arguments = list(error.__reduce__()[1])
    if isinstance(error, errors.StorageError):
        arguments = [str(error)]  # its cause is an exception of this process
    return WireError(name_of(error), str(error), arguments)


def from_wire(wire: WireError) -> CasqueError:
    """An error of a newer release than this one is the most general that says the same."""
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
    """The nearest class that the table names: applications may have subclasses of their own."""
    return next(base for base in kind.__mro__ if base in TABLE)
