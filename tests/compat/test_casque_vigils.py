"""What short-lived processes record of leases, and jobs that were not understood: read and written as it was."""

from __future__ import annotations

import msgspec
import pytest

from casque.codec.document import DocumentCodec
from casque.codec.log import SnapshotRef, Tip, View, digest
from casque.codec.snapshot import decode_snapshot, encode_jobs, encode_snapshot
from casque.state import Declined, Event, Limits, State, Watched
from casque.types import JobRecord, JobSpec, JobState, Vigil, ZoneLease

EVENTS: dict[bytes, Event] = {
    b'["watched","j",7,1500,6000,false]': Watched("j", 7, 1_500, 6_000),
    b'["watched","acme",8,0,2500,true]': Watched("acme", 8, 0, 2_500, True),
    b'["declined","j",7,1771149600000,"no such argument"]': Declined("j", 7, 1771149600000, "no such argument"),
}
BEAT_MS = 1_771_149_600_000
JOB = JobRecord(JobSpec("j", "mail", b""), 1, BEAT_MS, JobState.RUNNING, BEAT_MS, 7, 1, "w", 60_000, BEAT_MS, BEAT_MS)
LEASE = ZoneLease("acme", 8, 10_000, "w1", BEAT_MS, BEAT_MS)
VIGILS = (
    b'"vigils": [["j",7,1771149600000,2,1500,6000,1771149660000,false],'
    b'["acme",8,1771149600000,1,0,2500,1771149660000,true]],\n'
)


def watched() -> State:
    state = State()
    state.counters.enqueued = state.counters.sequence = 1
    state.counters.tokens = 8
    state.restore([JOB], state.counters, 3)
    state.facets.zone_leases.restore(state, [LEASE])
    seen = [
        Vigil("j", 7, BEAT_MS, 2, 1_500, 6_000, BEAT_MS + 60_000),
        Vigil("acme", 8, BEAT_MS, 1, 0, 2_500, BEAT_MS + 60_000, True),
        Vigil("gone", 5, BEAT_MS, 1, 0, 2_500, BEAT_MS),
    ]
    state.facets.vigils.restore(state, seen)
    return state


@pytest.mark.parametrize("stored", EVENTS)
def test_an_event_is_read_and_written_as_it_was(stored: bytes) -> None:
    assert msgspec.json.decode(stored, type=Event) == EVENTS[stored]
    assert msgspec.json.encode(EVENTS[stored]) == stored


def test_a_document_keeps_what_was_seen_of_leases_that_are_still_there() -> None:
    codec = DocumentCodec("queue.json", "q")
    codec.touch(["j"])
    body = codec.encode(watched(), version=3, writers={})
    assert VIGILS in body
    assert DocumentCodec("queue.json", "q").decode(body, Limits()).watched() == watched().watched()


def test_a_snapshot_keeps_it_too() -> None:
    view = View.of(watched(), Tip())
    body = encode_snapshot("q", view, list(encode_jobs(view.records)))
    assert VIGILS in body
    ref = SnapshotRef(3, "snapshots/3", digest(body), len(body))
    state, _ = decode_snapshot(ref, body, queue_id="q", limits=Limits(), read=lambda _key: b"")
    assert state.watched() == watched().watched()


def test_a_queue_without_visits_is_written_as_before() -> None:
    state = watched()
    state.facets.vigils.restore(state, [])
    assert b"vigils" not in DocumentCodec("queue.json", "q").encode(state, version=3, writers={})
    assert b"vigils" not in encode_snapshot("q", View.of(state, Tip()), [])
