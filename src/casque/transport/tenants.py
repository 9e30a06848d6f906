"""Names of a tenant: what a limited token calls a job, a key or a schedule is called so in its zone or entrypoint.

A queue has one space of names for all. Whoever may choose names in it could take those that another tenant will choose,
learn which ones are taken, and be taken for the owner of what another job of the same name did. So the border puts
before every name that such a token chooses what the token is limited to: the job's zone, or, for a token without zones,
its entrypoint. Two tenants never meet: what stands before a name ends with a mark, the first part of which is escaped
inside, and the second tells zones from entrypoints.
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
"""A longer zone or entrypoint stands there as a hash: an id must stay short enough to be one."""
_HASH = "%h"


def prefix(owner: str, mark: str = OF_ZONE) -> str:
    """
    >>> prefix("acme"), prefix("a:b%"), prefix("mail.welcome", OF_ENTRYPOINT)
    ('acme::', 'a%3Ab%25::', 'mail.welcome:~')
    """
    escaped = owner.replace("%", "%25").replace(":", "%3A")
    if len(escaped) > OWNER_MAX:
        # An escaped name has no %h in it.
        escaped = _HASH + blake2b(owner.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return escaped + mark


class Naming:
    """How the names of one limited caller are stored, and shown to it."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._by_zone = reach.zones is not None

    def _prefix(self, entrypoint: str, zone: str | None) -> str:
        if self._by_zone:
            assert zone is not None
            return prefix(zone)
        return prefix(entrypoint, OF_ENTRYPOINT)

    def scoped_spec(self, spec: JobSpec) -> JobSpec:
        """A job as it is stored for a caller who asked for `spec`. One that has the prefix before its id already is the
        same job: whoever enqueues again what it was shown means that."""
        begin = self._prefix(spec.entrypoint, spec.zone)
        job_id = _scoped("id", begin, spec.id, checks.NAME_MAX)
        return msgspec.structs.replace(spec, id=job_id, key=_scoped_key(begin, spec.key))

    def scoped_schedule(self, spec: ScheduleSpec, known: str | None) -> ScheduleSpec:
        """`known`: under which name it is stored already, if it is."""
        begin = self._prefix(spec.job.entrypoint, spec.job.zone)
        name = known or _scoped("schedule", begin, spec.name, checks.SCHEDULE_MAX)
        job = msgspec.structs.replace(spec.job, key=_scoped_key(begin, spec.job.key))
        return msgspec.structs.replace(spec, name=name, job=job)

    def is_called(self, schedule: Schedule, name: str) -> bool:
        """Whether this caller calls a schedule of its own so. One from before prefixes is called as it is stored."""
        return name in (schedule.name, self._shown_name(schedule))

    def shown_key(self, key: str, entrypoint: str, zone: str | None) -> str:
        return key.removeprefix(self._prefix(entrypoint, zone))

    def shown_job(self, job: JobRecord) -> JobRecord:
        """With its key as its caller knows it. Ids stay as they are stored: they are what later calls name."""
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
        """Its job may have moved to another zone or entrypoint since it was named."""
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
