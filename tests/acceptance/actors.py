"""Processes that use one queue as hard as they can, and say in a log of their own what they were told.

A line is written before each call (`try`) and after its answer (`ok`). Killed in between, the call may or may not have
happened, once; answered, it must have happened, once. `Ledger` reads the logs and holds the queue to it.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from casque import CASConflictError, JobNotFoundError, LeaseLostError, Queue, UnknownOutcomeError
from casque.clock import Random
from casque.journal import archive, document
from casque.journal.log import contention, pace
from casque.service import ArchivedJob
from casque.types import JobState, Totals

FORKSERVER = multiprocessing.get_context("forkserver")
"""A fork costs milliseconds where a fresh interpreter costs a good part of a second, and they die by the hundred.
From a server, because cloud storage does not survive being forked once it was used."""
FORKSERVER.set_forkserver_preload(["tests.acceptance.actors"])


LARGE = 200
"""Payloads of so many bytes get an object of their own."""


class Log:
    """Appends lines that survive the death of their writer."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def write(self, what: str, verb: str, **facts: Any) -> None:
        os.write(self._fd, json.dumps({"what": what, "verb": verb, **facts}).encode() + b"\n")


async def act(
    queue: Queue[bytes], log: Log, name: str, rng: Random, *, calls: int | None, enqueue_share: float = 0.3
) -> None:
    """Random calls, `calls` of them or until killed. What is claimed is finished, failed or kept."""
    held: list[Any] = []
    number = 0
    while calls is None or number < calls:
        number += 1
        chance = rng.random()
        if chance < enqueue_share:
            await _told(log, "enqueue", _enqueue(queue, log, f"{name}/{number}"))
        elif not held or (chance < 0.6 and len(held) < 4):
            await _told(log, "dequeue", _dequeue(queue, log, held, rng.randint(1, 3)))
        else:
            job = held.pop(rng.randrange(len(held)))
            verb = "ack" if rng.random() < 0.85 else "nack"
            log.write("try", verb, job=job.id, token=job.token)
            await _told(log, verb, _finish(log, job, verb))
    for job in held:
        log.write("try", "ack", job=job.id, token=job.token)
        await _told(log, "ack", _finish(log, job, "ack"))


async def _told(log: Log, verb: str, call: Any) -> None:
    try:
        await call
    except (CASConflictError, LeaseLostError, JobNotFoundError) as refused:
        log.write("refused", verb, error=type(refused).__name__)
    except UnknownOutcomeError:
        log.write("unknown", verb)


async def _enqueue(queue: Queue[bytes], log: Log, payload: str) -> None:
    log.write("try", "enqueue", payload=payload)
    padding = LARGE if payload.endswith(("3", "7")) else 0
    job = await queue.enqueue("work", payload.ljust(padding).encode())
    log.write("ok", "enqueue", payload=payload, job=job.id)


async def _dequeue(queue: Queue[bytes], log: Log, held: list[Any], batch_size: int) -> None:
    log.write("try", "dequeue")
    jobs = await queue.dequeue("work", batch_size=batch_size)
    for job in jobs:
        log.write("ok", "dequeue", job=job.id, token=job.token, payload=job.payload.decode().strip())
    held.extend(jobs)


async def _finish(log: Log, job: Any, verb: str) -> None:
    if verb == "ack":
        await job.ack()
    else:
        await job.nack(delay=0)
    log.write("ok", verb, job=job.id, token=job.token)


class Actor(NamedTuple):
    """What a process is told to do."""

    url: str
    log: Path
    name: str
    layout: str
    calls: int | None
    lease_s: float
    options: Mapping[str, str] | None = None

    def process(self) -> Any:
        """A process of its own, not yet started."""
        return FORKSERVER.Process(target=self._main, name=self.name, daemon=True)  # none outlives a failed test

    def _main(self) -> None:
        # As much upkeep as possible: snapshots, collection and changes of mode happen all the time.
        pace.SNAPSHOT_SEGMENTS = 24
        contention.ALONE_COMMITS = 4
        archive.ARCHIVE_JOBS = document.ARCHIVE_JOBS = 50
        contention.REST_MIN_MS, contention.REST_MAX_MS = 50, 500
        asyncio.run(self._run())

    async def _run(self) -> None:
        async with Queue.open(
            self.url,
            layout=self.layout,
            options=self.options,
            worker=self.name,
            stale_timeout=timedelta(seconds=self.lease_s),
            retention=timedelta(seconds=1),
            archive_interval=timedelta(seconds=0.1),
            payload_max=LARGE - 1,
        ) as queue:
            names = [f"{self.name}.{n}" for n in range(4)]
            await asyncio.gather(*(act(queue, Log(self.log), name, Random(name), calls=self.calls) for name in names))


@dataclass
class Ledger:
    """Everything that all actors tried and were told."""

    tried: Counter[str] = field(default_factory=Counter)
    told: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    enqueued: dict[str, str] = field(default_factory=dict)
    claims: list[tuple[str, int]] = field(default_factory=list)
    acked: list[tuple[str, int]] = field(default_factory=list)
    tried_acks: set[tuple[str, int]] = field(default_factory=set)
    payloads_tried: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, logs: Path) -> Ledger:
        ledger = cls()
        for path in sorted(logs.glob("*.log")):
            for line in path.read_bytes().splitlines():
                ledger.note(json.loads(line))
        return ledger

    def note(self, line: dict[str, Any]) -> None:
        verb = line["verb"]
        match line["what"], verb:
            case "try", "enqueue":
                self.payloads_tried.add(line["payload"])
            case "try", "ack":
                self.tried_acks.add((line["job"], line["token"]))
            case "ok", "enqueue":
                self.enqueued[line["payload"]] = line["job"]
            case "ok", "dequeue":
                self.claims.append((line["job"], line["token"]))
            case "ok", "ack":
                self.acked.append((line["job"], line["token"]))
        counts = {"try": self.tried, "ok": self.told}.get(line["what"], self.refused)
        counts[verb] += 1

    async def hold_to_account(self, url: str, options: Mapping[str, str] | None = None) -> None:
        """Recover the queue from the store alone and compare it with what was acknowledged."""
        async with Queue.open(url, options=options) as queue:
            jobs = {job.id: job for job in await queue.jobs()}
            totals = (await queue.stats()).totals
        finished = [job async for job in Queue.open(url, options=options).archive()]
        self._hold_archive_to_account(finished, totals)
        payloads = Counter(job.payload.decode().strip() for job in jobs.values())
        acked = {job for job, _ in self.acked}
        maybe_acked = {job for job, _ in self.tried_acks} - acked

        assert len(set(self.claims)) == len(self.claims), "one token was handed out twice"
        tokens = Counter(token for _, token in self.claims)
        assert max(tokens.values(), default=1) == 1, "one token went to two jobs"
        assert len(acked) == len(self.acked), "one job was finished twice"
        assert not acked & jobs.keys(), "a finished job is still there"
        lost = {p: j for p, j in self.enqueued.items() if j not in jobs and j not in acked and j not in maybe_acked}
        assert not lost, f"acknowledged jobs are gone: {lost}"
        assert max(payloads.values(), default=1) == 1, "a job was stored twice"
        assert payloads.keys() <= self.payloads_tried, "a job that nobody enqueued"
        # Every job there ever was is either in the queue, or finished by somebody who was told, or by somebody who
        # died while asking.
        assert len(acked) <= totals.done <= len(acked) + len(maybe_acked)
        assert len(self.enqueued) <= totals.enqueued <= len(self.payloads_tried)
        assert totals.enqueued == len(jobs) + totals.done

    def _hold_archive_to_account(self, finished: list[ArchivedJob], totals: Totals) -> None:
        """Every finish is there once: those that somebody was told of, and those of somebody who died while asking."""
        done = Counter(job.id for job in finished if job.state is JobState.DONE)
        assert max(done.values(), default=1) == 1, "a finished job is in the archive twice"
        assert {job for job, _ in self.acked} <= done.keys(), "a finished job is not in the archive"
        assert done.total() == totals.done
        assert len({(job.id, job.position) for job in finished}) == len(finished)
        assert sum(job.state is JobState.CANCELLED for job in finished) == totals.cancelled == 0
        leases = {(job.id, job.token) for job in finished if job.state is JobState.DONE}
        assert set(self.acked) <= leases <= self.tried_acks
        payloads = {job.payload.decode().strip() for job in finished if job.blob_bytes is None}
        assert payloads <= self.payloads_tried
