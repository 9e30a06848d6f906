"""A kept log with schedules: every later casque reads it, and writes the same bytes for the same input.

What is kept was written by `python tests/compat/test_casque_schedules.py DIRECTORY`. Never over it: what a released
casque wrote, every later one has to read.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from casque.codec.digest import state_digest
from casque.codec.document import DocumentCodec
from casque.codec.log import SnapshotRef, Tip, View, decode_segment, digest, encode_segment, replay
from casque.codec.snapshot import decode_snapshot, encode_jobs, encode_snapshot
from casque.state import Added, Event, Limits, Scheduled, State, Ticked, Unscheduled
from casque.types import JobSpec, Missed, Schedule, ScheduleSpec

DIRECTORY = Path(__file__).parent / "casque-0.1-schedules"
QUEUE_ID = "05789eba-9c3a-4b4b-967a-84db93d181bf"
START_MS = 1_771_149_600_000
NIGHTLY = ScheduleSpec("nightly", "0 3 * * *", JobSpec("", "report", b"all"))
WHOLE = ScheduleSpec(
    "whole",
    "*/5 * * * mon-fri",
    JobSpec("", "send", b"\x00\xff", -1, None, 3, "key", {"a": "b"}, "north"),
    "Europe/Berlin",
    Missed.ALL,
    "shop.jobs",
)
TICK = JobSpec("nightly@2026-02-16T03:00Z", "report", b"all", headers={"casque-schedule": "nightly"})
COMMITS: list[list[Event]] = [
    [Scheduled(NIGHTLY, START_MS + 10), Scheduled(WHOLE, START_MS + 20)],
    [Added(TICK, 1, START_MS), Ticked("nightly", START_MS + 10, START_MS + 30, TICK.id)],
    [Ticked("nightly", START_MS + 30, START_MS + 50), Scheduled(WHOLE, START_MS + 20, True)],
    [Scheduled(ScheduleSpec("gone", "@daily", JobSpec("", "x", b"")), 1), Unscheduled("gone")],
]
EXPECTED = {
    "nightly": Schedule(NIGHTLY, START_MS + 50, False, START_MS + 10),
    "whole": Schedule(WHOLE, START_MS + 20, True),
}


def made() -> dict[str, bytes]:
    objects: dict[str, bytes] = {}
    state, tip = State(Limits()), Tip()
    for position, events in enumerate(COMMITS, 1):
        body = encode_segment(
            queue_id=QUEUE_ID,
            position=position,
            epoch=0,
            writer="w",
            batch=position,
            prev=tip.chain,
            at_ms=START_MS + position,
            events=events,
        )
        segment = decode_segment(body, queue_id=QUEUE_ID, position=position, prev=tip.chain)
        replay(state, segment)
        tip.advance(segment, digest(body))
        objects[f"segment-{position}"] = body
    objects["snapshot"] = encode_snapshot(QUEUE_ID, View.of(state, tip), list(encode_jobs(state.jobs.values())))
    codec = DocumentCodec("queue.json", QUEUE_ID)
    codec.touch(state.jobs)
    objects["document.json"] = codec.encode(state, version=state.position, writers=state.writers)
    return objects


def kept(name: str) -> bytes:
    return (DIRECTORY / name).read_bytes()


def replayed() -> State:
    state, chain = State(Limits()), ""
    for position in range(1, len(COMMITS) + 1):
        body = kept(f"segment-{position}")
        replay(state, decode_segment(body, queue_id=QUEUE_ID, position=position, prev=chain))
        chain = digest(body)
    return state


def test_the_kept_log_replays_to_the_schedules_that_were_written() -> None:
    state = replayed()
    assert state.schedules == EXPECTED
    assert list(state.jobs) == [TICK.id]


def test_the_kept_snapshot_and_the_kept_document_say_the_same() -> None:
    body = kept("snapshot")
    ref = SnapshotRef(len(COMMITS), "snapshots/1", digest(body), len(body))
    from_snapshot, _ = decode_snapshot(ref, body, queue_id=QUEUE_ID, limits=Limits())
    from_document = DocumentCodec("queue.json", "").decode(kept("document.json"), Limits())
    assert from_snapshot.schedules == from_document.schedules == EXPECTED
    assert state_digest(from_snapshot) == state_digest(from_document) == state_digest(replayed())


@pytest.mark.parametrize("name", sorted(path.name for path in DIRECTORY.iterdir()))
def test_the_same_input_gives_the_same_bytes(name: str) -> None:
    assert made()[name] == kept(name)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for name, body in made().items():
        (target / name).write_bytes(body)
