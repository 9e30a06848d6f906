"""The jobs of a queue as of a position: those of some parts of a snapshot, with the later events applied.

A subset of the jobs is a state of its own. Events of other jobs do not affect it, so every split is replayed by itself,
and none has to load all jobs.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from contextlib import aclosing

import msgspec

from casque.codec.document import DocumentCodec
from casque.codec.head import KEY
from casque.codec.log import Segment, replay
from casque.codec.snapshot import Restoring
from casque.errors import HistoryGoneError
from casque.journal.log.past import oldest_of
from casque.scan.bucket import Bucket
from casque.scan.splits import DocumentSplit, JobsSplit
from casque.state import Added, Counters, Event, Limits, State
from casque.state.events import subject
from casque.storage.port import Stored
from casque.types import JobRecord

NOTHING_BESIDE = Limits(requests_max=0, requests_min=0, writers_max=1)
"""Limits for a state that holds only jobs."""


async def inline_jobs(bucket: Bucket, split: JobsSplit | DocumentSplit) -> list[JobRecord]:
    """The jobs in one object: a document, or a snapshot that is too small for parts."""
    if isinstance(split, DocumentSplit):
        return list(DocumentCodec(KEY, "").decode(zlib.decompress(split.packed), Limits()).listed())
    if split.base is None or not split.inline:
        return []
    return Restoring(split.base, await snapshot_object(bucket, split, split.base.key), queue_id=split.queue_id).records


async def tail_of(bucket: Bucket, split: JobsSplit) -> list[Segment]:
    """The commits after the snapshot.

    Raises:
        HistoryGoneError: they were collected since the plan was made.
    """
    start = split.base.position if split.base is not None else 0
    if split.position == start:
        return []
    commits = bucket.segments(split.queue_id, start + 1, split.position, chain=split.chain)
    async with aclosing(commits):
        return [placed.segment async for some in commits for placed in some]


def replayed(records: Sequence[JobRecord], tail: Sequence[Segment], split: JobsSplit) -> list[JobRecord]:
    """These jobs, and those added to this split, with all later events applied, in enqueue order."""
    state = State(NOTHING_BESIDE)
    state.restore(records, Counters(enqueued=len(records)), split.position - len(tail))
    for commit in tail:
        replay(state, msgspec.structs.replace(commit, events=_own(commit.events, state, split)))
    return list(state.listed())


def touched_by(tail: Sequence[Segment]) -> set[str]:
    """The jobs that these commits changed."""
    return {job_id for commit in tail for event in commit.events if (job_id := subject(event)) is not None}


def owner(job_id: str, of: int) -> int:
    """The index of the split that a job belongs to if it was added after the snapshot."""
    return zlib.crc32(job_id.encode()) % of


def _own(events: Sequence[Event], state: State, split: JobsSplit) -> list[Event]:
    """The events about the jobs of this split.

    An id may be reused once its job has ended, and then belong to another split: so ownership is checked as the events
    come, and not in advance.
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


async def snapshot_object(bucket: Bucket, split: JobsSplit, key: str) -> bytes:
    """An object of the snapshot.

    Raises:
        HistoryGoneError: it was collected since the plan was made.
    """
    read = await bucket.get(key)
    if isinstance(read, Stored):
        return read.body
    head = await bucket.log_head(split.queue_id)
    assert split.base is not None
    raise HistoryGoneError(f"the snapshot of position {split.base.position} that was planned with", oldest_of(head))
