"""The script's own books are true: the queue tells the same story."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from casque import JobState, Queue
from casque.client.opening import as_store
from casque.clock import Random
from casque.service import EventKind, QueueEvent
from casque.testing.clock import ManualClock
from simulation.known_history import HOSTILE, LEASE_RAN_OUT, KnownHistory, copy_objects, write_known_history

VERBS = {
    EventKind.ADDED: "enqueue",
    EventKind.CLAIMED: "dequeue",
    EventKind.BEATEN: "heartbeat",
    EventKind.ACKED: "ack",
    EventKind.NACKED: "nack",
    EventKind.RETURNED: "give_back",
    EventKind.EXPIRED: "expire",
    EventKind.CANCELLED: "cancel",
    EventKind.REVIVED: "retry",
    EventKind.PURGED: "purge",
}


URL = "memory://known-history"


@pytest.fixture(scope="module")
def known() -> KnownHistory:
    return asyncio.run(write_known_history(URL))


def opened(known: KnownHistory) -> Queue[bytes]:
    return Queue.open(URL, clock=ManualClock(known.end_ms), rng=Random(3))


async def test_the_change_feed_tells_what_the_script_did(known: KnownHistory) -> None:
    feed: dict[int, list[QueueEvent]] = {}
    async for event in opened(known).events(from_position=0, follow=False):
        feed.setdefault(event.position, []).append(event)
    assert len(feed) == len(known.commits)
    for events, commit in zip(feed.values(), known.commits, strict=True):
        assert events[0].at.timestamp() * 1000 == commit.at_ms
        assert sorted(event.job_id or "" for event in events) == sorted(commit.jobs)
        for event in events:
            if event.kind is not EventKind.DIED:
                assert VERBS[event.kind] == commit.verb
    claims = [event for events in feed.values() for event in events if event.kind is EventKind.CLAIMED]
    told = {(event.job_id, event.fields["token"], event.fields["worker"]) for event in claims}
    assert {(one.job_id, one.token, one.worker) for one in known.tries} < told


async def test_the_archive_holds_the_ends_and_the_queue_the_rest(known: KnownHistory) -> None:
    archived = [job async for job in opened(known).archive()]
    assert len(archived) == len(known.ends)
    ends = {(end.job_id, end.finished_ms): end for end in known.ends}
    for job in archived:
        end = ends[job.id, int(job.finished_at.timestamp() * 1000)]
        spec = known.specs[job.id]
        assert (job.state.value, job.attempts, job.error, job.worker) == (
            end.state,
            end.attempts,
            end.error,
            end.worker,
        )
        assert (job.due_at, job.claimed_at) == (moment(end.due_ms), end.claimed_ms and moment(end.claimed_ms))
        assert (job.entrypoint, job.zone, job.priority) == (spec.entrypoint, spec.zone, spec.priority)
        assert job.created_at == moment(known.created_ms[job.id])
    async with opened(known) as queue:
        jobs = await queue.jobs()
    # Nothing is written when a delayed job becomes due: whoever looks at it knows by the time.
    due = {job.id for job in jobs if job.due_at <= moment(known.end_ms)}
    left = {job.id: JobState.READY if job.state is JobState.DELAYED and job.id in due else job.state for job in jobs}
    assert left == known.states


def test_it_is_rich(known: KnownHistory) -> None:
    assert 300 < len(known.specs) < 600
    outcomes = Counter(one.outcome for one in known.tries)
    assert all(outcomes[which] > 3 for which in ("done", "failed", "expired", "dead")), outcomes
    assert outcomes["cancelled"] > 0
    assert outcomes[None] > 0
    verbs = Counter(commit.verb for commit in known.commits)
    assert verbs.keys() == set(VERBS.values()), verbs
    zones = Counter(spec.zone for spec in known.specs.values())
    assert zones.most_common(1)[0][1] > 20 * min(zones.values())
    assert len({end.error for end in known.ends if end.state == "dead"}) > 6
    assert any(end.error == LEASE_RAN_OUT for end in known.ends if end.state == "dead")
    days = {moment(end.finished_ms).date() for end in known.ends}
    assert len(days) == 2
    assert set(known.states.values()) == {JobState.READY, JobState.DELAYED, JobState.RUNNING, JobState.DEAD}
    assert any(spec.entrypoint == HOSTILE for spec in known.specs.values())
    finishes = Counter(end.job_id for end in known.ends)
    assert finishes.most_common(1)[0][1] == 2, "a dead job was given fresh attempts and ended again"
    assert any(len(spec.payload) > 1_000 for spec in known.specs.values())


async def test_it_is_the_same_on_any_store_and_wants_an_empty_one(tmp_path: Path, known: KnownHistory) -> None:
    url = f"file://{tmp_path}"
    assert await write_known_history(url) == known
    there, here = as_store(url), as_store(URL)
    assert [key async for key in there.list()] == [key async for key in here.list()]
    with pytest.raises(RuntimeError, match="not empty"):
        await copy_objects(here, there)


def moment(ms: int | None) -> datetime:
    return datetime.fromtimestamp((ms or 0) / 1000, UTC)
