"""The log that is kept in casque-0.1-log/, and how it was made. In casque-0.1-log-tries/ is what of it looks different
since jobs keep the attempts that came to nothing: the snapshots, and the head that names them. In
casque-0.1-log-deaths/ is what looks different since a death says how the last attempt ended: the segments from the
first death on, each of which names the one before it, and the later snapshot.

`python tests/compat/casque_log_side.py DIRECTORY` writes it anew with the casque at hand. Never over the kept one: that
is what a released casque wrote, and what every later one has to read. What went in is all here, spelled out event by
event, so that it does not change when the rules that make events do.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from casque.codec.head import Owner
from casque.codec.log import (
    LogHead,
    Mode,
    SnapshotRef,
    Tip,
    View,
    decode_segment,
    digest,
    encode_head,
    encode_segment,
    replay,
    segment_key,
    snapshot_key,
)
from casque.codec.snapshot import Part, encode_jobs, encode_part, encode_snapshot, part_key
from casque.state import (
    Acked,
    Added,
    Beaten,
    Cancelled,
    Claimed,
    Died,
    Event,
    Expired,
    Limits,
    Nacked,
    Purged,
    Remembered,
    Returned,
    Revived,
    State,
)
from casque.types import Ending, JobSpec

START_MS = 1_790_000_000_000
QUEUE_ID = "6f1ed002-ab55-4591-91e8-fdf0a8f19d1c"
PRODUCER, WORKER, OPERATOR = "4d6c1f0a9b8e7d55", "a3f0c2d4e6b81977", "09f1e2d3c4b5a687"
SNAPSHOTS = {6: "c0ffee00c0ffee00", 14: "0123456789abcdef"}
"""Position and nonce."""
IN_PARTS = 14

Commit = tuple[str, int, int, Sequence[Event]]
"""Writer, its batch, epoch, events."""

HISTORY: list[Commit] = [
    (PRODUCER, 1, 0, [Added(JobSpec("ready", "send", b"waits", 3, None, 25), 1, START_MS + 1000)]),
    (
        PRODUCER,
        2,
        0,
        [
            Added(
                JobSpec(
                    "größe",
                    "größe",
                    bytes(range(256)),
                    -1,
                    START_MS + 3_600_000,
                    3,
                    "order-17",
                    {"trace": "00-ab", "Sprache": "Deutsch"},
                    "acme",
                ),
                2,
                START_MS + 3_600_000,
                True,
            ),
            Remembered("enqueue-1", "enqueue", (("größe", 0),)),
        ],
    ),
    (PRODUCER, 3, 0, [Added(JobSpec(f"job-{n}", "many", b"%d" % n), n, START_MS + 3000) for n in range(3, 11)]),
    (WORKER, 1, 0, [Claimed(f"job-{n}", n - 2, 90_000, "w-1") for n in range(3, 9)]),
    (WORKER, 2, 0, [Remembered("dequeue-1", "dequeue", (("job-3", 1), ("job-4", 2)))]),
    (
        WORKER,
        3,
        0,
        [Beaten("job-3", 1), Acked("job-4", 2), Nacked("job-5", 3, START_MS + 36_000, True, "no such user")],
    ),
    (OPERATOR, 1, 1, []),
    (WORKER, 4, 1, [Returned("job-6", 4), Expired("job-7", 5, START_MS + 8001), Died("job-8", 6, "the last attempt")]),
    (OPERATOR, 2, 1, [Cancelled("job-9"), Remembered("cancel-1", "cancel")]),
    (OPERATOR, 3, 1, [Revived("job-8", START_MS + 10_000)]),
    (WORKER, 5, 1, [Claimed("job-8", 7, 300_000), Died("job-8", 7)]),
    (OPERATOR, 4, 1, [Purged("job-8"), Remembered("purge-1", "purge", (), 1)]),
    (WORKER, 6, 2, []),
    (WORKER, 7, 2, [Claimed("job-6", 8, 60_000, "w-2"), Nacked("job-6", 8, START_MS + 14_001)]),
    (WORKER, 8, 2, [Claimed("job-7", 9, 60_000, "w-2"), Beaten("job-7", 9)]),
    (PRODUCER, 4, 2, [Added(JobSpec("last", "send", b""), 11, START_MS + 16_000)]),
]


def objects(*, tries: bool = True, deaths: bool = True) -> dict[str, bytes]:
    """Every object of the queue by its key; without `tries` as they were before jobs kept them, without `deaths` as
    they were before these said how the last attempt ended."""
    made: dict[str, bytes] = {}
    state, tip, refs = State(Limits()), Tip(), []
    for position, (writer, batch, epoch, events) in enumerate(HISTORY, 1):
        body = encode_segment(
            queue_id=QUEUE_ID,
            position=position,
            epoch=epoch,
            writer=writer,
            batch=batch,
            prev=tip.chain,
            at_ms=START_MS + position * 1000,
            events=[said(event) if deaths else as_it_was(event) for event in events],
        )
        made[segment_key(position)] = body
        segment = decode_segment(body, queue_id=QUEUE_ID, position=position, prev=tip.chain)
        replay(state, segment)
        tip.advance(segment, digest(body))
        if position in SNAPSHOTS:
            view = View.of(state, tip)
            view = view if tries else replace(view, records=[replace(job, tries=()) for job in view.records])
            objects_of_it = snapshot(view, in_parts=position == IN_PARTS)
            made |= objects_of_it
            key, size = snapshot_key(position, SNAPSHOTS[position]), sum(map(len, objects_of_it.values()))
            refs.append(SnapshotRef(position, key, digest(made[key]), size, START_MS + position * 1000 + 7))
    made["queue.json"] = encode_head(head(refs))
    return made


def said(event: Event) -> Event:
    """As it is written today."""
    return replace(event, how=Ending.FAILED) if isinstance(event, Died) else event


def as_it_was(event: Event) -> Any:
    """As it was written before deaths said how: without the field, where today's encoder writes null."""
    return ["died", event.job_id, event.token, event.error] if isinstance(event, Died) else event


def snapshot(view: View, *, in_parts: bool) -> dict[str, bytes]:
    """As one object, or with its jobs in two objects beside it."""
    key = snapshot_key(view.position, SNAPSHOTS[view.position])
    if not in_parts:
        return {key: encode_snapshot(QUEUE_ID, view, list(encode_jobs(view.records)))}
    made: dict[str, bytes] = {}
    parts: list[Part] = []
    for number, jobs in enumerate((view.records[:4], view.records[4:])):
        body = encode_part(QUEUE_ID, view.position, list(encode_jobs(jobs)))
        parts.append(Part(part_key(key, number), digest(body), len(body)))
        made[parts[-1].key] = body
    return made | {key: encode_snapshot(QUEUE_ID, view, [], parts)}


def head(refs: list[SnapshotRef]) -> LogHead:
    return LogHead(
        format=1,
        queue_id=QUEUE_ID,
        mode=Mode.EXCLUSIVE,
        version=5,
        writer=WORKER,
        epoch=2,
        owner=Owner(WORKER, "5eed5eed5eed5eed"),
        snapshot=refs[-1],
        kept=tuple(refs[:-1]),
    )


def heads() -> dict[str, bytes]:
    """The other modes: a queue that was just made, and one that a broker leads."""
    new = LogHead(format=1, queue_id=QUEUE_ID, version=1, writer=PRODUCER)
    ref = SnapshotRef(14, snapshot_key(14, SNAPSHOTS[14]), "ab" * 32, 4096, START_MS)
    led = LogHead(
        format=1,
        queue_id=QUEUE_ID,
        mode=Mode.LED,
        version=77,
        writer=OPERATOR,
        epoch=9,
        owner=Owner(OPERATOR, "5eed5eed5eed5eed", "10.0.0.7:7700"),
        snapshot=ref,
        floor=6,
        archived=12,
    )
    return {"open.json": encode_head(new), "led.json": encode_head(led)}


def plain(state: State) -> dict[str, Any]:
    """A state as JSON tells it."""
    parts: dict[str, Any] = msgspec.to_builtins(
        {
            "position": state.position,
            "jobs": list(state.listed()),
            "counters": state.counters,
            "writers": state.writers,
            "requests": state.requests,
        }
    )
    return parts


def final_state() -> State:
    state, chain = State(Limits()), ""
    made = objects()
    for position in range(1, len(HISTORY) + 1):
        body = made[segment_key(position)]
        replay(state, decode_segment(body, queue_id=QUEUE_ID, position=position, prev=chain))
        chain = digest(body)
    return state


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    for key, body in (objects() | {f"heads/{name}": body for name, body in heads().items()}).items():
        path = directory / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    (directory / "expected.state").write_text(json.dumps(plain(final_state()), indent=1) + "\n")
