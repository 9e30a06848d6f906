"""Settings for users and operators, with sensible defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias, TypedDict, get_args

from casque.errors import InvalidInputError

ArchiveFormat: TypeAlias = Literal["jsonl", "parquet", "both"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """How one open queue behaves. All times are `timedelta`s.

    >>> QueueSettings(stale_timeout=timedelta(seconds=30)).lease_ms
    30000
    """

    stale_timeout: timedelta = timedelta(minutes=5)
    """How long a claimed job may go without a heartbeat before it is given to another worker."""
    max_attempts: int | None = None
    """How often a job may be claimed before it is dead, unless the job sets its own limit. None: no limit."""
    backoff_base: timedelta = timedelta(seconds=1)
    """How long a failed job waits after its first attempt; doubles with each further one."""
    backoff_cap: timedelta = timedelta(minutes=10)
    conflict_retries: int = 20
    """How often a batch that loses its race backs off, each time for a few attempts in a row, before its callers get a
    CASConflictError."""
    conflict_backoff: timedelta = timedelta(milliseconds=5)
    """The wait before the first retry; doubles six times at the most."""
    storage_patience: timedelta = timedelta(seconds=30)
    """How long a failing store is retried before callers get the error."""
    storage_backoff: timedelta = timedelta(milliseconds=50)
    storage_backoff_cap: timedelta = timedelta(seconds=2)
    commit_interval: timedelta = timedelta(0)
    """The least time between two commits of this process, to pay for fewer requests. A call waits for up to this long,
    a read does not. At most a quarter of `stale_timeout`: heartbeats wait, too."""
    requests_per_minute: int | None = None
    """How many requests this process should make to the store in a minute, for stores that bill each of them. When half
    of them are used, commits are spaced out so that the rest lasts. None: no limit."""
    requests_per_day: int | None = None
    """The same for 24 hours."""
    poll_min: timedelta = timedelta(milliseconds=20)
    """How soon a waiting dequeue polls for other writers' jobs; doubles up to `poll_max` while there are none."""
    poll_max: timedelta = timedelta(seconds=1)
    buffer_max: int = 10_000
    """Calls that may wait for the next commit; further callers wait for room."""
    batch_max: int = 2_000
    """Calls in one commit."""
    drain_limit: timedelta = timedelta(seconds=30)
    """How long closing a queue may take to finish pending calls."""
    retention: timedelta = timedelta(minutes=5)
    """How long the past of a log queue can be read before its segments and snapshots are deleted. The shortest value of
    all writers of the queue applies."""
    archive: bool = True
    """Whether finished jobs are archived. All writers of a queue should agree on it."""
    archive_interval: timedelta = timedelta(seconds=10)
    """How soon a finished job is in the archive; sooner if there are many."""
    archive_retention: timedelta | None = None
    """How long the archive is kept, in whole hours. None: for ever."""
    archive_format: ArchiveFormat = "jsonl"
    """How this process writes the archive: as JSON lines, as Parquet (needs `casque[parquet]`), or as both. Readers
    take either form."""
    payload_max: int = 256 * 1024
    """Payloads of more bytes than this get an object of their own."""
    blob_max: int = 64 * 1024 * 1024
    """Payloads of more bytes than this are refused."""
    ticks: bool = True
    """Whether this process handles due schedules, and jobs that expire while no worker asks for any. At least one
    process that has the queue open should."""
    osqueue_timeout: timedelta = timedelta(seconds=30)
    """At a broker: how long a client of osqueue may send no heartbeat before its job is given to another one."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, bool):
                if not isinstance(value, bool):
                    raise InvalidInputError(f"{field.name} must be True or False, not {value!r}")
            elif isinstance(field.default, str):
                if value not in get_args(ArchiveFormat):
                    raise InvalidInputError(f"{field.name} must be jsonl, parquet or both, not {value!r}")
            elif value is None and field.default is None:
                continue
            elif field.name == "commit_interval":
                if not isinstance(value, timedelta) or not timedelta(0) <= value <= self.stale_timeout / 4:
                    raise InvalidInputError(
                        "commit_interval must be a timedelta from 0 to a quarter of stale_timeout, which is "
                        f"{self.stale_timeout}, not {value!r}"
                    )
            elif isinstance(field.default, timedelta) or field.name == "archive_retention":
                _check_span(field.name, value)
            else:
                least = 0 if field.name == "conflict_retries" else 1
                if not isinstance(value, int) or isinstance(value, bool) or value < least:
                    raise InvalidInputError(f"{field.name} must be a whole number from {least}, not {value!r}")

    @property
    def lease_ms(self) -> int:
        return milliseconds(self.stale_timeout)

    def with_changes(self, changes: SettingsChanges) -> QueueSettings:
        """The same settings with some of them changed; an unknown name is refused with the nearest one."""
        known = [field.name for field in fields(self)]
        for name in changes:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"
                raise InvalidInputError(f"there is no setting {name!r}{hint}")
        return replace(self, **dict[str, Any](changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """How a broker behaves among others."""

    heartbeat: timedelta = timedelta(seconds=2)
    """How often a leader that commits nothing sends a heartbeat."""
    lease: timedelta = timedelta(seconds=8)
    """How long a leader may be silent before another broker takes over."""
    poll: timedelta = timedelta(milliseconds=500)
    """How often a standby reads the queue, which is how soon it takes over from a leader that resigns."""

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_span(field.name, getattr(self, field.name))
        if self.lease < 2 * self.heartbeat:
            raise InvalidInputError(
                f"lease must be at least twice the heartbeat, or a leader that is well seems dead: it is {self.lease}, "
                f"and the heartbeat {self.heartbeat}"
            )


class SettingsChanges(TypedDict, total=False):
    """The same names as keyword arguments; a test keeps the two in step."""

    stale_timeout: timedelta
    max_attempts: int | None
    backoff_base: timedelta
    backoff_cap: timedelta
    conflict_retries: int
    conflict_backoff: timedelta
    storage_patience: timedelta
    storage_backoff: timedelta
    storage_backoff_cap: timedelta
    commit_interval: timedelta
    requests_per_minute: int | None
    requests_per_day: int | None
    poll_min: timedelta
    poll_max: timedelta
    buffer_max: int
    batch_max: int
    drain_limit: timedelta
    retention: timedelta
    archive: bool
    archive_interval: timedelta
    archive_retention: timedelta | None
    archive_format: ArchiveFormat
    payload_max: int
    blob_max: int
    ticks: bool
    osqueue_timeout: timedelta


def _check_span(name: str, value: Any) -> None:
    if not isinstance(value, timedelta) or value <= timedelta(0):
        raise InvalidInputError(f"{name} must be a timedelta of more than zero, not {value!r}")


def milliseconds(span: timedelta) -> int:
    """Whole milliseconds, at least one for any positive span."""
    whole = (span.days * 86_400 + span.seconds) * 1000 + span.microseconds // 1000
    return whole or int(span > timedelta(0))
