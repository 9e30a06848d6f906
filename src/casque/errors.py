"""Every error casque raises, grouped by what the caller does next."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any, Self


class CasqueError(Exception):
    """The base of all of casque's errors. They are pickled as their arguments."""

    _made_from: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **named: Any) -> Self:
        error = super().__new__(cls, *args)
        error._made_from = args, named
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        args, named = self._made_from
        return partial(type(self), **named) if named else type(self), args


# --- Change the command: it was understood, refused, and changed nothing. ---


class InvalidInputError(CasqueError, ValueError):
    """An argument that no queue would accept. Names the argument and what it takes."""


class InvalidPayloadError(InvalidInputError):
    """A payload that its entrypoint does not accept. `problem` says where. Trying again will not help."""

    def __init__(self, entrypoint: str, problem: str) -> None:
        super().__init__(f"the payload does not fit what {entrypoint!r} takes: {problem}")
        self.entrypoint = entrypoint
        self.problem = problem


class NotUnderstoodError(InvalidPayloadError):
    """Arguments that this version of a function does not take, usually because another version enqueued the job.

    The worker gives the job back for others.
    """


class JobNotFoundError(CasqueError):
    """No unfinished job has this id: it never existed, or it has finished."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"job {job_id!r} is not in the queue: it was finished or never enqueued")
        self.job_id = job_id


class LeaseLostError(CasqueError):
    """The job is no longer yours: its lease ran out or it was taken back. Stop working on it."""

    def __init__(self, job_id: str, token: int | None = None) -> None:
        super().__init__(
            f"the lease on job {job_id!r} is lost: it ran out or was given back. Stop working on the job; "
            "another worker will finish it"
        )
        self.job_id = job_id
        self.token = token


class ZoneLeaseLostError(CasqueError):
    """The zone is no longer yours: its lease ran out or was released. The jobs you took from it still are."""

    def __init__(self, zone: str, token: int) -> None:
        super().__init__(
            f"the lease on the zone {zone!r} is lost: it ran out or was released. Jobs that were claimed under it are "
            "not affected; lease the zone again to claim more"
        )
        self.zone = zone
        self.token = token


class JobStateError(CasqueError):
    """The job exists, but not in a state that allows the command."""

    def __init__(self, job_id: str, state: str, needed: str) -> None:
        super().__init__(f"job {job_id!r} is {state}, and this needs it to be {needed}")
        self.job_id = job_id
        self.state = state
        self.needed = needed


class DuplicateKeyError(CasqueError):
    """Another unfinished job holds the unique key. `job_id` names it."""

    def __init__(self, key: str, job_id: str) -> None:
        super().__init__(f"the unique key {key!r} is held by the unfinished job {job_id!r}")
        self.key = key
        self.job_id = job_id


class ScheduleNotFoundError(CasqueError):
    """No schedule has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no schedule {name!r}; `casque cron list` shows those that there are")
        self.name = name


class ReadOnlyError(CasqueError):
    """The queue was opened as of a moment in the past, which cannot be changed."""

    def __init__(self, position: int) -> None:
        super().__init__(
            f"this is the queue as of position {position}, and the past cannot be changed; "
            "open it without as_of to write"
        )
        self.position = position


class NoHistoryError(CasqueError):
    """This queue keeps no history: only the log layout does."""

    def __init__(self) -> None:
        super().__init__(
            "this queue has the document layout, which keeps no history: stop its processes and run "
            "`casque queue convert URL --to log`"
        )


class HistoryGoneError(CasqueError):
    """The requested position is further back than the queue remembers. `oldest` is the first position that is left."""

    def __init__(self, asked: str, oldest: int) -> None:
        super().__init__(
            f"{asked} is gone: the history of this queue begins at position {oldest}. What is older than the "
            "`retention` of those who write the queue is deleted; a longer one keeps more from now on"
        )
        self.asked = asked
        self.oldest = oldest


# --- Try again: nothing happened. ---


class CASConflictError(CasqueError):
    """A conditional write lost its race. Retried internally; raised only when every retry lost, too."""


class NoLeaderError(CasqueError):
    """No broker leads this queue just now, or none that is known. Nothing was done; a new leader is found soon."""

    def __init__(self, why: str = "the brokers are electing one") -> None:
        super().__init__(f"no broker leads this queue just now ({why}); nothing was done. Try again in a moment")
        self.why = why


class LimitReachedError(CasqueError):
    """This caller, or all callers together, have as much under way as the broker allows. Nothing was done.

    `what` is limited to `limit`. Wait for calls to end, spread them over time, or have the limit raised.
    """

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(
            f"too many {what}: the broker allows {limit:,}, and nothing was done. Wait until some have ended and try "
            "again; `casque serve --limit` raises a limit"
        )
        self.what = what
        self.limit = limit


class QueueDrainingError(CasqueError):
    """Nothing can be added to this queue, or to one `entrypoint`, until it is resumed. Nothing was added."""

    def __init__(self, entrypoint: str | None = None) -> None:
        what, where = ("the queue", "") if entrypoint is None else (f"{entrypoint!r}", f" --entrypoint {entrypoint}")
        super().__init__(
            f"{what} is being drained: it accepts no new jobs until it is resumed; no jobs were added. "
            f"`casque queue resume URL{where}` resumes it"
        )
        self.entrypoint = entrypoint


class ZoneMovedError(CasqueError):
    """This shard of a ring is not the one for these jobs: their `zone` is elsewhere, or the ring has changed since the
    caller read it. `generation` is that of the ring the shard knows. Nothing was done.

    Callers of the ring itself never see it: the ring sends the jobs to the right shard.
    """

    def __init__(self, zone: str | None, generation: int) -> None:
        what = "these jobs belong" if zone is None else f"the zone {zone!r} belongs"
        super().__init__(
            f"{what} to another shard of the ring (generation {generation}); nothing was done. Open the ring by its "
            "own URL, not that of a shard"
        )
        self.zone = zone
        self.generation = generation


class BrokerUnreachableError(CasqueError):
    """No broker answers at `address`. Nothing was sent."""

    def __init__(self, address: str, why: str) -> None:
        fix = "Start one with `casque serve`, or correct the address"
        if "CERTIFICATE_VERIFY_FAILED" in why:
            fix = "Its certificate is not trusted: name the authority, with tls=ClientTlsFiles(ca=...) or --ca FILE"
        super().__init__(f"no broker answers at {address} ({why}). {fix}")
        self.address = address
        self.why = why


# --- Read back first: it may have happened. ---


class UnknownOutcomeError(CasqueError):
    """The storage did not say whether the write landed, and reading it back did not settle it.

    Look before you repeat: with the same `request_id` the call is safe to repeat, without one it may act twice.
    """


class LeadershipLostError(UnknownOutcomeError):
    """Another broker leads now. `address` is where to find it, if it is known.

    Repeat the call there, with the same `request_id`: it may have been carried out here.
    """

    def __init__(self, address: str | None = None) -> None:
        where = f"at {address}" if address else "see queue.json"
        super().__init__(f"another broker leads this queue now ({where}); ask it again with the same request_id")
        self.address = address


class QueueReplacedError(UnknownOutcomeError):
    """Another queue is in the place of this one: it was converted while it was open here, or overwritten.

    Open it again. It contains what was acknowledged; the call just made may be included.
    """

    def __init__(self, now: str) -> None:
        super().__init__(
            f"queue.json is {now} now: the queue was converted, or another one put in its place, while it was open "
            "here. Open it again; a call that ends like this may have been carried out, so repeat it with the same "
            "request_id, or look first"
        )
        self.now = now


# --- Try again later: the storage is not well. ---


class StorageError(CasqueError):
    """The storage failed. `cause` is its error."""

    def __init__(self, message: str, cause: BaseException | None = None) -> None:
        super().__init__(message)
        self.cause = cause

    def __reduce__(self) -> tuple[Any, ...]:
        # A cause may be any exception; one that cannot be pickled must not prevent the error itself from being.
        try:
            pickle.dumps(self.cause)
        except Exception:  # noqa: BLE001
            return type(self), (str(self), None)
        return super().__reduce__()


# --- Stop and look: repeating it will not help. ---


class StoreAccessError(StorageError):
    """The storage refused the credentials, or the bucket does not exist."""


class UnsafeStoreError(StorageError):
    """The storage lacks guarantees that a queue needs; see `casque doctor`."""


class QueueLedError(CasqueError):
    """A broker leads this queue: only it may write. `address` is where to find it, if it is known."""

    def __init__(self, address: str | None = None) -> None:
        where = f"at {address}" if address else "which gave no address"
        super().__init__(
            f"this queue is led by a broker {where}; nothing was written. Open it with "
            "via='broker', or by the broker's address; if no broker is left, `casque queue release URL` ends its lead"
        )
        self.address = address


class QueueCopiedError(CasqueError):
    """This is a copy of a queue that a broker leads elsewhere: its head names the broker of the original. Nothing was
    sent
    there. `address` is that of the original's broker."""

    def __init__(self, address: str | None = None) -> None:
        super().__init__(
            f"this is a copy of a queue that the broker at {address or 'an unknown address'} leads in another place; "
            "nothing was done, here or there. To use the copy as a queue of its own, end the lead in it with `casque "
            "queue release URL`, or copy it with `casque queue clone URL TARGET`. To reach the original, name its own "
            "URL or the broker's address"
        )
        self.address = address


class RingError(CasqueError):
    """This is a ring of shards, and the operation works on a single queue. `what` says what to do instead."""

    def __init__(
        self, what: str = "open it with Queue.open, or give the URL of one of its shards, URL/shards/0000"
    ) -> None:
        super().__init__(f"this queue is a ring of shards: {what}")
        self.what = what


class NotAuthenticatedError(CasqueError):
    """The broker requires a token and got none, or an unknown one."""


class NotAllowedError(CasqueError):
    """The token does not allow this. `scope` is what it needs; `reach` for which jobs, if it lacks only that."""

    def __init__(self, scope: str, what: str, reach: str | None = None) -> None:
        where = f" for {reach}" if reach else ""
        super().__init__(f"the token does not allow this: {what} needs the scope {scope!r}{where}")
        self.scope = scope
        self.what = what
        self.reach = reach


class NotInstalledError(CasqueError):
    """This needs something that is not installed. `fix` says how to get it."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}: {fix}")
        self.what = what
        self.fix = fix


class WorkFailedError(CasqueError):
    """Spark could not run the handlers of a queue. `left` jobs come back by themselves when their leases run out."""

    def __init__(self, why: str, left: int = 0) -> None:
        after = f"; {left} jobs come back when their leases run out" if left else "; what was claimed was given back"
        super().__init__(f"Spark could not run the handlers: {why}{after}")
        self.why = why
        self.left = left


class JobFailedError(CasqueError):
    """The job has no result and never will: it is dead, or was cancelled. `error` is its last one."""

    def __init__(self, job_id: str, state: str, error: str | None = None) -> None:
        super().__init__(f"job {job_id!r} has no result: it is {state}{f' ({error})' if error else ''}")
        self.job_id = job_id
        self.state = state
        self.error = error


class NoResultError(CasqueError):
    """This job's result is not available, and waiting longer will not help. `why` says what is missing."""

    def __init__(self, job_id: str, why: str) -> None:
        super().__init__(f"no result of job {job_id!r} can be had: {why}")
        self.job_id = job_id
        self.why = why


class CheckpointError(CasqueError):
    """The checkpoint of a stream is not the one that its jobs were enqueued under. Nothing was enqueued."""


class CorruptQueueError(CasqueError):
    """A stored object is invalid. Nothing was written; `key` names the object."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key = key
        self.problem = problem


class QueueClosedError(CasqueError):
    """The queue was closed, or never opened; nothing was done."""
