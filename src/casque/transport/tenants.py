"""Names of a tenant: a limited token's names for jobs, keys and schedules are scoped to its zone or entrypoint.

A queue has one namespace. A caller free to choose names in it could take the names that another tenant will choose,
learn which ones are taken, and pass for the owner of what another job of the same name did. So the border prefixes
every name that a limited token chooses with what the token is limited to: the job's zone, or, for a token without
zones, its entrypoint. Prefixes of two tenants never collide: each ends with a mark whose first character is escaped
inside the owner's name, and whose second separates zones from entrypoints.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from casque import checks
from casque.errors import InvalidInputError
from casque.service import ArchivedJob, EventKind, QueueEvent
from casque.types import JobRecord, JobSpec, Reach, Schedule, ScheduleSpec

OF_ZONE = "::"
OF_ENTRYPOINT = ":~"
OWNER_MAX = 64
"""A longer zone or entrypoint is replaced by its hash, to keep ids within their length limit."""
_HASH = "%h"


def prefix(owner: str, mark: str = OF_ZONE) -> str:
    """
    >>> prefix("acme"), prefix("a:b%"), prefix("mail.welcome", OF_ENTRYPOINT)
    ('acme::', 'a%3Ab%25::', 'mail.welcome:~')
    """
    escaped = owner.replace("%", "%25").replace(":", "%3A")
    if len(escaped) > OWNER_MAX:
        # An escaped name never contains %h.
        escaped = _HASH + blake2b(owner.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return escaped + mark


class Naming:
    """Translates the names of one limited caller to stored names and back."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._by_zone = reach.zones is not None

    def _prefix(self, entrypoint: str, zone: str | None) -> str:
        if self._by_zone:
            assert zone is not None
            return prefix(zone)
        return prefix(entrypoint, OF_ENTRYPOINT)

    def scoped_spec(self, spec: JobSpec) -> JobSpec:
        """The spec to store for a caller that asked for `spec`. An id that has the prefix already stays as it is: a
        caller that enqueues a job under the id it was given means the same job."""
        begin = self._prefix(spec.entrypoint, spec.zone)
        job_id = _scoped("id", begin, spec.id, checks.NAME_MAX)
        return msgspec.structs.replace(spec, id=job_id, key=_scoped_key(begin, spec.key))

    def scoped_schedule(self, spec: ScheduleSpec, known: str | None) -> ScheduleSpec:
        """`known`: the name under which the schedule is stored already, if it is."""
        begin = self._prefix(spec.job.entrypoint, spec.job.zone)
        name = known or _scoped("schedule", begin, spec.name, checks.SCHEDULE_MAX)
        job = msgspec.structs.replace(spec.job, key=_scoped_key(begin, spec.job.key))
        return msgspec.structs.replace(spec, name=name, job=job)

    def is_called(self, schedule: Schedule, name: str) -> bool:
        """True if this caller knows the schedule by `name`. A schedule from before prefixes keeps its name."""
        return name in (schedule.name, self._shown_name(schedule))

    def shown_key(self, key: str, entrypoint: str, zone: str | None) -> str:
        return key.removeprefix(self._prefix(entrypoint, zone))

    def shown_job(self, job: JobRecord) -> JobRecord:
        """The job with its key as the caller knows it. Ids stay as stored: later calls use them."""
        spec = job.spec
        if spec.key is None or (key := self.shown_key(spec.key, spec.entrypoint, spec.zone)) == spec.key:
            return job
        return msgspec.structs.replace(job, spec=msgspec.structs.replace(spec, key=key))

    def shown_schedule(self, schedule: Schedule) -> Schedule:
        spec, job = schedule.spec, schedule.spec.job
        key = None if job.key is None else self.shown_key(job.key, job.entrypoint, job.zone)
        job = msgspec.structs.replace(job, key=key)
        return msgspec.structs.replace(
            schedule, spec=msgspec.structs.replace(spec, name=self._shown_name(schedule), job=job)
        )

    def shown_event(self, event: QueueEvent) -> QueueEvent:
        key = event.fields.get("key")
        if event.kind is not EventKind.ADDED or key is None:
            return event
        key = self.shown_key(key, event.fields["entrypoint"], event.fields.get("zone"))
        return msgspec.structs.replace(event, fields={**event.fields, "key": key})

    def shown_archived(self, job: ArchivedJob) -> ArchivedJob:
        if job.key is None:
            return job
        return msgspec.structs.replace(job, key=self.shown_key(job.key, job.entrypoint, job.zone))

    def _shown_name(self, schedule: Schedule) -> str:
        """The caller's name for it. Its job may have moved to another zone or entrypoint since it was named."""
        stored, job = schedule.name, schedule.spec.job
        mark = OF_ZONE if self._by_zone else OF_ENTRYPOINT
        owner, found, name = stored.partition(mark)
        if not found or ":" in owner:
            return stored
        if owner + mark == self._prefix(job.entrypoint, job.zone):
            return name
        if self._by_zone:
            return name if any(owner + mark == prefix(zone) for zone in self._reach.zones or ()) else stored
        return name if self._reach.covers_entrypoint(_unescaped(owner)) else stored


def _unescaped(owner: str) -> str:
    return owner.replace("%3A", ":").replace("%25", "%")


def _scoped_key(begin: str, key: str | None) -> str | None:
    return None if key is None else _scoped("key", begin, key, checks.KEY_MAX)


def _scoped(what: str, begin: str, name: str, longest: int) -> str:
    scoped = name if name.startswith(begin) else begin + name
    if len(scoped) > longest:
        raise InvalidInputError(
            f"{what} must be at most {longest - len(begin)} characters for a token that is limited to zones or "
            "entrypoints: the zone or the entrypoint stands before it"
        )
    return scoped
