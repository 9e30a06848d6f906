"""Events about gates, crashes, snoozes and withdrawals, and what is stored of them: read and written as they were."""

from __future__ import annotations

import msgspec
import pytest

from casque.codec.document import DocumentCodec
from casque.codec.log import SnapshotRef, Tip, View, digest
from casque.codec.snapshot import decode_snapshot, encode_jobs, encode_snapshot
from casque.state import Crashed, Event, Gated, Limits, Quarantined, Snoozed, State, Withdrawn
from casque.state.events import Rescheduled
from casque.types import ALL_OPEN, Attempt, Ending, Gate, Gates, JobRecord, JobSpec, JobState

EVENTS: dict[bytes, Event] = {
    b'["snoozed","j",7,1771149600000,true]': Snoozed("j", 7, 1771149600000, True),
    b'["crashed","j",7,1771149600000,false,"killed by signal 9"]': Crashed(
        "j", 7, 1771149600000, False, "killed by signal 9"
    ),
    b'["quarantined","j",7,"quarantined: its worker died once"]': Quarantined(
        "j", 7, "quarantined: its worker died once"
    ),
    b'["withdrawn","j",7,null]': Withdrawn("j", 7),
    b'["rescheduled","j",1771149600000,true,1771149600000,-5]': Rescheduled(
        "j", 1771149600000, True, 1771149600000, -5
    ),
    b'["gated","paused",null]': Gated(Gate.PAUSED),
    b'["gated","draining","mail"]': Gated(Gate.DRAINING, "mail"),
    b'["gated","open","mail"]': Gated(Gate.OPEN, "mail"),
}
JOB = JobRecord(
    JobSpec("j", "mail", b"hello", max_crashes=5),
    1,
    1_771_149_600_000,
    JobState.READY,
    1_771_149_600_001,
    7,
    tries=(Attempt(1_771_149_600_000, 1_771_149_600_001, Ending.CRASHED, "w", 7, "exit code 3"),),
    crashes=1,
)
LINE = (
    b'{"id":"j","entrypoint":"mail","payload":"aGVsbG8=","status":"queued","priority":0,'
    b'"created_at":"2026-02-15T10:00:00Z","heartbeat_at":null,"sequence":1,"due_ms":1771149600001,"token":7,'
    b'"tries":[[1771149600000,1771149600001,"crashed","w",7,"exit code 3"]],"crashes":1,"max_crashes":5}'
)
GATES = b'"gates": {"queue":"paused","entrypoints":{"mail":"draining"}},\n'


def gated() -> State:
    state = State()
    state.counters.enqueued = state.counters.sequence = 1
    state.counters.tokens = 7
    state.restore([JOB], state.counters, 3)
    state.facets.gates.restore(state, Gates(Gate.PAUSED, {"mail": Gate.DRAINING}))
    return state


@pytest.mark.parametrize("stored", EVENTS)
def test_an_event_is_read_and_written_as_it_was(stored: bytes) -> None:
    assert msgspec.json.decode(stored, type=Event) == EVENTS[stored]
    assert msgspec.json.encode(EVENTS[stored]) == stored


def test_a_document_keeps_gates_and_crashes() -> None:
    codec = DocumentCodec("queue.json", "q")
    codec.touch(["j"])
    body = codec.encode(gated(), version=3, writers={})

    assert GATES in body
    assert LINE in body
    again = DocumentCodec("queue.json", "q").decode(body, Limits())
    assert (again.gates, again.jobs) == (gated().gates, {"j": JOB})


def test_a_snapshot_keeps_gates_and_crashes() -> None:
    body = encode_snapshot("q", View.of(gated(), Tip()), list(encode_jobs([JOB])))

    assert GATES in body
    assert LINE in body
    ref = SnapshotRef(3, "snapshots/3", digest(body), len(body))
    again, _ = decode_snapshot(ref, body, queue_id="q", limits=Limits())
    assert (again.gates, again.jobs) == (gated().gates, {"j": JOB})


def test_a_queue_whose_gates_are_open_says_nothing_about_them() -> None:
    state = gated()
    state.facets.gates.restore(state, ALL_OPEN)
    body = DocumentCodec("queue.json", "q").encode(state, version=3, writers={})
    assert b"gates" not in body
    assert b"gates" not in encode_snapshot("q", View.of(state, Tip()), [])
