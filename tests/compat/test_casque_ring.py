"""What a ring writes: its root, the event and the snapshot of a shard; and where zones are. It stays as it is."""

from __future__ import annotations

import msgspec
import pytest

from casque.codec.log import SnapshotRef, Tip, View, digest
from casque.codec.ring import RingHead, decode_ring, encode_ring, shard_prefix
from casque.codec.snapshot import decode_snapshot, encode_snapshot
from casque.ring.admissions import Batch, Share
from casque.ring.numbers import inner, outer
from casque.state import Event, Limits, Ringed, RingView, State
from casque.state.ring import home
from casque.types import StagedPart

ROOT = b"""{
  "format": 1,
  "queue_id": "q",
  "layout": "ring",
  "version": 3,
  "writer": "w",
  "generation": 2,
  "sizes": [
    4,
    16
  ],
  "shards": 16,
  "resized_at": 1771149600000,
  "jobs": "in shards/"
}
"""
HEAD = RingHead(
    format=1,
    queue_id="q",
    version=3,
    writer="w",
    generation=2,
    sizes=(4, 16),
    shards=16,
    resized_at=1_771_149_600_000,
)


def test_the_root_is_read_and_written_as_it_was() -> None:
    assert decode_ring(ROOT) == HEAD
    assert encode_ring(HEAD) == ROOT


def test_an_event_is_read_and_written_as_it_was() -> None:
    assert msgspec.json.decode(b'["ringed",2,16,7]', type=Event) == Ringed(2, 16, 7)
    assert msgspec.json.encode(Ringed(2, 16, 7)) == b'["ringed",2,16,7]'


def test_a_snapshot_keeps_the_ring() -> None:
    state = State()
    state.facets.shard.restore(state, RingView(2, 16, 7))
    body = encode_snapshot("q", View.of(state, Tip()), [])
    assert b'"ring": [2,16,7],\n' in body
    again, _ = decode_snapshot(SnapshotRef(0, "s", digest(body), len(body)), body, queue_id="q", limits=Limits())
    assert again.ring == state.ring


@pytest.mark.parametrize(
    ("zone", "homes"),
    [("acme", (1, 1, 1, 641)), ("", (4, 52, 52, 692)), ("grüße/任务", (7, 7, 71, 583))],
)
def test_a_zone_is_where_it_was(zone: str, homes: tuple[int, ...]) -> None:
    assert tuple(home(zone, size) for size in (16, 64, 128, 4096)) == homes


def test_numbers_and_names_are_as_they_were() -> None:
    assert (outer(5, 3), inner(20_483), shard_prefix(7), shard_prefix(4095)) == (
        20_483,
        (5, 3),
        "shards/0007",
        "shards/4095",
    )


BEGUN = b"""{
 "source": "nightly",
 "batch": 7,
 "writer": "w",
 "done": false,
 "parts": [["staged/2026-02-15T10/t-0123456789abcdef", "ab", 3, 120]],
 "assigned": "admissions/x/7-0123456789abcdef",
 "shares": [{"number": 1, "shard": 1, "generation": 2}, {"number": 4096, "shard": 5, "generation": 3}],
 "jobs": 0,
 "skipped": 1
}
"""


def test_a_batch_that_was_begun_is_read_as_it_was() -> None:
    part = StagedPart("staged/2026-02-15T10/t-0123456789abcdef", "ab", 3, 120)
    shares = (Share(1, 1, 2), Share(4096, 5, 3))
    batch = msgspec.json.decode(BEGUN, type=Batch)
    assert batch == Batch(
        "nightly", 7, "w", parts=(part,), assigned="admissions/x/7-0123456789abcdef", shares=shares, skipped=1
    )
    assert [batch.name(share) for share in shares] == ["nightly#1", "nightly#4096"]
    assert msgspec.json.decode(msgspec.json.encode(batch), type=Batch) == batch
