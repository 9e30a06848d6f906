"""The log with admissions that is kept in casque-0.1-admitted/, and how it was made.

`python tests/compat/casque_admission_side.py DIRECTORY` writes it anew with the casque at hand. Never over the kept
one: that is what a released casque wrote, and what every later one has to read.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from casque.codec.admission import expanded, named_parts
from casque.codec.document import DocumentCodec
from casque.codec.log import (
    LogHead,
    Mode,
    Segment,
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
from casque.codec.snapshot import encode_jobs, encode_snapshot
from casque.codec.staged import StagedJobs, decode_staged, encode_staged, staged_part
from casque.state import Acked, Admitted, Claimed, Event, Limits, State
from casque.types import StagedPart

START_MS = 1_790_000_000_000
QUEUE_ID = "0b0e5c3e-9f0c-4b57-8f68-27a0a2c9f9f1"
DRIVER, WORKER = "4d6c1f0a9b8e7d55", "a3f0c2d4e6b81977"
SNAPSHOT_AT = 3

STAGED: dict[str, StagedJobs] = {
    "staged/2026-09-21T14/batch-1-00000000000000a1": StagedJobs(
        ["plain", "größe", "blob", "known"],
        ["send", "größe", "send", "send"],
        [b"waits", bytes(range(256)), b"", b"again"],
        [0, -3, 7, 0],
        [None, START_MS + 3_600_000, 5, None],
        [25, 3, None, 25],
        [None, "order-17", None, "order-18"],
        [None, {"trace": "00-ab", "Sprache": "Deutsch"}, None, None],
        ["acme", None, None, "acme"],
        [None, None, "blobs/2026-09-21T14/blob-00000000000000b1", None],
        [0, 0, 300_000, 0],
    ),
    "staged/2026-09-21T14/batch-1-00000000000000a2": StagedJobs(
        ["a", "b"], "send", b"same", 2, None, 4, None, {"x": "y"}
    ),
    "staged/2026-09-21T14/batch-2-00000000000000a3": StagedJobs(["c"], "send", [b"last"]),
}
BODIES = {key: encode_staged(jobs) for key, jobs in STAGED.items()}


def part(key: str) -> StagedPart:
    return staged_part(key, STAGED[key], BODIES[key])


ONE, TWO, THREE = map(part, STAGED)
HISTORY: list[tuple[str, int, list[Event]]] = [
    (DRIVER, 1, [Admitted("nightly", 41, (ONE, TWO), 5, 1, ((3, 1),))]),
    (WORKER, 1, [Claimed("a", 1, 60_000, "w-1")]),
    (WORKER, 2, [Acked("a", 1, b"fine")]),
    (DRIVER, 2, [Claimed("b", 2, 60_000), Admitted("nightly", 42, (THREE,), 1, 6), Claimed("c", 3, 60_000)]),
    (DRIVER, 3, [Admitted("empty", 0, (THREE,), 0, 7, ((0, 1),))]),
]


def whole(segment: Segment, body: bytes, read: Any = BODIES.__getitem__) -> Segment:
    return expanded(segment, {one.key: decode_staged(one, read(one.key)) for one in named_parts(body)})


def objects() -> dict[str, bytes]:
    """Every object of the queue by its key."""
    made: dict[str, bytes] = dict(BODIES)
    state, tip = State(Limits()), Tip()
    ref: SnapshotRef | None = None
    for position, (writer, batch, events) in enumerate(HISTORY, 1):
        body = encode_segment(
            queue_id=QUEUE_ID,
            position=position,
            epoch=0,
            writer=writer,
            batch=batch,
            prev=tip.chain,
            at_ms=START_MS + position * 1000,
            events=events,
        )
        made[segment_key(position)] = body
        segment = whole(decode_segment(body, queue_id=QUEUE_ID, position=position, prev=tip.chain), body)
        replay(state, segment)
        tip.advance(segment, digest(body))
        if position == SNAPSHOT_AT:
            key, view = snapshot_key(position, "c0ffee00c0ffee00"), View.of(state, tip)
            made[key] = encode_snapshot(QUEUE_ID, view, list(encode_jobs(view.records)))
            ref = SnapshotRef(position, key, digest(made[key]), len(made[key]), START_MS + position * 1000 + 7)
    head = LogHead(format=1, queue_id=QUEUE_ID, mode=Mode.OPEN, version=2, writer=DRIVER, snapshot=ref)
    made["queue.json"] = encode_head(head)
    made["document.json"] = document(state)
    return made


def document(state: State) -> bytes:
    """The same queue in the other layout."""
    codec = DocumentCodec("queue.json", QUEUE_ID)
    codec.touch(job.id for job in state.listed())
    return codec.encode(state, version=state.position, writers=state.writers, archived=state.position)


def plain(state: State) -> dict[str, Any]:
    """A state as JSON tells it."""
    parts: dict[str, Any] = msgspec.to_builtins(
        {
            "position": state.position,
            "jobs": list(state.listed()),
            "counters": state.counters,
            "writers": state.writers,
            "admissions": state.admissions,
        }
    )
    return parts


def final_state() -> State:
    state, chain, made = State(Limits()), "", objects()
    for position in range(1, len(HISTORY) + 1):
        body = made[segment_key(position)]
        replay(state, whole(decode_segment(body, queue_id=QUEUE_ID, position=position, prev=chain), body))
        chain = digest(body)
    return state


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    for key, body in objects().items():
        path = directory / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    (directory / "expected.state").write_text(json.dumps(plain(final_state()), indent=1) + "\n")
