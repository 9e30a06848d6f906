"""Jobs to test with, and what tests compare."""

from __future__ import annotations

from typing import Any

import msgspec

from casque.client.opening import as_store
from casque.client.queue import DEFAULTS
from casque.clock import new_id, system_random
from casque.codec.staged import StagedJobs, checked
from casque.engine.staging import Staging
from casque.environment import Environment
from casque.errors import CasqueError
from casque.service import QueueEvent, QueueService
from casque.types import JobRecord, JobSpec, StagedPart

LONG_S = 60.0
"""Longer than any test: a wait that only a job can end."""
LARGE = 2**63 - 1
YEAR_9999_MS = 253_402_300_799_000
UNICODE = "grüße/任务 🚀 \u202e e\u0301"


async def about_jobs(service: QueueService, position: int) -> list[QueueEvent]:
    """What happened to jobs after a position."""
    events = service.events(from_position=position, follow=False)
    return [event async for event in events if event.job_id is not None]


async def staged(place: str, jobs: StagedJobs) -> StagedPart:
    """These jobs as a part, as a `Stager` writes them."""
    store = as_store(place)
    staging = Staging(store, Environment(DEFAULTS))
    if jobs.max_attempts is None:
        jobs = msgspec.structs.replace(jobs, max_attempts=DEFAULTS.max_attempts)
    try:
        return await staging.put(checked(jobs), "suite")
    finally:
        await store.close()


def a_job(payload: bytes, *, entrypoint: str = "task", **fields: Any) -> JobSpec:
    return JobSpec(fields.pop("id", None) or new_id(system_random()), entrypoint, payload, **fields)


async def a_claim(service: QueueService, payload: bytes = b"", **fields: Any) -> JobRecord:
    """Add a job and claim it; nothing else may be waiting."""
    await service.enqueue([a_job(payload, **fields)])
    [job] = await service.dequeue(entrypoints=None, limit=1)
    return job


async def a_dead_job(service: QueueService, *, error: str | None = None, **fields: Any) -> JobRecord:
    job = await a_claim(service, max_attempts=1, **fields)
    dead = await service.nack(job.id, token=job.token, error=error)
    assert dead is not None
    return dead


def assert_same(found: object, wanted: CasqueError) -> None:
    """The same error, not just a like one: kind, fields and words."""
    assert type(found) is type(wanted)
    assert isinstance(found, CasqueError)
    assert str(found) == str(wanted)
    fields = [{k: v for k, v in vars(error).items() if not k.startswith("_")} for error in (found, wanted)]
    assert fields[0] == fields[1]
