"""jqueue's errors. `JQueueError` is casque's base class, so that it catches everything a queue raises.

jqueue knows fewer errors than casque. What casque adds is raised as a subclass of the one that a jqueue program
expects: a lost lease is a `JobNotFoundError`, and a write of unknown outcome is a `StorageError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from casque import errors
from casque.errors import CASConflictError, CasqueError, JobNotFoundError

__all__ = [
    "CASConflictError",
    "JQueueError",
    "JobNotFoundError",
    "LeaseLostError",
    "StorageError",
    "StoreAccessError",
    "UnknownOutcomeError",
    "translated",
]

JQueueError = CasqueError


class LeaseLostError(JobNotFoundError, errors.LeaseLostError):
    """The job was claimed here and is another worker's now; nothing was changed.

    A program that ignores `JobNotFoundError` after its work, as jqueue advises, ignores this too.
    """

    def __init__(self, job_id: str, token: int | None = None) -> None:
        CasqueError.__init__(self, str(errors.LeaseLostError(job_id, token)))
        self.job_id = job_id
        self.token = token


class StorageError(errors.StorageError):
    """The storage failed. `cause` is its error, and is part of the message."""

    def __init__(self, message: str, cause: BaseException | None = None) -> None:
        known = cause is None or str(cause) in message
        super().__init__(message if known else f"{message}: {cause}", cause)


class StoreAccessError(StorageError, errors.StoreAccessError):
    """The storage refused the credentials, or the bucket does not exist."""


class UnknownOutcomeError(StorageError, errors.UnknownOutcomeError):
    """The storage did not say whether the write landed, and reading it back did not settle it."""


@contextmanager
def translated() -> Iterator[None]:
    """Raise casque's errors as the ones that a jqueue program expects."""
    try:
        yield
    except CasqueError as error:
        ours = _translate(error)
        if ours is error:
            raise
        raise ours from error


def _translate(error: CasqueError) -> CasqueError:
    match error:
        case LeaseLostError() | StorageError():
            return error
        case errors.LeaseLostError():
            return LeaseLostError(error.job_id, error.token)
        case errors.StoreAccessError():
            return StoreAccessError(str(error), error.cause)
        case errors.StorageError():
            return StorageError(str(error), error.cause)
        case errors.UnknownOutcomeError():
            return UnknownOutcomeError(str(error), error.__cause__)
        case _:
            return error
