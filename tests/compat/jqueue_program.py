"""A program for jqueue that says what it sees, as JSON. Run with jqueue itself and with the drop-in.

python jqueue_program.py jqueue | casque.compat.jqueue
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import tempfile
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

PACKAGE = sys.argv[1] if len(sys.argv) > 1 else "casque.compat.jqueue"
MODULES = {
    "adapters.storage.filesystem": ["LocalFileSystemStorage"],
    "adapters.storage.gcs": ["GCSStorage"],
    "adapters.storage.memory": ["InMemoryStorage"],
    "adapters.storage.s3": ["S3Storage"],
    "core.broker": ["BrokerQueue"],
    "core.codec": ["encode", "decode"],
    "core.direct": ["DirectQueue"],
    "core.group_commit": ["GroupCommitLoop"],
    "core.heartbeat": ["HeartbeatManager"],
    "domain.errors": ["JQueueError", "CASConflictError", "JobNotFoundError", "StorageError"],
    "domain.models": ["Job", "JobStatus", "QueueState"],
    "ports.storage": ["ObjectStoragePort"],
}


def module(name: str) -> Any:
    return import_module(f"{PACKAGE}.{name}" if name else PACKAGE)


def parameters(thing: Any) -> list[str]:
    """Names, kinds and defaults; not annotations, which may be said in another way."""
    found = []
    for one in inspect.signature(thing).parameters.values():
        default = "" if one.default is one.empty else f" = {one.default!r}"
        found.append(f"{one.kind.name} {one.name}{default}")
    return found


def surface() -> dict[str, Any]:
    """Every public name, and what it takes."""
    seen: dict[str, Any] = {"names": sorted(module("").__all__)}
    for name, things in MODULES.items():
        for thing in (getattr(module(name), one) for one in things):
            if not isinstance(thing, type):
                seen[thing.__name__] = parameters(thing)
                continue
            models = thing.__name__ in ("Job", "QueueState")
            if not issubclass(thing, Exception) and thing.__name__ not in ("JobStatus", "ObjectStoragePort"):
                seen[thing.__name__] = parameters(thing)
            known = ("new", "with_status", "with_heartbeat", "queued_jobs", "in_progress_jobs", "find", "requeue_stale")
            more = ("with_job_added", "with_job_replaced", "with_job_removed")
            verbs = ("enqueue", "dequeue", "ack", "nack", "heartbeat", "read_state", "start", "stop", "read", "write")
            for verb in (*known, *more) if models else (*verbs, "requeue_stale"):
                if thing.__name__ == "BrokerQueue" and verb in ("start", "stop"):
                    continue  # of the loop inside
                if (method := getattr(thing, verb, None)) is not None:
                    seen[f"{thing.__name__}.{verb}"] = parameters(method)
    return seen


async def refused(call: Any) -> list[Any]:
    """The error of a call: its class, and whether its message names the job that it carries."""
    try:
        await call
    except module("").JQueueError as error:
        return [type(error).__name__, error.job_id in str(error) if hasattr(error, "job_id") else None]
    return ["nothing was raised"]


def shown(jobs: Any) -> list[Any]:
    return [[job.entrypoint, job.payload.decode(), job.status.value, job.priority] for job in jobs]


async def use(queue: Any) -> list[Any]:
    """One of everything, with what is seen at each step."""
    seen: list[Any] = []
    first = await queue.enqueue("mail", b"1")
    await queue.enqueue("mail", b"2", 5)
    await queue.enqueue("sms", payload=b"3", priority=-1)
    seen.append(shown([first]))
    state = await queue.read_state()
    seen.append([state.version, shown(state.jobs), shown(state.queued_jobs()), shown(state.queued_jobs("mail"))])
    seen.append([state.find(first.id) == first, state.find("nothing"), first.heartbeat_at])
    seen.append(shown(await queue.dequeue("fax")))
    seen.append(shown(await queue.dequeue("mail", batch_size=0)))
    [sms] = await queue.dequeue()
    seen.append([shown([sms]), sms.heartbeat_at is not None, sms.created_at.tzname()])
    await queue.heartbeat(sms.id)
    await queue.nack(sms.id)
    [again] = await queue.dequeue("sms")
    seen.append(again.id == sms.id)
    rest = await queue.dequeue(None, batch_size=10)
    seen.append(shown(rest))
    state = await queue.read_state()
    seen.append([len(state.in_progress_jobs()), len(state.queued_jobs())])
    for job in (again, *rest):
        await queue.ack(job.id)
    for verb in (queue.ack, queue.nack, queue.heartbeat):
        seen.append(await refused(verb(first.id)))
        seen.append(await refused(verb("nothing")))
    seen.append(shown((await queue.read_state()).jobs))
    return seen


async def in_place(storage: Any) -> list[Any]:
    """What the two methods of a storage answer."""
    seen: list[Any] = [await storage.read() == (b"", None)]
    etag = await storage.write(b'{"version":0,"jobs":[]}')
    seen.append([(await storage.read())[0].decode(), (await storage.read())[1] == etag])
    seen.append(await refused(storage.write(b"again")))
    seen.append(await refused(storage.write(b"stale", if_match="nothing")))
    newer = await storage.write(b'{"version":9,"jobs":[]}', etag)
    seen.append([newer != etag, await refused(storage.write(b"late", if_match=etag))])
    return seen


async def behaviour() -> dict[str, Any]:
    jq, models, errors = module(""), module("domain.models"), module("domain.errors")
    seen: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        file = jq.LocalFileSystemStorage(Path(place) / "a" / "queue.json")
        seen["path"] = file.path.name
        seen["direct on a file"] = await use(jq.DirectQueue(file))
        seen["a file"] = await in_place(jq.LocalFileSystemStorage(f"{place}/b.json"))
    seen["direct"] = await use(jq.DirectQueue(jq.InMemoryStorage(), 3))
    async with jq.BrokerQueue(jq.InMemoryStorage(), timedelta(minutes=1)) as queue:
        seen["broker"] = await use(queue)
    seen["memory"] = await in_place(jq.InMemoryStorage())
    filled = jq.InMemoryStorage(initial_content=b'{"version":0,"jobs":[]}')
    seen["etags"] = [(await filled.read())[1], await filled.write(b"{}", "0"), (await filled.read())[1]]

    stale = jq.DirectQueue(jq.InMemoryStorage())
    for n in range(3):
        await stale.enqueue("task", b"%d" % n)
    await stale.dequeue(batch_size=2)
    seen["stale"] = [await stale.requeue_stale(timedelta(hours=1)), await stale.requeue_stale(timedelta(0))]
    seen["stale"].append([job.heartbeat_at for job in (await stale.read_state()).jobs])

    job = models.Job.new("task", b"\xfb\xff", priority=2)
    dumped = job.model_dump(mode="json")
    seen["job"] = [list(dumped), dumped["payload"], dumped["status"], models.Job.model_validate(dumped) == job]
    seen["schema"] = [_plain(models.Job.model_json_schema()), _plain(models.QueueState.model_json_schema())]
    storage_error = errors.StorageError("write failed", OSError("disk full"))
    seen["errors"] = [str(storage_error), str(errors.CASConflictError("lost")), errors.JobNotFoundError("j").job_id]
    manager = jq.HeartbeatManager(queue, "id")
    seen["heartbeat"] = [manager.job_id, manager.interval.total_seconds(), manager.queue is queue]
    seen["broker's"] = [queue.stale_timeout.total_seconds(), jq.DirectQueue(filled).max_retries]
    return seen


def _plain(schema: Any) -> Any:
    """Without descriptions, which are ours and theirs."""
    if isinstance(schema, dict):
        return {name: _plain(value) for name, value in sorted(schema.items()) if name != "description"}
    return schema


if __name__ == "__main__":
    print(json.dumps({"surface": surface(), "behaviour": asyncio.run(behaviour())}))
