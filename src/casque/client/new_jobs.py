"""New jobs: what a caller gives, checked and encoded as the specs that the queue takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

import msgspec

from casque import checks
from casque.client.ids import new_ids
from casque.client.payloads import PayloadCodec
from casque.environment import Environment
from casque.errors import InvalidInputError
from casque.fields import check_tags
from casque.types import JobSpec

T = TypeVar("T")


class NewJob(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """One job of an `enqueue_many`, with options beyond entrypoint and payload."""

    entrypoint: str
    payload: T
    priority: int = 0
    delay: float | timedelta | None = None
    run_at: datetime | None = None
    key: str | None = None
    max_attempts: int | None = None
    headers: Mapping[str, str] | None = None
    zone: str | None = None
    max_crashes: int | None = None
    fifo: bool = False
    tags: Sequence[str] = ()
    expires: float | timedelta | datetime | None = None
    id: str | None = None
    """The id of the job, chosen by its producer; casque makes one otherwise."""


class SpecMaker(Generic[T]):
    """Makes specs with the payload codec and the settings of one queue."""

    def __init__(self, env: Environment, codec: PayloadCodec[T]) -> None:
        self._env = env
        self._codec = codec

    def spec(self, job_id: str, new: NewJob[T], checked: str | None = None) -> JobSpec:
        """`job_id`: for a job that has no id of its own. `checked`: an entrypoint that was checked already."""
        attempts = new.max_attempts
        run_at_ms = None if new.delay is None and new.run_at is None else self.run_at_ms(new.delay, new.run_at)
        return JobSpec(
            job_id if new.id is None else checks.name("id", new.id, checks.NAME_MAX),
            checked if checked is not None and new.entrypoint is checked else checks.entrypoint(new.entrypoint),
            self._codec.encode(new.payload),
            checks.priority(new.priority),
            run_at_ms,
            self._env.settings.max_attempts if attempts is None else checks.max_attempts(attempts),
            None if new.key is None else checks.name("key", new.key, checks.KEY_MAX),
            None if new.headers is None else checks.headers(new.headers),
            None if new.zone is None else checks.name("zone", new.zone, checks.NAME_MAX),
            max_crashes=None if new.max_crashes is None else checks.max_crashes(new.max_crashes),
            fifo=checks.flag("fifo", new.fifo),
            tags=check_tags(new.tags) if new.tags != () else (),
            expires_ms=None if new.expires is None else self._expires_ms(new.expires, run_at_ms),
        )

    def specs(self, jobs: list[tuple[str, T] | NewJob[T]]) -> tuple[JobSpec, ...]:
        """The specs of many jobs. A bulk of jobs alike is checked once."""
        encode, attempts = self._codec.encode, self._env.settings.max_attempts
        specs: list[JobSpec] = []
        checked: str | None = None  # most jobs of a bulk share one entrypoint
        before: tuple[NewJob[T], JobSpec] | None = None  # and differ only in the payload
        for job_id, job in zip(new_ids(self._env.rng, len(jobs)), jobs, strict=True):
            if type(job) is tuple and len(job) == 2 and job[0] is checked:  # type: ignore[redundant-expr]
                specs.append(JobSpec(job_id, checked, encode(job[1]), 0, None, attempts))
                continue
            if before is not None and type(job) is NewJob and _differs_in_payload_only(before[0], job):
                same = before[1]
                specs.append(
                    JobSpec(
                        job_id,
                        same.entrypoint,
                        encode(job.payload),
                        same.priority,
                        None,
                        same.max_attempts,
                        None,
                        same.headers,
                        same.zone,
                        max_crashes=same.max_crashes,
                        fifo=same.fifo,
                        tags=same.tags,
                        expires_ms=same.expires_ms,
                    )
                )
                continue
            match job:
                case (str() as entrypoint, payload):
                    checked = checks.entrypoint(entrypoint)
                    specs.append(JobSpec(job_id, checked, encode(payload), 0, None, attempts))
                case NewJob():
                    spec = self.spec(job_id, job, checked)
                    specs.append(spec)
                    checked, before = spec.entrypoint, (job, spec)
                case _:
                    raise InvalidInputError(f"enqueue_many takes (entrypoint, payload) pairs or NewJob, not {job!r}")
        return tuple(specs)

    def run_at_ms(self, delay: float | timedelta | None, run_at: datetime | None) -> int | None:
        if delay is None:
            return None if run_at is None else checks.moment_ms("run_at", run_at)
        if run_at is not None:
            raise InvalidInputError("give either delay or run_at, not both")
        return self._env.clock.wall_ms() + checks.span_ms("delay", delay)

    def _expires_ms(self, expires: float | timedelta | datetime, run_at_ms: int | None) -> int:
        """From now on, as the queue keeps it: then the clock of the process that writes the job counts."""
        now_ms = self._env.clock.wall_ms()
        if isinstance(expires, datetime):
            expires_ms = checks.moment_ms("expires", expires) - now_ms
        else:
            expires_ms = checks.expires_ms(expires)
        if expires_ms < 1:
            raise InvalidInputError(f"expires must be later than now, not {expires}: it would never run")
        if run_at_ms is not None and run_at_ms >= now_ms + expires_ms:
            raise InvalidInputError(f"expires must be later than delay or run_at, not {expires}: it would never run")
        return expires_ms


def _differs_in_payload_only(one: NewJob[Any], other: NewJob[Any]) -> bool:
    """True if the checks of one job hold for the other: identical values, and no time, key or id of its own."""
    return (
        one.entrypoint is other.entrypoint
        and one.priority is other.priority
        and one.max_attempts is other.max_attempts
        and one.headers is other.headers
        and one.zone is other.zone
        and one.max_crashes is other.max_crashes
        and one.fifo is other.fifo
        and one.tags is other.tags
        and one.expires is other.expires
        and other.key is None
        and other.id is None
        and other.delay is None
        and other.run_at is None
    )


def as_new_job(job: Any) -> NewJob[Any]:
    match job:
        case NewJob():
            return job
        case (str() as entrypoint, payload):
            return NewJob(entrypoint, payload)
        case _:
            raise InvalidInputError(f"job must be (entrypoint, payload) or a NewJob, not {job!r}")
