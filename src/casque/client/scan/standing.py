"""The jobs of a queue as they stand at a position: those of some parts of a snapshot, and what befell them since.

Some of the jobs are a state of their own. What happens to other jobs does not concern it, so every split is replayed by
itself, and none has to know all jobs.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from contextlib import aclosing

import msgspec

from casque.client.scan.bucket import Bucket
from casque.client.scan.splits import DocumentSplit, JobsSplit
from casque.codec.document import DocumentCodec
from casque.codec.head import KEY
from casque.codec.log import replay
from casque.codec.snapshot import Part, Restoring, decode_part
from casque.errors import HistoryGoneError
from casque.journal.log.past import oldest_of
from casque.journal.log.reader import PARTS_AT_ONCE
from casque.state import Added, Counters, Event, Limits, State
from casque.state.events import subject
from casque.storage.port import Stored
from casque.types import JobRecord

NOTHING_BESIDE = Limits(requests_max=0, requests_min=0, writers_max=1)
"""Only the jobs are asked for."""


async def jobs_at(bucket: Bucket, split: JobsSplit | DocumentSplit) -> list[JobRecord]:
    """In the order in which they were enqueued.

    Raises:
        HistoryGoneError: the snapshot, or what followed it, was collected since the plan was made.
        CorruptQueueError: something is not what it must be.
    """
    if isinstance(split, DocumentSplit):
        return list(DocumentCodec(KEY, "").decode(zlib.decompress(split.packed), Limits()).listed())
    records = await _recorded(bucket, split)
    state = State(NOTHING_BESIDE)
    start = split.base.position if split.base is not None else 0
    state.restore(records, Counters(enqueued=len(records)), start)
    if split.position > start:
        commits = bucket.segments(split.queue_id, start + 1, split.position, chain=split.chain)
        async with aclosing(commits):
            async for some in commits:
                for placed in some:
                    commit = placed.segment
                    replay(state, msgspec.structs.replace(commit, events=_own(commit.events, state, split)))
    return list(state.listed())


def owner(job_id: str, of: int) -> int:
    """Which of the splits a job belongs to that was added after the snapshot."""
    return zlib.crc32(job_id.encode()) % of


def _own(events: Sequence[Event], state: State, split: JobsSplit) -> list[Event]:
    """Those that are about the jobs of this split.

    An id may be used again once its job is over, and then belongs to another split: so whether a job is one's own is
    asked as the events come, and not before.
    """
    own: list[Event] = []
    known: dict[str, bool] = {}
    for event in events:
        job_id = subject(event)
        if job_id is None:
            continue
        if isinstance(event, Added):
            known[job_id] = mine = owner(job_id, split.of) == split.number
        else:
            mine = known.get(job_id, job_id in state.jobs)
        if mine:
            own.append(event)
    return own


async def _recorded(bucket: Bucket, split: JobsSplit) -> list[JobRecord]:
    ref = split.base
    if ref is None:
        return []
    if split.inline:
        return Restoring(ref, await _there(bucket, split, ref.key), queue_id=split.queue_id).records
    records: list[JobRecord] = []
    for start in range(0, len(split.parts), PARTS_AT_ONCE):
        some = split.parts[start : start + PARTS_AT_ONCE]
        records += [
            job for jobs in await asyncio.gather(*(_part(bucket, split, part) for part in some)) for job in jobs
        ]
    return records


async def _part(bucket: Bucket, split: JobsSplit, part: Part) -> list[JobRecord]:
    assert split.base is not None
    return decode_part(split.base, part, await _there(bucket, split, part.key), queue_id=split.queue_id)


async def _there(bucket: Bucket, split: JobsSplit, key: str) -> bytes:
    read = await bucket.get(key)
    if isinstance(read, Stored):
        return read.body
    head = await bucket.log_head(split.queue_id)
    assert split.base is not None
    raise HistoryGoneError(f"the snapshot of position {split.base.position} that was planned with", oldest_of(head))
