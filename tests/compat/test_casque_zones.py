"""Events about zones, their rules, their leases and jobs of FIFO zones: read and written as they were."""

from __future__ import annotations

import msgspec
import pytest

from casque.codec.document import DocumentCodec
from casque.codec.log import SnapshotRef, Tip, View, digest
from casque.codec.snapshot import decode_snapshot, encode_jobs, encode_snapshot
from casque.state import (
    Added,
    Event,
    Limits,
    State,
    ZoneBeaten,
    Zoned,
    ZoneExpired,
    ZoneLeased,
    ZoneReleased,
)
from casque.types import JobRecord, JobSpec, JobState, ZoneLease, ZoneRules

SPEC = JobSpec("j", "mail", b"hello", zone="acme", fifo=True)
EVENTS: dict[bytes, Event] = {
    b'["zoned","acme",{"weight":2.5,"running_max":3,"per_second":10.0,"paused":true}]': Zoned(
        "acme", ZoneRules(2.5, 3, 10.0, True)
    ),
    b'["zoned","acme",{}]': Zoned("acme", ZoneRules()),
    b'["zone_leased","acme",7,10000,"w1"]': ZoneLeased("acme", 7, 10_000, "w1"),
    b'["zone_leased","acme",7,10000,null]': ZoneLeased("acme", 7, 10_000),
    b'["zone_beaten","acme",7]': ZoneBeaten("acme", 7),
    b'["zone_released","acme",7]': ZoneReleased("acme", 7),
    b'["zone_expired","acme",7]': ZoneExpired("acme", 7),
    b'["added",{"id":"j","entrypoint":"mail","payload":"aGVsbG8=","zone":"acme","fifo":true},1,1771149600000,false]': (
        Added(SPEC, 1, 1771149600000)
    ),
}
JOB = JobRecord(SPEC, 1, 1_771_149_600_000, JobState.READY, 1_771_149_600_000)
LINE = (
    b'{"id":"j","entrypoint":"mail","payload":"aGVsbG8=","status":"queued","priority":0,'
    b'"created_at":"2026-02-15T10:00:00Z","heartbeat_at":null,"sequence":1,"zone":"acme","fifo":true}'
)
ZONES = b'"zones": {"acme":{"weight":2.0,"running_max":5}},\n'

LEASE = ZoneLease("acme", 7, 10_000, "w1", 1_771_149_600_000, 1_771_149_603_000)
LEASES = (
    b'"zone_leases": [{"zone":"acme","token":7,"lease_ms":10000,"worker":"w1","leased_ms":1771149600000,'
    b'"beat_ms":1771149603000}],\n'
)


def zoned() -> State:
    state = State()
    state.counters.enqueued = state.counters.sequence = 1
    state.restore([JOB], state.counters, 3)
    state.facets.rules.restore(state, {"acme": ZoneRules(2.0, 5)})
    state.facets.zone_leases.restore(state, [LEASE])
    return state


@pytest.mark.parametrize("stored", EVENTS)
def test_an_event_is_read_and_written_as_it_was(stored: bytes) -> None:
    assert msgspec.json.decode(stored, type=Event) == EVENTS[stored]
    assert msgspec.json.encode(EVENTS[stored]) == stored


def test_a_document_keeps_rules_and_order() -> None:
    codec = DocumentCodec("queue.json", "q")
    codec.touch(["j"])
    body = codec.encode(zoned(), version=3, writers={})

    assert ZONES in body
    assert LEASES in body
    assert LINE in body
    again = DocumentCodec("queue.json", "q").decode(body, Limits())
    assert (again.rules, again.jobs, again.is_fifo("acme")) == (zoned().rules, {"j": JOB}, True)
    assert again.zone_leases == {"acme": LEASE}


def test_a_snapshot_keeps_rules_and_order() -> None:
    body = encode_snapshot("q", View.of(zoned(), Tip()), list(encode_jobs([JOB])))

    assert ZONES in body
    assert LEASES in body
    assert LINE in body
    ref = SnapshotRef(3, "snapshots/3", digest(body), len(body))
    again, _ = decode_snapshot(ref, body, queue_id="q", limits=Limits())
    assert (again.rules, again.jobs, again.is_fifo("acme")) == (zoned().rules, {"j": JOB}, True)
    assert again.zone_leases == {"acme": LEASE}


def test_a_queue_without_rules_and_leases_says_nothing_about_them() -> None:
    state = zoned()
    state.facets.rules.restore(state, {})
    state.facets.zone_leases.restore(state, [])
    assert b"zone_leases" not in DocumentCodec("queue.json", "q").encode(state, version=3, writers={})
    assert b"zone_leases" not in encode_snapshot("q", View.of(state, Tip()), [])
    assert b'"zones"' not in DocumentCodec("queue.json", "q").encode(state, version=3, writers={})
    assert b'"zones"' not in encode_snapshot("q", View.of(state, Tip()), [])
