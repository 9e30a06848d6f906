"""Names of a tenant: what a token that is limited to zones calls a job, a key or a schedule is called so in its zone.

A queue has one space of names for all. Whoever may choose names in it could take those that another tenant will choose,
learn which ones are taken, and be taken for the owner of what another job of the same name did. So the border puts the
zone before every name that such a token chooses. Two tenants never meet: no zone's prefix is the beginning of another's
names, because the mark that ends it is escaped inside.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from casque import checks
from casque.errors import InvalidInputError
from casque.types import JobRecord, JobSpec, Schedule, ScheduleSpec

MARK = "::"
ZONE_MAX = 64
"""A longer zone stands there as a hash: an id must stay short enough to be one."""


def prefix(zone: str) -> str:
    """
    >>> prefix("acme"), prefix("a:b%")
    ('acme::', 'a%3Ab%25::')
    """
    escaped = zone.replace("%", "%25").replace(":", "%3A")
    if len(escaped) > ZONE_MAX:
        # An escaped zone has no %h in it.
        escaped = "%h" + blake2b(zone.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return escaped + MARK


def scoped_spec(spec: JobSpec) -> JobSpec:
    """A job as it is stored for a tenant who asked for `spec`. One that has its zone before its id already is the same
    job: whoever enqueues again what it was shown means that."""
    assert spec.zone is not None
    begin = prefix(spec.zone)
    job_id = _scoped("id", begin, spec.id, checks.NAME_MAX)
    key = None if spec.key is None else _scoped("key", begin, spec.key, checks.KEY_MAX)
    return msgspec.structs.replace(spec, id=job_id, key=key)


def scoped_schedule(spec: ScheduleSpec, name: str | None) -> ScheduleSpec:
    """`name`: under which it is stored already, if it is."""
    assert spec.job.zone is not None
    begin = prefix(spec.job.zone)
    if name is None:
        name = _scoped("schedule", begin, spec.name, checks.SCHEDULE_MAX)
    key = None if spec.job.key is None else _scoped("key", begin, spec.job.key, checks.KEY_MAX)
    return msgspec.structs.replace(spec, name=name, job=msgspec.structs.replace(spec.job, key=key))


def shown_key(key: str, zone: str) -> str:
    return key.removeprefix(prefix(zone))


def shown_job(job: JobRecord) -> JobRecord:
    """With its key as its tenant knows it. Ids stay as they are stored: they are what later calls name."""
    spec = job.spec
    if spec.key is None or spec.zone is None or not spec.key.startswith(prefix(spec.zone)):
        return job
    spec = msgspec.structs.replace(spec, key=shown_key(spec.key, spec.zone))
    return msgspec.structs.replace(job, spec=spec)


def shown_schedule(schedule: Schedule) -> Schedule:
    spec, job = schedule.spec, schedule.spec.job
    if job.zone is None:
        return schedule
    key = None if job.key is None else shown_key(job.key, job.zone)
    spec = msgspec.structs.replace(
        spec, name=spec.name.removeprefix(prefix(job.zone)), job=msgspec.structs.replace(job, key=key)
    )
    return msgspec.structs.replace(schedule, spec=spec)


def _scoped(what: str, begin: str, name: str, longest: int) -> str:
    scoped = name if name.startswith(begin) else begin + name
    if len(scoped) > longest:
        raise InvalidInputError(
            f"{what} must be at most {longest - len(begin)} characters for a token that is limited to zones: its zone "
            "stands before it"
        )
    return scoped
